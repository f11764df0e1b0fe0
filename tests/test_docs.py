"""Every block of the documentation runs, and what a page quotes is what its code prints.

How a page is run, and which blocks are not, stands in `pages.py`.
"""

import ast
import csv
import inspect
import json
import re
import shlex
import warnings

import numpy as np
import pytest
import typer
from pages import BLOCK, DOCS, ROOT, blocks, pages, read, require_same, run, steps
from reference.load import load

import widelimit as wl
from studies import attention_more_data
from studies.phases import Record
from widelimit import data, engine, inference, layers, netsor, scale, sklearn
from widelimit.app.cli import app

FAST = {"README.md", "docs/index.md", "docs/lengths.md"}
COMMANDS = typer.main.get_command(app).commands  # pyright: ignore[reportAttributeAccessIssue]
CODE = re.compile(r"`([^`\n]+)`")


@pytest.mark.parametrize(
    "name",
    [pytest.param(p, marks=() if p in FAST else pytest.mark.slow) for p in pages() if steps(p)],
)
def test_what_a_page_shows_is_what_it_does(name, tmp_path):
    run(name, tmp_path)


def test_quotations_that_are_not_printed_are_found():
    require_same("shape (3, 3), 0.12345\n", "shape (3, 3),  0.12346\n", "here")
    for printed in ("shape (3, 4), 0.12345", "shape (3, 3), 0.125", "size (3, 3), 0.12345"):
        with pytest.raises(AssertionError):
            require_same(printed, "shape (3, 3), 0.12345", "here")
    require_same("one 1\nand more\ntwo 2\n", "one 1\n…\ntwo 2\n", "here")
    for printed in ("one 1\ntwo 3\n", "one 2\nthree\ntwo 2\n", "one 1"):
        with pytest.raises(AssertionError):
            require_same(printed, "one 1\n…\ntwo 2\n", "here")


def test_what_does_not_run_here_could_run():
    for name in pages():
        for code in blocks(name, "py"):
            ast.parse(code)
        for code in (*blocks(name, "bash"), *blocks(name, "sh")):
            for line in code.splitlines():
                program, *arguments = shlex.split(line, comments=True) or [""]
                if program == "widelimit" and arguments[1:]:
                    command = COMMANDS[arguments[0]]
                    command.make_context(arguments[0], arguments[1:])  # knows its options


def test_options_and_names_in_sentences_exist():
    every = [one for command in COMMANDS.values() for one in command.params]
    known = {name for one in every for name in (*one.opts, *one.secondary_opts)}
    for page in pages():
        for code in CODE.findall(BLOCK.sub("", read(page))):
            for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", code):
                assert option in known | {"--help", "--install-completion"}, f"{page}: {code}"
            for name in re.findall(r"(?<![\w./])wl((?:\.[a-zA-Z_]\w*)+)", code):
                found = wl
                for part in name[1:].split("."):
                    assert hasattr(found, part), f"{page}: {code}"
                    found = getattr(found, part)


def test_recorded_accuracies_are_those_of_the_recorded_runs():
    """The tables of the results are written by hand from the files of the studies."""
    rows = [
        row
        for folder in (DOCS, ROOT / "studies")
        for path in sorted((folder / "results").glob("*.csv"))
        for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())
        if "accuracy" in row
    ]
    known = {tuple(float(row[name]) for name in ("accuracy", "low", "high")) for row in rows}
    text = read("docs/results/README.md") + read("studies/README.md")
    quoted = re.findall(r"(0\.\d{3}) \((0\.\d{3})–(0\.\d{3})\)", text)
    assert len(quoted) > 60
    table = np.array(sorted(known))
    for cell in quoted:
        gaps = np.abs(table - np.array(cell, float)).max(axis=1)
        assert gaps.min() <= 0.00051, f"{cell} is in no file"


def test_the_table_of_all_of_cifar10_is_that_of_the_recorded_run():
    record = Record(DOCS / "results" / "cifar10_all.json")
    assert record.table() in read("docs/results/README.md")


def test_the_table_of_attention_at_more_data_is_that_of_the_recorded_run():
    known = json.loads((DOCS / "results" / "attention_more_data.json").read_text(encoding="utf-8"))
    assert attention_more_data.table(known) in read("docs/results/README.md")


