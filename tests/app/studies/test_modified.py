"""Intervals of trained networks: both the examples and the random starts are drawn."""

import numpy as np

from widelimit.app.studies import modified
from widelimit.app.studies.accuracy import Accuracy, Validated, gap


def difference(first, second):
    return gap(*(Accuracy(Validated(0.1, 0.5), correct) for correct in (first, second)))


def test_intervals_cover_the_true_difference():
    """Networks that differ from start to start, on examples of different difficulty."""
    rng = np.random.default_rng(0)
    starts, examples, runs, true = 5, 400, 400, 0.03
    covered, excluded = 0, 0
    for _ in range(runs):
        hard = rng.normal(0, 0.15, size=(1, examples))
        luck = rng.normal(0, 0.02, size=(2, starts, 1))
        chance = np.clip(0.5 + hard + luck[0], 0, 1), np.clip(0.53 + hard + luck[1], 0, 1)
        second, first = (rng.uniform(size=(starts, examples)) < p for p in chance)
        found = difference(first, second)
        covered += found.low <= true <= found.high
        excluded += found.low > 0
    assert 0.93 * runs < covered < 0.99 * runs, covered
    assert excluded > 0.1 * runs, f"intervals too wide to see a difference: {excluded}"


def test_equal_networks_do_not_differ():
    same = np.random.default_rng(1).uniform(size=(3, 50)) < 0.5
    found = difference(same, same)
    assert found == (0.0, 0.0, 0.0)
    assert found.verdict == "no clear difference"


def test_every_modification_is_one_change_of_plain_attention():
    layers = modified.attentions(8)
    assert {claim.first for claim in modified.CLAIMS} | {modified.WITHOUT} == set(layers)
    assert {claim.second for claim in modified.CLAIMS} <= set(layers)
