"""ReLU, abs and their like as score maps: the O(S²) sums against 40 digits, at all correlations."""

import itertools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import widelimit as wl
from widelimit.layers.attention.closed import homogeneous_kernels
from widelimit.layers.attention.rules import ElementwiseScores, Sides

# Every pair of these is met by a pair of queries and a pair of keys: equal, opposite, and close.
COSINES = (1, -1, 0.9999, -0.9999, 1 - 1e-8, -1 + 1e-5, 1 - 1e-12, 1 - 1e-3, 0.97, 0.3, 0, -0.7)
MAPS = {
    "relu": (wl.Relu(), 0.0, 1.0),
    "abs": (wl.layers.Abs(), -1.0, 1.0),
    "leaky": (wl.LeakyRelu(0.25), 0.25, 1.0),
}


class Problem:
    """Kernels of a pair: 4 and 3 queries, 3 and 4 keys; roots of the variances are exact."""

    def __init__(self, *, causal: bool, dtype: Any = np.float64):
        rng = np.random.default_rng(0)
        self.queries = np.array([1, 4, 0.25, 1]), np.array([1.0, 1, 4])
        self.keys = np.array([1, 0.25, 1]), np.array([4, 1, 1, 0.25])
        cosines = np.array(COSINES, np.float64)
        query = cosines[::-1].reshape(4, 3) * np.sqrt(np.outer(*self.queries))
        key = cosines.reshape(3, 4) * np.sqrt(np.outer(*self.keys))
        self.query, self.key = query.astype(dtype), key.astype(dtype)
        self.value = rng.normal(size=(3, 4)).astype(dtype)
        shapes = (4, 3), (3, 4), (3, 4)
        self.ntk = [rng.normal(size=shape).astype(dtype) for shape in shapes]
        self.allowed = np.tri(4, 3) if causal else None, np.tri(3, 4) if causal else None

    def found(self, dual: Any) -> list[np.ndarray]:
        with jax.enable_x64(True):
            query, key, value, *ntk = (
                jnp.asarray(k) for k in (self.query, self.key, self.value, *self.ntk)
            )
            dtype = key.dtype
            one, two = (
                (jnp.asarray(self.queries[i], dtype), jnp.asarray(self.keys[i], dtype))
                for i in (0, 1)
            )
            allowed = [None if a is None else jnp.asarray(a, dtype) for a in self.allowed]
            sides = Sides(query, key, value, Sides(ntk[0], ntk[1], ntk[2]))
            scale = jnp.asarray(1.25, dtype)
            scores = ElementwiseScores(sides, (one, two), (allowed[0], allowed[1]), scale)
            kernels = eqx.filter_jit(homogeneous_kernels)(dual, scores)
            return [np.asarray(kernel) for kernel in kernels]

    def exact(self, low: float, high: float) -> list[np.ndarray]:
        """The sum over all pairs of scores, with the arc-cosine kernel of `low` and `high`."""
        nngp, ntk = np.zeros((4, 3)), np.zeros((4, 3))
        one, two = (np.ones(1) if a is None else a for a in self.allowed)
        with mpmath.workdps(40):
            # Of a·min + b·max: products of two slopes of the same side, and of opposite sides.
            same, opposite = (mpmath.mpf(v) for v in (low**2 + high**2, 2 * low * high))
            for (a, b), (i, j) in itertools.product(np.ndindex(4, 3), np.ndindex(3, 4)):
                if not (one[a, i] * two[b, j] if one.ndim > 1 else True):
                    continue
                ab, ij, v = _numbers(self.query[a, b], self.key[i, j], self.value[i, j])
                d_ab, d_ij, d_v = _numbers(self.ntk[0][a, b], self.ntk[1][i, j], self.ntk[2][i, j])
                variances = self.queries[0][a], self.queries[1][b], self.keys[0][i], self.keys[1][j]
                scale = mpmath.sqrt(mpmath.fprod(_numbers(*variances)))
                angle = mpmath.acos(ab * ij / scale)
                sine, cosine, pi = mpmath.sin(angle), mpmath.cos(angle), mpmath.pi
                value = same * (sine + (pi - angle) * cosine) - opposite * (sine - angle * cosine)
                value *= scale / (2 * pi)
                slope = (same * (pi - angle) + opposite * angle) / (2 * pi)
                nngp[a, b] += 1.25 * value * v
                ntk[a, b] += 1.25 * value * (2 * v + d_v)
                ntk[a, b] += 1.25 * slope * v * (2 * ab * ij + d_ab * ij + ab * d_ij)
        return [nngp, ntk]


def _numbers(*values: Any) -> list[Any]:
    return [mpmath.mpf(float(value)) for value in values]


@pytest.mark.parametrize("causal", [False, True], ids=["all", "causal"])
@pytest.mark.parametrize("name", MAPS)
def test_sums_hold_at_all_correlations(name, causal):
    layer, low, high = MAPS[name]
    dual = wl.ElementwiseMap(layer).dual
    for dtype, most in ((np.float64, 2e-10), (np.float32, 2e-6)):
        problem = Problem(causal=causal, dtype=dtype)
        for one, truth in zip(problem.found(dual), problem.exact(low, high), strict=True):
            assert np.abs(one - truth).max() < most * np.abs(truth).max()


@pytest.mark.slow
def test_gradients_are_those_of_differences():
    """Backwards through all levels; nearly equal tokens included, equal ones are flat."""
    dual = wl.ElementwiseMap(wl.Relu()).dual
    problem = Problem(causal=False)

    with jax.enable_x64(True):
        value, *ntk = (jnp.asarray(t) for t in (problem.value, *problem.ntk))
        queries = tuple(jnp.asarray(v) for v in problem.queries)
        keys = tuple(jnp.asarray(v) for v in problem.keys)
        away = 1 - 1e-3  # all correlations, kept away from ±1

        def total(share: Any) -> Any:
            sides = Sides(
                share * problem.query, share * problem.key, value, Sides(ntk[0], ntk[1], ntk[2])
            )
            one, two = ((queries[i], keys[i]) for i in (0, 1))
            scores = ElementwiseScores(sides, (one, two), (None, None), jnp.asarray(1.3))
            kernels = homogeneous_kernels(dual, scores)
            return sum(jnp.sum(jnp.sin(kernel)) for kernel in kernels if kernel is not None)

        step = 1e-6
        difference = (total(away + step) - total(away - step)) / (2 * step)
        slope = jax.grad(total)(away)
        np.testing.assert_allclose(slope, difference, rtol=1e-6)
        np.testing.assert_allclose(jax.jvp(total, (away,), (1.0,))[1], slope, rtol=1e-12)
        assert np.isfinite(jax.grad(total)(1.0))
