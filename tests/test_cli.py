"""The command line as a user meets it."""

import json
import subprocess
import sys


def run(*arguments, folder=None):
    return subprocess.run(
        [sys.executable, "-m", "widelimit.cli", *arguments],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


def test_studies_are_listed():
    done = run("reproduce")
    assert done.returncode == 0
    for name in ("width", "heads", "scores", "low-rank", "relu", "single-head", "signal"):
        assert name in done.stdout


def test_a_study_writes_data_figure_and_page(tmp_path):
    done = run("reproduce", "scores", "--out", "results", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    written = {path.suffix for path in (tmp_path / "results" / "scores").iterdir()}
    assert {".png", ".json", ".html"} <= written
    page = (tmp_path / "results" / "scores" / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "http" not in page.replace("http-equiv", "")


def test_an_unknown_study_is_one_clear_line():
    done = run("reproduce", "nonsense")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "nonsense" in done.stderr
    assert "width" in done.stderr


def test_info_as_json():
    done = run("info", "--json")
    assert json.loads(done.stdout)["widelimit"]
