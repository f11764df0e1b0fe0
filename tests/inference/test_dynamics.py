import numpy as np
import pytest
from inference.linear_problem import linear_problem
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from widelimit.errors import NumericalError, ShapeError, WidelimitError
from widelimit.inference import (
    Dynamics,
    GPPosterior,
    Optimizer,
    Reduction,
    largest_stable_learning_rate,
)

TIMES = np.array([0.0, 0.3, 2.0, 17.0])
FACTORS = {
    Reduction.SUM: 1.0,
    Reduction.MEAN_OVER_EXAMPLES: 1 / 12,
    Reduction.MEAN_OVER_ENTRIES: 1 / 24,
}


def blocks(p, full=True):
    nngp = p.nngp_test if full else np.diag(p.nngp_test)
    return {"ntk_cross": p.ntk_cross, "nngp_cross": p.nngp_cross, "nngp": nngp}


def build(p, **options):
    return Dynamics.decompose(p.ntk, p.y, nngp=p.nngp, **options)


def descend(p, steps, rate, factor, ridge=0.0):
    """Explicit gradient descent of the linear model, as an affine map of the initial weights.

    Returns, for train and test outputs, the offset and the matrix that multiplies θ₀.
    """
    count = p.phi.shape[1]
    offset, linear = np.zeros((count, p.y.shape[1])), np.eye(count)
    for _ in range(steps):
        # loss = c(½ Σ‖φθ − y‖² + ½ρ‖θ − θ₀‖²)
        offset = offset - rate * factor * (p.phi.T @ (p.phi @ offset - p.y) + ridge * offset)
        pull = p.phi.T @ (p.phi @ linear) + ridge * (linear - np.eye(count))
        linear = linear - rate * factor * pull
    return {
        "train": (p.phi @ offset, p.phi @ linear),
        "test": (p.phi_test @ offset, p.phi_test @ linear),
    }


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_gradient_descent_equals_explicit_steps(reduction, ridge):
    p = linear_problem()
    rate = 0.3 / FACTORS[reduction]
    dynamics = build(
        p,
        learning_rate=rate,
        optimizer=Optimizer.GRADIENT_DESCENT,
        reduction=reduction,
        ridge=ridge,
    )
    steps = np.array([0, 1, 2, 40])
    elsewhere = dynamics.on(**blocks(p))
    for index, count in enumerate(steps):
        by_hand = descend(p, count, rate, FACTORS[reduction], ridge)
        for side, found in (("train", dynamics), ("test", elsewhere)):
            offset, linear = by_hand[side]
            cov = linear @ p.prior @ linear.T
            np.testing.assert_allclose(found.mean(steps)[index], offset, atol=1e-12)
            np.testing.assert_allclose(found.covariance(steps)[index], cov, atol=1e-12)
            prediction = found.predict(steps)
            np.testing.assert_allclose(prediction.mean[index], offset, atol=1e-12)
            np.testing.assert_allclose(prediction.variance[index], np.diag(cov), atol=1e-12)


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_gradient_flow_equals_integrating_the_equation(reduction, ridge):
    """Mean and covariance from integrating θ̇ for every unit start of the weights."""
    p = linear_problem()
    rate, factor = 0.7, FACTORS[reduction]
    count, outputs = p.phi.shape[1], p.y.shape[1]

    def pull(_, flat):
        state = flat.reshape(count, outputs + count)  # columns: offset, then the map of θ₀
        goal = np.hstack([p.y, np.zeros((len(p.y), count))])
        anchor = np.hstack([np.zeros((count, outputs)), np.eye(count)])
        gradient = p.phi.T @ (p.phi @ state - goal) + ridge * (state - anchor)
        return -(rate * factor * gradient).reshape(-1)

    start = np.hstack([np.zeros((count, outputs)), np.eye(count)]).reshape(-1)
    path = solve_ivp(pull, (0, TIMES[-1]), start, t_eval=TIMES, rtol=1e-10, atol=1e-12)
    states = path.y.T.reshape(len(TIMES), count, outputs + count)

    dynamics = build(p, learning_rate=rate, reduction=reduction, ridge=ridge)
    for found, phi in ((dynamics, p.phi), (dynamics.on(**blocks(p)), p.phi_test)):
        offset, linear = phi @ states[:, :, :outputs], phi @ states[:, :, outputs:]
        cov = linear @ p.prior @ np.swapaxes(linear, 1, 2)
        np.testing.assert_allclose(found.mean(TIMES), offset, atol=1e-8)
        np.testing.assert_allclose(found.covariance(TIMES), cov, atol=1e-8)
        variance = np.diagonal(cov, axis1=1, axis2=2)
        np.testing.assert_allclose(found.predict(TIMES).variance, variance, atol=1e-8)


