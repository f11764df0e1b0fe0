"""The real-data studies run on the sample that ships, and write what they promise."""

import json

import pytest

from widelimit.app.studies import STUDIES, Size, cifar10, film_texts, landmarks, modified, trained
from widelimit.app.studies.comparison import ContestSize, FamilyGroup, require_equal_effort

FILES = {
    "cifar10": "cifar10",
    "imdb": "imdb",
    "rt-polarity": "rt_polarity",
    "cifar10-landmarks": "landmarks",
    "learning-curve": "learning_curve",
    "ablations": "ablations",
    "trained": "trained",
    "modified-attention": "modified",
    "scaling-softmax": "scaling_softmax",
}


@pytest.fixture
def sample(monkeypatch, tmp_path):
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    tiny = {Size.SMALL: ContestSize((cifar10.ImageSize(8, 60, 40),), 40)}
    monkeypatch.setattr(cifar10, "SCALES", tiny)
    monkeypatch.setitem(landmarks.PARTS, Size.SMALL, tiny[Size.SMALL].parts[0])
    for study in (trained, modified):
        monkeypatch.setattr(study, "SCALES", {Size.SMALL: trained.TrainingSize(60, 40, 8, 60, 2)})
    texts = {Size.SMALL: ContestSize((film_texts.TextSize(12, 2, 60, 80),), 40)}
    for scales in (film_texts.IMDB_SCALES, film_texts.RT_SCALES):
        monkeypatch.setitem(scales, Size.SMALL, texts[Size.SMALL])


@pytest.mark.slow
@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("name", FILES)
def test_a_study_runs_on_the_sample(name, tmp_path):
    result = STUDIES[name].run(Size.SMALL, tmp_path / name)
    stem = tmp_path / name / FILES[name]
    assert json.loads(stem.with_suffix(".json").read_text()).keys() == result.keys()
    for ending in (".csv", ".png"):
        assert stem.with_suffix(ending).stat().st_size > 100
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in result["rows"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "imdb", "rt-polarity"])
def test_the_cost_is_told_before_a_run(name):
    cost = STUDIES[name].cost
    assert cost is not None
    told = cost(Size.LARGE)
    assert told.startswith(f"{name} at size large")
    assert "entries ×" in told
    assert "together about" in told


@pytest.mark.parametrize(
    "groups", [lambda: [FamilyGroup(cifar10.trunks(), cifar10.families())], film_texts.groups]
)
def test_families_try_equally_many_settings(groups):
    require_equal_effort(groups())


def test_published_sizes_are_those_of_large_where_nothing_larger_is_published():
    assert Size.PAPER.at_most_large is Size.LARGE
    assert Size.SMALL.at_most_large is Size.SMALL
