"""Slices and resizing against matrices written out by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import ShapeError
from widelimit.layers import Contract, Resize

X = np.random.default_rng(0).standard_normal((3, 6, 4))
NET = wl.Serial(wl.Conv(8, 3, w_std=1.3, b_std=0.3), wl.Relu())


def _interpolation(old: int, new: int) -> np.ndarray:
    """The matrix of the docstring, entry by entry."""
    rows = np.zeros((new, old))
    for a in range(new):
        for i in range(old):
            distance = abs((a + 0.5) * old / new - 0.5 - i)
            rows[a, i] = max(0.0, 1 - distance / max(1.0, old / new))
    return rows / rows.sum(axis=1, keepdims=True)


def _keys(t: float) -> float:
    """Keys' cubic kernel, a = −1/2."""
    t = abs(t)
    if t < 1:
        return 1.5 * t**3 - 2.5 * t**2 + 1
    return -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2 if t < 2 else 0.0


def _lanczos(radius: int):
    return lambda t: np.sinc(t) * np.sinc(t / radius) * (abs(t) < radius)


@pytest.mark.parametrize(
    ("method", "weight"),
    [("cubic", _keys), ("lanczos3", _lanczos(3)), ("lanczos5", _lanczos(5))],
)
@pytest.mark.parametrize(("new", "antialias"), [(4, True), (4, False), (9, True)])
def test_other_interpolations_are_their_kernels(method, weight, new: int, antialias: bool):
    wide = max(1.0, 6 / new) if antialias else 1.0
    places = [[((a + 0.5) * 6 / new - 0.5 - i) / wide for i in range(6)] for a in range(new)]
    matrix = np.array([[weight(t) for t in row] for row in places])
    matrix /= matrix.sum(axis=1, keepdims=True)
    base = NET.kernel(X).nngp
    found = wl.Serial(NET, Resize(new, method=method, antialias=antialias)).kernel(X).nngp
    expected = np.einsum("ai,nmij,bj->nmab", matrix, base, matrix)
    np.testing.assert_allclose(found, expected, atol=1e-12)


RULES = {
    "ai,i->a": (2, 6),
    "i,i->i": (6,),
    "i,i->": (6,),
    "aib,i->ba": (2, 6, 3),
    "a,i->ia": (2,),
}


@pytest.mark.parametrize("rule", RULES)
def test_contractions_are_einsums_of_the_kernel(rule: str):
    """Also of padded sequences: padding adds nothing, and what only it adds to is padding."""
    array = np.random.default_rng(3).standard_normal(RULES[rule])
    given, left = rule.split("->")
    weights, taken = given.split(",")
    layer = Contract(array, rule)
    base, found = NET.kernel(X), wl.Serial(NET, layer).kernel(X)
    upper = str.upper
    both = f"{weights},nm{taken}{upper(taken)},{upper(weights)}->nm{left}{upper(left)}"
    both = both.replace("n", "y").replace("m", "z")
    for ours, kernel in zip(found, base, strict=True):
        np.testing.assert_allclose(ours, np.einsum(both, array, kernel, array), atol=1e-12)
    shorter = X * (np.arange(6) < 4)[:, None]
    mask = np.broadcast_to(np.arange(6) < 4, (3, 6))
    kernel = np.asarray(NET.kernel(X[:, :4]).nngp)
    kernel = np.pad(kernel, [(0, 0), (0, 0), (0, 2), (0, 2)])
    padded = wl.Serial(NET, layer).kernel(shorter, mask=mask).nngp
    np.testing.assert_allclose(padded, np.einsum(both, array, kernel, array), atol=1e-12)


def test_contractions_are_differentiable_in_their_array():
    def total(array):
        return jnp.sum(wl.Serial(wl.Dense(8), Contract(array, "ai,i->a")).kernel(X[:1]).nngp)

    array = jnp.asarray(np.random.default_rng(3).standard_normal((2, 6)), jnp.float32)
    base = np.asarray(wl.Dense(8).kernel(X[:1]).nngp)[0, 0]
    expected = 2 * np.ones((2, 2)) @ np.asarray(array) @ base
    np.testing.assert_allclose(jax.grad(total)(array), expected, rtol=1e-4)


def _nearest(old: int, new: int) -> np.ndarray:
    return np.eye(old)[[int((a + 0.5) * old / new) for a in range(new)]]


