"""Any activation: Hermite coefficients per position, a short power series per pair."""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..compilation import compiled
from ..errors import NetworkError, OptionError
from ..printing import brief
from .base import Dual, as_module
from .plan import SeriesPlan, make_plan

_BATCH = 4096  # positions whose samples are held at once


class _Position(NamedTuple):
    """`E[φ]`, `1/√q`, the factors ε_r, and the two factors of the tail if there is one."""

    mean: Float[Array, "*p"]
    inverse: Float[Array, "*p"]
    factors: tuple[Float[Array, "*p"], ...]
    tail: tuple[Float[Array, "*p"], ...]


class Series(Dual):
    """Any elementwise φ, by Mehler's series.

    With factors `ε_r(q)` of each position and a short list of powers r (see `plan`):

        derivative = Σ_r ε_r(q₁) ε_r(q₂) c^r
        value      = E[φ(u)] E[φ(v)] + κ Σ_r ε_r(q₁) ε_r(q₂) c^r / (r + 1)

    so `∂value/∂κ` is the derivative exactly. Samples of φ and φ' are taken per position only.

    For smooth φ the plan holds errors below `tolerance` for variances up to `max_variance`, on the
    scales `√(E[φ(u)²]E[φ(v)²])` and `√(E[φ'(u)²]E[φ'(v)²])`. Beyond it, or if φ has kinks, `error`
    says what is reached; `extend_to` plans for larger variances.
    """

    ranged: ClassVar[bool] = True

    function: Callable[[Array], Array]
    plan: SeriesPlan = eqx.field(static=True)
    max_variance: float = eqx.field(static=True)
    tolerance: float = eqx.field(static=True)

    def __init__(
        self,
        function: Callable[[Array], Array],
        *,
        max_variance: float = 4.0,
        tolerance: float = 4e-7,
    ):
        """`function` is φ in jax; an equinox module may hold parameters to differentiate."""
        if not (np.isfinite(max_variance) and max_variance > 0 and 0 < tolerance < 1):
            raise OptionError(
                "max_variance= is not positive, or tolerance= not between 0 and 1.",
                got=f"max_variance={max_variance}, tolerance={tolerance}",
                remedy="leave them at their defaults, 4.0 and 4e-7",
            )
        self.function = as_module(function)
        self.max_variance, self.tolerance = float(max_variance), float(tolerance)
        try:
            self.plan = _kept_plan(self.function, self.max_variance, self.tolerance)
        except TypeError:  # parameters that are arrays cannot be looked up
            self.plan = _plan(self.function, self.max_variance, self.tolerance)

    @property
    def kinked(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether φ' was found to jump."""
        return not self.plan.by_slope

    def __repr__(self) -> str:
        function = getattr(self.function, "function", self.function)
        name = brief(function)
        known = {jnp.tanh: "Tanh()", jax.nn.sigmoid: "Sigmoid()"}
        known |= {jax.nn.silu: "Silu()", jax.nn.softplus: "Softplus()"}
        return known.get(function, f"Elementwise({name})")

    def fn(self, x):
        return self.function(x)

    def prepare(self, q) -> _Position:
        flat = jax.lax.map(
            partial(_position, self.function, self.plan), q.ravel(), batch_size=_BATCH
        )
        return jax.tree.map(lambda a: a.reshape(q.shape), flat)

    def __call__(self, left: _Position, right: _Position, k, *, need_derivative: bool = True):
        c = k * left.inverse * right.inverse
        # Kept in [−1, 1], with the gradient it has without rounding.
        c = c + jax.lax.stop_gradient(jnp.clip(c, -1, 1) - c)
        products = [a * b for a, b in zip(left.factors, right.factors, strict=True)]
        products += [a * b for a, b in zip(left.tail, right.tail, strict=True)]
        powers = self.plan.powers + (self.plan.tail or ())
        value = left.mean * right.mean + k * _horner(
            [p * (1 / (r + 1)) for r, p in zip(powers, products, strict=True)], powers, c
        )
        return value, _horner(products, powers, c) if need_derivative else None

    def mean(self, q):
        """`E[φ(u)]` by the same nodes."""
        return self.prepare(q).mean

    def error(self, q: Any) -> float:
        """The largest relative error found at `c = ±1` among up to 8 of the variances in `q`.

        There the expectations are one-dimensional integrals, and the series is at its worst. Needs
        concrete values; computes in float64.
        """
        some = np.quantile(np.asarray(q, np.float64), np.linspace(0, 1, 8))
        variances = np.unique(np.maximum(some, 1e-12))
        return max(_error_at(self, variances, sign) for sign in (1.0, -1.0))

    def trusted(self, dtype: Any) -> tuple[float, float]:
        """Sums over fixed points keep absolute accuracy: φ(x) ≈ φ'(0)x is lost far below."""
        return (1e-20 if dtype == np.float64 else 1e-6), math.inf

    def extend_to(self, variance: float) -> "Series":
        """A dual planned for variances up to `variance` (rounded up to a power of 2) and below."""
        if variance <= self.max_variance:
            return self
        wider = 2.0 ** np.ceil(np.log2(variance))
        return Series(self.function, max_variance=wider, tolerance=self.tolerance)


def _plan(function: Callable[[Array], Array], max_variance: float, tolerance: float) -> SeriesPlan:
    """For variances up to `max_variance`."""
    variances = np.geomspace(max_variance, min(0.01, max_variance / 2), 10)
    return make_plan(partial(_evaluate, function), variances, tolerance)


# A network is planned anew for every kernel whose variances are large, and a plan takes 0.1 s.
_kept_plan = lru_cache(maxsize=64)(_plan)


def _horner(coefficients: list[Array], powers: tuple[int, ...], c: Float[Array, "*s"]):
    """`Σ coefficient · c^power` for increasing powers, by repeated squares of c."""
    squares = [c]

    def raised(n: int) -> Array:
        out = None
        for bit in range(n.bit_length()):
            if bit == len(squares):
                squares.append(squares[-1] * squares[-1])
            if n >> bit & 1:
                out = squares[bit] if out is None else out * squares[bit]
        return jnp.ones_like(c) if out is None else out

    total = jnp.broadcast_to(coefficients[-1], c.shape)
    for upper, lower, coefficient in zip(
        powers[:0:-1], powers[-2::-1], coefficients[-2::-1], strict=True
    ):
        total = total * raised(upper - lower) + coefficient
    return total * raised(powers[0]) if powers[0] else total


def _both(function: Callable[[Array], Array], x: Array) -> tuple[Array, Array]:
    return jax.jvp(function, (x,), (jnp.ones_like(x),))


def _position(
    function: Callable[[Array], Array], plan: SeriesPlan, q: Float[Array, ""]
) -> _Position:
    """Sample φ and φ' at one position. Centring on φ(0), φ'(0) keeps small variances accurate."""
    q = jnp.maximum(q, 8 * jnp.finfo(q.dtype).eps)
    nodes = jnp.asarray(plan.nodes, q.dtype)
    value, derivative = _both(function, jnp.sqrt(jax.lax.stop_gradient(q)) * nodes)
    origin, slope = _both(function, jnp.zeros((), q.dtype))
    mean = origin + _coefficients(plan, True, 0, q, value - origin)[0]
    if plan.by_slope:
        constant = jnp.asarray(plan.transform[0], q.dtype)
        factors = constant * slope + _coefficients(plan, False, 0, q, derivative - slope)
    else:
        factors = _coefficients(plan, False, 0, q, value - origin) * jax.lax.rsqrt(q)
    tail = ()
    if plan.tail is not None:
        rest = plan.tail_squares(*jax.lax.stop_gradient((q, value, derivative, factors)))
        tail = tuple(jnp.sqrt(part) for part in rest)
    return _Position(mean, jax.lax.rsqrt(q), tuple(factors), tail)


@partial(jax.custom_jvp, nondiff_argnums=(0, 1, 2))
def _coefficients(
    plan: SeriesPlan, of_mean: bool, times: int, q: Float[Array, ""], samples: Array
) -> Array:
    """`(2q d/dq)^times` of the coefficients, or of E[φ], from samples.

    The gradient in q is this again, not the samples': it needs no second derivative of φ, and is
    right where φ' jumps.
    """
    return samples @ jnp.asarray(plan.matrix(times, of_mean=of_mean), q.dtype)


@_coefficients.defjvp
def _coefficients_jvp(plan: SeriesPlan, of_mean: bool, times: int, primals, tangents):
    (q, samples), (d_q, d_samples) = primals, tangents
    slope = _coefficients(plan, of_mean, times + 1, q, samples) / (2 * q)
    change = _coefficients(plan, of_mean, times, q, d_samples) + slope * d_q
    return _coefficients(plan, of_mean, times, q, samples), change


_both_compiled = compiled(_both)


def _evaluate(function: Callable[[Array], Array], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """φ and φ' in float64, now, even while a function is being traced.

    In blocks of one size, so that φ is compiled once.
    """
    blocks = np.zeros((-(-x.size // _BATCH), _BATCH))
    blocks.flat[: x.size] = x.ravel()
    with jax.enable_x64(True), jax.ensure_compile_time_eval():
        pairs = [_both_compiled(function, jnp.asarray(block)) for block in blocks]
    out = []
    for block in zip(*pairs, strict=True):
        joined = np.concatenate([np.asarray(part, np.float64).ravel() for part in block])
        if joined.size != blocks.size or not np.isfinite(joined).all():
            raise NetworkError(
                "The activation does not map each number to a finite one with a finite slope.",
                got=f"{joined.size} numbers for {blocks.size}, "
                f"{np.count_nonzero(~np.isfinite(joined))} of them or of their slopes not finite, "
                f"for |x| ≤ {np.abs(x).max():.3g}",
                remedy="write it with jax.numpy, guard it against overflow, or lower max_variance",
            )
        out.append(joined[: x.size].reshape(x.shape))
    return out[0], out[1]


def _error_at(dual: Series, variances: np.ndarray, sign: float) -> float:
    """Against one-dimensional quadrature at `c = sign`.

    By the substitution `z = s·sinh(t)`: at variance q the function changes over distances 1/√q of
    z, which nodes apart by as much near 0 resolve, however large q is.
    """
    roots = np.sqrt(variances)
    s = min(1.0, 1 / roots.max())
    half = np.arange(1 / 160, np.arcsinh(14 / s), 1 / 80)
    t = np.concatenate([-half[::-1], half])
    z = s * np.sinh(t)
    weights = np.exp(-(z**2) / 2) * np.cosh(t)
    weights = weights / weights.sum()
    samples = partial(_evaluate, dual.function)
    powers, means, factors = dual.plan.coefficients(samples, variances)
    series = [
        np.outer(means, means)
        + sign * np.outer(roots, roots) * ((factors * sign**powers / (powers + 1)) @ factors.T),
        (factors * sign**powers) @ factors.T,
    ]
    worst = 0.0
    for sampled, estimate in zip(samples(roots[:, None] * z), series, strict=True):
        exact = (sampled * weights) @ sampled[:, :: int(sign)].T
        size = np.sqrt(sampled**2 @ weights)
        scale = np.maximum(np.outer(size, size), np.finfo(float).tiny)
        worst = max(worst, float(np.max(np.abs(estimate - exact) / scale)))
    return worst


def tanh_gelu() -> Series:
    """The tanh approximation of GELU that many trained networks use."""
    return Series(jax.nn.gelu)
