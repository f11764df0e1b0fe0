"""Sampled heads: how fast they converge, how honest their errors are, what a sampler fixes."""

import dataclasses
import re
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine import kernel as kernel_module
from widelimit.engine import sampling
from widelimit.engine.budget import DrawnHeads, error_bound
from widelimit.engine.inputs import outline_of
from widelimit.engine.phases import cross_tile, encode_block
from widelimit.engine.sampling import realisations
from widelimit.errors import OptionError
from widelimit.layers.attention.heads import Coupling, Scheme, _normals, pivoted_cholesky


def _tokens(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def _shallow(**options: Any) -> wl.Serial:
    return wl.Serial(wl.Attention(8, **options), wl.MeanPool(), wl.Dense(1))


def _deep(**options: Any) -> wl.Serial:
    """No exact features at the attention layer: an activation stands before it."""
    first = (wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(8))
    return wl.Serial(*first, wl.Attention(8, **options), wl.MeanPool(), wl.Dense(1))


def _two_blocks() -> wl.Serial:
    """Sampled attention above sampled attention, with normalisation and activations between."""
    return wl.Serial(wl.Dense(8), wl.TransformerEncoder(8, depth=2), wl.MeanPool(), wl.Dense(1))


def _coupled(sampler: wl.Sampler, coupling: Coupling) -> wl.Sampler:
    scheme = sampler.scheme
    other = Scheme(scheme.samples, scheme.rank, scheme.tolerance, coupling)
    return dataclasses.replace(sampler, scheme=other)


# --- convergence ---------------------------------------------------------------------------------


@pytest.mark.slow
def test_error_falls_as_one_over_the_root_of_the_heads():
    x = _tokens(4, 3, 4).astype(np.float32)
    net = _shallow(qk_std=1.5)
    truth = net.kernel(x, key=jax.random.key(99), samples=8192)
    counts = np.array([4, 32, 256])
    errors = []
    for count in counts:
        squares = []
        for seed in range(10):
            sampler = net.sampler(x, key=jax.random.key(seed), samples=int(count), replicates=2)
            # Orthogonal frames need as many heads as W has entries: errors fall faster until then.
            k = net.kernel(x, sampler=_coupled(sampler, Coupling.OPPOSITE))
            squares.append([((k.nngp - truth.nngp) ** 2).mean(), ((k.ntk - truth.ntk) ** 2).mean()])
        errors.append(np.sqrt(np.mean(squares, axis=0)))
    slopes = np.polyfit(np.log(counts), np.log(errors), 1)[0]
    np.testing.assert_allclose(slopes, -0.5, atol=0.08)


def _coverage(net: wl.Layer, x: np.ndarray, truth: Any, keys: range, **options: Any) -> np.ndarray:
    """Fractions of entries within 1 and 2 reported errors of the truth, NNGP and NTK together."""
    ratios = []
    for seed in keys:
        k = net.kernel(x, key=jax.random.key(seed), **options)
        upper = np.triu_indices(len(x))
        for value, error, exact in (
            (k.nngp, k.nngp_error, truth.nngp),
            (k.ntk, k.ntk_error, truth.ntk),
        ):
            ratios.append(np.abs(value - exact)[upper] / error[upper])
    return np.array([np.mean(np.array(ratios) < limit) for limit in (1, 2)])


# Errors from 8 replicates are covered as Student's law with 7 degrees of freedom says.
STUDENT = np.array([0.649, 0.914])


@pytest.mark.slow
def test_reported_errors_cover_the_truth_in_two_blocks():
    x = _tokens(4, 3, 4).astype(np.float32)
    net = _two_blocks()
    truth = net.kernel(x, key=jax.random.key(99), samples=4096)
    found = _coverage(net, x, truth, range(24), samples=32)
    np.testing.assert_allclose(found, STUDENT, atol=0.12)


def test_reported_errors_cover_the_truth_in_one_layer():
    x = _tokens(4, 3, 4).astype(np.float32)
    net = _shallow()
    truth = net.kernel(x, key=jax.random.key(99), samples=4096)
    found = _coverage(net, x, truth, range(24), samples=16)
    np.testing.assert_allclose(found, STUDENT, atol=0.12)


def test_coupled_heads_gain_and_do_not_bias():
    """Opposite heads, then orthogonal ones: smaller errors for as many heads, the same mean."""
    x = _tokens(3, 3, 4).astype(np.float32)
    net = _shallow()
    fitted = net.sampler(x, samples=32, replicates=256)
    results = {c: net.kernel(x, sampler=_coupled(fitted, c)) for c in Coupling}
    gains = {Coupling.OPPOSITE: 0.5, Coupling.FRAMES: 0.12}
    free = results[Coupling.FREE]
    for coupling, gain in gains.items():
        k = results[coupling]
        for a, b, error_a, error_b in (
            (k.nngp, free.nngp, k.nngp_error, free.nngp_error),
            (k.ntk, free.ntk, k.ntk_error, free.ntk_error),
        ):
            assert np.mean(error_a**2) < gain * np.mean(error_b**2)
            assert (np.abs(a - b) / np.hypot(error_a, error_b)).max() < 4.5


def test_coupled_heads_are_normal_each_by_itself():
    draws = jax.vmap(lambda key: _normals(key, 8, (1, 2, 2), Coupling.FRAMES))(
        jax.random.split(jax.random.key(0), 20_000)
    )
    heads = np.asarray(draws).reshape(20_000, 8, 4)
    # Opposite heads repeat each other; draws are independent, and one value each gives errors.
    for power, moment in ((2, 1), (4, 3), (6, 15)):
        values = (heads[:, :4] ** power).mean(axis=(1, 2))
        error = values.std() / np.sqrt(len(values))
        assert error < 0.02 * moment
        assert abs(values.mean() - moment) < 4.5 * error
    for i, j in ((0, 1), (0, 2), (1, 3)):
        values = (heads[:, :4, i] * heads[:, :4, j]).mean(axis=1)
        assert abs(values.mean()) < 4.5 * values.std() / np.sqrt(len(values)) < 0.03
    np.testing.assert_allclose(heads[:, :4], -heads[:, 4:])
    inner = np.einsum("ngi,nhi->ngh", heads[:, :4], heads[:, :4])
    assert np.abs(inner[:, ~np.eye(4, dtype=bool)]).max() < 1e-4


# --- what a sampler fixes ------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 3])
def test_kernels_are_positive_semidefinite_for_every_sample_count(samples):
    x = _tokens(3, 3, 4)
    k = wl.Attention(8, qk_std=1.5).kernel(x, samples=samples)
    for kernel in (k.nngp, k.ntk):
        matrix = np.moveaxis(kernel, 1, 2).reshape(9, 9)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12)
        assert np.linalg.eigvalsh(matrix)[0] > -1e-12


