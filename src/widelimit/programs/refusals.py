"""Refusals: which line of the user's code, which rule it breaks, what to do."""

from __future__ import annotations

import linecache
from dataclasses import dataclass
from pathlib import Path

from ..errors import NetworkError


@dataclass(frozen=True)
class Place:
    """A line of source code."""

    file: str
    line: int
    function: str
    text: str = ""

    @property
    def code(self) -> str:
        """The text of the line, as given or as it stands in the file."""
        if self.text:
            return self.text
        return linecache.getline(self.file, self.line).strip()

    def __str__(self) -> str:
        if self.text and not self.file:
            return self.text
        where = f"{Path(self.file).name}:{self.line}" if self.file else "unknown line"
        return f"{where}: {self.code}" if self.code else where


NOWHERE = Place("", 0, "")


class RefusedError(NetworkError):
    """A program whose infinite-width limit is not derived; `place` is the line at fault."""

    def __init__(self, rule: str, *, place: Place, got: str, remedy: str):
        """`rule` is what must hold; `got` what the line does; `remedy` what to do."""
        super().__init__(rule, got=f"{got} in {place}", remedy=remedy)
        self.place = place