def test_a_given_network_follows_its_own_path():
    p = linear_problem()
    weights = p.rng.normal(size=(p.phi.shape[1], 2))
    dynamics = Dynamics.decompose(p.ntk, p.y, learning_rate=0.5)
    elsewhere = dynamics.on(ntk_cross=p.ntk_cross)
    for t in TIMES:
        decay = expm(-0.5 * t * p.phi.T @ p.phi)
        best = np.linalg.pinv(p.phi) @ p.y
        null = weights - np.linalg.pinv(p.phi) @ (p.phi @ weights)
        now = best + null + decay @ (weights - best - null)
        start, train_start = p.phi_test @ weights, p.phi @ weights
        np.testing.assert_allclose(dynamics.mean(t, start=train_start), p.phi @ now, atol=1e-10)
        np.testing.assert_allclose(
            elsewhere.mean(t, start=start, train_start=train_start), p.phi_test @ now, atol=1e-10
        )


@pytest.mark.parametrize("optimizer", Optimizer)
def test_the_end_of_training(optimizer):
    p = linear_problem()
    dynamics = build(p, optimizer=optimizer, learning_rate=0.5)
    elsewhere = dynamics.on(**blocks(p))
    np.testing.assert_allclose(dynamics.mean(np.inf), p.y, atol=1e-12)
    np.testing.assert_allclose(dynamics.covariance(np.inf), 0.0, atol=1e-12)
    solve = np.linalg.solve(p.ntk, p.ntk_cross.T).T
    cov = p.nngp_test - solve @ p.nngp_cross.T - p.nngp_cross @ solve.T + solve @ p.nngp @ solve.T
    np.testing.assert_allclose(elsewhere.mean(np.inf), solve @ p.y, atol=1e-10)
    np.testing.assert_allclose(elsewhere.covariance(np.inf), cov, atol=1e-10)
    late = elsewhere.predict([1e9, np.inf])
    np.testing.assert_allclose(late.mean[0], late.mean[1], atol=1e-10)


def test_the_end_with_ridge_is_kernel_regression():
    p = linear_problem()
    regression = GPPosterior.condition(p.ntk, p.y, noise=0.3)
    dynamics = build(p, ridge=0.3, reduction=Reduction.MEAN_OVER_ENTRIES)
    elsewhere = dynamics.on(**blocks(p))
    np.testing.assert_allclose(elsewhere.mean(np.inf), regression.mean(p.ntk_cross), atol=1e-11)
    np.testing.assert_allclose(dynamics.mean(np.inf), regression.mean(p.ntk), atol=1e-11)


def test_training_only_the_readout_ends_in_the_posterior():
    """With Θ = K the trained ensemble is the Bayesian posterior without noise."""
    p = linear_problem(features=40)
    posterior = GPPosterior.condition(p.nngp, p.y)
    same = {"ntk_cross": p.nngp_cross, "nngp_cross": p.nngp_cross, "nngp": p.nngp_test}
    trained = Dynamics.decompose(p.nngp, p.y, nngp=p.nngp).on(**same)
    np.testing.assert_allclose(trained.mean(np.inf), posterior.mean(p.nngp_cross), atol=1e-9)
    np.testing.assert_allclose(
        trained.covariance(np.inf), posterior.covariance(p.nngp_cross, p.nngp_test), atol=1e-9
    )


def curve_z(members_scale):
    """z-scores of closed-form losses against trained members whose start is scaled."""
    p = linear_problem(outputs=2)
    members, factor = 4000, 1 / 12
    dynamics = build(p, reduction=Reduction.MEAN_OVER_EXAMPLES, learning_rate=4.0)
    train, test = dynamics.curve(TIMES), dynamics.on(**blocks(p)).curve(TIMES, p.y_test)
    root = members_scale * np.sqrt(np.diag(p.prior))
    weights = root[:, None] * p.rng.normal(size=(members, p.phi.shape[1], 2))
    scores = []
    for index, t in enumerate(TIMES):
        left = expm(-4.0 * factor * t * p.ntk)
        gap = p.y - p.phi @ weights
        moved = p.phi.T @ np.linalg.solve(p.ntk, (np.eye(12) - left) @ gap)
        now = weights + moved
        for phi, y, expected, scale in (
            (p.phi, p.y, train.loss[index], factor),
            (p.phi_test, p.y_test, test.loss[index], 1 / 5),
        ):
            losses = 0.5 * scale * np.sum((phi @ now - y) ** 2, axis=(1, 2))
            error = losses.std(ddof=1) / np.sqrt(members)
            assert error < 0.01 * losses.mean()
            scores.append((losses.mean() - expected) / error)
    return np.array(scores)