_MAKERS = [
    pytest.param(_shallow, id="exact"),
    pytest.param(_deep, id="landmarks", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("make", _MAKERS)
def test_posterior_variances_are_never_negative_with_one_sampler(make):
    """Test inputs next to training inputs, hardly any noise, few heads: the hardest case."""
    net, train = make(), _tokens(6, 3, 4)
    test = train + 1e-3 * _tokens(6, 3, 4, seed=1)
    sampler = net.sampler(train, samples=2, replicates=2)

    def least(sampler_test: wl.Sampler) -> float:
        k = net.kernel(train, sampler=sampler).nngp + 1e-6 * np.eye(6)
        cross = net.kernel(test, train, sampler=sampler_test).nngp
        prior = net.kernel(test, sampler=sampler_test).nngp
        return float(np.diag(prior - cross @ np.linalg.solve(k, cross.T)).min())

    assert least(sampler) > 0
    # Heads of their own for the test inputs would not do.
    assert least(net.sampler(train, key=jax.random.key(1), samples=2, replicates=2)) < -1e-3


def test_a_key_determines_the_kernel():
    net, x = _shallow(), _tokens(3, 3, 4)
    one, again = (net.kernel(x, key=jax.random.key(5), samples=4) for _ in range(2))
    np.testing.assert_array_equal(one.ntk, again.ntk)
    other = net.kernel(x, key=jax.random.key(6), samples=4)
    assert np.abs(one.nngp - other.nngp).max() > 1e-4
    fitted = net.kernel(x, sampler=net.sampler(x, key=jax.random.key(5), samples=4))
    np.testing.assert_array_equal(one.nngp, fitted.nngp)


@pytest.mark.parametrize("option", [{"key": 1}, {"samples": 64}, {"tolerance": 0.01}], ids=str)
def test_heads_are_not_asked_for_twice(option):
    """A sampler has a key and heads: others beside it were not drawn."""
    net, x = _shallow(), _tokens(2, 3, 4)
    sampler = net.sampler(x, samples=2, replicates=2)
    for reading in (net.kernel, net.diagonal):
        with pytest.raises(OptionError, match=f"sampler= and {next(iter(option))}="):
            reading(x, sampler=sampler, **option)


@pytest.mark.parametrize("make", _MAKERS)
def test_both_precisions_see_the_same_heads(make):
    net, x = make(positions=wl.Decay(0.5)), _tokens(4, 3, 4).astype(np.float32)
    sampler = net.sampler(x, samples=2, replicates=2)
    single = net.kernel(x, sampler=sampler)
    double = net.kernel(x.astype(np.float64), sampler=sampler)
    assert (single.nngp.dtype, double.nngp.dtype) == (np.float32, np.float64)
    # Deep features pass through a Cholesky factor down to 1e-4 of the variance.
    tolerance = 1e-4 if sampler.rank is None else 2e-3
    for a, b in ((single.nngp, double.nngp), (single.ntk, double.ntk)):
        np.testing.assert_allclose(a, b, atol=tolerance * np.abs(b).max())


def _true_error(k: Any, truth: Any) -> float:
    """The largest error of all entries, relative to the largest entry."""
    pairs = ((k.nngp, truth.nngp), (k.ntk, truth.ntk))
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def _standard(k: Any) -> float:
    pairs = ((k.nngp, k.nngp_error), (k.ntk, k.ntk_error))
    return max(float(error.max() / np.abs(value).max()) for value, error in pairs)


def test_bounds_hold_for_all_entries_and_standard_errors_do_not():
    x = _tokens(6, 3, 4).astype(np.float32)
    net = _shallow(qk_std=1.5)
    truth = net.kernel(x, key=jax.random.key(99), samples=2048)
    kernels = [net.kernel(x, key=jax.random.key(seed), samples=16) for seed in range(40)]
    errors = np.array([_true_error(k, truth) for k in kernels])
    held = np.mean(errors <= [error_bound(k, 8) for k in kernels])
    assert held >= 0.85  # 95 % expected: the chance of less than 85 % of 40 is 1 %
    # What a largest standard error announces is exceeded as often as not.
    assert np.mean(errors <= [_standard(k) for k in kernels]) < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("net", [_shallow(qk_std=1.5), _two_blocks()], ids=["one", "two"])
def test_a_tolerance_bounds_the_errors_themselves(net):
    """From far more heads: at most 1 of 12 beyond it, where 0.6 are expected."""
    x = _tokens(5, 3, 4).astype(np.float32)
    truth = net.kernel(x, key=jax.random.key(99), samples=4096)
    assert _standard(truth) < 0.002
    errors = [_true_error(net.kernel(x, key=s, tolerance=0.03), truth) for s in range(12)]
    assert np.sum(np.array(errors) > 0.03) <= 1
    assert np.median(errors) > 0.003  # and is not met by brute force


@pytest.mark.slow
def test_tolerance_is_met_on_all_examples():
    x = _tokens(24, 3, 4).astype(np.float32)
    net = _shallow(qk_std=1.5)
    k = net.kernel(x, tolerance=0.02)
    assert error_bound(k, 8) <= 0.02
    assert _standard(k) < 0.02 / 2.3  # Student's quantile for 8 replicates is 2.36
    plain = net.sampler(x)
    reached = error_bound(net.kernel(x, sampler=plain), 8)
    assert net.sampler(x, tolerance=reached / 8).heads > plain.heads


def test_bounds_of_nothing():
    """Kernels of zeros have no scale; one replicate has no errors."""
    zero = wl.Kernels(np.zeros((2, 2)), None, np.zeros((2, 2)), None)
    assert error_bound(zero, 8) == 0
    with pytest.raises(wl.WidelimitError, match="leaves no errors to check"):
        _shallow().sampler(_tokens(2, 3, 4), tolerance=0.1, replicates=1)


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": -0.1},
        {"tolerance": 0},
        {"tolerance": "small"},
        {"samples": 0},
        {"samples": 2.5},
        {"replicates": -1},
        {"rank": 0},
        {"rank": True},
        {"most_heads": 0},
        {"memory": 1.5},
    ],
    ids=str,
)
def test_wrong_counts_are_refused(options):
    with pytest.raises(wl.WidelimitError, match="positive"):
        _shallow().sampler(_tokens(2, 3, 4), **options)


