"""CSV files as people have them: what separates their columns, their names, and their rows."""

import csv
import re
from collections import Counter
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from .errors import DataError
from .files import lines
from .limits import limit, require

MARKS = (",", ";", "\t", "|")
_LOOKED_AT = 200  # lines that say what separates columns
_ENOUGH_CHARACTERS = 200_000
_MOST = 0.8  # of the rows agree on their number of columns, where a few are broken
_HINT = re.compile(r"sep=(.)\s*", re.IGNORECASE)  # a first line that spreadsheet programs write
_DECIMAL_NUMBER = re.compile(r"\s*[-+]?\d+[.,]\d+([eE][-+]?\d+)?\s*")


class TableLayout(NamedTuple):
    """What separates columns, and how many lines stand above their names."""

    delimiter: str
    above: int = 0


class TableRows(NamedTuple):
    """The names of columns, and for every row its line and its values."""

    names: list[str]
    numbered: list[tuple[int, list[str]]]
    skipped: int

    def columns(self) -> dict[str, tuple[str, ...]]:
        """The values by the names of their columns."""
        values = zip(*(values for _, values in self.numbered), strict=True)
        return dict(zip(self.names, values, strict=False))


def layout_of(path: Path, encoding: str, usual: str) -> TableLayout:
    """The mark that cuts most of the first lines into equally many columns, the most of them."""
    with closing(lines(path, encoding=encoding)) as all_lines:
        begin, size = [], 0
        for line in islice(all_lines, _LOOKED_AT):
            begin.append(line)
            size += len(line)
            if size > _ENOUGH_CHARACTERS:
                break
    if begin and (hint := _HINT.fullmatch(begin[0])):
        return TableLayout(hint[1], 1)
    marks = (usual, *(mark for mark in MARKS if mark != usual))
    fits = {mark: _fit(begin, mark) for mark in marks}
    best = max(fits.values())
    return TableLayout(next(mark for mark in marks if fits[mark] == best))


def _fit(begin: list[str], mark: str) -> tuple[bool, bool, int]:
    """Whether all rows, and most rows, have the columns of the first line, and how many those are.

    The last record may be cut off by the end of the sample.
    """
    try:
        records = [row for row in csv.reader(begin, delimiter=mark) if row]
    except csv.Error:
        return False, False, 0
    counts = [len(row) for row in (records[:-1] if len(records) > 2 else records)]
    if not counts or counts[0] < 2:
        return False, False, 0
    share = sum(count == counts[0] for count in counts) / len(counts)
    return share == 1.0, share >= _MOST, counts[0] if share >= _MOST else 0


def read_rows(path: Path, encoding: str, layout: TableLayout, *, skip: bool) -> TableRows:
    """All rows; those with other columns than the first line are refused or left out."""
    source = islice(lines(path, encoding=encoding), layout.above, None)
    reader = csv.reader(source, delimiter=layout.delimiter, strict=True)
    begin, skipped = 1 + layout.above, 0
    found: list[tuple[int, list[str]]] = []
    try:
        names = _names(path, next(reader, []), layout.delimiter)
        width, begin = len(names), reader.line_num + 1 + layout.above
        most = min(limit("rows"), limit("cells") // max(1, width))
        for values in reader:
            if len(values) > width and not any(map(str.strip, values[width:])):
                values = values[:width]  # delimiters at the end of every line
            if len(values) == width:
                found.append((begin, values))
                if len(found) > most:
                    require("rows", len(found), f"'{path}' up to line {begin}")
                    require("cells", len(found) * width, f"'{path}' up to line {begin}")
            elif values and not skip:
                raise _ragged(path, begin, len(values), width, layout.delimiter)
            elif values:
                skipped += 1
            begin = reader.line_num + 1 + layout.above
    except csv.Error as error:
        raise DataError(
            "A CSV file must have complete, well-quoted rows.",
            got=f"line {begin} of '{path}': {error}",
            remedy='close the quotes (a quote inside a text is written ""), or get the file again '
            "if it is cut off; texts above 131,072 characters need JSONL",
        ) from error
    return TableRows(names, found, skipped)


def _names(path: Path, header: list[str], delimiter: str) -> list[str]:
    """Names of columns; one that has none is called by its place."""
    names = [name.strip() or f"column {place}" for place, name in enumerate(header, start=1)]
    require("columns", len(names), f"'{path}'")
    if len(names) > 1 and sum(map(bool, map(_DECIMAL_NUMBER.fullmatch, names))) * 2 >= len(names):
        raise DataError(
            "The first line of a table names its columns.",
            got=f"numbers such as {names[0]!r} in the first line of '{path}'",
            remedy="write a line with names above it, such as a,b,label",
        )
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            "Column names must differ.",
            got=f"{', '.join(map(repr, twice[:5]))} more than once in '{path}', whose columns are "
            f"separated by {delimiter!r}",
            remedy="rename the columns in the first line, or write one with names above it",
        )
    return names


def _ragged(path: Path, line: int, got: int, wanted: int, delimiter: str) -> DataError:
    return DataError(
        f"Every row must have the {wanted} columns of the first line.",
        got=f"{got} at line {line} of '{path}', whose columns are separated by {delimiter!r}",
        remedy="the file is cut off there, or a text with delimiters or line breaks is not in "
        "quotes, or lines stand above the names: correct that, pass delimiter='...' if columns are "
        "separated otherwise, or skip=True to leave such rows out",
    )
