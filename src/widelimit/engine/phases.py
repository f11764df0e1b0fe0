"""The engine's two phases, for one example, one pair, a block and a tile.

A kernel call has two phases. *Encode* runs once per example, `O(N)`: it walks the network with the
example's own covariance and keeps what pairs will need (variances, attention weights). *Cross* runs
per pair, `O(N²)`: it walks the network again with κ(x, x') and Θ(x, x') of a tile of pairs. Every
layer is written for one example or one pair; vectorisation happens here, tiling in `tiles`.
"""

import contextlib
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..compilation import compiled
from ..errors import NetworkError
from ..layers.attention.heads import INFINITE, Scheme, ScoreField, draw_field
from ..layers.base import Layer, Memo
from ..layers.compose import Path, Serial, layers_of
from ..state import Example, Need, Pair, require_equal_positions
from .walk import Maker, cross, draw, encode, need_before


class EncodedBlock(eqx.Module):
    """What pairs need from a block of examples: the inputs themselves, then every layer's memo."""

    x: Any  # an array, or a tuple of arrays for several streams
    mask: Any
    memos: Memo

    def stream(self, index: int) -> "EncodedBlock":
        """One stream of inputs that have several."""
        mask = None if self.mask is None else self.mask[index]
        return EncodedBlock(self.x[index], mask, None)


def start(x: Any, mask: Any, outline: Any, need: Need, anchors: EncodedBlock | None = None) -> Any:
    """An example before the first layer; a tuple of them for several streams."""
    if isinstance(outline, tuple):
        masks = (None,) * len(outline) if mask is None else mask
        return tuple(
            start(x[i], masks[i], part, need, None if anchors is None else anchors.stream(i))
            for i, part in enumerate(outline)
        )
    tokens = outline.channels == 0
    dtype = kernel_dtype(x)
    own = EncodedBlock(x, mask, None)
    pair = start_pair(own, own, outline, need, dtype, with_ntk=False)
    mean = None if tokens else jnp.mean(x, axis=-1)
    features = None if tokens else x / jnp.sqrt(jnp.asarray(x.shape[-1], dtype))
    nngp = None if need is Need.NONE else pair.nngp
    landmarks = None
    if anchors is not None:
        marks = EncodedBlock(anchors.x, anchors.mask, None)
        landmarks = jax.vmap(
            lambda mark: start_pair(own, mark, outline, Need.FULL, dtype, with_ntk=False)
        )(marks)
    return Example(nngp, mean, mask, features, landmarks, pair.full, outline)


def start_pair(
    one: EncodedBlock, two: EncodedBlock, outline: Any, need: Need, dtype: Any, *, with_ntk: bool
) -> Any:
    """κ_ab = x_a·x'_b / channels (one-hot tokens: 1 where they agree), Θ = 0."""
    if isinstance(outline, tuple):
        return tuple(
            start_pair(one.stream(i), two.stream(i), part, need, dtype, with_ntk=with_ntk)
            for i, part in enumerate(outline)
        )
    x1, x2 = one.x, two.x
    rank, full = len(outline.positions), need is not Need.DIAGONAL
    if not full:
        require_equal_positions(x1.shape[:rank], x2.shape[:rank])
    if outline.channels == 0:
        a = x1.reshape(*x1.shape, *(1,) * rank) if full else x1
        b = x2.reshape(*(1,) * rank, *x2.shape) if full else x2
        nngp = (a == b).astype(dtype)
    elif full:
        flat1, flat2 = x1.reshape(-1, x1.shape[-1]), x2.reshape(-1, x2.shape[-1])
        nngp = (flat1 @ flat2.T).reshape(*x1.shape[:-1], *x2.shape[:-1]) / outline.channels
    else:
        nngp = jnp.sum(x1 * x2, axis=-1) / outline.channels
    pair = Pair(nngp, None, rank, full)
    if outline.channels == 0:
        pair = pair.hide_padding(one.mask, two.mask)  # padding holds token 0, a real token too
    # A matrix product stands in memory, whoever reads it.
    settled = full and outline.channels > 0
    if not with_ntk:
        return Pair(pair.nngp, None, rank, full, settled=settled)
    return Pair(pair.nngp, jnp.zeros_like(nngp), rank, full, settled=settled, blank=True)