# --- what a tolerance may take -------------------------------------------------------------------


@pytest.fixture
def drawn_heads(monkeypatch):
    """All numbers of heads that are drawn."""
    counts = []
    draw = sampling.realisations

    def counted(net, sampler, dtype):
        counts.append(sampler.heads)
        return draw(net, sampler, dtype)

    for module in (sampling, kernel_module):
        monkeypatch.setattr(module, "realisations", counted)
    return counts


def test_a_tolerance_out_of_reach_ends_after_the_pilot(drawn_heads):
    with pytest.raises(wl.errors.NumericalError, match="within reach of the heads") as caught:
        _shallow().kernel(_tokens(4, 3, 4), tolerance=1e-12)
    assert drawn_heads == [256]
    for word in ("256 heads", "ask for tolerance=", "most_heads=65_536", "memory= to about"):
        assert word in str(caught.value)


def test_the_most_heads_are_a_bound_and_the_advice_holds(drawn_heads):
    net, x = _shallow(qk_std=1.5), _tokens(4, 3, 4).astype(np.float32)
    with pytest.raises(wl.errors.NumericalError, match="within reach") as caught:
        net.sampler(x, tolerance=0.0066, most_heads=300)
    assert max(drawn_heads) <= 300
    advised = float(re.search("tolerance=([0-9.]+) or more", str(caught.value))[1])
    k = net.kernel(x, sampler=net.sampler(x, tolerance=advised, most_heads=300))
    assert max(drawn_heads) <= 300
    assert error_bound(k, 8) <= advised


