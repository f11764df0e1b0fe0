"""What stands beside a run: simpler methods on the same split, and what it takes beforehand."""

import numpy as np
import pytest

from widelimit.app.workflow import Task
from widelimit.app.workflow.baselines import Baseline, advice, baselines
from widelimit.app.workflow.blocks import consider
from widelimit.app.workflow.kinds import Listener
from widelimit.app.workflow.scores import Score
from widelimit.errors import WidelimitError
from widelimit.inference import Cholesky, Nystrom
from widelimit.sklearn.inputs import Examples

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 3))
TRAIN, TEST = np.arange(150), np.arange(150, 200)


def compare(task, y, x=X, mask=None, train=TRAIN):
    examples = Examples(x, mask, None)
    return baselines(task, examples.take(train), y[train], examples.take(TEST), y[TEST])


def test_ridge_finds_what_is_linear():
    y = X @ [1.0, -2.0, 0.5] + 3 + 0.1 * RNG.normal(size=200)
    ridge = compare(Task.REGRESS, y)[0]
    slopes = np.linalg.lstsq(np.c_[X[TRAIN], np.ones(150)], y[TRAIN], rcond=None)[0]
    exact = 1 - np.mean((y[TEST] - np.c_[X[TEST], np.ones(50)] @ slopes) ** 2) / y[TEST].var()
    assert ridge.name == "ridge"
    assert ridge.score.value == pytest.approx(exact, abs=1e-3)
    assert compare(Task.REGRESS, RNG.normal(size=200))[0].score.value < 0.2


def test_classes_streams_and_padding():
    labels = (X[:, 0] > 0).astype(int)
    words = np.repeat(X[:, None, :], 4, axis=1)
    mask = np.arange(4)[None, :] < RNG.integers(1, 5, 200)[:, None]
    words = np.where(mask[..., None], words, 100.0)  # what is padding must not be seen
    streams = {"x": (words, RNG.normal(size=(200, 2))), "mask": (mask, None)}
    found = compare(Task.CLASSIFY, labels, **streams)
    assert all(one.score.value > 0.9 for one in found)
    assert compare(Task.CLASSIFY, labels, train=np.arange(30)) == ()


def test_boosting_stands_beside_ridge():
    y = np.abs(X[:, 0]) + (X[:, 1] > 0)
    ridge, boosting = compare(Task.REGRESS, y)
    assert boosting.score.value > 0.7 > ridge.score.value


def test_the_page_says_what_to_use():
    other = (Baseline("boosting", Score(0.8, 0.75, 0.85), 1.0),)
    assert advice(Score(0.7, 0.65, 0.75), other) == "boosting does better on these data: use it"
    assert "better than boosting" in str(advice(Score(0.9, 0.86, 0.94), other))
    assert "cannot tell" in str(advice(Score(0.79, 0.74, 0.84), other))
    assert advice(Score(0.9, 0.8, 1.0), ()) is None


def test_an_exact_solve_says_what_it_takes_or_is_refused():
    said = []

    class Heard(Listener):
        def say(self, text):
            said.append(text)

    consider(4000, 1000, np.float32, Cholesky(), Heard())
    consider(10**7, 1000, np.float32, Nystrom(landmarks=100), Heard())
    assert said == []
    consider(6000, 1000, np.float32, Cholesky(), Heard())
    assert "solver nystrom with 2000 landmarks" in said[0]
    with pytest.raises(WidelimitError, match=r"400\.. TB.*nystrom with 2000 landmarks") as caught:
        consider(10**7, 0, np.float32, Cholesky(), Heard())
    assert "5,000 training examples" in str(caught.value)
    assert caught.value.options == ("solver", "landmarks", "max_train")
