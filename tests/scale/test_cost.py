"""Estimates: what is counted is exact, and what is measured is of the right size."""

import numpy as np
import pytest
from stores import examples, network

import widelimit as wl
from widelimit.scale import cost as costs
from widelimit.scale.cost import duration


def test_counts_and_sizes_are_exact(monkeypatch):
    monkeypatch.setattr(costs, "_SECONDS", 1e-9)  # of the rate only the sign matters here
    cost = network().cost(examples(20), examples=1000, tests=100)
    assert cost.pairs == 1000 * 1001 // 2 + 100 * 1000
    assert cost.disk == cost.pairs * 2 * 8
    assert cost.dense == (1000**2 + 100 * 1000) * 2 * 8 + 8 * 1000**2
    assert cost.seconds == pytest.approx(cost.compiling + cost.encoding + cost.pairs / cost.rate)
    twice = cost.with_workers(2 * cost.workers)
    assert twice.rate == pytest.approx(2 * cost.rate)
    assert twice.compiling == cost.compiling
    assert "1,000 examples and 100 tests" in str(cost)


def test_unknown_sizes_are_refused():
    with pytest.raises(wl.errors.OptionError, match="examples="):
        network().cost(examples(), examples=0)


def test_what_single_precision_cannot_compute_has_its_cost(monkeypatch):
    monkeypatch.setattr(costs, "_SECONDS", 1e-9)
    cost = network(1e-12).cost((1e22 * examples(9)).astype(np.float32))
    assert cost.disk == 9 * 10 // 2 * 2 * 4


@pytest.mark.parametrize("workers", [0, -1, 1.5, "2"])
def test_workers_are_some(monkeypatch, workers):
    monkeypatch.setattr(costs, "_SECONDS", 1e-9)
    with pytest.raises(wl.errors.OptionError, match="workers="):
        network().cost(examples(3)).with_workers(workers)


def test_copies_of_examples_are_not_equal():
    inputs = wl.engine.inputs.as_inputs(examples(5))
    more = costs._like(inputs, 12).x
    assert len(np.unique(more, axis=0)) == 12


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(5, "5 s"), (600, "10 min"), (7200, "2.0 h"), (86400 * 10, "10.0 days")],
)
def test_durations(seconds, words):
    assert duration(seconds) == words
