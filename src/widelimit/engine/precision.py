"""What single precision cannot do, done in double precision.

Whole kernels, where squares of the inputs or variances of an activation leave what it holds; and
single pairs of nearly equal or nearly opposite inputs, whose angle it cannot tell: the arc-cosine
has a square-root singularity at correlation 1 and at −1. A program that is being traced has one
precision, in which all of it is computed: there pairs are not redone (see `Layer.kernel`).
"""

import functools
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import jax
import numpy as np

from ..duals import Dual, Series
from ..errors import AccuracyWarning, PrecisionError, warn
from ..layers.activations import Reach
from ..layers.base import Layer
from ..state import Kernels
from .inputs import Inputs
from .phases import EncodedBlock, Realisation, cross_list, encode_block

if TYPE_CHECKING:
    from .tiles import Blocks

# float32 resolves angles down to about 3e-4: closer pairs than this (1 − cosine) are redone.
_CLOSE = 1e-5
# |u ∓ v|² = 2 (1 − |cosine|) of unit vectors u and v, and what float32 may add to it.
_NEAR = 2 * _CLOSE + 1e-6
# Inputs are compared along a few directions first: a product over all of them would cost as much
# as a first layer. All pairs along the first of these, what is left along the others.
_DIRECTIONS, _FIRST = 16, 4
# Candidates that are compared in full at a time.
_AT_ONCE = 512


# --- whole kernels --------------------------------------------------------------------------------


def precisions(dtype: Any, sides: Sequence[Inputs]) -> list[Any]:
    """In what precision to compute kernels of this dtype, and in what else if that has no digits.

    `Pairs` raises a `PrecisionError` where the first one has none.
    """
    wide = np.dtype(np.float64)
    if np.dtype(dtype) == wide:
        return [wide]
    return [wide] if any(side.extreme for side in sides) else [dtype, wide]


def narrow(kernels: Kernels, dtype: Any) -> Kernels:
    """Kernels in a narrower precision, if it holds them."""
    if kernels.nngp.dtype == dtype:
        return kernels
    for kernel in (kernels.nngp, kernels.ntk):
        largest = 0.0 if kernel is None else float(np.abs(kernel).max())
        limits = np.finfo(dtype)
        if largest and not float(limits.tiny) <= largest <= float(limits.max):
            raise PrecisionError(
                f"The kernels are not among the numbers that {np.dtype(dtype)} holds, from "
                f"{limits.tiny:.1e} to {limits.max:.1e}.",
                got=f"kernels of about {largest:.2g}",
                remedy="pass dtype=np.float64, or scale the inputs",
            )
    return jax.tree.map(lambda kernel: kernel.astype(dtype), kernels)


def with_leaves(real: Realisation, dtype: Any) -> Realisation:
    """Hyperparameters in the precision of the call.

    JAX would round them on the way into a compiled function; but an array that it is handed in
    single precision here and in double precision there (in another thread, in another trace), it
    mixes up.
    """

    def one(leaf: Any) -> Any:
        wide = isinstance(leaf, np.ndarray) and leaf.dtype == np.float64
        return leaf.astype(dtype) if wide else leaf

    return jax.tree.map(one, real)


# --- pairs that are close to one line -------------------------------------------------------------


def is_kinked(net: Layer) -> bool:
    """Whether Θ has square-root singularities at identical inputs."""
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Dual))
    return any(isinstance(node, Dual) and node.kinked for node in found)


def sketch_inputs(rows: Inputs, columns: Inputs | None) -> "list[_Vectors | _Tokens]":
    """What `close_pairs` needs of two batches, stream by stream; one pass over their examples."""
    columns = rows if columns is None else columns
    if rows.tokens:
        return [_Tokens.of(rows, columns)]
    sides = [side.x if isinstance(side.x, tuple) else (side.x,) for side in (rows, columns)]
    return [_Vectors.of(one, two) for one, two in zip(*sides, strict=True)]