@pytest.mark.parametrize("new", [1, 2, 4, 6, 9])
@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_resize_is_its_matrix(method: str, new: int):
    matrix = (_interpolation if method == "linear" else _nearest)(6, new)
    below = NET.kernel(X)
    found = wl.Serial(NET, Resize(new, method=method)).kernel(X)
    for kernel, base in zip(found, below, strict=True):
        expected = np.einsum("ai,nmij,bj->nmab", matrix, base, matrix)
        np.testing.assert_allclose(kernel, expected, atol=1e-12)


@pytest.mark.parametrize(
    "part", [slice(1, None, 2), slice(None, 2), slice(-3, -1), slice(None, None, -1)]
)
def test_slices_are_slices_of_the_kernel(part: slice):
    below = NET.kernel(X)
    found = wl.Serial(NET, wl.Select(part)).kernel(X)
    for kernel, base in zip(found, below, strict=True):
        np.testing.assert_array_equal(kernel, np.asarray(base)[:, :, part][:, :, :, part])


def test_a_slice_and_an_index_of_an_image():
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 2))
    net = wl.Dense(8)
    found = wl.Serial(net, wl.Select((slice(1, 3), 2))).kernel(x).nngp
    np.testing.assert_array_equal(found, np.asarray(net.kernel(x).nngp)[:, :, 1:, 2, 1:, 2])


BOUNDS = [None, 2, 9, -1, -2]
PARTS = [slice(a, b, c) for a in BOUNDS for b in BOUNDS for c in (None, 2, -1, -2)]


def _fits(part: slice) -> bool:
    """Whether all lengths keep something, and the longest keeps the most."""
    kept = [len(range(n)[part]) for n in range(7)]
    return min(kept[3:]) > 0 and max(kept) == kept[-1]


@pytest.mark.parametrize("part", list(filter(_fits, PARTS)), ids=str)
def test_slices_of_padded_sequences_are_numpys(part: slice):
    """Every example as alone, whatever its length; nothing where it has none."""
    lengths = (6, 4, 3)
    mask = np.arange(6) < np.array(lengths)[:, None]
    select = wl.Select(part)
    ours = jax.vmap(select.mix)(jnp.asarray(X * mask[..., None]), mask)
    real = np.asarray(jax.vmap(select.mask)(mask))
    for y, kept, x, length in zip(ours, real, X, lengths, strict=True):
        expected = x[:length][part].astype(np.float32)
        np.testing.assert_array_equal(y[: len(expected)], expected)
        assert not np.asarray(y)[len(expected) :].any()
        assert kept.tolist() == [a < len(expected) for a in range(len(kept))]


def test_negative_indices_of_padded_images():
    """Heights and widths of their own: kernels of every image as alone."""
    rng = np.random.default_rng(2)
    images = [rng.standard_normal((*shape, 2)) for shape in ((3, 4), (2, 5), (4, 3))]
    net = wl.Serial(wl.Conv(8, 3, b_std=0.3), wl.Relu(), wl.Select((-1, slice(-2, None))))
    padded = net.kernel(images)
    for i in range(3):
        for j in range(3):
            alone = net.kernel(images[i][None], images[j][None])
            np.testing.assert_allclose(padded.ntk[i, j], alone.ntk[0, 0], rtol=1e-12)


def test_what_is_refused_says_why():
    ragged = [X[0], X[1, :4]]
    with pytest.raises(ShapeError, match="Resize met a mask"):
        wl.Serial(NET, Resize(3)).kernel(ragged)
    with pytest.raises(ShapeError, match="from the same end"):
        wl.Serial(NET, wl.Select(slice(-5, 3))).kernel(ragged)
    with pytest.raises(ShapeError, match="leaves no position"):
        wl.Serial(NET, wl.Select(slice(4, 2))).kernel(X)
    with pytest.raises(ShapeError, match="no real position"):
        wl.Serial(NET, wl.Select(slice(4, None))).kernel(ragged)
    with pytest.raises(wl.errors.OptionError, match="index="):
        wl.Select(slice(None, None, 0))
    with pytest.raises(wl.errors.OptionError, match="antialias="):
        Resize(3, antialias=1)
    with pytest.raises(ShapeError, match="does not fit"):
        wl.Serial(NET, Contract(np.ones((2, 5)), "ai,i->a")).kernel(X)
    for rule in ("ai,i", "ai,i->b", "aa,a->a", "i,i->i", "ai->a", "aI,I->a", 3):
        with pytest.raises(wl.errors.OptionError, match="rule="):
            Contract(np.ones((2, 6)), rule)