def test_the_table_of_data_sets_is_that_of_the_recorded_run():
    recorded = (ROOT / "benchmarks" / "results" / "datasets.md").read_text(encoding="utf-8")
    assert recorded in read("docs/files.md")


def test_navigation_lists_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"[\w/.-]+\.md\b", text.split("\nnav:\n")[1])
    nav = ["README.md", *sorted(f"docs/{page}" for page in nav if not page.startswith("results/"))]
    assert nav == pages()


def test_every_public_name_has_its_place_in_the_reference():
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    described = re.findall(r"^::: widelimit\.([\w.]+)$", text, re.MULTILINE)
    assert len(described) == len(set(described))
    top = {name for name in described if "." not in name}
    rooms = (data, engine, inference, layers, netsor, scale, sklearn)
    assert top == {name for name in wl.__all__ if not inspect.ismodule(getattr(wl, name))}
    for area in rooms:
        room = area.__name__.removeprefix("widelimit.")
        for name in {*area.__all__} - {*wl.__all__}:
            if isinstance(getattr(area, name), netsor.CoordinateFunction | netsor.ScalarFunction):
                assert f"`{name}`" in text
            else:
                assert f"{room}.{name}" in described, f"{room}.{name} is missing"


def test_links_and_pictures_exist():
    for name in pages():
        text = BLOCK.sub("", read(name))
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert ((ROOT / name).parent / target).exists(), f"{name} points to {target}"


@pytest.mark.slow
def test_the_migrated_network_is_the_one_of_neural_tangents(tmp_path):
    net = run("docs/neural-tangents.md", tmp_path)["net"]
    assert isinstance(net, wl.Layer)
    known = load("masked_attention_softmax_sum")
    found = net.kernel(known.x1, known.x2, mask=known.mask1, mask2=known.mask2)
    np.testing.assert_allclose(found.nngp, known.nngp, rtol=1e-8)
    np.testing.assert_allclose(found.ntk, known.ntk, rtol=1e-8)


@pytest.mark.slow
def test_the_site_builds_without_warnings_and_fetches_nothing(tmp_path):
    mkdocs = pytest.importorskip("mkdocs.commands.build", reason="needs the extra 'docs'")
    config = pytest.importorskip("mkdocs.config").load_config(
        str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path), strict=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("default")  # those of the site's own warnings go to its log
        mkdocs.build(config)
    for path in tmp_path.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        fetched = re.findall(r"<(?:script|img|iframe)[^>]+src=\"?(https?:[^\" >]+)", page)
        fetched += re.findall(r"<link[^>]+stylesheet[^>]+href=\"?(https?:[^\" >]+)", page)
        assert not fetched, f"{path.name} fetches {fetched}"


def test_the_layer_that_contributors_read_agrees_with_wide_networks_and_takes_part(tmp_path):
    scale = run("CONTRIBUTING.md", tmp_path)["ChannelScale"]
    x = np.random.default_rng(0).normal(size=(3, 4, 5))
    wide = wl.Serial(wl.Dense(128), scale(std=0.8), wl.Dense(128))  # pyright: ignore
    kernel = wide.kernel(x[:2, 0])
    drawn = wl.monte_carlo_kernel(wide, x[:2, 0], key=0, draws=150)
    for found, exact, error in (
        (drawn.nngp, kernel.nngp, drawn.nngp_error),
        (drawn.ntk, kernel.ntk, drawn.ntk_error),
    ):
        assert (np.abs(found - exact) < 4 * error + 0.01 * np.abs(exact).max()).all()
        assert (error < 0.03 * np.abs(exact).max()).all()
    net = wl.Serial(wide, wl.Relu(), wl.MeanPool(), wl.Dense(1))
    mask = np.arange(4) < np.array([[4], [2], [3]])
    cut = net.kernel([row[real] for row, real in zip(x, mask, strict=True)])
    np.testing.assert_allclose(net.kernel(x, mask=mask).ntk, cut.ntk, rtol=1e-12)
    assert "ChannelScale(std=0.8)" in str(net.summary((4, 5)))
    assert "0.1.std" in [one.name for one in inference.hyperparameters(net)]
