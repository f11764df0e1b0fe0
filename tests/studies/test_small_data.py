import json

import numpy as np
import pytest
from scipy import stats

from studies import small_data
from studies.small_data import SplitSize, interval, splits, tables, tasks


def test_every_method_learns_something(tmp_path, monkeypatch):
    wine, diabetes = (task for task in tasks() if task.name in ("wine", "diabetes"))
    monkeypatch.setattr(small_data, "_DEPTHS", (1,))
    monkeypatch.setattr(small_data, "_NOISES", [0.1])
    monkeypatch.setattr(small_data, "_TREES", 20)
    monkeypatch.setattr(small_data, "tasks", lambda: [wine, diabetes])
    monkeypatch.setitem(small_data._SCALES, small_data.Size.SMALL, SplitSize(60, 40, 2))
    rows = small_data.run(small_data.Size.SMALL, tmp_path)["rows"]
    assert len(rows) == 10
    for row in rows:
        assert row["mean"] > (0.85 if row["data"] == "wine" else 0.15)
        assert np.isfinite(row["half_interval"])
    assert json.loads((tmp_path / "small_data.json").read_text())["rows"] == rows
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".csv", ".png"}


def test_splits_are_disjoint_and_of_the_asked_size():
    for task in tasks():
        for train, test in splits(task, SplitSize(120, 400, 3)):
            assert len(train) == 120
            assert not set(train) & set(test)


def test_intervals_widen_for_shared_data():
    """The plain t-interval is the limit of a tiny test share."""
    scores = [0.8, 0.9, 0.85, 0.95]
    plain = stats.t.interval(0.95, 3, np.mean(scores), stats.sem(scores))
    assert interval(scores, 10**9, 1) == pytest.approx((plain[1] - plain[0]) / 2, rel=1e-6)
    assert interval(scores, 100, 100) == pytest.approx(np.sqrt(5) * (plain[1] - plain[0]) / 2)


def test_the_table_marks_the_best_and_its_equals():
    scores = {"one": [0.5, 0.51, 0.49], "two": [0.7, 0.8, 0.75], "three": [0.8, 0.7, 0.72]}
    rows = [
        {
            "data": "a", "score": "R²", "method": name, "train": 90, "test": 9,
            "scores": values, "mean": np.mean(values), "half_interval": 0.1,
        }
        for name, values in scores.items()
    ]  # fmt: skip
    ((columns, lines),) = tables({"rows": rows})
    assert columns == ["data (train)", "score", "one", "two", "three"]
    cells = ["0.500 ± 0.100", "0.750 ± 0.100*", "0.740 ± 0.100*"]
    assert lines == [["a (90)", "R²", *cells]]
