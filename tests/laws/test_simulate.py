import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, special, stats

from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.laws.marginal import ScaleMixture
from widelimit.laws.simulation import SimulatedAttention, _softmax, simulate
from widelimit.laws.simulation_inputs import (
    GaussianInputs,
    GivenGram,
    relu,
)
from widelimit.laws.wishart import bartlett, gaussian_product
from widelimit.layers.activations import Tanh
from widelimit.layers.attention.heads import INFINITE
from widelimit.layers.attention.layer import Attention
from widelimit.layers.attention.positional import Decay
from widelimit.layers.attention.scores import (
    Causal,
    ElementwiseMap,
    IdentityMap,
    Scaling,
    ScoreMap,
    Softmax,
)
from widelimit.layers.base import with_fields
from widelimit.state import Outline

PUBLISHED = GaussianInputs(positions=4)
EIGHT = GaussianInputs(positions=4, channels=8)
RELU = GaussianInputs(positions=4, input_map=relu)
SQUARE = np.random.default_rng(0).standard_normal((4, 4))
GRAM = GivenGram(SQUARE @ SQUARE.T / 4)
THIN = np.random.default_rng(1).standard_normal((4, 3))
FLAT = GivenGram(THIN @ THIN.T / 3, channels=3)


CASES = {
    "published": (Attention(8, heads=2), PUBLISHED, {"channels": 2}),
    "wider": (Attention(16, heads=1), PUBLISHED, {"channels": 2}),
    "two_positions": (Attention(8, heads=2), PUBLISHED, {"positions": [2, 0]}),
    "narrower_than_positions": (Attention(3, heads=2), PUBLISHED, {"channels": 2}),
    "width_one": (Attention(1, heads=1), PUBLISHED, {}),
    "low_rank": (
        Attention(16, heads=4, key_width=4, value_width=4),
        PUBLISHED,
        {"channels": 2},
    ),
    "rank_below_positions": (
        Attention(6, heads=1, key_width=2, value_width=3),
        EIGHT,
        {"channels": 6, "positions": [1, 3]},
    ),
    "relu": (Attention(8, heads=2), RELU, {"channels": 2}),
    "relu_narrow": (Attention(2, heads=2), RELU, {"channels": 2}),
    "gram": (Attention(8, heads=2), GRAM, {"channels": 2, "positions": [3, 1]}),
    "given_flat": (Attention(3, heads=2), FLAT, {"positions": [1, 3]}),
    "linear_scaling": (
        Attention(8, heads=2, scaling=Scaling.UNTIED, qk_std=2.0),
        PUBLISHED,
        {"channels": 2},
    ),
    "tied": (
        Attention(8, heads=2, key_width=3, scaling=Scaling.LINEAR),
        PUBLISHED,
        {"channels": 2, "positions": [2]},
    ),
    "causal": (Attention(8, heads=2, pattern=Causal()), PUBLISHED, {"positions": [3, 1]}),
    "other_map": (
        Attention(6, heads=2, score_map=ElementwiseMap(Tanh()), qk_std=0.8, ov_std=1.5),
        GRAM,
        {"channels": 2},
    ),
}
RUNS = 40_000


def explicit_inputs(inputs, draws: int, width: int, rng) -> np.ndarray:
    """Inputs with every weight drawn, or a matrix with this Gram matrix."""
    if isinstance(inputs, GivenGram):
        values, vectors = np.linalg.eigh(inputs.gram)
        root = (vectors * np.sqrt(np.maximum(values, 0)))[:, ::-1][:, :width]
        x = np.sqrt(width) * np.pad(root, ((0, 0), (0, width - root.shape[1])))
        return np.broadcast_to(x, (draws, *x.shape))
    w = rng.standard_normal((draws, inputs.positions, width, width))
    x = (w @ rng.standard_normal((draws, 1, width, 1)))[..., 0] / np.sqrt(width)
    return np.clip(x, -100, 100) if inputs.input_map is None else inputs.input_map(x)


