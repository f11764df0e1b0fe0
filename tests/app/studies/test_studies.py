"""Every finite-head study runs, writes what it promises, and shows what it is about."""

import itertools

import pytest
from study_runs import run_and_check

from widelimit.app.studies import STUDIES, results
from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.accuracy import Gap
from widelimit.app.studies.comparison import Claim
from widelimit.app.studies.finite_heads import SimulationSize
from widelimit.app.studies.page import plain_tables, sample_notice, settings


@pytest.fixture(autouse=True)
def few_networks(monkeypatch):
    monkeypatch.setattr(setting, "SMALL", SimulationSize(runs=4000, seeds=2, draws=2**12))


def run(name, folder):
    return run_and_check(STUDIES[name], folder)


@pytest.mark.parametrize("name", ["width", pytest.param("relu", marks=pytest.mark.slow)])
def test_divergence_falls_with_width(name, tmp_path):
    found = run(name, tmp_path)
    excess = [
        found[str(n)]["kl_density"] - found[str(n)]["kl_density_floor"] for n in (16, 64, 256, 1024)
    ]
    assert all(wide < 0.5 * narrow for narrow, wide in itertools.pairwise(excess))
    for name in ("kl_histogram", "kl_kernel_density"):
        sampled = [found[str(n)][name] - found[str(n)][f"{name}_floor"] for n in (16, 256)]
        assert sampled[1] < 0.5 * sampled[0]
        # Beyond width 256 these estimators see their own noise.
        assert found["1024"][name] < 3 * found["1024"][f"{name}_floor"]


def test_many_heads_are_gaussian_and_one_is_not(tmp_path):
    found = run("heads", tmp_path)
    assert found["256"]["law_ks_from_gaussian"] < 0.001
    assert abs(found["256"]["law_kurtosis"]) < 0.005
    assert found["1"]["law_kurtosis"] > 40 * found["1"]["law_kurtosis_error"]
    assert found["1"]["law_kl_from_gaussian"] > 5e-4


@pytest.mark.slow
def test_narrow_heads_follow_the_law(tmp_path):
    found = run("low-rank", tmp_path)
    for heads in ("1", "4", "16"):
        assert found[heads]["kl_density"] < 0.005
    assert found["16"]["kl_density"] < 0.1 * found["1"]["kl_density"]


def test_scores_are_random_or_constant(tmp_path):
    found = run("scores", tmp_path)
    assert found["1/√n"]["std"] == pytest.approx(1, abs=0.05)
    assert found["1/√n"]["ks_p_value"] > 1e-4
    assert found["1/n"]["std"] < 0.1
    assert found["1/n, Q = K"]["mean"] == pytest.approx(1, abs=0.02)


def test_a_single_head_has_heavy_tails(tmp_path):
    found = run("single-head", tmp_path)
    ratios = [found["laws"][h]["tail_ratio_at_5_sd"] for h in ("1", "2", "8", "64")]
    assert ratios[0] > 20
    assert all(a > b > 1 for a, b in itertools.pairwise(ratios))


def test_every_study_says_what_it_is():
    for name, study in STUDIES.items():
        assert study.name == name
        assert study.title
        assert study.captions
        assert study.description.endswith(".")


def contest(data):
    row = {"data": data, "train": 160, "test": 80, "kernel": "pooling", "kind": "NTK"}
    return {
        "rows": [{**row, "accuracy": 0.6, "low": 0.5, "high": 0.7}],
        "claims": [
            {"data": data, **Claim("pooling", second).judged(Gap(0.2, 0.1, 0.3))}
            for second in ("flatten", "ridge, whitened")
        ],
    }


def test_studies_on_the_sample_say_so_loudly():
    assert "four of the ten classes" in sample_notice(contest("CIFAR-10 sample 8×8"))
    assert "400 training" in sample_notice(contest("sample sentences, 32 words"))
    assert not sample_notice(contest("CIFAR-10 8×8"))


def test_comparisons_are_concluded_from_their_claims():
    result = contest("CIFAR-10 8×8")
    said = results.conclude(result)
    assert "0.600" in said[0]
    assert said[1] == "Holds (CIFAR-10 8×8): pooling better than flatten."
    assert said[2].startswith("1 of 1")
    assert settings(result) == [("CIFAR-10 8×8", "160 training examples, 80 to test")]


def test_tables_of_a_page_fit_on_it():
    """Errors stand beside their values; many quantities are lines, not columns."""
    few = {"16": {"ks": 0.01234, "ks_se": 0.0002}, "64": {"ks": 0.5, "ks_se": 0.1}}
    assert plain_tables({"widths": few}) == [
        (["", "ks"], [["16", "0.01234 ± 0.0002"], ["64", "0.5 ± 0.1"]])
    ]
    many = {name: {f"part_{i}": i for i in range(9)} for name in ("16", "64")}
    ((columns, rows),) = plain_tables({"widths": many})
    assert columns == ["", "16", "64"]
    assert rows[3] == ["part 3", "3", "3"]
