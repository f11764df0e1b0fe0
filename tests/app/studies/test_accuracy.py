"""Accuracies, their intervals, and the choice of a ridge, against independent values."""

import numpy as np
import pytest

from widelimit.app.studies.accuracy import (
    Accuracy,
    Validated,
    evaluate,
    gap,
    linear_kernel,
    validate,
)
from widelimit.inference import centred_one_hot


def classes(count, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    labels = np.arange(count) % 3
    centres = 2.0 * np.eye(3, 5)
    return centres[labels] + spread * rng.normal(size=(count, 5)), labels


def outcome(correct):
    return Accuracy(Validated(0.1, 0.5), np.asarray(correct, bool))


def test_the_interval_is_wilsons():
    # Newcombe (1998), table I: 81/263 and 0/20.
    assert outcome([True] * 81 + [False] * 182).interval == pytest.approx(
        (0.2553, 0.3662), abs=5e-5
    )
    assert outcome([False] * 20).interval == pytest.approx((0.0, 0.1611), abs=5e-5)


def test_the_interval_covers_the_truth():
    rng = np.random.default_rng(0)
    counts = rng.binomial(200, 0.7, size=500)
    ends = [outcome(np.arange(200) < count).interval for count in counts]
    covered = np.mean([low <= 0.7 <= high for low, high in ends])
    assert 0.92 < covered < 0.98


def test_a_gap_knows_its_sign_and_when_it_is_nothing():
    right, wrong = [True] * 100, [True] * 60 + [False] * 40
    assert gap(outcome(right), outcome(wrong)).verdict == "better"
    assert gap(outcome(wrong), outcome(right)).verdict == "worse"
    same = gap(outcome(wrong), outcome(wrong))
    assert same.verdict == "no clear difference"
    assert same.low < 0 < same.high
    assert gap(outcome(right), outcome(wrong)).difference == pytest.approx(0.4)


def test_a_paired_gap_is_narrower_than_two_intervals():
    rng = np.random.default_rng(1)
    first = rng.random(1000) < 0.6
    second = first.copy()
    second[:20] = False
    found = gap(outcome(first), outcome(second))
    low, high = outcome(first).interval
    assert found.high - found.low < 0.5 * (high - low)


def test_validation_leaves_every_example_out():
    x, labels = classes(30)
    kernel = linear_kernel(x, 30)
    ridge, right = 0.1, []
    targets, names = centred_one_hot(labels)
    for i in range(30):
        rest = np.delete(np.arange(30), i)
        noise = ridge * np.mean(np.diagonal(kernel)) * np.eye(29)
        mean = kernel[i, rest] @ np.linalg.solve(kernel[np.ix_(rest, rest)] + noise, targets[rest])
        right.append(names[np.argmax(mean)] == labels[i])
    assert validate(kernel, labels, (ridge,)) == pytest.approx((ridge, np.mean(right)))


def test_the_best_ridge_is_found():
    x, labels = classes(60, spread=1.5)
    kernel = np.exp(-0.5 * np.sum((x[:, None] - x[None]) ** 2, axis=-1))
    ridges = (1e-6, 1e-3, 0.1, 10.0)
    every = [validate(kernel, labels, (ridge,)).accuracy for ridge in ridges]
    assert validate(kernel, labels, ridges).accuracy == max(every)


def test_evaluation_classifies_what_can_be_classified():
    x, labels = classes(90, spread=0.3)
    found = evaluate(linear_kernel(x, 60), labels[:60], labels[60:])
    assert found.accuracy == 1
    rng = np.random.default_rng(0)
    shuffled = evaluate(linear_kernel(x, 60), rng.permutation(labels[:60]), labels[60:])
    assert shuffled.accuracy < 0.8
