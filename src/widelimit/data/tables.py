"""Tables in CSV, TSV and JSONL files, gzipped or not."""

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .columns import Column, decimal_mark, looks_like_other_mark
from .delimited import MARKS, TableLayout, layout_of, read_rows
from .errors import DataError, some
from .files import damaged, lines, write_text
from .limits import limit, require

Row = Mapping[str, Any]
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")
_LOOKED_AT = 1000  # rows that say which decimal mark numbers have
_MARK_NAMES = {",": "a comma", ".": "a point"}


@dataclass(frozen=True, eq=False)
class Table:
    """Named columns and the line of the file each row begins at, for errors that say where.

    `notes` say what the reader found out or left out on its own.
    """

    path: Path
    columns: dict[str, Column]
    line_numbers: tuple[int, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.line_numbers)

    @property
    def names(self) -> list[str]:
        """The columns by name, in the order of the file."""
        return list(self.columns)

    def take(self, rows: np.ndarray) -> "Table":
        """Some of the rows."""
        columns = {
            name: replace(column, values=tuple(column.values[i] for i in rows))
            for name, column in self.columns.items()
        }
        numbers = tuple(self.line_numbers[i] for i in rows)
        return replace(self, columns=columns, line_numbers=numbers)

    def column(self, name: str) -> Column:
        """One column, which must be there."""
        if name not in self.columns:
            raise DataError(
                f"The table must have the column {name!r}.",
                got=f"'{self.path}' with {', '.join(map(repr, self.columns))}",
                remedy=_column_remedy(self.names),
            )
        return self.columns[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """A column of texts, none of them empty."""
        values = self.column(name).values
        self.check(
            np.array([isinstance(value, str) and bool(value.strip()) for value in values]),
            f"Column {name!r} must hold a text in every row.",
            "an empty or missing text",
            "fill these rows, or pass skip=True to leave them out",
        )
        return values

    def labels(self, name: str) -> tuple[str, ...]:
        """A column of class labels as text; the JSON numbers `1` and `1.0` are both `1`."""
        labels = tuple(_label(value) for value in self.column(name).values)
        self.check(
            np.array([bool(label) for label in labels]),
            f"Column {name!r} must hold a label in every row.",
            "an empty label, or a list or object instead of one",
            "fill these rows, or pass skip=True to leave them out",
        )
        return labels

    def numbers(self, *names: str, gaps: bool = False) -> np.ndarray:
        """Columns of numbers, `(rows, columns)`, all finite; with `gaps` also missing ones."""
        for name in names:
            column = self.column(name)
            good = np.isfinite(column.numbers) | (column.missing & gaps)
            other = next((v for v, ok in zip(column.values, good, strict=True) if not ok), None)
            remedy = "correct these rows, or pass skip=True to leave them out"
            if looks_like_other_mark(other, column.decimal):
                mark = "," if column.decimal == "." else "."
                remedy = (
                    f"numbers are read with {_MARK_NAMES[column.decimal]} before their fraction: "
                    f"pass decimal='{mark}' if they have {_MARK_NAMES[mark]}, or correct these rows"
                )
            shown = "nothing" if _label(other) == "" else repr(str(other)[:40])
            rule = f"Column {name!r} must hold a finite number in every row."
            self.check(good, rule, shown, remedy)
        return np.stack([self.column(name).numbers for name in names], axis=1)

    def flags(self, name: str) -> np.ndarray:
        """A column of yes and no as 1 and 0, not a number where nothing is said."""
        column = self.column(name)
        self.check(
            np.isfinite(column.flags) | column.missing,
            f"Column {name!r} must say yes or no (true or false) in every row.",
            "something else",
            "correct these rows, or pass skip=True to leave them out",
        )
        return column.flags

    def check(self, good: np.ndarray, rule: str, what: str, remedy: str) -> None:
        """Raise with the lines of the rows that are not `good`."""
        bad = [f"line {self.line_numbers[row]}" for row in np.flatnonzero(~good)]
        if bad:
            raise DataError(rule, got=f"{what} at {some(bad)} of '{self.path}'", remedy=remedy)


def read_table(
    path: Path | str,
    *,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    decimal: str | None = None,
    skip: bool = False,
) -> Table:
    """Read a CSV or TSV file with a header line, or a JSONL file with one object per line.

    The format follows the name (`.csv`, `.tsv`, `.jsonl`, `.ndjson`, each also with `.gz`). The
    delimiter and the decimal mark are detected unless given; `skip` leaves out rows that do not
    have the columns of the first line.
    """
    path = Path(path)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if decimal not in (None, ".", ","):
        raise DataError(
            "A decimal mark is a point or a comma.",
            got=f"{decimal!r}",
            remedy="pass decimal='.' or decimal=','",
        )
    if kind in JSON_LINES:
        table = _json_table(path, encoding, decimal or ".")
    elif kind in DELIMITERS:
        table = _csv_table(path, encoding, delimiter, DELIMITERS[kind], decimal, skip=skip)
    else:
        known = ", ".join((*DELIMITERS, *JSON_LINES))
        raise DataError(
            f"A table is a file whose name ends in {known} (or one of these with .gz).",
            got=f"'{path}'",
            remedy="rename the file after its format, or convert it to CSV",
        )
    if not len(table):
        raise DataError(
            "A table must have rows.",
            got=f"no row in '{path}'",
            remedy="check that the file is the right one and complete",
        )
    return table


def _csv_table(
    path: Path, encoding: str, given: str | None, usual: str, decimal: str | None, *, skip: bool
) -> Table:
    layout = TableLayout(given) if given else layout_of(path, encoding, usual)
    rows = read_rows(path, encoding, layout, skip=skip)
    notes = []
    if layout.delimiter not in (usual, given):
        notes.append(f"columns are separated by {layout.delimiter!r} (--delimiter names another)")
    if rows.skipped:
        notes.append(f"left out: {rows.skipped} rows that have not {len(rows.names)} columns")
    mark = decimal or decimal_mark(
        [value for _, values in rows.numbered[:_LOOKED_AT] for value in values], layout.delimiter
    )
    if mark == "," and decimal is None:
        notes.append("numbers have a decimal comma (--decimal . says otherwise)")
    columns = {name: Column(name, values, mark) for name, values in rows.columns().items()}
    return Table(path, columns, tuple(line for line, _ in rows.numbered), tuple(notes))


def _json_table(path: Path, encoding: str, decimal: str) -> Table:
    """Columns of all objects, in order of appearance; None where an object lacks one."""
    numbered = _collected(path, _json_rows(path, encoding))
    names = list(dict.fromkeys(name for _, row in numbered for name in row))
    require("columns", len(names), f"'{path}'")
    require("cells", len(names) * len(numbered), f"'{path}'")
    columns = {
        name: Column(name, tuple(row.get(name) for _, row in numbered), decimal) for name in names
    }
    return Table(path, columns, tuple(number for number, _ in numbered))


def _collected(path: Path, rows: Iterator[tuple[int, Row]]) -> list[tuple[int, Row]]:
    """All rows, as many as are allowed."""
    found, cells = [], 0
    most_rows, most_cells = limit("rows"), limit("cells")
    for number, row in rows:
        cells += len(row)
        if len(found) == most_rows or cells > most_cells:
            require("rows", len(found) + 1, f"'{path}' up to line {number}")
            require("cells", cells, f"'{path}' up to line {number}")
        found.append((number, row))
    return found


def write_csv(path: Path | str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Write a CSV file with a header line, whole or not at all."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(head)
    writer.writerows(rows)
    write_text(path, text.getvalue())


def _json_rows(path: Path, encoding: str) -> Iterator[tuple[int, Row]]:
    for number, line in enumerate(lines(path, encoding=encoding), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:  # also: whole numbers of thousands of digits
            cut = isinstance(error, json.JSONDecodeError) and not line.endswith("\n")
            if cut:
                raise damaged(path, f"its last line, {number}, is no complete JSON") from error
            deep = "lists inside lists, too deep to read"
            why = deep if isinstance(error, RecursionError) else str(error)
            raise _no_object(path, number, why) from error
        if not isinstance(row, dict):
            raise _no_object(path, number, f"a {type(row).__name__}")
        require("columns", len(row), f"line {number} of '{path}'")
        if _HALF.search(line) and _has_half_characters(row):
            raise _no_object(path, number, "half of a character (a lone surrogate)")
        yield number, row


_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def _has_half_characters(row: Row) -> bool:
    try:
        json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _no_object(path: Path, number: int, what: str) -> DataError:
    return DataError(
        "A JSONL file holds one JSON object per line.",
        got=f"line {number} of '{path}': {what}",
        remedy='write every row as one line such as {"text": "...", "label": 1}',
    )


def _column_remedy(found: list[str]) -> str:
    joint = [mark for mark in (*MARKS, " ") if len(found) == 1 and mark in found[0]]
    if joint:
        return f"the columns seem to be separated by {joint[0]!r}: pass delimiter={joint[0]!r}"
    return "name one of the columns found, or add the missing one (CSV: in the first line)"


def _label(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.17g}" if math.isfinite(value) else ""
    return str(value).strip() if isinstance(value, str | int) else ""
