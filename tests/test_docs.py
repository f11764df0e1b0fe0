"""Every Python block of the documentation runs, and what a page quotes is what its code prints.

The blocks of a page run in order, in one namespace, with warnings as errors. A `text` block right
after a `python` block is what that block prints: words must agree exactly, numbers to one part in
a thousand. Blocks of other libraries and of the shell have other labels and do not run.
"""

import contextlib
import inspect
import io
import os
import re
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from reference.load import load

import widelimit as wl
from widelimit import data, engine, inference, layers, netsor, scale, sklearn

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
FAST = {"index.md", "lengths.md"}
NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


def pages() -> list[str]:
    """All pages but the results, which are written by the studies."""
    found = (path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))
    return sorted(name for name in found if not name.startswith("results/"))


def steps(name: str) -> list[tuple[str, str | None]]:
    """The Python blocks of a page, each with the output quoted right after it."""
    text = (DOCS / name).read_text(encoding="utf-8")
    found: list[tuple[str, str | None]] = []
    last = None
    for block in BLOCK.finditer(text):
        if block[1] == "python":
            found.append((block[2], None))
            last = block.end()
        elif block[1] == "text" and last is not None and not text[last : block.start()].strip():
            found[-1] = (found[-1][0], block[2])
    return found


def run(name: str, folder: Path) -> dict[str, object]:
    """Run a page in an empty folder; returns its namespace."""
    namespace: dict[str, object] = {"__name__": "page"}
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
            warnings.simplefilter("error")
            for number, (code, quoted) in enumerate(steps(name), 1):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile(code, f"{name}, block {number}", "exec"), namespace)
                if quoted is not None:
                    require_same(printed.getvalue(), quoted, f"{name}, block {number}")
    finally:
        os.chdir(before)
    return namespace


def require_same(printed: str, quoted: str, where: str) -> None:
    """Equal words, and numbers that agree to what differs between machines."""
    words = [NUMBER.sub("#", text).split() for text in (printed, quoted)]
    assert words[0] == words[1], f"{where} prints\n{printed}"
    numbers = [[float(n) for n in NUMBER.findall(text)] for text in (printed, quoted)]
    np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-6, err_msg=where)


@pytest.mark.parametrize(
    "name",
    [pytest.param(p, marks=() if p in FAST else pytest.mark.slow) for p in pages() if steps(p)],
)
def test_the_code_of_a_page_runs(name, tmp_path):
    run(name, tmp_path)


def test_quotations_that_are_not_printed_are_found():
    require_same("shape (3, 3), 0.12345\n", "shape (3, 3),  0.12346\n", "here")
    for printed in ("shape (3, 4), 0.12345", "shape (3, 3), 0.125", "size (3, 3), 0.12345"):
        with pytest.raises(AssertionError):
            require_same(printed, "shape (3, 3), 0.12345", "here")


def test_navigation_lists_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    nav = re.findall(r"[\w/.-]+\.md\b", text.split("\nnav:\n")[1])
    assert sorted(page for page in nav if not page.startswith("results/")) == pages()


def test_every_public_name_has_its_place_in_the_reference():
    text = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "api").glob("*.md"))
    described = re.findall(r"^::: widelimit\.([\w.]+)$", text, re.MULTILINE)
    assert len(described) == len(set(described))
    top = {name for name in described if "." not in name}
    rooms = (data, engine, inference, layers, netsor, scale, sklearn)
    assert top == {name for name in wl.__all__ if not inspect.ismodule(getattr(wl, name))}
    for area in rooms:
        room = area.__name__.removeprefix("widelimit.")
        for name in {*area.__all__} - {*wl.__all__, "examples"}:
            if isinstance(getattr(area, name), netsor.CoordinateFunction | netsor.ScalarFunction):
                assert f"`{name}`" in text
            else:
                assert f"{room}.{name}" in described, f"{room}.{name} is missing"


def test_links_and_pictures_exist():
    for name in pages():
        text = BLOCK.sub("", (DOCS / name).read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            if "://" not in target:
                assert ((DOCS / name).parent / target).exists(), f"{name} points to {target}"


@pytest.mark.slow
def test_the_migrated_network_is_the_one_of_neural_tangents(tmp_path):
    net = run("neural-tangents.md", tmp_path)["net"]
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
