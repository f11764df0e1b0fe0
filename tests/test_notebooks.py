"""Every notebook of the gallery runs, and its sliders move it: in Python and in a browser."""

import importlib.util
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
import warnings
from pathlib import Path

import pytest
from browser import BROWSER, needs_browser

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.py"))


def run(path, **given):
    """All cells of a notebook; `given` takes the place of what cells define."""
    pytest.importorskip("marimo", reason="needs the extra 'notebooks'")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of the notebook's own machinery
        spec.loader.exec_module(module)
        return module.app.run(defs=given)[1]


class Slider:
    """Stands in for a slider."""

    def __init__(self, value):
        self.value = value


def test_the_gallery_lists_every_notebook():
    assert len(NOTEBOOKS) == 5
    text = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert {path.stem for path in NOTEBOOKS} == set(re.findall(r"notebooks/(\w+)\.py", text))


@pytest.mark.slow
def test_wider_networks_are_closer_to_the_first_kernel():
    path = ROOT / "examples" / "notebooks" / "first_kernel.py"
    gaps = [
        run(path, depth=Slider(1), width=Slider(width), networks=Slider(6))["gap"]
        for width in (8, 512)
    ]
    assert gaps[1] < 0.3 * gaps[0]


@pytest.mark.slow
def test_heads_take_the_tails_away():
    path = ROOT / "examples" / "notebooks" / "few_heads.py"
    few, many = (
        run(path, heads=Slider(heads), sharpness=Slider(2.0), likeness=Slider(0.0))["kurtosis"]
        for heads in (1, 16)
    )
    assert float(few) > 5 * float(many) > 0


@pytest.mark.slow
def test_residual_connections_hold_positions_apart():
    path = ROOT / "examples" / "notebooks" / "signal_propagation.py"
    plain, kept = (
        run(path, depth=Slider(6), weight=Slider(weight), scale=Slider(1.0))["correlation"][-1]
        for weight in (0.0, 0.8)
    )
    assert plain > 0.99
    assert kept < 0.5


@pytest.mark.slow
def test_the_text_classifier_learns():
    found = run(ROOT / "examples" / "notebooks" / "text_classifier.py")
    assert 0.5 < found["accuracy"] <= 1.0
    assert found["chances"].sum() == pytest.approx(1.0)


@pytest.mark.slow
def test_the_layer_of_the_notebook_agrees_with_random_networks():
    found = run(ROOT / "examples" / "notebooks" / "own_layer.py")
    assert found["z"] < 5


@needs_browser
@pytest.mark.slow
def test_a_slider_moves_a_notebook_in_a_browser(tmp_path):
    pytest.importorskip("marimo", reason="needs the extra 'notebooks'")
    client = pytest.importorskip("websockets.sync.client", reason="comes with marimo")
    assert BROWSER is not None
    path = ROOT / "examples" / "notebooks" / "few_heads.py"
    port, debug = free_port(), free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "marimo", "run", path, "--headless", "--no-token", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    browser = None
    try:
        answer(f"http://127.0.0.1:{port}/health")
        browser = subprocess.Popen(
            [
                *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
                *("--no-first-run", "--disable-background-networking", "--disable-sync"),
                *("--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"),
                *(f"--remote-debugging-port={debug}", f"http://127.0.0.1:{port}/"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        pages = json.loads(answer(f"http://127.0.0.1:{debug}/json"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with client.connect(address, max_size=None) as socket_to_page:
            tab = Tab(socket_to_page)
            before = tab.kurtosis()
            tab.evaluate(FOCUS)
            for _ in range(15):
                tab.press("ArrowRight")
            after = tab.kurtosis(other_than=before)
        assert before > 5 * after > 0
    finally:
        for process in (browser, server):
            if process is not None:
                process.terminate()
                process.wait(30)


FOCUS = """
(() => {
  const all = root => [...root.querySelectorAll('*')].flatMap(
    e => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  all(document).find(e => e.getAttribute('role') === 'slider').focus();
})()
"""
TEXT = """
(() => {
  const all = root => [...root.querySelectorAll('*')].flatMap(
    e => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  return all(document).filter(e => e.tagName === 'P' || e.tagName === 'SPAN')
    .map(e => e.textContent).join('\\n');
})()
"""


class Tab:
    """A page of the browser, through its debugging protocol."""

    def __init__(self, connection):
        self.connection, self.number = connection, 0

    def call(self, method, **options):
        self.number += 1
        self.connection.send(json.dumps({"id": self.number, "method": method, "params": options}))
        while True:
            message = json.loads(self.connection.recv(timeout=60))
            if message.get("id") == self.number:
                return message.get("result", {})

    def evaluate(self, code):
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True)
        return found.get("result", {}).get("value")

    def press(self, name):
        for kind in ("keyDown", "keyUp"):
            codes = {"key": name, "code": name, "windowsVirtualKeyCode": 39}
            self.call("Input.dispatchKeyEvent", type=kind, **codes)

    def kurtosis(self, other_than=None):
        """The number on the page, once it is there (and has changed)."""
        last, since = None, time.monotonic()
        while time.monotonic() - since < 240:
            found = re.search(r"Excess kurtosis\s*([\d.]+)", self.evaluate(TEXT) or "")
            value = float(found[1]) if found else None
            if value is not None and value != other_than and value == last:
                return value
            last = value
            time.sleep(2)
        raise AssertionError(f"the page shows {last} after four minutes")


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def answer(address):
    """What a server says, once it is there."""
    for _ in range(120):
        try:
            with urllib.request.urlopen(address, timeout=5) as reply:
                return reply.read()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            time.sleep(0.5)
    raise AssertionError(f"no answer from {address}")