def test_memory_bounds_the_heads(drawn_heads):
    net, x = _shallow(qk_std=1.5), _tokens(4, 3, 4).astype(np.float32)
    # A head of 4 × 4 features takes 64 bytes; a quarter of the memory holds 256 of them, and more.
    with pytest.raises(wl.errors.NumericalError, match=r"Remedy: .*raise memory= to about") as e:
        net.sampler(x, tolerance=0.005, memory=4 * 64 * 270)
    assert "most_heads" not in str(e.value)
    assert max(drawn_heads) <= 270


def test_a_finished_kernel_is_not_thrown_away(monkeypatch):
    """The pilot was too hopeful: the best there is comes back, and says how good it is."""
    net, x = _shallow(qk_std=1.5), _tokens(12, 3, 4).astype(np.float32)
    easy = np.concatenate([1e-3 * x[:8], x])  # the pilot looks at the first eight
    plain = net.kernel(easy, samples=32)
    monkeypatch.setattr(kernel_module, "DEFAULT_HEADS", 256)
    with pytest.warns(wl.engine.ToleranceWarning, match="up to .* with 256 heads") as said:
        k = net.kernel(easy, tolerance=error_bound(plain, 8) / 2)
    np.testing.assert_array_equal(k.nngp, plain.nngp)
    assert said[0].filename == __file__


