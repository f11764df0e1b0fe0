"""Errors carry the options that mend them, and print them for Python or the command line."""

import pickle

import pytest

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
