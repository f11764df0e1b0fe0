"""Normalisation over channels, and dropout."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..errors import OptionError, ShapeError
from ..flat_draws import coins
from ..options import Range, listed, option, whole
from ..state import Example, Mean, Need, Outline, Pair
from .base import Facts, Layer, Memo, RowMap, cast, leaf


def check_rate(rate: float, name: str = "rate") -> float:
    """A probability of dropping an entry."""
    number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not number or not 0 <= rate < 1:
        raise OptionError(
            "The dropout rate is no probability below 1.",
            got=f"{name}={rate!r}",
            remedy="give a number with 0 ≤ rate < 1",
        )
    return float(rate)


def drop(key: Key[Array, ""], x: Float[Array, "*shape"], rate: float) -> Float[Array, "*shape"]:
    """Each entry with probability `1 − rate`, divided by it; else 0."""
    keep = coins(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros((), x.dtype))


def with_diagonal(pair: Pair, values: Float[Array, " positions"]) -> Pair:
    """An input's covariance with other variances κ_aa(x, x); its tangent kernel is left out."""
    if not pair.full or pair.rank == 0:
        return pair.to(values.reshape(pair.nngp.shape), None)
    forced = pair.compute()
    square = forced.nngp.reshape(values.size, values.size)
    square = jnp.fill_diagonal(square, values, inplace=False)
    return pair.to(square.reshape(forced.nngp.shape), None)


class _Normaliser(eqx.Module):
    """One example's channel means and what is subtracted (None: zero), centred rows, 1/√(v + ε)."""

    mean: Array | None
    centre: Array | None
    rows: Array | None
    scale: Array


def _products(pair: Pair, rows1: Array, rows2: Array) -> Array:
    """Inner products of feature rows, in the layout of a pair."""
    if not pair.full:
        return jnp.sum(rows1 * rows2, axis=-1)
    flat1, flat2 = (rows.reshape(-1, rows.shape[-1]) for rows in (rows1, rows2))
    return (flat1 @ flat2.T).reshape(pair.nngp.shape)


def _inverse_root(square: Array, eps: Any, mask: Array | None) -> Array:
    """`1/√(square + ε)`; 1 at padding, where there may be nothing to divide by."""
    square = square + cast(eps, square)
    return jax.lax.rsqrt(square if mask is None else jnp.where(mask, square, 1))


def _axes(axes: Any) -> tuple[int, ...]:
    return tuple(sorted({whole("axes", axis, least=0) for axis in listed("axes", axes)}))


