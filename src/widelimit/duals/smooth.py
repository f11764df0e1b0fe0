"""Smooth activations with closed forms: erf, GELU, sine, exponential, Gaussian."""

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..options import Range, cast, leaf
from ..printing import written
from . import geometry
from .base import Dual, separate
from .geometry import Variance, prepare_variance


class _Widened(NamedTuple):
    """A variance `q`, and `1/√(1 + q)`."""

    variance: Variance
    shrink: Float[Array, "*p"]


def _widen(q: Float[Array, "*p"]) -> _Widened:
    return _Widened(prepare_variance(q), jax.lax.rsqrt(1 + q))


def _widened_determinant(left: _Widened, right: _Widened, k: Float[Array, "*s"]):
    """`(1 + q₁)(1 + q₂) − κ² ≥ 1`."""
    inner = geometry.determinant(left.variance, right.variance, k)
    return inner, 1 + left.variance.q + right.variance.q + inner


class _Scaled(Dual):
    """With a scale a outside and a rate b > 0 inside."""

    scale: Any = leaf("scale", default=1.0)
    rate: Any = leaf("rate", where=Range.POSITIVE, tuned=False, default=1.0)


class Erf(_Scaled):
    """`φ(x) = a·erf(b·x) + c`.

    With `qᵢ ← 2b²qᵢ`, `κ ← 2b²κ` and `Δ = (1 + q₁)(1 + q₂) − κ²`:
    value `(2a²/π) arcsin(κ/√((1 + q₁)(1 + q₂))) + c²`, derivative `(4a²b²/π)/√Δ`.
    """

    shift: Any = leaf("shift", default=0.0)

    def fn(self, x):
        return cast(self.scale, x) * jax.lax.erf(cast(self.rate, x) * x) + cast(self.shift, x)

    def prepare(self, q) -> _Widened:
        """The variance of `√2·b·u`."""
        return _widen(2 * cast(self.rate, q) ** 2 * q)

    def __call__(self, left: _Widened, right: _Widened, k, *, need_derivative: bool = True):
        a, b, c = cast(self.scale, k), cast(self.rate, k), cast(self.shift, k)
        k = 2 * b**2 * k
        shrink = left.shrink * right.shrink
        root = jnp.sqrt(_widened_determinant(left, right, k)[1])
        value = 2 / jnp.pi * a**2 * geometry.arcsin(k * shrink, root * shrink) + c**2
        if not need_derivative:
            return value, None
        outer = _widened_determinant(left, right, separate(k))[1]
        return value, 4 / jnp.pi * (a * b) ** 2 * jax.lax.rsqrt(outer)

    def mean(self, q):
        """c: the rest is odd."""
        return jnp.broadcast_to(cast(self.shift, q), q.shape)


class Gelu(Dual):
    """`φ(x) = x·Φ(x)`, Φ the normal distribution function.

    With `Δ = (1 + q₁)(1 + q₂) − κ²`, `w = 1/(1 + q₁) + 1/(1 + q₂)` and the obtuse side's angle
    `ω = arccos(−κ/√((1 + q₁)(1 + q₂)))`:

        value      = [κω + (q₁q₂ − κ² + κ²w)/√Δ] / 2π
        derivative = [ω + κ(w + 1/Δ)/√Δ] / 2π
    """

    def fn(self, x):
        return jax.nn.gelu(x, approximate=False)

    def prepare(self, q) -> _Widened:
        return _widen(q)

    def __call__(self, left: _Widened, right: _Widened, k, *, need_derivative: bool = True):
        """Value and derivative, each from one angle and one inverse root."""
        omega, inner, inverse_root, w = _gelu_parts(left, right, k)
        value = (k * omega + (inner + k**2 * w) * inverse_root) / (2 * jnp.pi)
        if not need_derivative:
            return value, None
        k = separate(k)
        omega, _, inverse_root, w = _gelu_parts(left, right, k)
        return value, (omega + k * inverse_root * (w + inverse_root**2)) / (2 * jnp.pi)

    def mean(self, q):
        """`q/√(2π(1 + q))`."""
        return q * jax.lax.rsqrt(2 * jnp.pi * (1 + q))


def _gelu_parts(left: _Widened, right: _Widened, k: Float[Array, "*s"]):
    """ω, `q₁q₂ − κ²`, `1/√Δ` and w."""
    inner, outer = _widened_determinant(left, right, k)
    inverse_root, shrink = jax.lax.rsqrt(outer), left.shrink * right.shrink
    omega = geometry.arccos(-k * shrink, outer * inverse_root * shrink)
    return omega, inner, inverse_root, left.shrink**2 + right.shrink**2


