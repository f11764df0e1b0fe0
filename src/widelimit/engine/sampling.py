"""Samplers: the heads, landmarks and sample counts that all kernels of one problem share.

Kernels of networks with random scores are averages over drawn heads. Train–train and test–train
kernels belong together only if they were drawn with the same heads; a `Sampler` is that choice,
made once, kept, and passed on. It is small: landmark inputs, a key, and counts. The networks it
stands for follow from it (and stay differentiable in the network's hyperparameters).
"""

import dataclasses
import math
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..errors import NetworkError, OptionError, ShapeError, warn
from ..layers.attention.heads import INFINITE, Basis, Scheme, ScoreField
from ..layers.base import Layer
from ..layers.compose import Path
from ..options import RandomKey, as_key, positive, whole
from ..printing import counted
from .budget import Budget, DrawnHeads, error_bound
from .inputs import Inputs, is_traced, read_inputs
from .phases import Realisation, draw_block, finite_layers, precision, random_layers
from .tiles import Pairs, one_group

_SAMPLES, _REPLICATES = 32, 8
# Errors fall as 1/√heads: beyond this, heads of a layer take all memory and gain nothing.
_MOST_HEADS = 2**20
_RANK, _MOST_RANK = 64, 512
# Landmark positions to choose pivots from, for each pivot.
_CHOICE = 4
# Share of a tolerance that the features may miss of a position's variance.
_RESIDUAL_SHARE = 0.25
# Examples of the pilot that sizes a sampler for a tolerance, and the memory of its tiles.
_PILOT, _PILOT_MEMORY = 8, 2**28


class Sampler(eqx.Module):
    """Heads that related kernel calls share: `sampler = net.sampler(x)`, then `sampler=sampler`.

    It is a recipe, from which every call draws the same heads. It also serves inputs shorter
    than those it was fitted to; longer ones are refused by layers with a positional encoding.
    `residual` is the share of a position's variance that features from landmarks miss, 0 where
    features are exact.
    """

    x: Any  # landmark inputs, or one input that only gives shapes
    mask: Any
    tokens: bool = eqx.field(static=True)
    key: Key[Array, ""]
    replicates: int = eqx.field(static=True)
    scheme: Scheme
    # Which landmark positions every layer with random scores uses; None if features are exact.
    pivots: dict[Path, ScoreField] | None = None
    residual: float = eqx.field(static=True, default=0.0)

    def __repr__(self) -> str:
        copies = counted(self.replicates, "copy", "copies")
        features = "exact features" if self.rank is None else f"{self.rank} landmark positions"
        return f"Sampler({self.scheme.samples} heads in each of {copies}, {features})"

    @property
    def heads(self) -> int:
        """How many heads are drawn in all for a layer with infinitely many."""
        return self.scheme.samples * self.replicates

    @property
    def rank(self) -> int | None:
        """How many landmark positions the features come from; None where they are exact."""
        return None if self.pivots is None else self.scheme.rank

    def with_more(self, *, heads: float = 1.0, replicates: float = 1.0) -> "Sampler":
        """A multiple of the heads of every copy, a multiple of the copies; new draws."""

        def times(count: int, factor: float) -> int:
            return math.ceil(count * factor - 1e-9)  # 3 · (5/3) is 5, whatever rounding says

        scheme = self.scheme
        count = times(scheme.samples, heads)
        grown = Scheme(count, scheme.rank, scheme.tolerance, scheme.coupling)
        return dataclasses.replace(
            self, scheme=grown, replicates=times(self.replicates, replicates)
        )


class ResidualWarning(UserWarning):
    """Features of the score field miss more of its variance than asked."""


class HeadCount(NamedTuple):
    """How many heads a sampler draws, or what decides it; the options of `Layer.sampler`."""

    samples: int | None
    replicates: int | None
    tolerance: float | None
    most_heads: int
    memory: int
    rank: int | None
    residual: float

    def check(self) -> None:
        """Raise where an option is not what it may be."""
        for name in ("samples", "replicates", "rank"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name), most=_MOST_HEADS)
        whole("most_heads", self.most_heads)
        whole("memory", self.memory)
        if self.tolerance is None:
            return
        positive("tolerance", self.tolerance)
        if self.replicates == 1:
            raise OptionError(
                "replicates=1 leaves no errors to check a tolerance against.",
                got=f"tolerance={self.tolerance!r}",
                remedy="leave replicates= out, or give at least 2",
            )