def simulate_explicit(
    layer, inputs, *, draws, key, positions=None, channels=1, scores=True
) -> SimulatedAttention:
    """The finite layer itself, drawn and run: every weight matrix, `O(n²)` numbers a draw."""
    rows = np.arange(inputs.positions) if positions is None else np.asarray(positions)
    width, rng = inputs.channels or layer.width, np.random.default_rng(key)
    plain = with_fields(layer, score_map=IdentityMap(), pattern=None)

    @jax.jit
    def run(keys, x):
        def one(key, x):
            params = layer.init_params(key, Outline(x.shape[:-1], x.shape[-1]))
            scores = plain.attention_weights(params, x)[:, rows]
            return layer.forward(params, x, None, None)[rows, :channels], scores

        return jax.vmap(one)(keys, x)

    found, part = [], max(1, 2**21 // (inputs.positions * width**2))
    with jax.enable_x64(True):
        keys = jax.random.split(jax.random.key(key), draws)
        for begin in range(0, draws, part):
            some = keys[begin : begin + part]
            x = explicit_inputs(inputs, len(some), width, rng)
            found.append([np.asarray(a) for a in run(some, jnp.asarray(x))])
    return SimulatedAttention(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def features(sim: SimulatedAttention) -> dict[str, np.ndarray]:
    """Per-run averages of second, fourth and mixed moments of outputs and scores.

    At widths of 1 or 2 raw fourth moments have no useful error; those of `tanh` do.
    """
    assert sim.scores is not None
    y, s = sim.outputs, sim.scores
    ty, ts = np.tanh(y), np.tanh(s)
    y2, s2, ty2, ts2 = y * y, s * s, ty * ty, ts * ts
    by_output, by_score = (1, 2), (1, 2, 3)
    return {
        "y²": y2.mean(axis=by_output),
        "y⁴": (y2 * y2).mean(axis=by_output),
        "t(y)²": ty2.mean(axis=by_output),
        "t(y)⁴": (ty2 * ty2).mean(axis=by_output),
        "positions": np.square(ty.sum(axis=1)).mean(axis=1),
        "channel energies": np.square(ty2.sum(axis=2)).mean(axis=1),
        "channel products": np.square((ty[:, :, 0] * ty[:, :, -1]).sum(axis=1)),
        "s": s.mean(axis=by_score),
        "s²": s2.mean(axis=by_score),
        "s⁴": (s2 * s2).mean(axis=by_score),
        "t(s)²": ts2.mean(axis=by_score),
        "t(s)⁴": (ts2 * ts2).mean(axis=by_score),
        "transpose": (ts[:, :, 0, -1] * ts[:, :, -1, 0]).mean(axis=1),
        "keys": np.square(ts2.sum(axis=3)).mean(axis=by_output),
        "queries": np.square(ts2.sum(axis=2)).mean(axis=by_output),
        "heads": np.square(ts2.mean(axis=by_score)),
        "outputs and scores": ty2.mean(axis=by_output) * ts2.mean(axis=by_score),
    }


def worst_z(a: SimulatedAttention, b: SimulatedAttention) -> float:
    left, right = features(a), features(b)
    z = [
        abs(left[k].mean() - right[k].mean())
        / np.sqrt(left[k].var() / left[k].size + right[k].var() / right[k].size)
        for k in left
        if left[k].std() > 0
    ]
    return float(max(z))


def smallest_p(a: SimulatedAttention, b: SimulatedAttention) -> float:
    pairs = [(a.outputs[:, 0, 0], b.outputs[:, 0, 0]), (a.outputs[:, -1, -1], b.outputs[:, -1, -1])]
    left, right = a.scores, b.scores
    assert left is not None
    assert right is not None
    pairs += [(left[:, 0, 0, k], right[:, 0, 0, k]) for k in (0, -1)]
    return float(min(stats.ks_2samp(u, v, method="asymp").pvalue for u, v in pairs))


def exact(case, *, layer=None, key=1, runs=2 * RUNS) -> SimulatedAttention:
    default, inputs, options = CASES[case]
    return simulate(layer or default, inputs, draws=runs, key=key, scores=True, **options)


@pytest.fixture(scope="module")
def explicit():
    """Explicit simulations, drawn once per case."""
    drawn: dict[str, SimulatedAttention] = {}

    def get(case: str) -> SimulatedAttention:
        if case not in drawn:
            layer, inputs, options = CASES[case]
            drawn[case] = simulate_explicit(layer, inputs, draws=RUNS, key=2, **options)
        return drawn[case]

    return get


@pytest.mark.parametrize("case", CASES)
def test_exact_simulation_has_the_law_of_explicit_weights(case, explicit):
    ours, reference = exact(case), explicit(case)
    spread = np.abs(np.tanh(reference.outputs[:, 0, 0]))
    assert spread.std() / np.sqrt(spread.size) < 0.01 * spread.mean()
    assert worst_z(ours, reference) < 4.5
    assert smallest_p(ours, reference) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("inputs", [PUBLISHED, RELU, GRAM], ids=["published", "relu", "gram"])
@pytest.mark.parametrize(("width", "runs"), [(4, 400_000), (32, 40_000), (64, 15_000)])
def test_exact_simulation_has_the_law_of_explicit_weights_over_widths(width, runs, inputs):
    layer = Attention(width, heads=2)
    options = {"channels": 2, "scores": True}
    ours = simulate(layer, inputs, draws=2 * runs, key=11, **options)
    reference = simulate_explicit(layer, inputs, draws=runs, key=12, **options)
    assert worst_z(ours, reference) < 4.5
    assert smallest_p(ours, reference) > 1e-4


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("published", Attention(8, heads=2, qk_std=1.05)),
        ("published", Attention(8, heads=2, ov_std=1.03)),
        ("published", Attention(10, heads=2)),
        (
            "rank_below_positions",
            Attention(6, heads=1, key_width=2, value_width=5),
        ),
        ("low_rank", Attention(16, heads=4, key_width=5, value_width=4)),
        ("relu", Attention(11, heads=2)),
        (
            "linear_scaling",
            Attention(8, heads=2, scaling=Scaling.UNTIED, qk_std=2.0, key_width=9),
        ),
    ],
)
def test_the_comparison_sees_small_errors(case, wrong, explicit):
    assert worst_z(exact(case, layer=wrong), explicit(case)) > 6