class LayerNorm(Layer):
    """`y_a = (x_a − mean) / √(variance + ε)` over the channels of every position.

    With channel mean m_a and variance v_a = κ_aa(x,x) − m_a²:
    κ_ab ← (κ_ab − m_a m'_b) / √((v_a+ε)(v'_b+ε)), and Θ_ab is divided by the same root. The mean
    is zero for pre-activations; after an activation it is `E[φ(u)]`, for raw inputs the data's own.
    Raw inputs are centred before products are taken: κ_ab − m_a m'_b would cancel.

    Over position `axes` (from 0) as well, with M and S the averages of m_a and κ_aa over these:
    κ_ab ← (κ_ab − m_a M' − M m'_b + M M') / √((V+ε)(V'+ε)), where V = S − M².
    """

    eps: Any = leaf("eps", where=Range.POSITIVE, tuned=False, default=1e-6)
    axes: tuple[int, ...] = option((), converter=_axes)

    @property
    def facts(self) -> Facts:
        # A mean over positions is subtracted from padding too.
        return Facts(need_own=Need.DIAGONAL, keeps_zeros=not self.axes, cuttable=True)

    def outline(self, before: Outline) -> Outline:
        if any(axis >= len(before.positions) for axis in self.axes):
            raise ShapeError(
                "LayerNorm has an axis that its input does not have.",
                got=f"axes={self.axes} for positions of shape {before.positions}",
                remedy="count position axes from 0; the channels are always among them",
            )
        if before.raw and before.channels == 1 and not self.axes:
            raise ShapeError(
                "LayerNorm met one channel, which equals its own mean.",
                got="inputs of one channel, all of which it would make zero",
                remedy="put Dense, Conv or Flatten() before it, or leave it out",
            )
        return before

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        mean = self._averaged(jnp.mean(x, axis=-1), mask)
        centred = x - mean[..., None]
        variance = self._averaged(jnp.mean(centred**2, axis=-1), mask)
        return centred * _inverse_root(variance, self.eps, mask)[..., None]

    def _averaged(self, values: Array, mask: Array | None) -> Array:
        """The average over the axes, at every position; of real positions alone."""
        if not self.axes:
            return values
        real = None if mask is None else mask | ~jnp.any(mask, axis=self.axes, keepdims=True)
        mean = jnp.mean(values, axis=self.axes, where=real, keepdims=True)
        return jnp.broadcast_to(mean, values.shape)

    def memo(self, example: Example) -> Memo:
        variance, mask = example.variance(), example.mask
        mean, rows = example.mean_for("LayerNorm"), None
        centre = None if mean is None else self._averaged(mean, mask)
        if centre is not None and example.outline.raw and example.features is not None:
            root = jnp.sqrt(jnp.asarray(example.outline.channels, variance.dtype))
            rows = example.features - (centre / root)[..., None]
            variance = self._averaged(jnp.sum(rows**2, axis=-1), mask)
        elif centre is not None:
            variance = jnp.maximum(self._averaged(variance, mask) - centre**2, 0)
        else:
            variance = self._averaged(variance, mask)
        return _Normaliser(mean, centre, rows, _inverse_root(variance, self.eps, mask))

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        if memo1.rows is not None:
            pair = pair.compute()
            pair = pair.to(_products(pair, memo1.rows, memo2.rows), pair.ntk)
        elif memo1.mean is not None:
            pair = pair.compute()
            # Without axes the centre is the mean, and of four products one is left.
            one, two = pair.left(memo1.centre), pair.right(memo2.centre)
            less = pair.left(memo1.mean) * two
            if self.axes:
                less = less + one * pair.right(memo2.mean) - one * two
            pair = pair.to(pair.nngp - less, pair.ntk)
        return pair.scale_positions(memo1.scale, memo2.scale)

    def features(self, example: Example) -> Array | None:
        memo = self.memo(example)
        rows = example.features if memo.mean is None else memo.rows
        return None if rows is None else rows * memo.scale[..., None]

    def mean(self, example: Example, memo: Memo) -> Mean:
        if memo.mean is None or not self.axes:
            return None
        return (memo.mean - memo.centre) * memo.scale


class RMSNorm(RowMap):
    """`y_a = x_a / √(mean(x_a²) + ε)` over the channels of every position.

    κ_ab ← κ_ab / √((κ_aa + ε)(κ'_bb + ε)), and Θ_ab is divided by the same root.
    """

    eps: Any = leaf("eps", where=Range.POSITIVE, tuned=False, default=1e-6)

    @property
    def facts(self) -> Facts:
        return Facts(need_own=Need.DIAGONAL, keeps_zeros=True, cuttable=True)

    def outline(self, before: Outline) -> Outline:
        return before

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return x * _inverse_root(jnp.mean(x**2, axis=-1), self.eps, mask)[..., None]

    def memo(self, example: Example) -> Memo:
        return _inverse_root(example.variance(), self.eps, example.mask)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return pair.scale_positions(memo1, memo2)

    def mix(self, f: Array, memo: Memo) -> Array:
        return f * memo[..., None]


class Dropout(RowMap):
    """Keep each entry with probability `1 − rate`, scaled by 1/(1 − rate).

    Masks are drawn anew for every input, position and channel, so only an example's covariance with
    itself changes: κ_aa(x,x) ← κ_aa(x,x)/(1 − rate). The kernel of a pair, also of an input with
    itself, is the covariance of two passes with independent masks. `apply` without a key leaves
    inputs as they are (evaluation); with a key it drops entries (training).
    """

    rate: float = eqx.field(static=True, converter=check_rate)
    """The probability of dropping an entry, at least 0 and below 1."""

    def outline(self, before: Outline) -> Outline:
        quiet = self.rate == 0
        return before.to(
            gaussian=before.gaussian and quiet,
            raw=before.raw and quiet,
            noisy=before.noisy or not quiet,
        )

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, noisy=self.rate > 0, keeps_zeros=True, cuttable=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return x if key is None else drop(key, x, self.rate)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return pair

    def own(self, pair: Pair, memo: Memo) -> Pair:
        return with_diagonal(pair, pair.diagonal().nngp.reshape(-1) / (1 - self.rate))

    def mix(self, f: Array, memo: Memo) -> Array:
        return f  # features are those of two passes