def close_pairs(
    streams: "list[_Vectors | _Tokens]", ones: np.ndarray, twos: np.ndarray
) -> np.ndarray:
    """Places (row, column) of the nearly parallel pairs in a tile of these examples."""
    near = np.full((len(ones), len(twos)), bool(streams))  # nothing sketch_inputs, nothing close
    for stream in streams:
        near &= stream.near(ones, twos)
    if not near.any():
        return np.empty((0, 2), int)
    places = np.stack(np.divmod(np.flatnonzero(near), len(twos)), axis=1)
    parts = np.split(places, range(_AT_ONCE, len(places), _AT_ONCE))
    return np.concatenate(
        [
            part[np.all([s.close(ones[part[:, 0]], twos[part[:, 1]]) for s in streams], axis=0)]
            for part in parts
        ]
    )


@functools.lru_cache(maxsize=4)  # on a busy machine, most of the time of a small kernel
def _directions(size: int) -> np.ndarray:
    """A few axes of vectors of this size, orthonormal: along them distances only shrink."""
    gaussian = np.random.default_rng(0).normal(size=(size, min(_DIRECTIONS, size)))
    return np.linalg.qr(gaussian)[0]


class _Tokens(NamedTuple):
    """Sequences of tokens are close where they are equal; equal ones bear equal numbers."""

    left: np.ndarray
    right: np.ndarray

    @classmethod
    def of(cls, rows: Inputs, columns: Inputs) -> Self:
        numbers: dict[bytes, int] = {}

        def numbered(inputs: Inputs) -> np.ndarray:
            real = np.ones(inputs.x.shape, bool) if inputs.mask is None else inputs.mask
            texts = [
                np.c_[np.argwhere(keep), x[keep]].tobytes()
                for x, keep in zip(inputs.x, real, strict=True)
            ]
            return np.array([numbers.setdefault(text, len(numbers)) for text in texts])

        return cls(numbered(rows), numbered(columns))

    def near(self, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
        return self.left[ones][:, None] == self.right[twos]

    def close(self, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
        return self.left[ones] == self.right[twos]


class _Side(NamedTuple):
    """A batch of vectors: (N, size), their norms, and unit vectors along a few axes."""

    x: np.ndarray
    norms: np.ndarray
    sketch: np.ndarray


class _Vectors(NamedTuple):
    """Vectors are close where they are nearly parallel; a sequence is zero beyond its end."""

    left: _Side
    right: _Side
    comparable: bool  # whether a position of one is a position of the other

    @classmethod
    def of(cls, one: np.ndarray, two: np.ndarray) -> Self:
        flat = [a.reshape(len(a), -1) for a in (one, two)]
        common, size = sorted(a.shape[1] for a in flat)
        axes = _directions(size).astype(one.dtype)

        def side(x: np.ndarray) -> _Side:
            norms = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))  # squares may overflow
            norms[norms == 0] = 1
            return _Side(x[:, :common], norms, x @ axes[: x.shape[1]] / norms[:, None])

        left = side(flat[0])
        sequences = one.ndim <= 3
        comparable = sequences or one.shape[1:] == two.shape[1:]
        return cls(left, left if two is one else side(flat[1]), comparable)

    def near(self, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
        """Whether the first directions allow that they are close."""
        found = np.full((len(ones), len(twos)), self.comparable)
        # Sizes alone: equal or opposite, which `close` tells. No matrix product: those of NumPy
        # start threads, and tiles run in threads already.
        left, right = (np.abs(side.T[:_FIRST]) for side in self._sketches(ones, twos))
        for a, b in zip(left, right, strict=True):
            found &= np.abs(a[:, None] - b) < _NEAR**0.5
        return found

    def _sketches(self, ones: np.ndarray, twos: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.left.sketch[ones], self.right.sketch[twos]

    def close(self, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
        """Whether pairs, given one by one, are close."""
        sketches = self._sketches(ones, twos)
        gaps = np.minimum(
            np.sum((sketches[0] - sketches[1]) ** 2, axis=1),
            np.sum((sketches[0] + sketches[1]) ** 2, axis=1),
        )
        known = (ones == twos) & (self.left is self.right)  # an example and itself
        found = (gaps < _NEAR) & ~known
        ones, twos = ones[found], twos[found]
        pairs = self.left.x[ones], self.right.x[twos]
        product = np.einsum("nd,nd->n", *pairs, dtype=np.float64)
        cosines = np.abs(product) / (self.left.norms[ones] * self.right.norms[twos])
        found[found] = 1 - cosines < _CLOSE
        return found | known


# --- once more ------------------------------------------------------------------------------------


def redo_close(
    real: Realisation,
    left: "Blocks",
    right: "Blocks",
    place: tuple[int, int],
    close: np.ndarray,
    nngp: np.ndarray,
    theta: np.ndarray | None,
) -> None:
    """Replace the nearly parallel pairs of a tile by double-precision values."""
    if not len(close):
        return
    ends = left.exact(place[0]), right.exact(place[1])
    size = left[ends[0]].plan.tile
    for begin in range(0, len(close), size):
        chosen = close[begin : begin + size]
        ones, twos = (
            side.chosen(end, side[block].members[chosen[:, axis]], size)
            for axis, (side, block, end) in enumerate(zip((left, right), place, ends, strict=True))
        )
        same = left is right and place[0] == place[1] and (chosen[:, 0] == chosen[:, 1]).all()
        with left.exactly, jax.enable_x64(True):
            one = _encode_exactly(real, ones)
            two = one if same else _encode_exactly(real, twos)
            with_ntk = theta is not None
            exact = cross_list(real.for_pairs, one, two, ones.outline, with_ntk=with_ntk)
        for target, value in zip((nngp, theta), exact, strict=True):
            if target is not None:
                with np.errstate(over="ignore"):  # what is infinite is reported for the whole tile
                    target[tuple(chosen.T)] = np.asarray(value)[: len(chosen)]


def _encode_exactly(real: Realisation, inputs: Inputs) -> EncodedBlock:
    x, mask = inputs.astype(np.float64).on_device()
    return encode_block(real, x, mask, inputs.outline)


# --- duals that hold for some variances only: widened, or refused, where inputs reach further -----

Tree = TypeVar("Tree")


def find_series(net: Any) -> list[Series]:
    """The duals of a network that hold up to some variance."""
    found = jax.tree.leaves(net, is_leaf=_is_series)
    return [node for node in found if _is_series(node)]


def _is_series(node: Any) -> bool:
    return isinstance(node, Series)


def find_reach(encodings: Iterable[Any]) -> tuple[float, float]:
    """The least and the largest variance that such duals met in encoded examples."""
    least, largest = np.inf, 0.0
    for encoding in encodings:
        for node in jax.tree.leaves(encoding, is_leaf=lambda node: isinstance(node, Reach)):
            if isinstance(node, Reach):
                least = min(least, float(np.min(node.least)))
                largest = max(largest, float(np.max(node.largest)))
    return least, largest


def trusted_range(net: Any, dtype: Any) -> tuple[float, float] | None:
    """The variances for which all duals of a network keep their digits; None is all."""
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, Dual))
    known = [node.trusted(dtype) for node in found if isinstance(node, Dual) and node.ranged]
    return (max(low for low, _ in known), min(high for _, high in known)) if known else None


def require_digits(net: Any, dtype: Any, least: float, largest: float) -> None:
    """Raise where rounding would be all that is left of an activation's kernel."""
    limits = trusted_range(net, dtype)
    if limits is None or (limits[0] <= least and largest <= limits[1]):
        return
    remedy = "scale the inputs or w_std, or normalise (LayerNorm)"
    raise PrecisionError(
        f"Activations of this network lose their digits in {np.dtype(dtype)} at variances outside "
        f"{limits[0]:.0e} to {limits[1]:.0e}.",
        got=f"variances from {least:.2g} to {largest:.2g}",
        remedy=remedy if np.dtype(dtype) == np.float64 else f"pass dtype=np.float64, or {remedy}",
    )


def extend_duals(net: Tree, variance: float) -> Tree:
    """The same network, its duals as accurate as before up to this variance, or a warning."""

    def wider(node: Any) -> Any:
        new = node.extend_to(variance) if _is_series(node) else node
        if new is not node:
            say_error(new, variance)
        return new

    return jax.tree.map(wider, net, is_leaf=_is_series)


def say_error(dual: Series, variance: float) -> None:
    """Warn where a dual does not reach its accuracy at this variance."""
    error = dual.error(np.asarray([variance]))
    if error > AccuracyWarning.TOLERANCE:
        where = f"variances up to {variance:.3g}"
        warn(AccuracyWarning.of(where, error))
