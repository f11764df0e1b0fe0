"""Single precision gives right digits, or the work is done in double precision, or it says so."""

import jax
import mpmath
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import PrecisionError


def _gaussian_mean(phi, variance: float) -> float:
    """`E[φ(u)²]` for u ~ N(0, variance), by quadrature in high precision."""
    root = mpmath.sqrt(variance)
    weight = lambda z: mpmath.exp(-(z**2) / 2) / mpmath.sqrt(2 * mpmath.pi)  # noqa: E731
    return float(
        mpmath.quad(lambda z: phi(root * z) ** 2 * weight(z), mpmath.linspace(-12, 12, 25))
    )


@pytest.mark.parametrize("activation", [wl.layers.Sin, wl.layers.Cos])
@pytest.mark.parametrize("size", [1e3, 1e4])
def test_waves_at_large_variance(activation, size):
    net = wl.Serial(wl.Dense(8), activation())
    x = np.full((1, 3), size, np.float32)
    found = net.kernel(x, ntk=False).nngp
    assert found.dtype == np.float32
    # E[sin²] = (1 − exp(−2q))/2, E[cos²] = (1 + exp(−2q))/2
    np.testing.assert_allclose(found, 0.5, rtol=1e-6)


def test_silu_at_small_inputs():
    net = wl.Serial(wl.Dense(8), wl.Silu())
    x = np.full((1, 3), 1e-6, np.float32)
    exact = _gaussian_mean(lambda u: u / (1 + mpmath.exp(-u)), float(x[0, 0]) ** 2)
    np.testing.assert_allclose(net.kernel(x, ntk=False).nngp, exact, rtol=1e-5)


def test_tiny_and_huge_inputs():
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
    x = np.array([[1.0, 2.0], [-0.5, 1.0]], np.float32)
    unit = net.kernel(x)
    for size in (1e-18, 1e17):
        found = net.kernel((size * x).astype(np.float32))
        np.testing.assert_allclose(found.ntk / size**2, unit.ntk, rtol=1e-5)
    with pytest.raises(PrecisionError, match="float64"):
        net.kernel((1e-30 * x).astype(np.float32))


def test_no_precision_left_is_said():
    net = wl.Serial(wl.Dense(8), wl.layers.Sin())
    with pytest.raises(PrecisionError, match="variances from"):
        net.kernel(np.full((1, 3), 1e8))


@pytest.mark.parametrize("activation", [wl.Relu, wl.layers.Abs])
@pytest.mark.parametrize("angle", [0.0, 1e-5, 1e-4])
def test_nearly_opposite_inputs(activation, angle):
    # Through a layer without bias opposite inputs stay opposite; κ and Θ in closed form.
    first = np.array([1.0, 0.0])
    second = -np.array([np.cos(angle), np.sin(angle)])
    x = np.stack([first, second])
    net = wl.Serial(wl.Dense(8), activation(), wl.Dense(1))
    narrow = net.kernel(x.astype(np.float32))
    q, theta = 0.5, np.pi - angle
    relu = q / (2 * np.pi) * (np.sin(theta) + (np.pi - theta) * np.cos(theta))
    slope = (np.pi - theta) / (2 * np.pi)
    if activation is wl.layers.Abs:  # |x| = ReLU(x) + ReLU(−x)
        relu = q / np.pi * (2 * np.sin(angle) + (np.pi - 2 * angle) * np.cos(angle))
        slope = -(np.pi - 2 * angle) / np.pi
    tangent = relu + q * np.cos(theta) * slope
    scale = narrow.ntk[0, 0]
    assert abs(narrow.nngp[0, 1] - relu) < 1e-6 * scale
    assert abs(narrow.ntk[0, 1] - tangent) < 1e-6 * scale


def test_diagonal_does_not_depend_on_the_batch():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(33, 7))
    net = wl.Serial(*(wl.Dense(8), wl.Relu()) * 3, wl.Dense(1))
    together = np.diagonal(net.kernel(x).ntk)
    alone = [net.kernel(one[None]).ntk[0, 0] for one in x[:3]]
    np.testing.assert_allclose(together[:3], alone, rtol=1e-13)
    # Depth 3 with σ_w = 1: every ReLU halves both kernels, so κ = q/8 and Θ = 4κ.
    np.testing.assert_allclose(together, 4 * (x**2).mean(axis=1) / 8, rtol=1e-13)


def test_overflow_in_double_precision_does_not_advise_double_precision():
    net = wl.Serial(wl.Dense(8, w_std=1e160), wl.Relu(), wl.Dense(1))
    with pytest.raises(wl.errors.NumericalError, match="kernel is not finite") as caught:
        net.kernel(np.ones((1, 3)))
    assert "float64" not in caught.value.remedy


