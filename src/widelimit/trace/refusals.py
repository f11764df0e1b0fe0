"""Refusals: which line of the user's code, which rule it breaks, what to do."""

from __future__ import annotations

import linecache
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jax._src import source_info_util

from ..errors import NetworkError

_LIBRARIES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"])
# The rooms that trace; lines of layers are a user's, as those of any model are.
_OURS = tuple(str(Path(__file__).resolve().parent.parent / room) for room in ("trace", "lift"))


@dataclass(frozen=True)
class Place:
    """A line of source code."""

    file: str
    line: int
    function: str

    @property
    def code(self) -> str:
        """The text of the line."""
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        where = f"{Path(self.file).name}:{self.line}" if self.file else "unknown line"
        return f"{where}: {self.code}" if self.code else where


NOWHERE = Place("", 0, "")


def place_of(equation: Any) -> tuple[Place, bool]:
    """The innermost line of the user's own files, and whether there was one.

    Lines of installed packages stand in where no file of the user's is on the stack.
    """
    frames = [
        Place(f.file_name, f.start_line, f.function_name)
        for f in source_info_util.user_frames(equation.source_info.traceback)
    ]
    frames = [f for f in frames if not f.file.startswith(_OURS)]
    for frame in frames:
        if not frame.file.startswith(_LIBRARIES):
            return frame, True
    return (frames[0], False) if frames else (NOWHERE, False)


class RefusedError(NetworkError):
    """A program whose infinite-width limit is not derived; `place` is the line at fault."""

    def __init__(self, rule: str, *, place: Place, got: str, remedy: str):
        """`rule` is what must hold; `got` what the line does; `remedy` what to do."""
        super().__init__(rule, got=f"{got} in {place}", remedy=remedy)
        self.place = place
