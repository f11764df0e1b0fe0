"""Errors carry the options that mend them, and print them for Python or the command line."""

import ast
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import widelimit as wl
from widelimit import errors
from widelimit.app.cli.screen import Screen
from widelimit.errors import WidelimitError


@pytest.mark.parametrize(
    ("option", "python", "command"),
    [
        ("encoding", "name it (encoding=)", "name it (--encoding)"),
        (("image_size", "skip"), "name it (image_size=, skip=)", "name it (--image-size, --skip)"),
        ((), "name it", "name it"),
    ],
)
def test_options_are_data(option, python, command, capsys):
    error = WidelimitError("It failed.", got="this", remedy="name it", option=option)
    assert str(error) == f"It failed. Got: this. Remedy: {python}"
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    Screen().wrong(error)
    assert capsys.readouterr().err.splitlines()[-1] == f"remedy: {command}"


# What failed is said with one of these: a law of nature ("Inputs are numbers.") has none.
_FAILED = re.compile(
    r"\b(not|no|nor|none|nothing|never|cannot|without|more|few|fewer|other|another|too|both|leave|leaves|lose"
    r"|lacks|fails|beyond|outside|above|beside|negative|odd|constant|padding|dependent|disagree"
    r"|would|met|stands)\b",
    re.IGNORECASE,
)
_ROOMS = ("layers", "state", "engine", "laws", "finite", "duals")


def _messages() -> Iterator[tuple[str, str]]:
    """Where errors are raised in these rooms, and what they say first, as far as it is written."""
    package = Path(wl.__file__).parent
    inside = [path for room in _ROOMS for path in (package / room).rglob("*.py")]
    for path in (*package.glob("*.py"), *inside):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and hasattr(node.func, "id") else ""
            kind = getattr(errors, name, None)
            if isinstance(kind, type) and issubclass(kind, WidelimitError) and node.args:
                words = [n.value for n in ast.walk(node.args[0]) if isinstance(n, ast.Constant)]
                yield f"{path.relative_to(package)}:{node.lineno}", "".join(map(str, words))


def test_errors_begin_with_what_failed():
    found = dict(_messages())
    assert len(found) > 150
    laws = {place: words for place, words in found.items() if not _FAILED.search(words)}
    # Two are made of words that are handed to them.
    assert {place.partition(":")[0] for place in laws} <= {"layers/configs.py", "engine/walk.py"}
    assert len(laws) <= 2, laws
    assert not _FAILED.search("Inputs are numbers.")
    assert not _FAILED.search("Threads that compute make progress.")
    assert not _FAILED.search("width= is a positive integer.")