def fit_sampler(net: Layer, x: Any, mask: Any, key: RandomKey | None, count: HeadCount) -> Sampler:
    """Fit a sampler to data: choose landmarks and feature rank, fix the heads."""
    count.check()
    inputs = read_inputs(net, x, mask)
    net.outline(inputs.outline)  # raises where layers and inputs do not fit
    samples, replicates = count.samples or _SAMPLES, count.replicates
    if replicates is None:
        # A layer with H heads of its own draws H per copy: more copies for the same number.
        finite = [layer.heads for layer in finite_layers(net).values()]
        replicates = max(_REPLICATES, *(math.ceil(_REPLICATES * samples / h) for h in finite), 0)
    residual, tolerance = count.residual, count.tolerance
    if tolerance is not None:
        residual = min(residual, _RESIDUAL_SHARE * tolerance)
    one, scheme = inputs[np.zeros(1, int)], Scheme(samples, count.rank or _RANK, residual / 10)
    plain = Sampler(one.x, one.mask, inputs.tokens, as_key(key), replicates, scheme)
    fitted = _with_landmarks(net, inputs, plain, count.rank, residual)
    if tolerance is None:
        return fitted
    return _size_sampler(net, inputs, fitted, Budget(tolerance, count.most_heads, count.memory))


def _with_landmarks(
    net: Layer, inputs: Inputs, plain: Sampler, rank: int | None, residual: float
) -> Sampler:
    """Without landmarks if all features are known exactly; else with a rank that suffices."""
    current, key = plain.scheme.rank, plain.key
    shapes = eqx.filter_eval_shape(lambda: _draw(net, plain, key, np.float32, with_landmarks=True))
    if all(basis.pivots is None for basis in _bases(shapes)):
        return plain
    _require_numbers(net, inputs, "landmarks are chosen")
    size = max(1, inputs.area(net))
    order = np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(inputs.size)
    while True:
        count = min(inputs.size, max(8, -(-_CHOICE * current // size)))
        marks = inputs[np.sort(order[:count])]
        scheme = dataclasses.replace(plain.scheme, rank=min(current, count * size))
        sampler = dataclasses.replace(plain, x=marks.x, mask=marks.mask, scheme=scheme)
        sampler = _with_pivots(sampler, _draw(net, sampler, key, np.float32, with_landmarks=True))
        if sampler.residual <= residual:
            return sampler
        if rank is not None or current >= _MOST_RANK or current >= count * size:
            warn(
                ResidualWarning(
                    f"Feature rows of rank {sampler.rank} miss up to {sampler.residual:.2g} of a "
                    f"position's variance (asked: {residual:.2g}): scores come out too narrow by "
                    f"as much. Remedy: a larger rank=, up to the {inputs.size * size} positions of "
                    "these inputs."
                )
            )
            return sampler
        current *= 2


def _with_pivots(sampler: Sampler, real: Realisation) -> Sampler:
    """Keep the landmark positions that a draw has chosen, and what their features miss."""
    found = [float(basis.residual) for basis in _bases(real) if basis.residual is not None]
    pivots = {
        path: ScoreField(
            jnp.zeros((0, 0, 0, 0)),
            query=Basis(f.query.grid, f.query.pivots),
            key=Basis(f.key.grid, f.key.pivots),
        )
        for path, f in real.scores.items()
    }
    return dataclasses.replace(sampler, pivots=pivots, residual=max(found))


def _bases(real: Realisation) -> list[Basis]:
    """The feature bases of all drawn scores."""
    return [basis for field in real.scores.values() for basis in (field.query, field.key)]


def _require_numbers(net: Layer, inputs: Inputs, what: str) -> None:
    """Raise inside a JAX transformation, where there are no numbers to look at."""
    if is_traced((net, inputs)):
        raise NetworkError(
            f"Inside a JAX transformation there are no numbers by which {what}.",
            got="a network or inputs inside a JAX transformation (grad, jit)",
            remedy="fit a sampler outside: sampler = net.sampler(x); then pass sampler=sampler",
        )


def _size_sampler(net: Layer, inputs: Inputs, sampler: Sampler, budget: Budget) -> Sampler:
    """More heads until a pilot on a few examples meets the tolerance, or says that none will."""
    _require_numbers(net, inputs, "a tolerance is met")
    dtype = np.dtype(np.float32)
    pilot = inputs[: min(inputs.size, _PILOT)].astype(dtype)
    memory = min(budget.memory, _PILOT_MEMORY)
    while True:
        options = {"cuts": [[one_group(pilot)]], "dtype": dtype, "memory": memory}
        pairs = Pairs(realisations(net, sampler, dtype), pilot, None, with_ntk=True, **options)
        reached = max(error_bound(tile.kernels, sampler.replicates) for tile in pairs.tiles())
        if reached <= budget.tolerance:
            return sampler
        found = count_drawn(net, sampler, inputs.dtype if not inputs.tokens else dtype)
        factor = budget.growth(found, reached)
        if factor is None:
            raise budget.out_of_reach(found, reached)
        sampler = grow_sampler(net, sampler, factor)


def count_drawn(net: Layer, sampler: Sampler, dtype: Any) -> DrawnHeads:
    """What a sampler draws, without drawing it."""
    marked = sampler.pivots is not None

    def one() -> Realisation:
        return _draw(net, sampler, sampler.key, dtype, with_landmarks=marked)

    with precision(dtype):
        leaves = jax.tree.leaves(eqx.filter_eval_shape(one))
    samples, copies = sampler.scheme.samples, sampler.replicates
    counts = [layer.heads for layer in random_layers(net).values()]
    heads = max(samples if n == INFINITE else int(n) for n in counts)
    nbytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves if hasattr(leaf, "size"))
    steps = samples if INFINITE in counts else copies
    return DrawnHeads(heads * copies, nbytes * copies, copies, steps)


def grow_sampler(net: Layer, sampler: Sampler, factor: float) -> Sampler:
    """A sampler with a multiple of the heads.

    Standard errors fall as 1/√heads and the bias of nonlinear layers as 1/heads, so growing the
    heads of every copy, not the number of copies, keeps the bias well below the error.
    """
    if any(layer.heads == INFINITE for layer in random_layers(net).values()):
        return sampler.with_more(heads=factor)
    return sampler.with_more(replicates=factor)


def pad_like(inputs: Inputs, other: Inputs) -> Inputs:
    """The inputs, padded at the end to the positions of `other` where these reach further."""

    def one(x: Any, mask: Any, y: Any) -> tuple[Any, Any]:
        axes = range(1, x.ndim if inputs.tokens else x.ndim - 1)
        gaps = [(0, 0)] + [(0, max(0, y.shape[axis] - x.shape[axis])) for axis in axes]
        if not any(gap for _, gap in gaps):
            return x, mask
        real = np.ones(x.shape[: len(gaps)], bool) if mask is None else mask
        tail = [(0, 0)] * (x.ndim - len(gaps))
        pad = jnp.pad if inputs.traced else np.pad
        return pad(x, gaps + tail), pad(real, gaps)

    if not isinstance(inputs.x, tuple):
        return Inputs(*one(inputs.x, inputs.mask, other.x), inputs.tokens)
    masks = inputs.mask or (None,) * len(inputs.x)
    parts = [one(*part) for part in zip(inputs.x, masks, other.x, strict=True)]
    masks = tuple(mask for _, mask in parts)
    missing = all(mask is None for mask in masks)
    return Inputs(tuple(x for x, _ in parts), None if missing else masks, inputs.tokens)


def _draw(
    net: Layer, sampler: Sampler, key: Key[Array, ""], dtype: Any, *, with_landmarks: bool
) -> Realisation:
    inputs = Inputs(sampler.x, sampler.mask, sampler.tokens)
    x, mask = inputs.astype(dtype).on_device()
    how = (key, sampler.scheme, sampler.pivots)
    return draw_block(net, x, mask, inputs.outline, *how, with_landmarks=with_landmarks)


def realisations(net: Layer, sampler: Sampler | None, dtype: Any) -> list[Realisation]:
    """The network itself, or with random scores drawn once for every replicate."""
    if sampler is None:
        return [Realisation(net)]
    keys = jax.random.split(sampler.key, sampler.replicates)
    marked = sampler.pivots is not None
    if sampler.pivots is not None and sampler.pivots.keys() != random_layers(net).keys():
        raise NetworkError(
            "The sampler was fitted for another network.",
            got=f"a network with {len(random_layers(net))} layers of random scores, and the "
            "sampler of another",
            remedy="fit one for this network: sampler = net.sampler(x)",
        )
    return [_draw(net, sampler, key, dtype, with_landmarks=marked) for key in keys]


def check_sampler(sampler: Sampler | None, inputs: Inputs, **drawing: Any) -> None:
    """Raise where a sampler is for other inputs, or heads are asked for beside it."""
    if sampler is None:
        return
    if not isinstance(sampler, Sampler):
        raise OptionError(
            f"sampler= is not a sampler but {type(sampler).__name__}.",
            got=repr(sampler)[:80],
            remedy="make one: sampler=net.sampler(x)",
        )
    own = Inputs(sampler.x, sampler.mask, sampler.tokens)
    if own.kinds != inputs.kinds:
        raise ShapeError(
            "The sampler was fitted to inputs of other channels or axes.",
            got=f"{own.words} for the sampler, and {inputs.words}",
            remedy="fit one to inputs like these: sampler = net.sampler(x)",
        )
    given = [name for name, value in drawing.items() if value is not None]
    if given:
        raise OptionError(
            "Heads are asked for beside a sampler, which has its own.",
            got=f"sampler= and {', '.join(f'{name}=' for name in given)}",
            remedy=f"leave sampler= out, or make it so: net.sampler(x, {given[0]}=...)",
        )
