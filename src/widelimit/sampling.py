"""Samplers: the heads, landmarks and sample counts that all kernels of one problem share.

Kernels of networks with random scores are averages over drawn heads. Train–train and test–train
kernels belong together only if they were drawn with the same heads; a `Sampler` is that choice,
made once, kept, and passed on. It is small: landmark inputs, a key, and counts. The networks it
stands for follow from it (and stay differentiable in the network's hyperparameters).
"""

import math
import warnings
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Key

from .errors import NumericalError, WidelimitError
from .heads import INFINITE, Basis, LandmarksNeeded, Scheme
from .inputs import Inputs
from .kernels import Realisation, draw_block, tiles
from .layers.attention import Attention
from .layers.base import Layer
from .layers.cross_attention import QueriedAttention

_SAMPLES, _REPLICATES = 32, 8
_RANK, _MOST_RANK = 64, 512
# Share of a position's variance that its features may miss.
_RESIDUAL = 1e-3
# Landmark positions to choose pivots from, for each pivot.
_CHOICE = 4
# Examples of the pilot that sizes a sampler for a tolerance, and how often it may grow.
_PILOT, _MOST_ROUNDS = 8, 6


class Sampler(eqx.Module):
    """Drawn heads, as a recipe: the same for every call that shares it."""

    x: Any  # landmark inputs, or one input that only gives shapes
    mask: Any
    tokens: bool = eqx.field(static=True)
    key: Key[Array, ""]
    replicates: int = eqx.field(static=True)
    scheme: Scheme
    with_landmarks: bool = eqx.field(static=True)

    @property
    def heads(self) -> int:
        """How many heads are drawn in all for a layer with infinitely many."""
        return self.scheme.samples * self.replicates


class ResidualWarning(UserWarning):
    """Features of the score field miss more of its variance than asked."""


def make_sampler(
    net: Layer,
    inputs: Inputs,
    *,
    key: Key[Array, ""] | None = None,
    samples: int | None = None,
    replicates: int | None = None,
    tolerance: float | None = None,
    rank: int | None = None,
    residual: float = _RESIDUAL,
) -> Sampler:
    """Fit a sampler to data: choose landmarks and feature rank, fix the heads.

    `samples` heads are drawn for every layer with infinitely many, in each of `replicates`
    independent copies of the network, from which standard errors come. With a `tolerance`, the
    number of heads grows until the errors, relative to the largest kernel entry, are below it.
    """
    _check("samples", samples, whole=True)
    _check("replicates", replicates, whole=True)
    _check("rank", rank, whole=True)
    _check("tolerance", tolerance, whole=False)
    key = jax.random.key(0) if key is None else key
    samples = samples or _SAMPLES
    if replicates is None:
        # A layer with H heads of its own draws H per copy: more copies for the same number.
        finite = [layer.heads for layer in _attention(net) if layer.heads != INFINITE]
        replicates = max(_REPLICATES, *(math.ceil(_REPLICATES * samples / h) for h in finite), 0)
    sampler = _with_landmarks(net, inputs, key, samples, replicates, rank, residual)
    return sampler if tolerance is None else _grown(net, inputs, sampler, tolerance)


def _attention(net: Layer) -> list[Attention | QueriedAttention]:
    kinds = (Attention, QueriedAttention)
    found = jax.tree.leaves(net, is_leaf=lambda node: isinstance(node, kinds))
    return [node for node in found if isinstance(node, kinds) and node.sampled()]