def test_needed_heads_follow_from_errors():
    """Errors of t e + r e² with e ~ 1/√heads: a tenth of e takes a hundred times the heads."""
    budget, found = sampling.Budget(0.0, 10**9, 2**40), DrawnHeads(256, 2**14, 8, 32)
    student = 2.3646242510103  # two-sided 95 % for 7 degrees of freedom
    for e in (1e-4, 0.1, 3.0):
        reached, asked = student * e + 8 * e**2, student * e / 10 + 8 * (e / 10) ** 2
        needed = budget._replace(tolerance=asked).needed(found, reached)
        np.testing.assert_allclose(needed, 1.2 * 100, rtol=1e-6)


# --- features and landmarks ----------------------------------------------------------------------


def test_features_of_raw_tokens_are_exact():
    x = _tokens(5, 3, 4)
    for net in (_shallow(), _shallow(positions=wl.Decay(0.5))):
        sampler = net.sampler(x, rank=2)
        assert sampler.rank is None
        assert sampler.residual == 0
        assert len(sampler.x) == 1


@pytest.mark.slow
def test_rank_of_deep_features_adapts_and_is_reported():
    x = _tokens(120, 3, 4)
    net = _deep()
    loose, tight = (net.sampler(x, residual=share) for share in (3e-3, 1e-3))
    assert 0 < loose.residual <= 3e-3
    assert 0 < tight.residual <= 1e-3
    assert loose.rank is not None
    assert tight.rank is not None
    assert loose.rank < tight.rank < 360
    with pytest.warns(wl.engine.ResidualWarning, match="rank 16 miss up to"):
        few = net.sampler(x, rank=16)
    assert few.rank == 16
    assert few.residual > 1e-3


def test_rank_above_the_number_of_positions_is_cut():
    sampler = _deep().sampler(_tokens(4, 3, 12), rank=1000)
    assert sampler.rank == 12
    assert sampler.residual < 1e-3


@pytest.mark.parametrize("rank", [None, 1000])
def test_no_larger_rank_is_advised_where_all_positions_are_taken(rank):
    """What is left between nearly equal positions is rounding: there is nothing to warn of."""
    x = _tokens(1, 2, 12)
    x[:, 1] = x[:, 0] + 3e-4 * x[:, 1]
    sampler = _deep().sampler(x, rank=rank, residual=1e-9)
    assert sampler.rank == 2
    assert sampler.residual == 0
    with pytest.warns(wl.engine.ResidualWarning, match="up to the 2 positions of these inputs"):
        _deep().sampler(_tokens(1, 2, 12), rank=1)


def test_pivoted_cholesky_reproduces_the_matrix():
    rows = _tokens(12, 5)
    matrix = rows @ rows.T
    with jax.enable_x64(True):
        found = pivoted_cholesky(jnp.asarray(matrix), 8)
        given = pivoted_cholesky(jnp.asarray(2 * matrix), 8, 0.0, found.pivots)
        partial = pivoted_cholesky(jnp.asarray(matrix), 3)
    factor, fewer = np.asarray(found.factor), np.asarray(partial.factor)
    np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-10)
    np.testing.assert_allclose(np.asarray(given.factor), np.sqrt(2) * factor, atol=1e-10)
    np.testing.assert_array_equal(np.asarray(found.active), np.arange(8) < 5)
    rest = np.diag(matrix - fewer @ fewer.T)
    np.testing.assert_allclose(rest, np.asarray(partial.residual), atol=1e-10)


def _doubled(kind: str) -> wl.Layer:
    """Branches that double κ; their feature rows are known for Concat only."""
    dense = wl.Dense(8)
    return {
        "residual": wl.Residual(dense),
        "sum": wl.Sum(dense, wl.Dense(8)),
        "concat": wl.Serial(wl.Concat(dense, dense), wl.Dense(8, w_std=np.sqrt(2))),
    }[kind]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["residual", "sum", "concat"])
