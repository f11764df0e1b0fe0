"""The study of landmarks: nested landmarks, fair ridges, differences on the same tests."""

import numpy as np
import pytest

from widelimit.app.studies import landmarks
from widelimit.app.studies.landmarks import LabelledKernel, compared, first, marked

RNG = np.random.default_rng(0)
LABELS = np.arange(130) % 3
POINTS = RNG.normal(size=(130, 4)) + 1.5 * np.eye(4)[LABELS]
KERNEL = np.exp(-0.2 * ((POINTS[:, None] - POINTS[None, :90]) ** 2).sum(-1)).astype(np.float32)
PROBLEM = LabelledKernel(KERNEL, LABELS[:90], LABELS[90:])


def test_fewer_landmarks_are_the_first_of_many():
    many, few = marked(PROBLEM, 60), marked(PROBLEM, 20)
    np.testing.assert_array_equal(many.pivots[:20], few.pivots)
    some = first(many, 20, np.diagonal(PROBLEM.square))
    np.testing.assert_allclose(some.factor, few.factor)
    np.testing.assert_allclose(some.missed, few.missed, atol=1e-5)


def test_all_landmarks_are_exact(monkeypatch):
    monkeypatch.setattr(landmarks, "SHARES", (9, 1))
    exact, few, refined, whole = compared(PROBLEM, "rbf", "NNGP", "points")
    assert exact["accuracy"] > 0.6
    assert (exact["entries"], few["entries"], whole["entries"]) == (90 * 91 // 2, 900, 8100)
    assert whole["gap"] == 0
    assert whole["missed"] < 1e-4 < few["missed"] < 1
    assert whole["validation"] == pytest.approx(exact["validation"], abs=0.02)
    assert few["gap"] == pytest.approx(few["accuracy"] - exact["accuracy"])
    # 80 images are no landmarks, and all of them tell how far to step.
    assert (refined["solver"], refined["entries"]) == ("refined", 90 * (10 + 80))
    assert refined["gap"] > few["gap"]
    lines = landmarks.table([exact, few, refined, whole]).splitlines()
    assert len(lines) == 6
    assert len({line.count("|") for line in lines}) == 1
