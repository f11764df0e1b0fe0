"""Every worked example against its own simulation at two finite widths.

Finite-width averages differ from the limit by O(1/n); `(4·m(4n) − m(n))/3` removes that term. (So
does `2·m(2n) − m(n)`, but with five times the variance.) The z-scores come from independent runs,
their standard errors stay below 1 % of the scale, and a limit that is off by 10 % must be refused
by the same check.
"""

from collections.abc import Callable

import numpy as np
import pytest
import tensor_programs as examples

from widelimit.netsor import Program, Simulation, Vector, erf, softmax, tanh

K = np.array([[1.0, 0.5, 0.2], [0.5, 1.2, -0.3], [0.2, -0.3, 0.8]])
K2 = K[:2, :2]


def extrapolated(
    program: Program,
    *statistics: Callable[[Simulation], np.ndarray],
    width: int,
    runs: int,
    vectors: list[Vector] | None = None,
    coordinates: int = 1,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Means of per-run statistics with their 1/n term removed, and the standard errors."""
    small, large = (
        program.simulate(n, runs, key, vectors=vectors, coordinates=coordinates)
        for key, n in enumerate((width, 4 * width))
    )
    found = []
    for statistic in statistics:
        one, two = statistic(small), statistic(large)
        variance = (16 * two.var(axis=0) + one.var(axis=0)) / (9 * runs)
        found.append(((4 * two.mean(axis=0) - one.mean(axis=0)) / 3, np.sqrt(variance)))
    return found


def z_scores(
    limit: np.ndarray, limit_error: np.ndarray, found: np.ndarray, error: np.ndarray
) -> np.ndarray:
    return np.abs(found - limit) / np.hypot(error, limit_error)


def assert_agrees(
    limit: np.ndarray,
    found: np.ndarray,
    error: np.ndarray,
    *,
    limit_error: np.ndarray | float = 0.0,
) -> None:
    """Within 4.5 standard errors everywhere; tight enough to refuse a limit 10 % off."""
    scale = np.max(np.abs(limit))
    limit_error = np.broadcast_to(limit_error, np.shape(limit))
    assert np.all(np.hypot(error, limit_error) < 0.01 * scale)
    assert np.max(z_scores(limit, limit_error, found, error)) < 4.5
    assert np.max(z_scores(1.1 * limit, limit_error, found, error)) > 4.5


def gram(simulation: Simulation) -> np.ndarray:
    return simulation.gram


def squared_gram(simulation: Simulation) -> np.ndarray:
    return np.diagonal(simulation.gram, axis1=1, axis2=2) ** 2


def score_products(simulation: Simulation) -> np.ndarray:
    return simulation.scalars[:, :, None] * simulation.scalars[:, None, :]


@pytest.mark.parametrize(
    ("program", "runs"),
    [
        (examples.mlp(K, depth=2, activation=erf, b_std=0.4), 1300),
        (examples.mlp(K2, depth=1), 4300),
        (examples.cnn(K, depth=2, activation=tanh), 2000),
        (examples.cnn(K2, depth=1), 3300),
        (examples.rnn(K, b_std=0.3), 1200),
        (examples.gru(K2, u_std=1.5), 1600),
        (examples.lstm(K2, u_std=1.5, w_std=1.5), 2300),
    ],
    ids=lambda value: value.name if isinstance(value, Program) else "",
)
def test_gaussian_network_equals_its_simulation(program: Program, runs: int) -> None:
    limit = program.limit().gram()
    ((found, error),) = extrapolated(program, gram, width=16, runs=runs)
    assert_agrees(limit.value, found, error, limit_error=limit.error)


def test_recurrent_weights_are_shared_between_times() -> None:
    """With a fresh W at every time the covariance between times would be far off."""
    shared = examples.rnn(K, w_std=2.0, u_std=0.5)
    fresh = Program("RNN with fresh weights")
    inputs = fresh.inputs("x", covariance=K)
    feed, readout = fresh.matrix("U", std=0.5), fresh.matrix("V")
    state, outputs = None, []
    for t, x in enumerate(inputs):
        argument = (
            feed @ x if state is None else (fresh.matrix(f"W{t}", std=2.0) @ state) + (feed @ x)
        )
        state = tanh(argument)
        outputs.append(readout @ state)
    fresh.output(*outputs)
    limit, wrong = shared.limit().gram().value, fresh.limit().gram().value
    ((found, error),) = extrapolated(shared, gram, width=16, runs=1300)
    assert_agrees(limit, found, error)
    assert np.max(z_scores(wrong, np.zeros_like(wrong), found, error)) > 10


OPPOSED = np.array([[1.0, -0.3], [-0.3, 0.9]])
ATTENTION = {
    "two heads": examples.multi_head_attention(K2, heads=2, qk_std=1.5, ov_std=0.8),
    "one head": examples.multi_head_attention(OPPOSED, heads=1, qk_std=2.0, input_map=erf),
    "after an MLP": examples.attention_after_mlp(K2, heads=1, qk_std=2.0),
}


STACKED = examples.stacked_attention(K2, heads=[1, 1], activation=erf, qk_std=2.0)


@pytest.mark.parametrize("name", ATTENTION)
def test_attention_equals_its_simulation(name: str) -> None:
    program = ATTENTION[name]
    draws = program.limit().condition(50_000, 5).gram().value
    ((covariance, error),) = extrapolated(program, gram, width=12, runs=6000)
    limit_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert_agrees(draws.mean(axis=0), covariance, error, limit_error=limit_error)


def test_one_head_has_the_kurtosis_of_the_mixture() -> None:
    """`E[y⁴]/E[y²]² = 3E[v²]/E[v]²`, many standard errors from the Gaussian's 3."""
    program = ATTENTION["one head"]
    variance = program.limit().condition(100_000, 5).gram().value[:, 0, 0]
    limit = 3 * np.mean(variance**2) / np.mean(variance) ** 2

    def kurtosis(width: int) -> np.ndarray:
        y = program.simulate(width, 20_000, width, coordinates=width).values[..., 0]
        blocks = y.reshape(40, -1)
        return (blocks**4).mean(axis=1) / (blocks**2).mean(axis=1) ** 2

    blocks = (4 * kurtosis(40) - kurtosis(10)) / 3
    found, error = blocks.mean(), blocks.std(ddof=1) / np.sqrt(len(blocks))
    assert error < 0.01 * limit
    assert abs(found - limit) < 4.5 * error
    assert abs(found - 3) > 10 * error


def test_scores_equal_their_simulation() -> None:
    program = ATTENTION["one head"]
    limit = program.limit().scalar_covariance()
    tokens = [program["t1"], program["t2"]]
    ((found, error),) = extrapolated(program, score_products, width=8, runs=60_000, vectors=tokens)
    assert_agrees(limit.value, found, error, limit_error=limit.error)


def test_stacked_attention_follows_the_conditional_recursion() -> None:
    draws = STACKED.limit().condition(50_000, 3).gram().value
    ((covariance, error),) = extrapolated(STACKED, gram, width=12, runs=3700)
    limit_error = draws.std(axis=0) / np.sqrt(len(draws))
    assert_agrees(draws.mean(axis=0), covariance, error, limit_error=limit_error)


@pytest.mark.slow
def test_stacked_attention_in_detail() -> None:
    """The scores of both layers and the second moment of the random kernel."""
    conditional = STACKED.limit().condition(400_000, 3)
    squares = np.diagonal(conditional.gram().value, axis1=1, axis2=2) ** 2
    scores = conditional.scalars[:, :, None] * conditional.scalars[:, None, :]
    found = extrapolated(STACKED, score_products, squared_gram, width=12, runs=70_000)
    for values, (mean, error) in zip((scores, squares), found, strict=True):
        limit_error = values.std(axis=0) / np.sqrt(len(values))
        assert_agrees(values.mean(axis=0), mean, error, limit_error=limit_error)


def test_scores_with_matrices_shared_between_layers_are_correlated() -> None:
    """One pair of score matrices in two layers: the second scores are drawn given the first."""
    p = Program("shared scores")
    x, z = p.inputs("x", covariance=np.eye(2))
    query, key = p.matrix("Q", std=1.5), p.matrix("K", std=1.5)
    t, u = erf(x), erf(z)
    weights = softmax([p.dot(query @ t, key @ t), p.dot(query @ t, key @ u)])
    mixed = erf(weights[0] * x + weights[1] * z)
    p.dot(query @ mixed, key @ mixed)
    p.output(p.matrix("V") @ mixed)

    drawn = p.limit().sample_scalars(400_000, 0)
    products = drawn[:, :, None] * drawn[:, None, :]
    limit, limit_error = products.mean(axis=0), products.std(axis=0) / np.sqrt(len(products))
    assert limit[2, 0] > 50 * limit_error[2, 0]
    ((found, error),) = extrapolated(p, score_products, width=8, runs=60_000, vectors=[mixed])
    assert_agrees(limit, found, error, limit_error=limit_error)