def kernel_dtype(x: Any) -> Any:
    """The dtype of kernels of these inputs."""
    first = jax.tree.leaves(x)[0]
    floating = jnp.issubdtype(first.dtype, jnp.floating)
    return first.dtype if floating else jnp.result_type(float)


# --- one example, one pair -----------------------------------------------------------------------


class Realisation(eqx.Module):
    """A network ready for kernels, with the scores that were drawn for it.

    `anchors` are the encoded landmark inputs from which drawn scores get their features.
    """

    net: Layer
    scores: dict[Path, Any] = eqx.field(default_factory=dict)
    anchors: EncodedBlock | None = None

    @property
    def for_pairs(self) -> "Realisation":
        """Without the landmark inputs, which only the encode phase takes."""
        return Realisation(self.net, self.scores)


def encode_one(real: Realisation, x: Any, mask: Any, outline: Any) -> Memo:
    """All memos of one example."""
    net, anchors = real.net, real.anchors
    example = start(x, mask, outline, need_before(net, Need.NONE, encoding=True), anchors)
    return encode(net, example, Need.NONE, None if anchors is None else anchors.memos, real.scores)


def cross_one(
    real: Realisation, one: EncodedBlock, two: EncodedBlock, outline: Any, *, with_ntk: bool
) -> tuple[Array, Array | None]:
    """κ and Θ of one pair at the network's output."""
    need, dtype = need_before(real.net, Need.FULL), kernel_dtype(one.x)
    pair = start_pair(one, two, outline, need, dtype, with_ntk=with_ntk)
    pair = cross(real.net, pair, one.memos, two.memos, real.scores).compute()
    return pair.nngp, pair.ntk


# --- blocks and tiles ---------------------------------------------------------------------------


@compiled
def encode_block(real: Realisation, x: Any, mask: Any, outline: Any) -> EncodedBlock:
    """Encode a block of examples."""
    memos = jax.vmap(lambda a, m: encode_one(real, a, m, outline))(x, mask)
    return EncodedBlock(x, mask, memos)


@compiled
def draw_block(
    net: Layer,
    x: Any,
    mask: Any,
    outline: Any,
    key: Key[Array, ""],
    scheme: Scheme,
    chosen: dict[Path, ScoreField] | None = None,
    *,
    with_landmarks: bool,
) -> Realisation:
    """Draw random scores; with landmarks, `x` are the landmark inputs."""
    anchors = EncodedBlock(x, mask, None) if with_landmarks else None
    # Variances are followed to the end: stacked examples hold some array everywhere.
    need = need_before(net, Need.DIAGONAL, encoding=True)
    examples = jax.vmap(lambda a, m: start(a, m, outline, need, anchors))(x, mask)
    drawn = draw(net, examples, Need.DIAGONAL, key, maker(scheme, chosen))
    anchors = EncodedBlock(x, mask, drawn.memos) if with_landmarks else None
    return Realisation(net, drawn.scores, anchors)


