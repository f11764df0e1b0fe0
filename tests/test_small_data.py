import json

import numpy as np
import pytest
from scipy import stats

from widelimit.experiments import small_data
from widelimit.experiments.small_data import Scale, interval, splits, table, tasks


def test_every_method_learns_something(tmp_path, monkeypatch):
    wine, diabetes = (task for task in tasks() if task.name in ("wine", "diabetes"))
    monkeypatch.setattr(small_data, "_DEPTHS", (1,))
    monkeypatch.setattr(small_data, "_NOISES", [0.1])
    monkeypatch.setattr(small_data, "_TREES", 20)
    monkeypatch.setattr(small_data, "tasks", lambda: [wine, diabetes])
    monkeypatch.setitem(small_data._SCALES, small_data.Size.SMALL, Scale(60, 40, 2))
    rows = small_data.run(small_data.Size.SMALL, tmp_path)["rows"]
    assert len(rows) == 10
    for row in rows:
        assert row["mean"] > (0.85 if row["data"] == "wine" else 0.15)
        assert np.isfinite(row["half_interval"])
    assert json.loads((tmp_path / "small_data.json").read_text())["rows"] == rows
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".md", ".png"}


def test_splits_are_disjoint_and_of_the_asked_size():
    for task in tasks():
        for train, test in splits(task, Scale(120, 400, 3)):
            assert len(train) == 120
            assert not set(train) & set(test)


def test_intervals_widen_for_shared_data():
    """The plain t-interval is the limit of a tiny test share."""
    scores = [0.8, 0.9, 0.85, 0.95]
    plain = stats.t.interval(0.95, 3, np.mean(scores), stats.sem(scores))
    assert interval(scores, 10**9, 1) == pytest.approx((plain[1] - plain[0]) / 2, rel=1e-6)
    assert interval(scores, 100, 100) == pytest.approx(np.sqrt(5) * (plain[1] - plain[0]) / 2)


def test_the_table_marks_the_best():
    rows = [
        {"data": "a", "score": "R²", "method": m, "train": 9, "mean": v, "half_interval": 0.1}
        for m, v in (("one", 0.5), ("two", 0.75))
    ]
    lines = table(rows).splitlines()
    assert lines[0] == "| data (train) | score | one | two |"
    assert lines[2] == "| a (9) | R² | 0.500 ± 0.100 | **0.750 ± 0.100** |"