def test_expected_losses_agree_with_trained_members():
    assert np.abs(curve_z(1.0)).max() < 4.0


def test_a_wrong_initial_scale_would_be_noticed():
    assert np.abs(curve_z(1.2)).max() > 4.0


def test_curves_are_bias_plus_spread_of_the_predictions():
    p = linear_problem()
    dynamics = build(p)
    elsewhere = dynamics.on(**blocks(p, full=False))
    for found, y in ((dynamics, p.y), (elsewhere, p.y_test)):
        curve = found.curve(TIMES) if found is dynamics else elsewhere.curve(TIMES, y)
        prediction = found.predict(TIMES)
        np.testing.assert_allclose(
            curve.bias, 0.5 * np.sum((prediction.mean - y) ** 2, axis=(1, 2)), atol=1e-12
        )
        np.testing.assert_allclose(curve.spread, prediction.variance.sum(axis=1), atol=1e-12)


def test_training_losses_keep_relative_accuracy_when_tiny():
    dynamics = Dynamics.decompose([[2.0]], [1.0], nngp=[[1.0]])
    curve = dynamics.curve([0.0, 50.0])
    np.testing.assert_allclose(curve.bias, [0.5, 0.5 * np.exp(-200.0)], rtol=1e-12)
    np.testing.assert_allclose(curve.spread, [0.5, 0.5 * np.exp(-200.0)], rtol=1e-12)


@pytest.mark.parametrize("reduction", Reduction)
@pytest.mark.parametrize("ridge", [0.0, 0.4])
def test_the_largest_stable_learning_rate_is_the_border(reduction, ridge):
    p = linear_problem()
    border = largest_stable_learning_rate(p.ntk, outputs=2, reduction=reduction, ridge=ridge)
    assert build(p, reduction=reduction, ridge=ridge).largest_stable_learning_rate == pytest.approx(
        border, rel=1e-10
    )
    norms = []
    for rate in (0.99 * border, 1.01 * border):
        _, linear = descend(p, 600, rate, FACTORS[reduction], ridge)["train"]
        norms.append(np.abs(linear).max())
    assert norms[0] < 10 < 1e3 < norms[1]


def test_above_the_border():
    p = linear_problem()
    border = largest_stable_learning_rate(p.ntk, outputs=2)
    dynamics = build(p, learning_rate=1.1 * border, optimizer=Optimizer.GRADIENT_DESCENT)
    offset, _ = descend(p, 30, 1.1 * border, 1.0)["train"]
    np.testing.assert_allclose(dynamics.mean(30), offset, rtol=1e-9, atol=1e-9)
    with pytest.raises(NumericalError, match="largest stable"):
        dynamics.mean(np.inf)
    with pytest.raises(NumericalError, match="overflow"):
        dynamics.mean(10**6)
    late = 2500  # 1.2^2500 = 1e198 is finite, its square is not
    for ask in (
        dynamics.predict,
        dynamics.curve,
        dynamics.covariance,
        dynamics.on(**blocks(p)).predict,
    ):
        with pytest.raises(NumericalError, match="overflow"):
            ask(late)


def test_repeated_examples_are_learnt_in_the_directions_that_exist():
    p = linear_problem(outputs=1)
    index = [*range(12), 4]
    ntk, nngp = p.ntk[np.ix_(index, index)], p.nngp[np.ix_(index, index)]
    y = np.append(p.y[:, 0], 3.0)
    dynamics = Dynamics.decompose(ntk, y, nngp=nngp)
    average = y.copy()
    average[[4, 12]] = (y[4] + y[12]) / 2
    np.testing.assert_allclose(dynamics.mean(np.inf), average, atol=1e-10)
    np.testing.assert_allclose(dynamics.mean(1e12), average, atol=1e-10)
    elsewhere = dynamics.on(ntk_cross=p.ntk_cross[:, index])
    np.testing.assert_allclose(
        elsewhere.mean(1e12),
        np.linalg.solve(p.ntk, p.ntk_cross.T).T @ average[:12],
        atol=1e-8,
    )


