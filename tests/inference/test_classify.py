import numpy as np
import pytest
from scipy.special import log_softmax, softmax
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import GPPosterior, LeaveOneOut, Temperature, centred_one_hot, reliability


def test_targets_are_centred():
    targets, classes = centred_one_hot(["b", "a", "c", "a"])
    np.testing.assert_array_equal(classes, ["a", "b", "c"])
    expected = np.array([[-1, 2, -1], [2, -1, -1], [-1, -1, 2], [2, -1, -1]]) / 3
    np.testing.assert_allclose(targets, expected)
    tenth, _ = centred_one_hot(np.arange(10))
    assert (tenth.max(), tenth.min()) == pytest.approx((0.9, -0.1))


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        ([1, 1, 1], NumericalError, "at least two classes"),
        ([], ShapeError, "non-empty"),
        (np.eye(3), ShapeError, "not one-hot rows"),
        ([0.0, np.nan, 1.0], NumericalError, "must be known"),
        (["a", np.nan, "b"], NumericalError, "must be known"),
        (["a", None, "b"], NumericalError, "must be known"),
        (np.array(["a", np.nan, "b"], object), NumericalError, "must be known"),
        (["a", 1, "b"], NumericalError, "of one kind"),
        (np.array(["a", 1, "b"], object), NumericalError, "of one kind"),
    ],
)
def test_unusable_labels_are_named(labels, error, message):
    with pytest.raises(error, match=message):
        centred_one_hot(labels)


def predictions(mean, variance):
    mean = np.asarray(mean, dtype=np.float64)
    return LeaveOneOut(mean, np.asarray(variance, dtype=np.float64), np.zeros_like(mean))


def known_temperature(beta, rows=25_000, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    mean, variance = rng.normal(size=(rows, classes)), rng.uniform(0.2, 3.0, size=rows)
    probability = softmax(beta * mean / np.sqrt(variance)[:, None], axis=1)
    labels = (probability.cumsum(axis=1) > rng.uniform(size=(rows, 1))).argmax(axis=1)
    return predictions(mean, variance), labels


def test_a_known_temperature_is_found_again():
    data, labels = known_temperature(1.7)
    fitted = Temperature.fit(data, labels)
    score = data.mean / np.sqrt(data.variance)[:, None]
    p = softmax(1.7 * score, axis=1)
    information = np.sum(p * score**2) - np.sum(np.sum(p * score, axis=1) ** 2)
    error = information**-0.5
    assert error < 0.01 * 1.7
    assert abs(fitted.inverse - 1.7) / error < 4.0
    assert abs(fitted.inverse - 1.7 * 1.1) / error > 4.0  # a tenth off would be noticed
    table = fitted.probabilities(data.mean, data.variance)
    assert reliability(table, labels).expected_error < 0.02


def test_the_fit_maximises_the_log_score():
    data, labels = known_temperature(1.7, rows=200)
    fitted = Temperature.fit(data, labels)
    score = data.mean / np.sqrt(data.variance)[:, None]
    wanted = np.full((200, 4), 0.5 / 4 / 200)
    wanted[np.arange(200), labels] += 1.0

    def log_score(beta):
        return np.sum(wanted * log_softmax(beta * score, axis=1))

    best = log_score(fitted.inverse)
    assert all(log_score(fitted.inverse * f) < best for f in (0.99, 1.01))


def test_perfect_predictions_do_not_become_certain():
    targets, _ = centred_one_hot(np.arange(60) % 3)
    fitted = Temperature.fit(predictions(targets, np.ones(60)), np.arange(60) % 3)
    table = fitted.probabilities(targets, np.ones(60))
    # Half a pseudo-example among sixty: the odds against are about (0.5/3)/60 per class.
    np.testing.assert_allclose(table.max(axis=1), 1 - 2 * (0.5 / 3) / 60.5, rtol=1e-3)


def test_predictions_without_information_give_even_odds():
    labels = np.arange(30) % 3
    targets, _ = centred_one_hot(labels)
    for mean in (np.zeros((30, 3)), -targets):
        fitted = Temperature.fit(predictions(mean, np.ones(30)), labels)
        np.testing.assert_allclose(fitted.probabilities(mean, np.ones(30)), 1 / 3)


def test_less_certain_where_the_variance_is_larger_and_bounded_where_it_vanishes():
    fitted = Temperature(inverse=2.0, variance_floor=0.25)
    mean = np.array([[0.5, -0.5]] * 4)
    table = fitted.probabilities(mean, [4.0, 1.0, 0.25, 0.0])
    assert (np.diff(table[:3, 0]) > 0).all()
    assert table[3, 0] == table[2, 0]


def test_labels_must_be_columns():
    data = predictions(np.zeros((3, 2)), np.ones(3))
    for labels, message in (
        (["a", "b", "a"], "column numbers"),
        ([0, 1], "3 column numbers"),
        ([0, 1, 2], "from 0 to 1"),
    ):
        with pytest.raises(ShapeError, match=message):
            Temperature.fit(data, labels)


def relu_nngp(x, depth=3):
    """NNGP kernel of a fully connected ReLU network, from the arc-cosine formula."""
    k = x @ x.T / x.shape[1]
    for _ in range(depth):
        norm = np.sqrt(np.outer(np.diag(k), np.diag(k)))
        angle = np.arccos(np.clip(k / norm, -1, 1))
        k = norm * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / np.pi
    return k


@pytest.mark.parametrize(
    ("load", "train", "accuracy", "score"),
    [
        (load_wine, 60, 0.94, 0.12),
        (load_breast_cancer, 150, 0.94, 0.15),
        (load_digits, 300, 0.93, 0.25),
    ],
)
def test_probabilities_are_calibrated_on_real_data(load, train, accuracy, score):
    x, y = load(return_X_y=True)
    x = x / 8 - 1 if load is load_digits else (x - x.mean(axis=0)) / x.std(axis=0)
    order = np.random.default_rng(0).permutation(len(y))[: train + 500]
    x, y = np.hstack([x, np.ones((len(x), 1))])[order], y[order]
    k = relu_nngp(x)
    noise = 0.01 * np.diag(k).mean()
    targets, _ = centred_one_hot(y)
    posterior = GPPosterior.condition(k[:train, :train], targets[:train], noise=noise)
    found = posterior.predict(k[train:, :train], np.diag(k)[train:])
    fitted = Temperature.fit(posterior.leave_one_out, y[:train])
    table = fitted.probabilities(found.mean, found.variance + noise)
    held_out = y[train:]
    assert np.mean(table.argmax(axis=1) == held_out) > accuracy
    assert -np.mean(np.log(table[np.arange(len(held_out)), held_out])) < score
    assert reliability(table, held_out).expected_error < 0.05