def test_long_sums_keep_their_digits_in_single_precision():
    """A pool over 256 positions adds 65,536 numbers: plain loops lose three digits of them."""
    x = np.random.default_rng(0).normal(size=(3, 16, 16, 3)).astype(np.float32)
    attention = wl.Attention(8, scaling=wl.Scaling.LINEAR)
    first = (wl.Conv(8, 3, b_std=0.1), wl.Relu(), attention, wl.Relu())
    net = wl.Serial(*first, wl.MeanPool(), wl.Dense(1))
    single, double = net.kernel(x), net.kernel(x.astype(np.float64))
    np.testing.assert_allclose(single.nngp, double.nngp, rtol=2e-6)
    np.testing.assert_allclose(single.ntk, double.ntk, rtol=2e-6)


# --- the dtype of the inputs decides --------------------------------------------------------------

NET = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
ROWS = np.random.default_rng(0).standard_normal((12, 3))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_models_compute_in_the_precision_of_their_inputs(dtype):
    x, y = ROWS.astype(dtype), ROWS[:, 0]
    found = wl.GP(NET, kind="nngp", noise=0.1).fit(x[:8], y[:8]).predict(x[8:])
    kernel = NET.kernel(ROWS).nngp
    exact = kernel[8:, :8] @ np.linalg.solve(kernel[:8, :8] + 0.1 * np.eye(8), y[:8])
    error = np.abs(found.mean - exact).max()
    assert error < 1e-12 if dtype == np.float64 else 1e-12 < error < 1e-4


def test_inside_transformations_jax_decides():
    """float32 unless 64-bit numbers are enabled, without a warning; what cannot be is refused."""
    x, other = ROWS[:2], ROWS[2:]

    def entry(a):
        return NET.kernel(a, other).ntk[0, 0]

    narrow = jax.grad(entry)(x)
    assert narrow.dtype == np.float32
    assert jax.vmap(lambda a: NET.kernel(a[None], other).nngp[0])(x).dtype == np.float32
    with jax.enable_x64(True):
        wide = jax.grad(entry)(x)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(narrow, wide, rtol=1e-4, atol=1e-5)
    with pytest.raises(wl.errors.OptionError, match="inside a JAX transformation"):
        jax.jit(lambda a: NET.kernel(a, dtype=np.float64).ntk)(x)


KINKED = [wl.Relu, lambda: wl.LeakyRelu(0.2), wl.layers.Abs]


@pytest.mark.parametrize("seed", range(4))
def test_kernels_under_jit_are_those_outside(seed):
    """To rounding; in float32 but for nearly equal inputs, by what the docstring says."""
    rng = np.random.default_rng(seed)
    depth, kinks = int(rng.integers(1, 5)), 0
    layers = []
    for _ in range(depth):
        kink = rng.random() < 0.7
        act = KINKED[rng.integers(len(KINKED))]() if kink else wl.Erf()
        kinks += kink
        layers += [wl.Dense(8, w_std=float(rng.uniform(1.0, 1.6)), b_std=0.1), act]
    net = wl.Serial(*layers, *([wl.MeanPool()] if seed % 2 else []), wl.Dense(1))
    x = rng.standard_normal((9, *([3] if seed % 2 else []), 5))
    x[1] = x[0] + 1e-4 * x[1]
    kernel = jax.jit(lambda a: net.kernel(a))
    for dtype, close, far in ((np.float32, 2e-4 * kinks + 1e-5, 1e-5), (np.float64, 1e-11, 1e-12)):
        given = x.astype(dtype)
        outside = net.kernel(given)
        with jax.enable_x64(dtype == np.float64):
            inside = jax.tree.map(np.asarray, kernel(given))
        error = np.abs(inside.ntk - outside.ntk) / np.abs(outside.ntk).max()
        near = np.eye(9, dtype=bool)
        near[:2, :2] = True
        assert error[near].max() < close
        # Tokens of unequal inputs may be close to each other as well.
        assert error[~near].max() < far
        size = np.abs(outside.nngp).max()
        np.testing.assert_allclose(inside.nngp, outside.nngp, rtol=0, atol=far * size)


def test_jumps_under_jit_take_double_precision():
    net = wl.Serial(*(wl.Dense(8), wl.layers.Sign()) * 3, wl.Dense(1))
    with jax.enable_x64(True):
        inside = jax.jit(lambda a: net.kernel(a))(ROWS)
    np.testing.assert_allclose(inside.ntk, net.kernel(ROWS).ntk, rtol=1e-10)
