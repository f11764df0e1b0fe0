"""Questions of our own on real data run on the sample that ships."""

import pytest
from study_runs import run_and_check

from studies import STUDIES, ablations, landmarks, sentences, trained
from widelimit.app.studies import Size, cifar10, film_texts
from widelimit.app.studies.comparison import ContestSize
from widelimit.app.studies.training import TrainingSize


@pytest.fixture
def sample(monkeypatch, tmp_path):
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    part = cifar10.ImageSize(8, 60, 40)
    monkeypatch.setattr(cifar10, "SCALES", {Size.SMALL: ContestSize((part,), 40)})
    monkeypatch.setitem(landmarks.PARTS, Size.SMALL, part)
    texts = ContestSize((film_texts.TextSize(12, 2, 60, 80),), 40)
    monkeypatch.setitem(sentences.SCALES, Size.SMALL, texts)
    monkeypatch.setitem(ablations.SCALES, Size.SMALL, ContestSize((part,), 40))
    monkeypatch.setitem(trained.SCALES, Size.SMALL, TrainingSize(60, 40, 8, 60, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("sample")
@pytest.mark.parametrize(
    "name",
    [
        *("cifar10-landmarks", "learning-curve", "ablations", "trained", "scaling-softmax"),
        "rt-polarity",
    ],
)
def test_a_study_runs_on_the_sample(name, tmp_path):
    result = run_and_check(STUDIES[name], tmp_path / name)
    assert all(0 <= row["low"] <= row["accuracy"] <= row["high"] <= 1 for row in result["rows"])
