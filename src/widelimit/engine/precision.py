"""What single precision cannot do, done in double precision.

Whole kernels, where squares of the inputs or variances of an activation leave what it holds; and
single pairs of nearly equal or nearly opposite inputs, whose angle it cannot tell: the arc-cosine
has a square-root singularity at correlation 1 and at −1. A program that is being traced has one
precision, in which all of it is computed: there pairs are not redone (see `Layer.kernel`).
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import Float

from ..duals import Dual, Series
from ..errors import AccuracyWarning, PrecisionError, warn
from ..layers.activations import Reach
from ..layers.base import Layer
from ..state import Kernels
from .inputs import Inputs
from .phases import EncodedBlock, Realisation, cross_list, encode_block

if TYPE_CHECKING:
    from .tiles import Blocks

Node = TypeVar("Node")

# float32 resolves angles down to about 3e-4: closer pairs than this (1 − cosine) are redone.
_CLOSE = 1e-5
# |u ∓ v| = √(2 (1 − |cosine|)) of unit vectors u and v, and what float32 may add to its square.
_NEAR = (2 * _CLOSE + 1e-6) ** 0.5
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
    return any(dual.kinked for dual in _nodes(net, Dual))


class _Vectors(NamedTuple):
    """Two batches of one stream; a sequence is zero beyond its end, as far as both reach."""

    left: Float[np.ndarray, "n size"]
    right: Float[np.ndarray, "m size"]
    norms: tuple[np.ndarray, np.ndarray]
    same: bool  # the batches are one

    def close(self, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
        """Whether pairs, given one by one, are nearly parallel; an example is so to itself."""
        pairs = self.left[ones], self.right[twos]
        product = np.einsum("nd,nd->n", *pairs, dtype=np.float64)
        cosines = np.abs(product) / (self.norms[0][ones] * self.norms[1][twos])
        return (1 - cosines < _CLOSE) | (self.same & (ones == twos))


class Sketch(NamedTuple):
    """Where examples lie along a few axes, of all streams; close ones have close sketches."""

    left: Float[np.ndarray, "n few"]
    right: Float[np.ndarray, "m few"]
    streams: list[_Vectors]  # none where equal sketches are equal examples


def sketch_inputs(rows: Inputs, columns: Inputs | None) -> Sketch | None:
    """What `close_pairs` needs of two batches, from one pass over them; None: nothing is close."""
    sides = (rows, rows if columns is None else columns)
    if rows.tokens:
        left, right = _number_texts(*sides)
        return Sketch(left, right, [])
    sketches, streams = [], []
    arrays = [side.x if isinstance(side.x, tuple) else (side.x,) for side in sides]
    for one, two in zip(*arrays, strict=True):
        if one.ndim > 3 and one.shape[1:] != two.shape[1:]:
            return None  # no position of one is a position of the other
        common, size = sorted(math.prod(side.shape[1:]) for side in (one, two))
        axes = _directions(size).astype(one.dtype)

        def look(x: np.ndarray, axes: np.ndarray = axes) -> tuple[np.ndarray, ...]:
            x = x.reshape(len(x), -1)
            norms = np.sqrt(np.einsum("nd,nd->n", x, x, dtype=np.float64))  # squares may overflow
            norms[norms == 0] = 1
            # Sizes alone: equal or opposite.
            return x, norms, np.abs(x @ axes[: x.shape[1]] / norms[:, None])

        first = look(one)
        second = first if two is one else look(two)
        norms = first[1], second[1]
        streams.append(_Vectors(first[0][:, :common], second[0][:, :common], norms, two is one))
        sketches.append((first[2], second[2]))
    left, right = (np.concatenate(parts, axis=1) for parts in zip(*sketches, strict=True))
    return Sketch(left, right, streams)


def _number_texts(rows: Inputs, columns: Inputs) -> list[np.ndarray]:
    """Equal sequences of tokens bear equal numbers: they alone are close."""
    numbers: dict[bytes, int] = {}

    def number(inputs: Inputs) -> np.ndarray:
        real = np.ones(inputs.x.shape, bool) if inputs.mask is None else inputs.mask
        texts = [
            np.c_[np.argwhere(keep), x[keep]].tobytes()
            for x, keep in zip(inputs.x, real, strict=True)
        ]
        return np.array([[numbers.setdefault(text, len(numbers))] for text in texts])

    return [number(rows), number(columns)]


@functools.lru_cache(maxsize=4)  # on a busy machine, most of the time of a small kernel
def _directions(size: int) -> np.ndarray:
    """A few axes of vectors of this size, orthonormal: along them distances only shrink."""
    gaussian = np.random.default_rng(0).normal(size=(size, min(_DIRECTIONS, size)))
    return np.linalg.qr(gaussian)[0]


def close_pairs(sketch: Sketch | None, ones: np.ndarray, twos: np.ndarray) -> np.ndarray:
    """Places (row, column) of the nearly parallel pairs in a tile of these examples."""
    if sketch is None:
        return np.empty((0, 2), int)
    left, right = sketch.left[ones], sketch.right[twos]
    near = np.ones((len(left), len(right)), bool)
    # No matrix product: those of NumPy start threads, and tiles run in threads already.
    for a, b in zip(left.T[:_FIRST], right.T[:_FIRST], strict=True):
        near &= np.abs(a[:, None] - b) < _NEAR
    places = np.stack(np.divmod(np.flatnonzero(near), len(right)), axis=1)
    found = []
    for part in np.split(places, range(_AT_ONCE, len(places), _AT_ONCE)):
        gaps = np.abs(left[part[:, 0]] - right[part[:, 1]])
        part = part[(gaps < _NEAR).all(axis=1)]
        for stream in sketch.streams:
            part = part[stream.close(ones[part[:, 0]], twos[part[:, 1]])]
        found.append(part)
    return np.concatenate(found)


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


def fit_duals(
    reals: Sequence[Realisation], encodings: Iterable[EncodedBlock], dtype: Any
) -> Sequence[Realisation]:
    """Realisations whose duals hold for the variances that encoded examples reach, or a warning.

    Raises where rounding would be all that is left of an activation's kernel.
    """
    net = reals[0].net
    known = [dual.trusted(dtype) for dual in _nodes(net, Dual) if dual.ranged]
    if not known:
        return reals
    met = [node for encoding in encodings for node in _nodes(encoding, Reach)]
    least = min((float(np.min(node.least)) for node in met), default=np.inf)
    largest = max((float(np.max(node.largest)) for node in met), default=0.0)
    low, high = max(low for low, _ in known), min(high for _, high in known)
    if not (low <= least and largest <= high):
        remedy = "scale the inputs or w_std, or normalise (LayerNorm)"
        wide = np.dtype(dtype) == np.float64
        raise PrecisionError(
            f"Activations of this network lose their digits in {np.dtype(dtype)} at variances "
            f"outside {low:.0e} to {high:.0e}.",
            got=f"variances from {least:.2g} to {largest:.2g}",
            remedy=remedy if wide else f"pass dtype=np.float64, or {remedy}",
        )
    if all(largest <= dual.max_variance for dual in _nodes(net, Series)):
        return reals
    fixed = reals[0].anchors is not None  # landmarks were encoded with the duals as they are

    def widen(node: Any) -> Any:
        if not isinstance(node, Series):
            return node
        wider = node if fixed else node.extend_to(largest)
        error = wider.error(np.asarray([largest]))
        if error > AccuracyWarning.TOLERANCE and (fixed or wider is not node):
            warn(AccuracyWarning.of(f"variances up to {largest:.3g}", error))
        return wider

    net = jax.tree.map(widen, net, is_leaf=lambda node: isinstance(node, Series))
    return reals if fixed else [Realisation(net, real.scores) for real in reals]


def _nodes(tree: Any, kind: type[Node]) -> list[Node]:
    """The parts of a tree that are of this kind."""
    found = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in found if isinstance(node, kind)]