def test_the_comparison_sees_a_fixed_input_scale(explicit, monkeypatch):
    """Leaving |h|²/n at its mean 1 is the kind of slip that a variance alone would not show."""

    def without_common_scale(self, rng, runs, *, width, order):
        return bartlett(rng, (runs,), rows=self.positions, dof=width) / np.sqrt(width)

    monkeypatch.setattr(GaussianInputs, "factor", without_common_scale)
    assert worst_z(exact("published"), explicit("published")) > 6


def z_score(values: np.ndarray, expected: float) -> float:
    error = values.std() / np.sqrt(values.size)
    assert error < 0.01 * abs(expected)
    return (values.mean() - expected) / error


@pytest.mark.parametrize(("rows", "dof"), [(3, 5), (3, 3), (4, 2), (3, 1)])
def test_bartlett_factor_has_wishart_moments(rows, dof):
    factor = bartlett(np.random.default_rng(0), (200_000,), rows=rows, dof=dof)
    assert factor.shape[-1] == min(rows, dof)
    w = factor @ np.swapaxes(factor, -1, -2)
    for i in range(rows):
        assert abs(z_score(w[:, i, i], dof)) < 4
        assert abs(z_score(w[:, i, i] ** 2, dof * (dof + 2))) < 4
    assert abs(z_score(w[:, 0, -1] ** 2, dof)) < 4
    assert abs(z_score(w[:, 1, -1] ** 2, dof)) < 4
    assert abs(z_score(w[:, 0, 0] * w[:, -1, -1], dof**2)) < 4


@pytest.mark.parametrize(("rows", "columns", "inner"), [(2, 4, 7), (4, 2, 7), (3, 3, 2), (1, 3, 1)])
def test_gaussian_product_has_the_moments_of_the_product(rows, columns, inner):
    rng = np.random.default_rng(1)
    p = gaussian_product(rng, (200_000,), rows=rows, columns=columns, inner=inner)
    assert p.shape[1:] == (rows, columns)
    assert abs(z_score(p[:, 0, 0] ** 2, inner)) < 4
    assert abs(z_score(p[:, -1, -1] ** 2, inner)) < 4
    # Given q the entry q·k is N(0, |q|²), and entries of one row share q.
    norm = np.sqrt(2.0) * special.gamma(0.5 * inner + 0.5) / special.gamma(0.5 * inner)
    assert abs(z_score(np.abs(p[:, -1, 0]), norm * np.sqrt(2 / np.pi))) < 4
    assert abs(z_score(np.abs(p[:, 0, 0] * p[:, 0, 1]), inner * 2 / np.pi)) < 4
    if rows > 1:
        assert abs(z_score(np.abs(p[:, 0, 0] * p[:, 1, 0]), inner * 2 / np.pi)) < 4
        assert abs(z_score(np.abs(p[:, 0, 0] * p[:, 1, 1]), inner * 2 / np.pi)) > 4


