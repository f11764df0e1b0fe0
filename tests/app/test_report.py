"""Pages: what is on them, and what a browser makes of them."""

import json
import re
import subprocess
import sys
from xml.etree import ElementTree

import numpy as np
import pytest
from browser import BROWSER, needs_browser

import widelimit as wl
from widelimit.app.drawing.diagram import diagram
from widelimit.app.drawing.plots import canvas, plot_kernel, plot_law
from widelimit.app.report import Report

NET = wl.Serial(
    wl.LayerNorm(),
    wl.Dense(8),
    wl.Residual(wl.Attention(8, heads=2, positions=wl.Decay(rate=0.5)), 0.8),
    wl.Sum(wl.Dense(4), wl.Serial(wl.Dense(4), wl.Gelu(), wl.Dense(4))),
    wl.Residual(wl.Serial(wl.Relu(), wl.Dense(4))),
    wl.MeanPool(),
    wl.Dense(1),
)
PROBE = """
<script>
window.addEventListener("load", async () => {
  const images = [...document.images];
  const decoded = await Promise.all(images.map(i => i.decode().then(() => true, () => false)));
  const seen = name => [...document.querySelectorAll(name)].map(e => {
    const box = e.getBoundingClientRect();
    return [box.width, box.height, box.left, box.right];
  });
  const found = {
    decoded, images: seen("img"), drawings: seen(".network"), tiles: seen(".tile"),
    tables: seen("table"), words: seen(".words span"), texts: seen(".network b"),
    loaded: performance.getEntriesByType("resource").map(e => e.name)
      .filter(n => !n.startsWith("data:")),
    wide: document.documentElement.scrollWidth, window: window.innerWidth,
    title: document.title,
  };
  const out = document.createElement("pre");
  out.id = "probe"; out.textContent = JSON.stringify(found);
  document.body.appendChild(out);
});
</script>
"""