def cross_tile(
    real: Realisation,
    rows: EncodedBlock,
    columns: EncodedBlock,
    outline: Any,
    *,
    with_ntk: bool,
    at_once: int | None = None,
) -> tuple[Array, Array | None]:
    """All pairs of two blocks, `at_once` of them together, so that they stay in the cache."""

    def pair(one: EncodedBlock, two: EncodedBlock):
        return cross_one(real, one, two, outline, with_ntk=with_ntk)

    def row(one: EncodedBlock):
        return jax.vmap(lambda two: pair(one, two))(columns)

    height, width = (jax.tree.leaves(side.x)[0].shape[0] for side in (rows, columns))
    if at_once is None or height * width <= at_once:
        return jax.vmap(row)(rows)
    # Rows in equal parts: a remainder would be compiled again.
    most = max(1, min(at_once // width, height))
    part = next(part for part in range(most, 0, -1) if height % part == 0)
    return jax.lax.map(row, rows, batch_size=part if part > 1 else None)


compiled_cross_tile = compiled(cross_tile)


@compiled
def cross_list(
    real: Realisation, ones: EncodedBlock, twos: EncodedBlock, outline: Any, *, with_ntk: bool
) -> tuple[Array, Array | None]:
    """Pairs given one by one."""
    return jax.vmap(lambda a, b: cross_one(real, a, b, outline, with_ntk=with_ntk))(ones, twos)


def mirror(kernel: np.ndarray) -> np.ndarray:
    """Kernels (n, m, positions…, positions'…) of the same pairs the other way round."""
    half = (kernel.ndim - 2) // 2
    return np.transpose(kernel, (1, 0, *range(2 + half, kernel.ndim), *range(2, 2 + half)))


def symmetrise(kernel: np.ndarray) -> None:
    """Make a block of examples with itself exactly symmetric, whatever rounding says."""
    lower = np.tril_indices(len(kernel), -1)
    kernel[lower] = mirror(kernel)[lower]


def precision(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope in which arrays of this dtype keep it."""
    wide = np.dtype(dtype) == np.float64
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


# --- drawn scores ---------------------------------------------------------------------------------


def random_layers(net: Layer) -> dict[Path, Any]:
    """The layers whose scores are drawn, from the input on, and where they stand."""
    return {path: layer for path, layer in layers_of(net) if layer.facts.random_scores}


def finite_layers(net: Layer) -> dict[Path, Any]:
    """The layers whose scores stay random in the limit: finitely many heads at 1/√d."""
    return {path: layer for path, layer in random_layers(net).items() if layer.heads != INFINITE}


def maker(scheme: Scheme, chosen: Mapping[Path, ScoreField] | None = None) -> Maker:
    """How the scores of a layer are drawn for stacked examples before it.

    `chosen` are earlier fields whose pivots are kept: the same landmarks for every precision and
    every value of the hyperparameters, so that kernels depend smoothly on these.
    """

    def make(path: Path, layer: Any, examples: Any, key: Key[Array, ""]) -> ScoreField:
        sides = layer.score_sides(examples)
        counts = {"heads": layer.heads, "matrices": layer.matrices}
        earlier = None if chosen is None else chosen[path]
        return draw_field(key, *sides, **counts, scheme=scheme, chosen=earlier)

    return make


def refuse_finite_heads(net: Layer, what: str) -> None:
    """Raise if the network has finitely many heads at 1/√d; `what` needs a constant kernel.

    Training moves the scores, and with them the tangent kernel: by tens of per cent with one head
    at every width, by a per cent only at about a hundred heads.
    """
    found = finite_layers(net)
    if found:
        heads = ", ".join(f"{layer.heads:.0f}" for layer in found.values())
        raise NetworkError(
            f"{what} needs a tangent kernel that does not move. With finitely many heads at 1/√d "
            "it is random at initialisation and moves during training at every width (by tens of "
            "per cent with one head).",
            got=f"attention layers with {heads} heads",
            remedy="use heads=INFINITE (with_heads(net, INFINITE)) or scaling=Scaling.LINEAR; "
            "net.law(x).sample_ntk(...) draws the tangent kernel at initialisation",
        )


def refuse_factorised_ntk(net: Layer) -> None:
    """Raise if score gradients of finitely many heads meet a nonlinearity.

    Below linear layers the mean tangent kernel is the average over heads. Under a nonlinearity φ
    the gradient through the scores is correlated with the output it multiplies,
    `E[φ'(y_a)φ'(y'_b) (uTu'ᵀ)_ab] ≠ E[φ'(y_a)φ'(y'_b)] E[(uTu'ᵀ)_ab]`, and layer-by-layer
    kernels, which multiply the averages, would be wrong.
    """
    _gradients_leave(net, seen=False)


def _gradients_leave(layer: Layer, *, seen: bool) -> bool:
    """Whether score gradients leave this layer; raises where they meet a nonlinearity."""
    if isinstance(layer, Serial):
        for part in layer.parts:
            seen = _gradients_leave(part, seen=seen)
        return seen
    leaving = [_gradients_leave(part, seen=seen) for part in layer.parts]
    # Gradients that arise inside the parts meet the way they are merged.
    after = seen or any(leaving) or bool(finite_layers(layer))
    seen = after if layer.parts else seen
    if seen and not layer.facts.linear:
        raise NetworkError(
            "The tangent kernel does not factorise layer by layer: with finitely many heads, under "
            "a nonlinearity, it is an average over outputs and score gradients jointly.",
            got=f"{type(layer).__name__} above attention with finitely many heads at 1/√d",
            remedy="take net.law(x).ntk() for its mean, net.law(x).sample_ntk(...) for its law; "
            "kernel(..., ntk=False) for the NNGP kernel alone; or heads=INFINITE",
        )
    return after
