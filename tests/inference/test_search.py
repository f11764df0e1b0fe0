import numpy as np
import pytest
from inference.problems import WIDE, dense, examples

from widelimit.errors import NetworkError, NumericalError, OptionError, ShapeError
from widelimit.inference import (
    GP,
    Engine,
    KernelKind,
    Range,
    Relative,
    accuracy,
    centred_one_hot,
    grid,
    hyperparameters,
    log_density,
    search,
    with_hyperparameters,
)

X, HELD = examples(20), examples(12, seed=1)
Y, GOAL = np.sin(2 * X[:, 0]), np.sin(2 * HELD[:, 0])


@pytest.mark.parametrize("score", [None, log_density])
def test_scores_are_those_of_fitted_models(score):
    options = {} if score is None else {"score": score}
    found = search(
        grid(dense(), {"0.w_std": [0.5, 2.0]}), X, Y, HELD, GOAL,
        kinds=tuple(KernelKind), noises=(0.01, 0.3), engine=WIDE, **options,
    )  # fmt: skip
    assert len(found) == 8
    assert found[0].score == max(trial.score for trial in found)
    for trial in found:
        prediction = trial.gp.fit(X, Y).predict(HELD)
        if score is None:
            expected = -np.mean((prediction.mean - GOAL) ** 2)
        else:
            v = prediction.variance + trial.gp.noise
            expected = np.mean(-0.5 * ((prediction.mean - GOAL) ** 2 / v + np.log(2 * np.pi * v)))
        assert trial.score == pytest.approx(expected, rel=1e-6)
        weight = {h.name: h.value for h in hyperparameters(trial.gp.net)}["0.w_std"]
        assert trial.label == {"0.w_std": weight}


def test_classes_are_scored_by_accuracy():
    labels, held = (X[:, 0] > 0).astype(int), (HELD[:, 0] > 0).astype(int)
    targets, goal = centred_one_hot(labels)[0], centred_one_hot(held)[0]
    pair = [("only", dense())]
    found = search(pair, X, targets, HELD, goal, noises=(0.1,), score=accuracy, engine=WIDE)
    mean = GP(dense(), noise=0.1, engine=WIDE).fit(X, targets).mean(HELD)
    assert found[0].score == np.mean(mean.argmax(axis=1) == held)
    with pytest.raises(ShapeError, match="one column per class"):  # they would all be right
        search(pair, X, labels, HELD, held, noises=(0.1,), score=accuracy, engine=WIDE)


def test_ranges_and_their_coordinates():
    for where, value in ((Range.POSITIVE, 0.3), (Range.UNIT, 0.3), (Range.REAL, -2.0)):
        free = where.free(value)
        assert where.bounded(free) == pytest.approx(value)
        step = 1e-6
        slope = (where.bounded(free + step) - where.bounded(free - step)) / (2 * step)
        assert where.slope(np.asarray(value)) == pytest.approx(slope, rel=1e-8)


def test_unusable_requests_are_named():
    with pytest.raises(NetworkError, match=r"use one of 0\.w_std"):
        with_hyperparameters(dense(), {"w_std": 1.0})
    with pytest.raises(NetworkError, match="that are positive"):
        with_hyperparameters(dense(), {"0.w_std": -1.0})
    with pytest.raises(NetworkError, match="absent stays absent"):
        with_hyperparameters(dense(), {"2.b_std": 1.0})
    with pytest.raises(NumericalError, match="at least one network"):
        search([], X, Y, HELD, GOAL)
    for noise in (0.0, np.nan, np.inf, "a", Relative(0.1)):
        with pytest.raises(NumericalError, match="positive noise"):
            search([("a", dense())], X, Y, HELD, GOAL, noises=(0.1, noise))
    for options in ({"noises": 0.1}, {"kinds": "ntk"}):
        with pytest.raises(OptionError, match="takes several values"):
            search([("a", dense())], X, Y, HELD, GOAL, **options)
    for candidates in ([dense()], dense(), {"a": dense()}):
        with pytest.raises(NetworkError, match=r"pairs \(label, network\)"):
            search(candidates, X, Y, HELD, GOAL)
    for value in (np.nan, np.ones(3)):
        with pytest.raises(NumericalError, match="A score is one number"):
            search([("a", dense())], X, Y, HELD, GOAL, score=lambda *_, value=value: value)
    for value in (np.nan, np.inf, "a", [1.0, 2.0]):
        with pytest.raises(NetworkError, match="that are positive"):
            with_hyperparameters(dense(), {"0.w_std": value})
    with pytest.raises(NetworkError, match="a search computes those of several"):
        search([("a", dense())], X, Y, HELD, GOAL, engine=Engine(store="kernel"))
    for options in ({"memory": 0}, {"samples": -1}, {"tolerance": 0.0}, {"rank": 1.5}, {"key": -1}):
        with pytest.raises(OptionError, match=f"{next(iter(options))}= is"):
            Engine(**options)
    with pytest.raises(OptionError, match="takes several values"):
        next(grid(dense(), {"0.w_std": 1.0}))
    with pytest.raises(ShapeError, match="validation targets"):
        search([("a", dense())], X, Y, HELD, np.stack([GOAL, GOAL], axis=1))
