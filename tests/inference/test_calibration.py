import sys

import numpy as np
import pytest

from widelimit.errors import MissingExtraError, NumericalError, OptionError, ShapeError
from widelimit.inference import reliability


def table(confidence):
    confidence = np.asarray(confidence, dtype=np.float64)
    return np.stack([confidence, 1 - confidence], axis=1)


def test_a_small_case_by_hand():
    p = table([0.9, 0.9, 0.9, 0.9, 0.62, 0.62, 0.55, 1.0])
    labels = np.array([0, 0, 0, 1, 0, 1, 1, 0])
    found = reliability(p, labels, groups=10)
    np.testing.assert_allclose(found.lower, [0.5, 0.6, 0.9])
    np.testing.assert_array_equal(found.count, [1, 2, 5])
    np.testing.assert_allclose(found.confidence, [0.55, 0.62, 0.92])
    np.testing.assert_allclose(found.accuracy, [0.0, 0.5, 0.8])
    expected = (1 * 0.55 + 2 * 0.12 + 5 * 0.12) / 8
    assert found.expected_error == pytest.approx(expected)


def test_honest_probabilities_have_a_small_error_and_boastful_ones_do_not():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, size=20_000)
    labels = (rng.uniform(size=20_000) > confidence).astype(int)
    assert reliability(table(confidence), labels).expected_error < 0.015
    boast = table(confidence**0.5)
    assert reliability(boast, labels).expected_error > 0.08


def test_the_picture_shows_the_groups():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, size=500)
    labels = (rng.uniform(size=500) > confidence).astype(int)
    found = reliability(table(confidence), labels, groups=10)
    axes = found.plot()
    points = axes.containers[-1].lines[0].get_xydata()
    np.testing.assert_allclose(points, np.stack([found.confidence, found.accuracy], axis=1))
    assert f"{found.expected_error:.3f}" in axes.get_title()
    assert found.plot(axes) is axes
    pyplot.close(axes.figure)


def test_missing_matplotlib_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"widelimit\[plots\]"):
        reliability(table([0.7]), [0]).plot()


def test_unusable_inputs_are_named():
    with pytest.raises(NumericalError, match="distribution over the classes"):
        reliability([[0.7, 0.7]], [0])
    with pytest.raises(OptionError, match="groups= is not a positive integer"):
        reliability(table([0.7]), [0], groups=0)
    with pytest.raises(ShapeError, match="column numbers"):
        reliability(table([0.7]), [2])
