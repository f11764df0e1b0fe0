"""The engine's two phases, for one example, one pair, a block and a tile.

A kernel call has two phases. *Encode* runs once per example, `O(N)`: it walks the network with the
example's own covariance and keeps what pairs will need (variances, attention weights). *Cross* runs
per pair, `O(N²)`: it walks the network again with κ(x, x') and Θ(x, x') of a tile of pairs. Every
layer is written for one example or one pair; vectorisation happens here, tiling in `tiles`.
"""

import contextlib
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from ..compilation import compiled
from ..layers.attention.heads import Scheme, ScoreField
from ..layers.base import Layer, Memo
from ..state import Need
from .scores import maker
from .start import EncodedBlock, kernel_dtype, start, start_pair
from .walk import Path, cross, draw, encode, need_before

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
    pair = cross(real.net, pair, one.memos, two.memos, real.scores).forced()
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


def mirrored(kernel: np.ndarray) -> np.ndarray:
    """Kernels (n, m, positions…, positions'…) of the same pairs the other way round."""
    half = (kernel.ndim - 2) // 2
    return np.transpose(kernel, (1, 0, *range(2 + half, kernel.ndim), *range(2, 2 + half)))


def symmetrise(kernel: np.ndarray) -> None:
    """Make a block of examples with itself exactly symmetric, whatever rounding says."""
    lower = np.tril_indices(len(kernel), -1)
    kernel[lower] = mirrored(kernel)[lower]


def precision(dtype: Any) -> contextlib.AbstractContextManager[Any]:
    """The scope in which arrays of this dtype keep it."""
    wide = np.dtype(dtype) == np.float64
    return jax.enable_x64(True) if wide else contextlib.nullcontext()
