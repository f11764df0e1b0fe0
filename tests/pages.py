"""The pages of the documentation as programs: their code, their commands, and what both print.

- `python` blocks run in order, in one namespace, with warnings as errors.
- `sh` blocks run in a shell, in the same folder.
- a `text` or `console` block right after one of them is what it prints.
- `bash` blocks install something or take hours: their `widelimit` commands are parsed, not run.
- `py` blocks need something that is not installed here: they are compiled, not run.
"""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(r"(?<![\w.])[-+]?\d+\.?\d*(?:e[-+]?\d+)?")
_TIME = re.compile(r"\b\d+\.?\d* (?:ms|s|min|h)\b")
_OUTPUT_OF = {"python": "text", "sh": "console"}


@dataclass(frozen=True)
class Step:
    """A block that runs, and what the page says it prints (None: nothing is said)."""

    language: str
    code: str
    quoted: str | None
    where: str


def pages() -> list[str]:
    """The README and all pages but the results, which are recorded outputs of long runs."""
    found = (path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
    return ["README.md", *sorted(name for name in found if not name.startswith("docs/results/"))]


def read(name: str) -> str:
    """The text of a page."""
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str, language: str) -> Iterator[str]:
    """All blocks of a page in one language."""
    return (block[2] for block in BLOCK.finditer(read(name)) if block[1] == language)


def steps(name: str) -> list[Step]:
    """What runs on a page, each with the output quoted right after it."""
    text, found = read(name), []
    every = list(BLOCK.finditer(text))
    for number, block in enumerate(every, 1):
        wanted = _OUTPUT_OF.get(block[1])
        if wanted is None:
            continue
        after = every[number] if number < len(every) else None
        quoted = None
        if after and after[1] == wanted and not text[block.end() : after.start()].strip():
            quoted = after[2]
        found.append(Step(block[1], block[2], quoted, f"{name}, block {number}"))
    return found


def run(name: str, folder: Path) -> dict[str, object]:
    """Run a page in an empty folder and compare what it prints; returns its namespace."""
    namespace: dict[str, object] = {"__name__": "page"}
    programs = folder / "programs"
    before = Path.cwd()
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
            warnings.simplefilter("error")
            for step in steps(name):
                if step.language == "python":
                    printed = _printed(step, namespace)
                else:
                    printed = shell(step.code, folder, programs)
                if step.quoted is not None:
                    require_same(printed, step.quoted, step.where)
    finally:
        os.chdir(before)
    return namespace


def _printed(step: Step, namespace: dict[str, object]) -> str:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(step.code, step.where, "exec"), namespace)
    return printed.getvalue()


def shell(code: str, folder: Path, programs: Path) -> str:
    """Run commands; what both streams print. `widelimit` and `python` are those of the tests.

    Nothing of this machine comes in: no data of its own, and no browser is opened.
    """
    programs.mkdir(exist_ok=True)
    for program, called in (("widelimit", "-m widelimit_command"), ("python", "")):
        script = programs / program
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {called} "$@"\n')
        script.chmod(0o755)
    sources = os.pathsep.join(filter(None, (str(ROOT / "src"), os.environ.get("PYTHONPATH"))))
    surroundings = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": sources,
        "HOME": str(folder),
        "BROWSER": "true",
        "WIDELIMIT_DATA": str(programs),
        "COLUMNS": "200",
    }
    ran = subprocess.run(
        ["bash", "-c", code],
        cwd=folder,
        env=surroundings,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    refused = "error:" in ran.stdout and ran.returncode == 2  # pages show mistakes, too
    assert ran.returncode == 0 or refused, f"{code}\n{ran.stdout}"
    return ran.stdout


def require_same(printed: str, quoted: str, where: str) -> None:
    """Equal words, and numbers that agree to what differs between machines.

    Times are not compared. A line `…` of a page stands for any lines.
    """
    for part in _parts(_TIME.sub("a time", printed), _TIME.sub("a time", quoted), where):
        words = [_NUMBER.sub("#", text).split() for text in part]
        assert words[0] == words[1], f"{where} prints\n{printed}"
        numbers = [[float(n) for n in _NUMBER.findall(text)] for text in part]
        np.testing.assert_allclose(*numbers, rtol=1e-3, atol=1e-6, err_msg=where)


def _parts(printed: str, quoted: str, where: str) -> Iterator[tuple[str, str]]:
    """What is printed before and after lines that a page leaves out, beside what it quotes."""
    lines, first, *rest = printed.splitlines(), *re.split(r"^…$\n?", quoted, flags=re.MULTILINE)
    if not rest:
        yield printed, quoted
        return
    assert len(rest) == 1, f"{where} leaves out lines more than once"
    head, tail = len(first.splitlines()), len(rest[0].splitlines())
    assert len(lines) >= head + tail, f"{where} prints\n{printed}"
    yield "\n".join(lines[:head]), first
    yield "\n".join(lines[len(lines) - tail :]), rest[0]
