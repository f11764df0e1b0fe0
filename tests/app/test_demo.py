"""`make demo` writes the page it promises, from the sample alone."""

import runpy
import sys
from pathlib import Path

import pytest
from browser import needs_browser
from test_report import healthy

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


@needs_browser
@pytest.mark.slow
def test_the_demo(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["demo.py", str(tmp_path)])
    runpy.run_path(str(DEMO), run_name="__main__")
    said = capsys.readouterr().out
    assert "accuracy" in said
    accuracy = float(said.split("accuracy ")[1].split("%")[0])
    assert accuracy > 65  # 200 sentences: chance is 50 ± 3.5
    found = healthy(tmp_path / "report.html", tmp_path)
    assert len(found["images"]) == 3
    assert len(found["drawings"]) == 1
    assert len(found["words"]) > 20
    assert (tmp_path / "three_readings.png").stat().st_size > 20_000
