"""The real-data studies run on the sample that ships, and write what they promise."""

import pytest
from study_runs import run_and_check

from widelimit.app.studies import STUDIES, Size, cifar10, film_texts, modified, training
from widelimit.app.studies.comparison import ContestSize, FamilyGroup, require_equal_effort
from widelimit.app.studies.page import write_page

NAMES = ("cifar10", "imdb", "modified-attention")


@pytest.fixture
def sample(monkeypatch, tmp_path):
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    images = ContestSize((cifar10.ImageSize(8, 60, 40),), 40)
    monkeypatch.setitem(cifar10.SCALES, Size.SMALL, images)
    size = training.TrainingSize(60, 40, 8, 60, 2)
    monkeypatch.setattr(modified, "SCALES", {Size.SMALL: size})
    texts = ContestSize((film_texts.TextSize(12, 2, 60, 80),), 40)
    monkeypatch.setitem(film_texts.SCALES, Size.SMALL, texts)


@pytest.mark.slow
@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize("name", NAMES)
def test_a_study_runs_on_the_sample(name, tmp_path):
    study = STUDIES[name]
    result = run_and_check(study, tmp_path / name)
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in result["rows"])
    page = write_page(study, Size.SMALL, tmp_path / name, 1.0, result).read_text()
    assert "NOT THE REAL DATA" in page
    assert result["claims"][0]["claim"] in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "imdb"])
def test_the_cost_is_told_before_a_run(name):
    cost = STUDIES[name].cost
    assert cost is not None
    told = cost(Size.LARGE)
    assert "kernel of" in told
    assert "pairs/s" in told


@pytest.mark.parametrize(
    "groups", [lambda: [FamilyGroup(cifar10.trunks(), cifar10.families())], film_texts.groups]
)
def test_families_try_equally_many_settings(groups):
    require_equal_effort(groups())


def test_published_sizes_are_those_of_large_where_nothing_larger_is_published():
    assert Size.PAPER.at_most_large is Size.LARGE
    assert Size.SMALL.at_most_large is Size.SMALL