def test_score_moments_at_large_width_match_closed_forms():
    n, n_k = 1024, 64
    layer = Attention(n, heads=2, key_width=n_k, qk_std=1.5)
    sim = simulate(layer, PUBLISHED, draws=200_000, key=3, scores=True)
    assert sim.scores is not None
    s = sim.scores / 1.5
    # G_ij = (|h|²/n) w_i·w_j/n: moments of χ²_n/n are products of (1 + 2k/n).
    chi = np.cumprod([1 + 2 * k / n for k in range(4)])
    assert abs(z_score(s[:, 0, 0, 1] ** 2, chi[1])) < 4
    assert abs(z_score(s[:, 1, 2, 2] ** 2, chi[1] ** 2)) < 4
    assert abs(z_score(s[:, 0, 0, 0] ** 4, (3 + 6 / n_k) * chi[3] ** 2)) < 4
    assert abs(z_score(s[:, 0, 0, 0] ** 4, 3 * chi[3] ** 2)) > 4


@pytest.mark.parametrize("positions", [None, [3, 0]])
def test_identity_map_on_a_gram_matrix_has_its_closed_form_covariance(positions):
    gram = GRAM.gram
    width = 10**9
    layer = Attention(
        2,
        heads=3,
        score_map=IdentityMap(),
        qk_std=0.7,
        ov_std=1.3,
        key_width=width,
        value_width=width,
    )
    sim = simulate(
        layer,
        GivenGram(gram, channels=width),
        draws=200_000,
        key=4,
        positions=positions,
        channels=2,
    )
    rows = [0, 1, 2, 3] if positions is None else positions
    covariance = (0.7 * 1.3) ** 2 * np.sum(gram**2) * gram[np.ix_(rows, rows)]
    y = sim.outputs
    for c in range(2):
        for a in range(len(rows)):
            assert abs(z_score(y[:, a, c] ** 2, covariance[a, a])) < 4
        product = y[:, 0, c] * y[:, 1, c]
        error = product.std() / np.sqrt(product.size)
        assert abs(product.mean() - covariance[0, 1]) < 4 * error
    assert abs(np.mean(y[:, 0, 0] * y[:, 0, 1])) < 4 * np.std(y[:, 0, 0] * y[:, 0, 1]) / 447


@pytest.mark.parametrize("case", ["published", "rank_below_positions"])
def test_variances_are_those_of_the_outputs_given_the_scores(case):
    layer, inputs, options = CASES[case]
    sim = simulate(layer, inputs, draws=200_000, key=5, variances=True, **options)
    assert sim.variances is not None
    assert sim.variances.shape == sim.outputs.shape
    whitened = (sim.outputs / np.sqrt(sim.variances)).reshape(sim.outputs.shape[0], -1)
    for column in whitened.T:
        assert stats.kstest(column, stats.norm().cdf).pvalue > 1e-3
    # Independent of the variance, too: no common factor was left out.
    slope = np.corrcoef(np.abs(whitened[:, 0]), sim.variances[:, 0, 0])[0, 1]
    assert abs(slope) < 4 / np.sqrt(len(whitened))


def divergence(p, q, y):
    """KL of two densities on a grid."""
    return integrate.simpson(special.kl_div(p, q), x=y)


def test_scale_mixture_of_variances_is_the_density_of_the_outputs():
    layer = Attention(16, heads=1)
    sim = simulate(layer, PUBLISHED, draws=20_000, key=6, positions=[0], variances=True)
    assert sim.variances is not None
    mixture = ScaleMixture(sim.variances[:, 0, 0])
    other = simulate(layer, PUBLISHED, draws=20_000, key=7, positions=[0]).outputs[:, 0, 0]
    grid = np.linspace(-6.0, 6.0, 241)
    empirical = np.searchsorted(np.sort(other), grid, side="right") / other.size
    assert np.abs(mixture.cdf(grid) - empirical).max() < 1.63 / np.sqrt(other.size)
    slope = (mixture.cdf(grid + 1e-4) - mixture.cdf(grid - 1e-4)) / 2e-4
    np.testing.assert_allclose(slope, mixture.density(grid), rtol=1e-6)
    np.testing.assert_allclose(mixture.cdf(grid) + mixture.sf(grid), 1.0, atol=1e-12)
    gaussian = stats.norm(scale=np.sqrt(sim.variances.mean()))
    y = np.linspace(-8.0, 8.0, 401)
    assert divergence(mixture.density(y), gaussian.pdf(y), y) > 0.02