def test_landmarks_through_branches_give_the_exact_features_kernel(kind):
    x = _tokens(4, 3, 8)
    mask = np.arange(3)[None] < np.array([[2], [3], [3], [1]])
    attention = wl.Attention(8, positions=wl.Decay(0.5))
    exact = wl.Serial(wl.Dense(8, w_std=np.sqrt(2)), attention)
    net = wl.Serial(_doubled(kind), attention)
    sampler = net.sampler(x, mask, samples=512)
    assert (sampler.rank is None) == (kind == "concat")
    one = net.kernel(x, mask=mask, sampler=sampler, ntk=False)
    two = exact.kernel(x, mask=mask, key=jax.random.key(1), samples=512, ntk=False)
    real = one.nngp_error > 0
    gap = np.abs(one.nngp - two.nngp)
    assert not gap[~real].any()
    z = gap[real] / np.hypot(one.nngp_error, two.nngp_error)[real]
    assert two.nngp_error.max() < 0.02 * np.abs(two.nngp).max()
    assert z.max() < 6
    assert np.mean(z**2) < 2.5


# --- lengths -------------------------------------------------------------------------------------


def test_a_sampler_holds_for_shorter_inputs_on_a_grid():
    """A position keeps its row of the encoding, whatever the size of the grid around it."""
    net = wl.Serial(wl.Attention(8, positions=wl.Decay(0.3)), wl.MeanPool())
    x = _tokens(2, 3, 3, 4)
    mask = np.zeros((2, 3, 3), bool)
    mask[:, :2, :2] = True
    sampler = net.sampler(x, samples=4, replicates=2)
    padded = net.kernel(x, x, mask=mask, sampler=sampler)
    small = net.kernel(x[:, :2, :2], x, sampler=sampler)
    np.testing.assert_allclose(padded.nngp, small.nngp, rtol=1e-9)
    np.testing.assert_allclose(padded.ntk, small.ntk, rtol=1e-9)
    with pytest.raises(wl.errors.ShapeError, match="holds for no more"):
        net.kernel(_tokens(1, 4, 3, 4), x, sampler=sampler)


def test_longer_rows_than_columns_need_no_sampler():
    net = _shallow(positions=wl.Decay(0.3))
    long, short = _tokens(2, 5, 4), _tokens(3, 3, 4, seed=1)
    k, swapped = net.kernel(long, short, samples=4), net.kernel(short, long, samples=4)
    np.testing.assert_allclose(k.nngp, swapped.nngp.T, rtol=1e-9)
    np.testing.assert_allclose(k.ntk, swapped.ntk.T, rtol=1e-9)


# --- inside transformations, and memory ----------------------------------------------------------


def test_deep_features_are_not_chosen_inside_a_transformation():
    x = _tokens(3, 3, 4)

    def loss(qk_std: Any) -> Any:
        return _deep(qk_std=qk_std).kernel(x).nngp.sum()

    with pytest.raises(wl.errors.NetworkError, match="fit a sampler outside"):
        jax.grad(loss)(1.0)


def test_memory_of_a_tile_does_not_grow_with_the_heads():
    x = _tokens(4, 16, 8).astype(np.float32)
    net = _shallow()

    def temporary(samples: int) -> int:
        real = realisations(net, net.sampler(x, samples=samples, replicates=1), np.float32)[0]
        outline = outline_of(net, (16, 8))
        encoding = encode_block(real, jnp.asarray(x), None, outline)
        arrays, rest = eqx.partition(real, eqx.is_array)

        def tile(arrays: Any, encoding: Any) -> Any:
            drawn = eqx.combine(arrays, rest)
            return cross_tile(drawn, encoding, encoding, outline, with_ntk=True)

        compiled = jax.jit(tile).lower(arrays, encoding).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    few, many = temporary(4), temporary(256)
    assert many < 1.1 * few
    # Far less than the weights of all heads, one for each pair, would take.
    assert many < 4 * 256 * 4**2 * 16**2 / 4