def browse(page, folder, width=1100):
    """Open a page in a real browser: what it measures, and what it writes to its console."""
    text = page.read_text(encoding="utf-8")
    policy = "default-src 'none'; "
    assert policy in text
    text = text.replace(policy, policy + "script-src 'unsafe-inline'; ").replace(
        "</body>", PROBE + "</body>"
    )
    copy = folder / "probed.html"
    copy.write_text(text, encoding="utf-8")
    options = ("--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    place = (f"--window-size={width},1200", f"--user-data-dir={folder / 'profile'}")
    ask = ("--virtual-time-budget=10000", "--dump-dom", copy.as_uri())
    assert BROWSER is not None
    done, found, tries = None, None, 0
    while not found and tries < 3:  # on a busy machine a page is dumped before its script has run
        done = subprocess.run(
            [BROWSER, *options, *place, *ask],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        tries += 1
    assert done is not None
    assert found, done.stdout[-500:]
    answer = found[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(answer), console


def healthy(page, folder, *, width=1100):
    """No console message, no request, images decoded, everything visible and inside the window."""
    found, console = browse(page, folder, width)
    assert not console
    assert not found["loaded"]
    assert all(found["decoded"])
    for name in ("images", "drawings", "tiles", "tables", "words", "texts"):
        for box_width, height, left, _ in found[name]:
            assert box_width > 1, name
            assert height > 1, name
            assert left >= -1, name
    assert found["wide"] <= found["window"] + 1  # nothing to scroll sideways
    return found


def whole_page():
    figure, axes = canvas(2)
    plot_kernel(axes[0, 0], np.eye(6) + 1.0, np.array([0, 0, 1, 1, 2, 2]), ("a", "b", "c"))
    grid = np.linspace(-3, 3, 31)
    plot_law(axes[0, 1], grid, {"1 head": np.exp(-np.abs(grid)) / 2}, draws={"1 head": grid})
    return (
        Report("A <page> & more", "Everything a page may hold.")
        .numbers({"right": "93.1%", "seconds": "4"})
        .section("Network", "Drawn.")
        .diagram(diagram(NET, (7, 5)), "A drawing.", [("depth", 3), ("noise", 0.123456)])
        .figure(figure, "Two plots")
        .heading("Words")
        .weighted_words(["not", "<good>"], [0.5, 1.5], "line 3")
        .table(("where", "value", "right"), [("line 1", 0.123456, True), ("line 2", 7, False)])
        .bullets(["one", "two"])
        .code("x < y")
        .command()
    )


def test_everything_is_escaped_and_nothing_is_loaded():
    page = whole_page().html()
    assert "<page>" not in page
    assert "&lt;page&gt;" in page
    assert "&lt;good&gt;" in page
    assert "x &lt; y" in page
    outside = re.findall(r'(?:src|href)="(?!data:)[^"]*"', page)
    assert not outside
    assert "0.1235" in page
    assert '<span class="badge bad">wrong</span>' in page
    assert f"widelimit {wl.__version__}" in page


def test_the_command_can_be_repeated(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/widelimit", "classify", "my file.csv"])
    assert "widelimit classify &#39;my file.csv&#39;" in Report("x").command().html()


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "p.html"
    whole_page().write(path)
    before = path.read_bytes()
    broken = whole_page()
    broken.blocks.append(None)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError):
        broken.write(path)
    assert path.read_bytes() == before


def test_diagrams_name_every_layer():
    drawing = diagram(NET, (7, 5))
    for word in ("LayerNorm", "Attention", "2 heads", "1/√d", "Dense", "Relu", "Gelu", "MeanPool"):
        assert word in drawing
    assert "√0.8 x + √0.2 g(x)" in drawing
    assert "x + g(x)" in drawing
    assert "7 × 5 channels" in drawing
    assert drawing.count("<b ") == 13  # one box for each layer, input and output
    ElementTree.fromstring(drawing)  # every element is closed


def test_streams_stand_side_by_side_and_are_not_joined():
    text = wl.Serial(wl.LayerNorm(), wl.MeanPool(), wl.Dense(64))
    table = wl.Serial(wl.Relu(), wl.Dense(64))
    both = wl.layers.AddStreams((0.7, 0.3))
    drawing = diagram(wl.Serial(wl.Parallel(text, table), both, wl.Dense(1)), ((9, 50), (4,)))
    root = ElementTree.fromstring(drawing)
    (frame,) = [one for one in root if "dashed" in one.get("style", "")]
    (row,) = frame  # nothing below the streams merges them
    first, second = ("".join(column.itertext()) for column in row)
    assert first.startswith("stream 1LayerNorm")
    assert second.startswith("stream 2Relu")
    below = [*root][[*root].index(frame) + 1 :]
    assert "streams added" in "".join(below[1].itertext())
    assert "9 × 50 channels and 4 channels" in drawing


@needs_browser
def test_a_page_in_a_browser(tmp_path):
    page = whole_page().write(tmp_path / "p.html")
    found = healthy(page, tmp_path)
    assert len(found["images"]) == 1
    assert len(found["drawings"]) == 1
    assert len(found["words"]) == 2
    assert found["title"] == "A <page> & more"


@needs_browser
@pytest.mark.slow
def test_a_page_on_a_telephone(tmp_path):
    healthy(whole_page().write(tmp_path / "p.html"), tmp_path, width=500)


@needs_browser
@pytest.mark.slow
def test_a_browser_would_tell(tmp_path):
    """The checks above can fail: a broken image and a picture from elsewhere are noticed."""
    images = '<img src="data:image/png;base64,AAAA" width="9" height="9">'
    images += '<img src="http://127.0.0.1:9/x.png" width="9" height="9">'
    found, console = browse(Report("x").diagram(images, "").write(tmp_path / "p.html"), tmp_path)
    assert found["decoded"] == [False, False]
    assert console  # the page's own policy forbids the second one