def _with_landmarks(
    net: Layer,
    inputs: Inputs,
    key: Key[Array, ""],
    samples: int,
    replicates: int,
    rank: int | None,
    residual: float,
) -> Sampler:
    """Without landmarks if all features are known exactly; else with a rank that suffices."""

    def attempt(marks: Inputs, rank: int, with_landmarks: bool) -> tuple[Sampler, float]:
        scheme = Scheme(samples, rank, residual / 10)
        sampler = Sampler(
            marks.x, marks.mask, inputs.tokens, key, replicates, scheme, with_landmarks
        )
        real = _draw(net, sampler, key, np.float32)
        return sampler, max([0.0, *(float(r) for r in _residuals(real))])

    current = rank or _RANK
    try:
        return attempt(inputs[:1], current, with_landmarks=False)[0]
    except LandmarksNeeded:
        pass
    size = max(1, inputs.area)
    order = np.random.default_rng(np.asarray(jax.random.key_data(key))).permutation(inputs.size)
    while True:
        count = min(inputs.size, max(8, -(-_CHOICE * current // size)))
        marks = inputs[np.sort(order[:count])]
        sampler, reached = attempt(marks, min(current, count * size), with_landmarks=True)
        if reached <= residual:
            return sampler
        if rank is not None or current >= _MOST_RANK or current >= count * size:
            warnings.warn(
                f"Feature rows of rank {sampler.scheme.rank} miss up to {reached:.2g} of a "
                f"position's variance (asked: {residual:.2g}): scores come out too narrow by as "
                "much. Remedy: a larger rank= for the sampler.",
                ResidualWarning,
                stacklevel=4,
            )
            return sampler
        current *= 2


def _grown(net: Layer, inputs: Inputs, sampler: Sampler, tolerance: float) -> Sampler:
    """More heads until a pilot on a few examples meets the tolerance.

    Standard errors fall as 1/√heads and the bias of nonlinear layers as 1/heads, so growing the
    heads of every copy, not the number of copies, keeps the bias well below the error.
    """
    dtype = np.dtype(np.float32)
    pilot = inputs[: min(inputs.size, _PILOT)].astype(dtype)
    for _ in range(_MOST_ROUNDS):
        worst = 0.0
        options = {"dtype": dtype, "with_ntk": True, "memory": 2**28}
        for tile in tiles(realisations(net, sampler, dtype), pilot, None, **options):
            k = tile.kernels
            for value, error in ((k.nngp, k.nngp_error), (k.ntk, k.ntk_error)):
                worst = max(worst, float(error.max() / np.abs(value).max()))
        if worst <= tolerance:
            return sampler
        growth = min(max(1.2 * (worst / tolerance) ** 2, 1.5), 64)
        scheme = sampler.scheme
        grown = Scheme(math.ceil(scheme.samples * growth), scheme.rank, scheme.tolerance)
        sampler = eqx.tree_at(lambda s: s.scheme, sampler, grown)
        if not any(layer.heads == INFINITE for layer in _attention(net)):
            copies = math.ceil(sampler.replicates * growth)
            sampler = Sampler(
                sampler.x,
                sampler.mask,
                sampler.tokens,
                sampler.key,
                copies,
                grown,
                sampler.with_landmarks,
            )
    raise NumericalError(
        f"Sampling reaches a relative error of {tolerance:g} with a bounded number of heads.",
        got=f"an error of {worst:.2g} after {sampler.heads} heads",
        remedy="ask for a larger tolerance=, or set samples= yourself",
    )


def _residuals(real: Realisation) -> list[Array]:
    found = jax.tree.leaves(real.net, is_leaf=lambda node: isinstance(node, Basis))
    return [b.residual for b in found if isinstance(b, Basis) and b.residual is not None]


def _draw(net: Layer, sampler: Sampler, key: Key[Array, ""], dtype: Any) -> Realisation:
    inputs = Inputs(sampler.x, sampler.mask, sampler.tokens)
    x, mask = inputs.astype(dtype).on_device()
    return draw_block(
        net,
        x,
        mask,
        inputs.outline,
        key,
        sampler.scheme,
        with_landmarks=sampler.with_landmarks,
    )


def realisations(net: Layer, sampler: Sampler | None, dtype: Any) -> list[Realisation]:
    """The network itself, or with random scores drawn once for every replicate."""
    if sampler is None:
        return [Realisation(net)]
    keys = jax.random.split(sampler.key, sampler.replicates)
    return [_draw(net, sampler, key, dtype) for key in keys]


def _check(name: str, value: Any, *, whole: bool) -> None:
    """Counts are positive integers, tolerances positive numbers."""
    if value is None:
        return
    good = isinstance(value, int | np.integer) if whole else isinstance(value, int | float)
    if isinstance(value, bool) or not good or not value > 0:
        kind = "a positive integer" if whole else "a positive number"
        raise WidelimitError(f"{name}= is {kind}.", got=f"{value!r}", remedy=f"give {kind}")
