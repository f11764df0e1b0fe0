"""Questions of our own about finite heads: each study runs and shows what it is about."""

import pytest
from study_runs import run_and_check

from studies import STUDIES, convergence, length
from widelimit.app.studies import Size
from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.finite_heads import SimulationSize


@pytest.fixture(autouse=True)
def few_networks(monkeypatch):
    monkeypatch.setattr(setting, "SMALL", SimulationSize(runs=4000, seeds=2, draws=2**12))


def run(name, folder):
    return run_and_check(STUDIES[name], folder)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", [(2, 8, 32), (4, 16)], ids=str)
def test_longer_sequences_follow_the_law_too(tmp_path, monkeypatch, lengths):
    assert set(lengths) < set(length.LENGTHS)
    monkeypatch.setattr(length, "LENGTHS", lengths)
    for one in run("length", tmp_path)["lengths"].values():
        excess = [w["kl_density"] - w["kl_density_floor"] for w in one["widths"].values()]
        assert excess[2] < 0.2 * excess[0]
        assert one["kurtosis"] > 10 * one["kurtosis_error"]


def test_kernels_converge_in_heads_and_width(tmp_path, monkeypatch):
    monkeypatch.setattr(convergence, "HEADS", (1, 4, 16))
    monkeypatch.setattr(convergence, "WIDTHS", (8, 32, 128))
    # With 200 networks the part of the heads is two to four standard errors, by the draw.
    monkeypatch.setitem(convergence._DRAWS, Size.SMALL, 2000)
    found = run("convergence", tmp_path)
    slopes = found["slopes_of_error"]
    # 1/√H in the end; with one head the term 1/(nH) still counts.
    assert -0.75 < slopes["both, width = 8 heads"] < -0.45
    # Neither makes up for the other: both terms are there.
    for name in ("per_head", "per_width"):
        assert found["fit"][name]["value"] > 3 * found["fit"][name]["error"]
    assert found["largest_z_of_fit"] < 5


@pytest.mark.slow
def test_each_law_has_its_region(tmp_path):
    found = run("head-width", tmp_path)
    assert all(count > 0 for count in found["fits"].values())
    assert found["given_fits_everywhere"]
    for heads, one in found["parts"].items():
        values = list(one.values())
        assert values == sorted(values), heads


@pytest.mark.slow
def test_the_tangent_kernel_moves_with_one_head(tmp_path):
    found = run("moving-ntk", tmp_path)
    one, many = found["heads=1, width=128"], found["heads=128, width=128"]
    assert one["loss_left"] < 0.05
    assert many["loss_left"] < 0.05
    assert one["moved"] > 0.1
    assert many["moved"] < 0.2 * one["moved"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["signal", "sampled-heads"])
def test_other_studies_run(name, tmp_path):
    run(name, tmp_path)


def test_studies_are_no_part_of_what_is_published():
    from widelimit.app.studies import STUDIES as PUBLISHED

    assert not STUDIES.keys() & PUBLISHED.keys()
    for name, study in STUDIES.items():
        assert study.name == name
        assert study.captions
        assert study.description.endswith(".")