def test_a_large_mixture_is_the_average_over_all_its_variances():
    variances = np.random.default_rng(0).gamma(3.0, size=5000)
    y = np.linspace(-6.0, 6.0, 25)
    normals = stats.norm(scale=np.sqrt(variances))
    mixture = ScaleMixture(variances)
    np.testing.assert_allclose(mixture.density(y), normals.pdf(y[:, None]).mean(axis=1), rtol=3e-6)
    np.testing.assert_allclose(mixture.sf(y), normals.sf(y[:, None]).mean(axis=1), rtol=3e-6)
    constant = ScaleMixture(np.full(5000, 4.0))
    np.testing.assert_allclose(constant.density(y), stats.norm(scale=2.0).pdf(y), rtol=1e-12)


def test_divergence_from_the_limit_falls_as_the_square_of_the_width():
    """The limit is a width at which 1/n is below rounding; the cost does not know the width."""

    y = np.linspace(-10.0, 10.0, 401)

    def density(width, runs, seed):
        layer = Attention(width, heads=2)
        sim = simulate(layer, PUBLISHED, draws=runs, key=seed, positions=[0], variances=True)
        assert sim.variances is not None
        return ScaleMixture(sim.variances).density(y)

    limit = density(10**15, 100_000, 0)
    floor, narrow, wide, wider = (
        divergence(density(n, 40_000, n), limit, y) for n in (10**16, 16, 64, 256)
    )
    assert floor < 1e-6
    assert 8 < narrow / wide < 16
    assert 10 < wide / wider < 18


def test_result_does_not_depend_on_threads_and_blocks_agree_in_law(monkeypatch):
    layer = Attention(32, heads=5)
    monkeypatch.setattr("os.cpu_count", lambda: 1)
    one = simulate(layer, PUBLISHED, draws=4000, key=8, scores=True)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    two = simulate(layer, PUBLISHED, draws=4000, key=8, scores=True)
    np.testing.assert_array_equal(one.outputs, two.outputs)
    np.testing.assert_array_equal(one.scores, two.scores)
    assert not np.array_equal(one.outputs, simulate(layer, PUBLISHED, draws=4000, key=9).outputs)
    # Few runs to a chunk and few heads to a block: same law, bounded memory.
    monkeypatch.setattr("widelimit.laws.simulation._BLOCK", 320)
    small = simulate(layer, PUBLISHED, draws=4000, key=8, scores=True)
    assert stats.ks_2samp(small.outputs[:, 0, 0], one.outputs[:, 0, 0]).pvalue > 1e-3


class OwnSoftmax(ScoreMap):
    """Softmax that the simulator does not know."""

    def __call__(self, scores, allowed):
        return Softmax()(scores, allowed)


def test_the_fast_softmax_and_that_of_layers_agree():
    scores = np.random.default_rng(0).standard_normal((7, 2, 3, 5)) * 300.0
    np.testing.assert_allclose(
        _softmax(scores), special.softmax(scores, axis=-1), rtol=1e-12, atol=1e-300
    )
    fast, of_layer = (
        simulate(Attention(8, heads=2, score_map=fn), PUBLISHED, draws=3000).outputs
        for fn in (Softmax(), OwnSoftmax())
    )
    np.testing.assert_allclose(fast, of_layer, rtol=1e-10)


def test_linear_scaling_ties_queries_and_keys():
    for scaling in Scaling:
        layer = Attention(8, heads=1, scaling=scaling)
        scores = simulate(layer, PUBLISHED, draws=3, scores=True).scores
        symmetric = np.allclose(scores, np.swapaxes(scores, -1, -2))
        assert symmetric == (scaling is Scaling.LINEAR)


