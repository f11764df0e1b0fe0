"""Examples sorted by length and cut: the same kernels as at full length."""

import itertools

import numpy as np
import pytest

import widelimit as wl
from widelimit.app.studies.readouts import Readouts
from widelimit.engine import tiles
from widelimit.engine.inputs import Inputs

# The last three are the longest, neighbours and thus a slice; the others are scattered.
_LENGTHS = np.array([12, 3, 5, 9, 3, 11, 12, 2] * 5)
_LENGTHS[-3:] = 24
_MASK = np.arange(24)[None, :] < _LENGTHS[:, None]


def _sequences() -> np.ndarray:
    x = np.random.default_rng(0).normal(size=(40, 24, 3)).astype(np.float32)
    x[9] = x[1]  # the same sequence twice, in one group
    return x


def _short_or_long() -> tuple[np.ndarray, np.ndarray]:
    """Two groups, which compile faster than three."""
    chosen = (_LENGTHS <= 8) | (_LENGTHS == 24)
    return _sequences()[chosen], _MASK[chosen]


def _net(*middle: wl.Layer, end: wl.Layer | None = None) -> wl.Serial:
    attention = wl.Attention(8, scaling=wl.Scaling.LINEAR, positions=wl.Decay(rate=0.5))
    first = (wl.Conv(8, 3, b_std=0.3), wl.Relu(), *middle, attention, wl.Relu())
    return wl.Serial(*first, end or wl.MeanPool(), wl.Dense(1))


@pytest.fixture
def cheap_compilations(monkeypatch):
    """As if the forty short sequences were worth as many compilations as thousands are."""
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)


@pytest.mark.usefixtures("cheap_compilations")
def test_groups_hold_every_example_once_and_no_real_position_is_cut():
    found = tiles.groups(_net(), Inputs(_sequences(), _MASK, False))
    assert [group.length for group in found] == [8, 16, 24]
    assert sorted(np.concatenate([group.members for group in found])) == list(range(40))
    assert all(_LENGTHS[g.members].max() <= (g.length or 0) for g in found)


def test_few_examples_are_not_worth_more_compilations():
    assert len(tiles.groups(_net(), Inputs(_sequences(), _MASK, False))) == 1


def test_more_work_is_worth_more_groups_and_these_leave_the_least_padding():
    rng = np.random.default_rng(0)
    counts = []
    for size in (50, 200, 800, 3200):
        drawn = rng.integers(1, 121, size=size)
        ends = tiles._ends(drawn, 120)
        counts.append(len(ends))
        marks = range(8, 120, 8)
        padded: dict[tuple[int, ...], int] = {
            (*choice, 120): np.array([*choice, 120])[np.searchsorted((*choice, 120), drawn)].sum()
            for choice in itertools.combinations(marks, len(ends) - 1)
        }
        assert padded[ends] == min(padded.values())
    assert counts == sorted(counts)
    assert counts[0] == 1
    assert counts[-1] == 6


@pytest.mark.parametrize(
    "net",
    [
        _net(end=wl.Flatten()),
        _net(wl.Conv(8, 3, padding="valid")),
        _net(wl.MeanPool(2)),
        wl.Serial(wl.Dense(8)),
    ],
    ids=["flatten", "valid", "windows", "positions kept"],
)
@pytest.mark.usefixtures("cheap_compilations")
def test_layers_that_see_the_array_s_length_get_all_of_it(net):
    found = tiles.groups(net, Inputs(_sequences(), _MASK, False))
    assert [group.length for group in found] == [None]


@pytest.mark.usefixtures("cheap_compilations")
def test_sorted_and_cut_kernels_are_those_at_full_length(monkeypatch):
    net, (x, mask) = _net(), _short_or_long()
    cut = net.kernel(x, mask=mask)
    # Ten rows are cut to other lengths than all of them: the same sequences meet at different ones.
    block = net.kernel(x[:10], x, mask=mask[:10], mask2=mask)
    monkeypatch.setattr(tiles, "groups", lambda net, inputs: [tiles.one_group(inputs)])
    full = net.kernel(x, mask=mask)
    for one, two, three in zip(cut, full, block, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-6)
        np.testing.assert_allclose(three, two[:10], rtol=2e-6)


def _side_by_side() -> wl.Concat:
    return wl.Concat(*(wl.Serial(wl.Conv(8, window), wl.Relu()) for window in (1, 3)))


@pytest.mark.usefixtures("cheap_compilations")
@pytest.mark.parametrize(
    "net",
    [
        wl.Serial(_side_by_side(), wl.MeanPool(), wl.Dense(1)),
        wl.Serial(wl.Product(wl.Dense(8), wl.Conv(8, 3)), wl.MeanPool(), wl.Dense(1)),
        wl.Serial(
            wl.Conv(8, 3),
            wl.Relu(),
            Readouts(*(wl.Serial(p, wl.Dense(1)) for p in (wl.MeanPool(), wl.SumPool()))),
        ),
    ],
    ids=["concat", "product", "readouts"],
)
def test_branches_are_cut_too(net, monkeypatch):
    x, mask = _short_or_long()
    assert [g.length for g in tiles.groups(net, Inputs(x, mask, False))] == [8, 24]
    cut = net.kernel(x, mask=mask)
    monkeypatch.setattr(tiles, "groups", lambda net, inputs: [tiles.one_group(inputs)])
    for one, two in zip(cut, net.kernel(x, mask=mask), strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-6, atol=1e-7)


@pytest.mark.usefixtures("cheap_compilations")
def test_a_sink_gets_slices():
    seen = []
    _net().kernel_into(lambda rows, columns, *_: seen.append(rows), _sequences(), mask=_MASK)
    assert all(isinstance(rows, slice) for rows in seen)