class Sine(_Scaled):
    """`φ(x) = a·sin(b·x + c)`.

    With `e± = exp(−b²(q₁ + q₂ ∓ 2κ)/2)`: value `a²(e₊ − e₋ cos 2c)/2`, derivative
    `a²b²(e₊ + e₋ cos 2c)/2`; computed as `(e₊ − e₋)/2 + e₋ sin² c` and the same with cos².
    """

    ranged: ClassVar[bool] = True

    phase: Any = leaf("phase", default=0.0)

    def __repr__(self) -> str:
        return written(self, "Sin")

    def fn(self, x):
        return cast(self.scale, x) * jnp.sin(cast(self.rate, x) * x + cast(self.phase, x))

    def prepare(self, q) -> Float[Array, "*p"]:
        """`b²q/2`."""
        return cast(self.rate, q) ** 2 * q / 2

    def __call__(self, left: Array, right: Array, k, *, need_derivative: bool = True):
        a, b, c = cast(self.scale, k), cast(self.rate, k), cast(self.phase, k)
        half, minus = _exponentials(left + right, b**2 * k)
        value = a**2 * (half + minus * jnp.sin(c) ** 2)
        if not need_derivative:
            return value, None
        half, minus = _exponentials(left + right, b**2 * separate(k))
        return value, (a * b) ** 2 * (half + minus * jnp.cos(c) ** 2)

    def trusted(self, dtype: Any) -> tuple[float, float]:
        """Up to `b²q` of 1e2 (single) or 1e10 (double): rounding of `b²q` shifts an exponent."""
        most = 1e10 if dtype == np.float64 else 1e2
        return 0.0, most / max(float(np.asarray(self.rate)) ** 2, 1e-30)

    def mean(self, q):
        """`a·sin(c)·exp(−b²q/2)`."""
        return cast(self.scale, q) * jnp.sin(cast(self.phase, q)) * jnp.exp(-self.prepare(q))


def _exponentials(decay: Float[Array, "*s"], t: Float[Array, "*s"]):
    """`(e₊ − e₋)/2` and `e₋` for `e± = exp(±t − decay)`, without cancellation or overflow."""
    forward = t >= 0
    size = jnp.where(forward, t, -t)
    large = jnp.exp(size - decay)
    difference = large * jnp.expm1(-2 * size)
    return (
        jnp.where(forward, -difference, difference) / 2,
        jnp.where(forward, large + difference, large),
    )


def cosine(*, scale: Any = 1.0, rate: Any = 1.0, phase: Any = 0.0) -> Sine:
    """`scale·cos(rate·x + phase)`."""
    return Sine(scale=scale, rate=rate, phase=phase + jnp.pi / 2)


class Exp(_Scaled):
    """`φ(x) = a·exp(b·x)`: value `a² exp(b²(q₁ + q₂ + 2κ)/2)`, derivative b² times that."""

    def fn(self, x):
        return cast(self.scale, x) * jnp.exp(cast(self.rate, x) * x)

    def prepare(self, q) -> Float[Array, "*p"]:
        """`b²q/2`."""
        return cast(self.rate, q) ** 2 * q / 2

    def __call__(self, left: Array, right: Array, k, *, need_derivative: bool = True):
        a, b = cast(self.scale, k), cast(self.rate, k)
        value = a**2 * jnp.exp(b**2 * k + left + right)
        return value, b**2 * value if need_derivative else None

    def mean(self, q):
        """`a·exp(b²q/2)`."""
        return cast(self.scale, q) * jnp.exp(self.prepare(q))


class Gaussian(_Scaled):
    """`φ(x) = a·exp(−b·x²)`.

    With `Δ = (1 + 2bq₁)(1 + 2bq₂) − 4b²κ²`: value `a²/√Δ`, derivative `4a²b²κ/Δ^{3/2}`.
    """

    def fn(self, x):
        return cast(self.scale, x) * jnp.exp(-cast(self.rate, x) * x**2)

    def prepare(self, q) -> Variance:
        return prepare_variance(q)

    def __call__(self, left: Variance, right: Variance, k, *, need_derivative: bool = True):
        a, b = cast(self.scale, k), cast(self.rate, k)
        inner = geometry.determinant(left, right, k)
        inverse_root = jax.lax.rsqrt(1 + 2 * b * (left.q + right.q) + 4 * b**2 * inner)
        value = a**2 * inverse_root
        return value, 4 * b**2 * k * inverse_root**2 * value if need_derivative else None

    def mean(self, q):
        """`a/√(1 + 2bq)`."""
        return cast(self.scale, q) * jax.lax.rsqrt(1 + 2 * cast(self.rate, q) * q)