def test_progress_reaches_the_end_and_errors_come_through():
    seen = []
    simulate(
        Attention(8, heads=2),
        PUBLISHED,
        draws=5000,
        key=0,
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1][0] == seen[-1][1]
    assert [done for done, _ in seen] == list(range(1, len(seen) + 1))
    bad_input = GaussianInputs(positions=4, input_map=lambda x: x[..., 0])
    with pytest.raises(ShapeError, match="does not keep the shape"):
        simulate(Attention(8, heads=2), bad_input, draws=10, key=0)


def test_a_singular_gram_matrix_and_long_sequences_work():
    gram = GivenGram(np.ones((3, 3)))
    sim = simulate(Attention(1, heads=2), gram, draws=100, key=0)
    np.testing.assert_allclose(sim.outputs[:, 0], sim.outputs[:, 2])
    zero = simulate(Attention(4, heads=2), GivenGram(np.zeros((2, 2))), draws=5, key=0)
    np.testing.assert_array_equal(zero.outputs, 0.0)
    long = GaussianInputs(positions=300)
    sim = simulate(Attention(1024, heads=3), long, draws=2, key=0)
    assert np.isfinite(sim.outputs).all()


@pytest.mark.parametrize(
    ("make", "rule", "error"),
    [
        (lambda: GaussianInputs(positions=0), "positions= is not a positive integer", OptionError),
        (lambda: GaussianInputs(positions=4, channels=0), "channels= is", OptionError),
        (lambda: GivenGram(np.zeros(3)), "square and symmetric", ShapeError),
        (lambda: GivenGram(np.full((2, 2), np.nan)), "finite", NumericalError),
        (lambda: GivenGram(np.ones((2, 3))), "square and symmetric", ShapeError),
        (lambda: GivenGram(np.array([[1.0, 2.0], [0.0, 1.0]])), "symmetric", ShapeError),
        (lambda: GivenGram(np.array([[1.0, 2.0], [2.0, 1.0]])), "semi-definite", NumericalError),
        (lambda: ScaleMixture(np.array([1.0, 0.0])), "positive", NumericalError),
    ],
)
def test_impossible_settings_are_refused(make, rule, error):
    with pytest.raises(error, match=rule):
        make()


@pytest.mark.parametrize(
    ("inputs", "options", "rule", "error"),
    [
        (PUBLISHED, {"positions": [4]}, "distinct integers from 0 to 3", ShapeError),
        (PUBLISHED, {"positions": [-1]}, "distinct integers", ShapeError),
        (PUBLISHED, {"positions": [1, 1]}, "distinct integers", ShapeError),
        (PUBLISHED, {"positions": [0.5]}, "distinct integers", ShapeError),
        (PUBLISHED, {"positions": []}, "distinct integers", ShapeError),
        (PUBLISHED, {"channels": 3}, "output channels", ShapeError),
        (PUBLISHED, {"channels": 0}, "channels= is not a positive integer", OptionError),
        (PUBLISHED, {"draws": 0}, "draws= is not a positive integer", OptionError),
        (GivenGram(np.eye(3)), {}, "a rank that no input", NetworkError),
    ],
)
def test_impossible_requests_are_refused(inputs, options, rule, error):
    with pytest.raises(error, match=rule):
        simulate(Attention(2, heads=1), inputs, **{"draws": 10, **options})


@pytest.mark.parametrize(
    ("layer", "got"),
    [
        (Attention(8, heads=INFINITE), "heads=INFINITE"),
        (Attention(8, heads=4, kv_heads=2), "kv_heads="),
        (Attention(8, heads=4, b_std=0.5), "b_std="),
        (Attention(8, heads=4, positions=Decay(0.5)), "positions="),
    ],
)
def test_layers_that_cannot_be_simulated_are_refused(layer, got):
    with pytest.raises(NetworkError, match=got):
        simulate(layer, PUBLISHED, draws=10)


def test_the_width_comes_from_the_layer_or_its_inputs():
    with pytest.raises(ShapeError, match="has no width, and neither have its inputs"):
        simulate(Attention(heads=2), PUBLISHED, draws=10)
    one = simulate(Attention(heads=2), EIGHT, draws=10).outputs
    np.testing.assert_array_equal(one, simulate(Attention(8, heads=2), PUBLISHED, draws=10).outputs)