def test_float32_kernels_stay_finite_for_ever():
    """Rounding noise below the smallest real eigenvalue is not learnt, however long one trains."""
    p = linear_problem(train=60, features=20, outputs=1)  # rank 20
    dynamics = Dynamics.decompose(p.ntk.astype(np.float32), p.y[:, 0])
    found = dynamics.on(ntk_cross=p.ntk_cross.astype(np.float32)).mean([1e12, np.inf])
    exact = p.phi_test @ (np.linalg.pinv(p.phi) @ p.y[:, 0])
    np.testing.assert_allclose(found, np.stack([exact, exact]), atol=1e-4)


def test_vector_targets_and_scalar_times_drop_their_axes():
    p = linear_problem(outputs=1)
    vector = Dynamics.decompose(p.ntk, p.y[:, 0], nngp=p.nngp)
    assert vector.mean(1.0).shape == (12,)
    assert vector.mean(TIMES).shape == (4, 12)
    assert vector.predict(1.0).variance.shape == (12,)
    assert vector.on(**blocks(p)).predict(TIMES[:, None]).variance.shape == (4, 1, 5)
    assert vector.curve(1.0).loss.shape == ()
    matrix = Dynamics.decompose(p.ntk, p.y)
    np.testing.assert_allclose(vector.mean(TIMES), matrix.mean(TIMES)[..., 0])


def test_a_zero_kernel_learns_nothing():
    dynamics = Dynamics.decompose(np.zeros((3, 3)), np.ones(3), nngp=np.eye(3))
    np.testing.assert_array_equal(dynamics.mean([5.0, np.inf]), 0.0)
    assert dynamics.largest_stable_learning_rate == np.inf


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate= is not a positive number"),
        ({"learning_rate": np.nan}, "learning_rate= is not a positive number"),
        ({"optimizer": "adam"}, "optimizer= is none of 'gradient flow'"),
        ({"ridge": -1.0}, "ridge cannot be negative"),
    ],
)
def test_unusable_options_are_named(options, message):
    with pytest.raises(WidelimitError, match=message):
        build(linear_problem(), **options)


def test_unusable_inputs_are_named():
    p = linear_problem()
    with pytest.raises(NumericalError, match="smallest eigenvalue -"):
        Dynamics.decompose(p.ntk - 0.5 * np.eye(12), p.y)
    with pytest.raises(ShapeError, match="NNGP kernel of the training"):
        Dynamics.decompose(p.ntk, p.y, nngp=p.nngp_test)
    with pytest.raises(ShapeError, match="initial outputs"):
        build(p).mean(1.0, start=np.zeros(12))
    with pytest.raises(ShapeError, match="NTK of test against training"):
        build(p).on(ntk_cross=p.ntk_cross.T)
    with pytest.raises(NumericalError, match="start at 0"):
        build(p).mean([-1.0])
    with pytest.raises(NumericalError, match="times are numbers"):
        build(p).mean("late")
    for alone in ({"start": p.y_test}, {"train_start": p.y}):
        with pytest.raises(ShapeError, match="at both sets of examples"):
            build(p).on(**blocks(p)).mean(1.0, **alone)
    for options in ({"ridge": -0.5}, {"ridge": np.nan}, {"outputs": 0}, {"outputs": 2.5}):
        with pytest.raises(WidelimitError, match=r"ridge|outputs="):
            largest_stable_learning_rate(p.ntk, **options)
    with pytest.raises(NumericalError, match="whole steps"):
        build(p, optimizer=Optimizer.GRADIENT_DESCENT).mean([0.5])


def test_missing_kernels_are_named():
    p = linear_problem()
    with pytest.raises(NumericalError, match="no NNGP kernel"):
        Dynamics.decompose(p.ntk, p.y).predict(1.0)
    with pytest.raises(NumericalError, match="no NNGP blocks"):
        build(p).on(ntk_cross=p.ntk_cross).predict(1.0)
    with pytest.raises(NumericalError, match="only its diagonal"):
        build(p).on(**blocks(p, full=False)).covariance(1.0)
