"""Whole transformers in one line, finite and infinite."""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypedDict, Unpack

from ..errors import WidelimitError
from ..options import choice, known_options
from .activations import Activation, Gelu
from .attention.cross import AttentionPool
from .attention.heads import INFINITE
from .attention.layer import Attention
from .attention.projections import Projections
from .attention.scores import Pattern, Scaling, ScoreMap
from .base import Layer
from .branches import Residual
from .compose import Repeat, Serial
from .conv import Conv
from .dense import Dense, Embedding
from .gates import Product
from .norm import LayerNorm
from .pool import MeanPool, Select


class Norm(Enum):
    """Where layer normalisation stands in a block."""

    PRE = "pre"
    """`x + g(norm(x))`"""
    POST = "post"
    """`norm(x + g(x))`"""
    NONE = "none"
    """Nowhere."""


class Pooling(Enum):
    """How an encoder's positions become one vector."""

    MEAN = "mean"
    """Their average."""
    ATTENTION = "attention"
    """What a learned query attends to."""
    FIRST = "first"
    """The first of them."""
    NONE = "none"
    """They stay."""


class AttentionOptions(TypedDict, total=False):
    """Options of the attention layers that blocks make; what they mean, `Attention` says."""

    scaling: Scaling | str
    score_map: ScoreMap | None
    qk_std: Any
    ov_std: Any
    positions: Any
    pattern: Pattern | None
    projections: Projections | None
    key_width: int | None
    value_width: int | None
    kv_heads: int | None
    dropout: float


class BlockOptions(AttentionOptions, total=False):
    """Options of the blocks that encoders repeat; what they mean, `TransformerBlock` says."""

    heads: float
    attention: Attention | None
    residual: Any
    hidden: int | None
    activation: Activation | Callable[[], Activation]
    gated: bool


def Mlp(
    width: int,
    *,
    hidden: int | None = None,
    activation: Activation | Callable[[], Activation] = Gelu,
    gated: bool = False,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
) -> Serial:
    """Two dense layers with an activation between; `gated` multiplies it by a linear branch.

    `W₂ φ(W₁ x)`, or `W₂ (φ(W₁ x) * W₃ x)` as in SwiGLU and its relatives.
    """
    hidden = 4 * width if hidden is None else hidden
    phi = activation if isinstance(activation, Activation) else activation()
    up: Layer = Serial(Dense(hidden, w_std=w_std, b_std=b_std), phi)
    if gated:
        up = Product(up, Dense(hidden, w_std=w_std, b_std=b_std))
    return Serial(up, Dense(width, w_std=w_std, b_std=b_std))


@known_options
def TransformerBlock(
    width: int,
    *,
    heads: float = INFINITE,
    attention: Attention | None = None,
    norm: Norm | str = Norm.PRE,
    residual: Any = None,
    hidden: int | None = None,
    activation: Activation | Callable[[], Activation] = Gelu,
    gated: bool = False,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
    **attention_options: Unpack[AttentionOptions],
) -> Serial:
    """Attention, then an MLP, each around a residual connection.

    `residual`: None for `x + g(x)`, α for `√α x + √(1−α) g(x)`. The attention layer is given whole,
    or made from `heads` and options such as `scaling`, `score_map`, `positions`, `pattern`.
    """
    norm = choice(Norm, norm, "norm")
    if attention is None:
        attention = Attention(width, heads=heads, **attention_options)
    elif attention_options:
        raise WidelimitError(
            "A block takes an attention layer, or the options to make one.",
            got=f"attention= and {sorted(attention_options)}",
            remedy="put the options into the Attention layer",
        )
    mlp = Mlp(width, hidden=hidden, activation=activation, gated=gated, w_std=w_std, b_std=b_std)
    layers: list[Layer] = []
    for branch in (attention, mlp):
        if norm is Norm.PRE:
            layers.append(Residual(Serial(LayerNorm(), branch), residual))
        else:
            layers.append(Residual(branch, residual))
            if norm is Norm.POST:
                layers.append(LayerNorm())
    return Serial(*layers)


@known_options
def TransformerEncoder(
    width: int,
    *,
    depth: int,
    norm: Norm | str = Norm.PRE,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
    **options: Unpack[BlockOptions],
) -> Serial:
    """`depth` blocks, each with its own weights; a last normalisation after pre-norm blocks."""
    norm = choice(Norm, norm, "norm")
    block = TransformerBlock(width, norm=norm, w_std=w_std, b_std=b_std, **options)
    blocks = Repeat(block, depth)
    last = (LayerNorm(),) if norm is Norm.PRE and depth else ()
    return Serial(*blocks.layers, *last)


@known_options
def VisionTransformer(
    *,
    patch: int,
    width: int,
    depth: int,
    outputs: int,
    norm: Norm | str = Norm.PRE,
    pooling: Pooling | str = Pooling.MEAN,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
    **options: Unpack[BlockOptions],
) -> Serial:
    """Images (height, width, channels) cut into patches, an encoder over them, a read-out.

    Give `positions=Decay(…)` to tell patches apart by their place on the grid.
    """
    cut = Conv(width, patch, stride=patch, padding="valid", w_std=w_std, b_std=b_std)
    encoder = TransformerEncoder(width, depth=depth, norm=norm, w_std=w_std, b_std=b_std, **options)
    return Serial(cut, *encoder.layers, *_readout(pooling, width, outputs, 2, options))


@known_options
def TextEncoder(
    *,
    width: int,
    depth: int,
    outputs: int,
    vocabulary: int | None = None,
    norm: Norm | str = Norm.PRE,
    pooling: Pooling | str = Pooling.MEAN,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
    **options: Unpack[BlockOptions],
) -> Serial:
    """Word vectors (positions, channels), or token ids if `vocabulary` is given; an encoder."""
    first: Layer = Dense(width, w_std=w_std, b_std=b_std)
    if vocabulary is not None:
        first = Embedding(width, vocabulary=vocabulary)
    encoder = TransformerEncoder(width, depth=depth, norm=norm, w_std=w_std, b_std=b_std, **options)
    return Serial(first, *encoder.layers, *_readout(pooling, width, outputs, 1, options))


def _readout(
    pooling: Pooling | str, width: int, outputs: int, rank: int, options: BlockOptions
) -> tuple[Layer, ...]:
    pools: dict[Pooling, tuple[Layer, ...]] = {
        Pooling.MEAN: (MeanPool(),),
        Pooling.ATTENTION: (AttentionPool(width, heads=options.get("heads", INFINITE)),),
        Pooling.FIRST: (Select((0,) * rank),),
        Pooling.NONE: (),
    }
    return (*pools[choice(Pooling, pooling, "pooling")], Dense(outputs))
