"""Lowest versions: stated once, said everywhere alike, and those that `make check-lowest` runs."""

import re
import tomllib
from pathlib import Path

TOP = Path(__file__).parents[1]
PROJECT = tomllib.loads((TOP / "pyproject.toml").read_text())["project"]
GROUPS = {"dependencies": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
FLOORS = {
    (group, re.split(r"[\[>]", line)[0]): line.partition(">=")[2]
    for group, lines in GROUPS.items()
    for line in lines
    if not line.startswith("widelimit[")
}
PYTHON = PROJECT["requires-python"].removeprefix(">=")


def test_every_dependency_has_a_lowest_version():
    assert [name for name, floor in FLOORS.items() if not re.fullmatch(r"[\d.]+", floor)] == []


def test_a_dependency_has_one_lowest_version():
    stated = {}
    for (_, name), floor in FLOORS.items():
        assert stated.setdefault(name, floor) == floor, name


def test_readme_makefile_and_tools_name_the_same_versions():
    jax = FLOORS["dependencies", "jax"]
    for page in ("README.md", "docs/index.md"):
        assert f"Python {PYTHON} and JAX {jax}" in (TOP / page).read_text(), page
    makefile = (TOP / "Makefile").read_text()
    assert f"sys.version_info < ({PYTHON.replace('.', ', ')})" in makefile
    assert f"--python {PYTHON} $(LOWEST)" in makefile
    tools = tomllib.loads((TOP / "pyproject.toml").read_text())["tool"]
    assert tools["ruff"]["target-version"] == f"py{PYTHON.replace('.', '')}"
    assert tools["pyright"]["pythonVersion"] == PYTHON
    assert f"Programming Language :: Python :: {PYTHON}" in PROJECT["classifiers"]
