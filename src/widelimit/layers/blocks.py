"""Whole transformers in one line, finite and infinite."""

from collections.abc import Callable
from enum import Enum
from typing import Any, TypedDict, Unpack

from ..errors import WidelimitError
from ..options import choice, spell_options
from .activations import Activation, Gelu
from .attention.heads import INFINITE
from .attention.layer import Attention, AttentionPool
from .attention.placement import Projections
from .attention.scores import Pattern, Scaling, ScoreMap
from .base import Layer
from .branches import Product, Residual
from .compose import Repeat, Serial
from .conv import Conv
from .dense import Dense, Embedding
from .norm import LayerNorm
from .pool import MeanPool, Select


class Norm(Enum):
    """Where layer normalisation stands in a transformer block."""

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
    """Options that blocks pass on to their attention layers; `Attention` explains them."""

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
    """Options that encoders pass on to their blocks; `TransformerBlock` explains them."""

    heads: float
    attention: Attention | None
    norm: Norm | str
    residual: Any
    hidden: int | None
    activation: Activation | Callable[[], Activation]
    gated: bool
    w_std: Any
    b_std: Any


def Mlp(
    width: int,
    *,
    hidden: int | None = None,
    activation: Activation | Callable[[], Activation] = Gelu,
    gated: bool = False,
    w_std: Any = 1.0,
    b_std: Any = 0.0,
) -> Serial:
    """Two dense layers with an activation φ between them: `W₂ φ(W₁ x)`.

    `hidden` is the width between (by default 4·width). With `gated`, `W₂ (φ(W₁ x) * W₃ x)`, as in
    SwiGLU. `w_std` and `b_std` are those of all dense layers.
    """
    hidden = 4 * width if hidden is None else hidden
    phi = activation if isinstance(activation, Activation) else activation()
    up: tuple[Layer, ...] = (Dense(hidden, w_std=w_std, b_std=b_std), phi)
    if gated:
        up = (Product(Serial(*up), Dense(hidden, w_std=w_std, b_std=b_std)),)
    return Serial(*up, Dense(width, w_std=w_std, b_std=b_std))


@spell_options(Attention)
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
    """Attention, then an MLP, each as the branch g of a residual connection.

    `residual`: None for `x + g(x)`, α for `√α x + √(1−α) g(x)`. `norm` says where layer
    normalisation stands. Pass a whole `attention` layer, or `heads` and the other options of
    `Attention` to make one. `hidden`, `activation`, `gated`, `w_std` and `b_std` are those of the
    `Mlp`.
    """
    norm = choice(Norm, norm, "norm")
    if attention is None:
        attention = Attention(width, heads=heads, **attention_options)
    elif attention_options:
        raise WidelimitError(
            "A block got both an attention layer and the options to make one.",
            got=f"attention= and {sorted(attention_options)}",
            remedy="put the options into the Attention layer",
        )
    mlp = Mlp(width, hidden=hidden, activation=activation, gated=gated, w_std=w_std, b_std=b_std)
    layers: list[Layer] = []
    for branch, parts in ((attention, (attention,)), (mlp, mlp.layers)):
        normalised = Serial(LayerNorm(), *parts) if norm is Norm.PRE else branch
        layers.append(Residual(normalised, residual))
        if norm is Norm.POST:
            layers.append(LayerNorm())
    return Serial(*layers)


@spell_options(TransformerBlock)
def TransformerEncoder(width: int, *, depth: int, **options: Unpack[BlockOptions]) -> Serial:
    """`depth` blocks, each with its own weights; with `norm="pre"`, a LayerNorm after the last.

    Keeps positions. The other options are those of `TransformerBlock`.
    """
    blocks = Repeat(TransformerBlock(width, **options), depth)
    normalised = choice(Norm, options.get("norm", Norm.PRE), "norm") is Norm.PRE and depth
    return Serial(*blocks.layers, *((LayerNorm(),) if normalised else ()))


@spell_options(TransformerBlock)
def VisionTransformer(
    *,
    patch: int,
    width: int,
    depth: int,
    outputs: int,
    pooling: Pooling | str = Pooling.MEAN,
    **options: Unpack[BlockOptions],
) -> Serial:
    """Images (height, width, channels), cut into patches, through an encoder, to `outputs` numbers.

    Patches have `patch`×`patch` pixels; `pooling` turns their positions into one vector. Patches
    are told apart by their place only with `positions=`, such as `Decay(0.5)`. The other options
    are those of `TransformerBlock`.
    """
    cut = Conv(width, patch, stride=patch, padding="valid", **_deviations(options))
    encoder = TransformerEncoder(width, depth=depth, **options)
    return Serial(cut, *encoder.layers, *_readout(pooling, width, outputs, 2, options))


@spell_options(TransformerBlock)
def TextEncoder(
    *,
    width: int,
    depth: int,
    outputs: int,
    vocabulary: int | None = None,
    pooling: Pooling | str = Pooling.MEAN,
    **options: Unpack[BlockOptions],
) -> Serial:
    """Texts through an encoder, to `outputs` numbers.

    Inputs are word vectors (positions, channels) or, if a `vocabulary` size is given, token ids
    (positions). `pooling` turns positions into one vector. Order is seen only with `positions=`,
    such as `Decay(0.5)`, or a causal `pattern`. The other options are those of `TransformerBlock`.
    """
    first: Layer = Dense(width, **_deviations(options))
    if vocabulary is not None:
        first = Embedding(width, vocabulary=vocabulary)
    encoder = TransformerEncoder(width, depth=depth, **options)
    return Serial(first, *encoder.layers, *_readout(pooling, width, outputs, 1, options))


def _deviations(options: BlockOptions) -> dict[str, Any]:
    """Those of all dense layers, for the first one too."""
    return {"w_std": options.get("w_std", 1.0), "b_std": options.get("b_std", 0.0)}


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
