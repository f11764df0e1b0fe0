"""A comparison tunes everyone equally, writes what it finds, and computes nothing twice."""

import json

import numpy as np
import pytest

import widelimit as wl
from widelimit.app.studies import results
from widelimit.app.studies.accuracy import Gap
from widelimit.app.studies.comparison import (
    Arena,
    Claim,
    ContestSize,
    FamilyGroup,
    Selection,
    Trunk,
    choose,
    contest,
    require_equal_effort,
)
from widelimit.app.studies.kept_kernels import KeptKernels
from widelimit.app.studies.study import Size
from widelimit.data import Dataset
from widelimit.engine.tiles import Pairs
from widelimit.errors import WidelimitError

CLAIM = Claim("useful", "useless")


def parity(count, seed):
    """Signs of a product of two inputs, which no linear function of them knows."""
    x = np.random.default_rng(seed).normal(size=(count, 2)).astype(np.float32)
    return x, (x[:, 0] * x[:, 1] > 0).astype(np.int64)


def arena(folder):
    data = Dataset(*parity(120, 0), *parity(200, 1), ("minus", "plus"))
    shuffled = Dataset(*parity(120, 2)[:1], data.y_train, data.x_test, data.y_test, ("a", "b"))
    return Arena("parity", {"real": data, "shuffled": shuffled}, KeptKernels(folder / "kernels"))


def groups():
    def read(depth):
        layer = wl.Serial(wl.Dense(8, w_std=1.4, b_std=0.3), wl.Relu())
        return wl.Serial(wl.Repeat(layer, depth), wl.Dense(1))

    trunks = [Trunk("none", view, wl.Serial()) for view in ("shuffled", "real")]
    useful = {"linear": wl.Serial(wl.Dense(1)), "two": read(2)}
    useless = {"w 1": wl.Serial(wl.Dense(1)), "w 2": wl.Dense(1, w_std=2.0)}
    return [FamilyGroup(trunks, {"useful": useful, "useless": useless})]


def held(folder):
    study = contest(
        "parity",
        "Parity",
        "Signs of a product.",
        groups=groups,
        scales={Size.SMALL: ContestSize((None,), 80)},
        arena=lambda size, part, out: arena(out.parent),
        baselines=["real"],
        claims=(CLAIM,),
    )
    return study.run(Size.SMALL, folder / "out")


def test_a_contest_finds_what_is_there(tmp_path, monkeypatch):
    result = held(tmp_path)
    rows = {(row["kernel"], row["kind"]): row for row in result["rows"]}
    assert rows["useful", "NNGP"]["accuracy"] > 0.8
    assert rows["useful", "NTK"]["settings"] == "none, real; two"
    assert rows["useless", "NNGP"]["accuracy"] < 0.65
    assert rows["ridge, real", "ridge"]["accuracy"] < 0.65
    verdicts = {(one["first"], one["second"]): one["verdict"] for one in result["claims"]}
    assert verdicts.pop(CLAIM[:2]) == "holds"
    assert verdicts.pop(("useful", "ridge, real")) == "holds"  # what every family is held against
    assert verdicts == {("useless", "ridge, real"): "does not hold: the opposite is seen"}
    assert len(result["tuning"]) == 8
    assert json.loads((tmp_path / "out" / "parity.json").read_text()).keys() == result.keys()
    accuracies, claims = results.tables(result)
    assert len(accuracies[1]) == len(result["rows"])
    assert claims[1][0][0] == "useful better than useless"
    assert claims[1][0][-1] == "holds"
    for ending in ("csv", "png"):
        assert (tmp_path / "out" / f"parity.{ending}").stat().st_size > 100

    def refuse(*_, **__):
        raise AssertionError("a kernel was computed again")

    monkeypatch.setattr(Pairs, "computed", refuse)
    assert held(tmp_path) == result


def test_unequal_effort_is_refused():
    (group,) = groups()
    more = {"more": {str(i): wl.Dense(1) for i in range(3)}}
    with pytest.raises(WidelimitError, match=r"different effort[\s\S]*more: 6 settings"):
        require_equal_effort([FamilyGroup(group.trunks, {**group.families, **more})])


def test_the_trunk_is_chosen_for_all_and_the_readout_for_each():
    (group,) = groups()
    score = {
        ("useful", "shuffled", "linear"): 0.9,
        ("useful", "shuffled", "two"): 0.1,
        ("useful", "real", "linear"): 0.5,
        ("useful", "real", "two"): 0.8,
        ("useless", "shuffled", "w 1"): 0.3,
        ("useless", "shuffled", "w 2"): 0.2,
        ("useless", "real", "w 1"): 0.6,
        ("useless", "real", "w 2"): 0.5,
    }
    apart = {("useful", "real", "linear"): 0.45}  # the mean of both kernels decides, not the best
    trials = [
        {"kernel": k, "trunk": "none", "view": v, "readout": r, "NNGP": s + d, "NTK": s - d}
        for (k, v, r), s in score.items()
        for d in [apart.get((k, v, r), 0.0)]
    ]
    assert choose(group, trials) == Selection(group.trunks[1], {"useful": "two", "useless": "w 1"})


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (Gap(0.1, 0.05, 0.15), "holds"),
        (Gap(-0.1, -0.15, -0.05), "does not hold: the opposite is seen"),
        (Gap(0.01, -0.02, 0.04), "is not seen: no clear difference"),
    ],
)
def test_claims_are_judged_by_their_intervals(found, verdict):
    assert CLAIM.judged(found)["verdict"] == verdict
