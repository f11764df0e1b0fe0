"""Tables in CSV, TSV and JSONL files, gzipped or not."""

import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError, some
from .files import damaged, lines, write_text
from .limits import limit, require

Row = Mapping[str, Any]
DELIMITERS = {".csv": ",", ".tsv": "\t"}
JSON_LINES = (".jsonl", ".ndjson")


@dataclass(frozen=True)
class Table:
    """Rows of named values and the line of the file each begins at, for errors that say where."""

    path: Path
    rows: tuple[Row, ...]
    line_numbers: tuple[int, ...]

    def column(self, name: str) -> tuple[Any, ...]:
        """The values of one column; every row must have it."""
        for row, line in zip(self.rows, self.line_numbers, strict=True):
            if name not in row:
                raise DataError(
                    f"Every row must have the column {name!r}.",
                    got=f"line {line} of '{self.path}' with {', '.join(map(repr, row))}",
                    remedy=_column_remedy(list(row)),
                )
        return tuple(row[name] for row in self.rows)

    def texts(self, name: str) -> tuple[str, ...]:
        """A column of texts, none of them empty."""
        values = self.column(name)
        self._check(
            [isinstance(value, str) and bool(value.strip()) for value in values],
            f"Column {name!r} must hold a text in every row.",
            "an empty or missing text",
            "fill or remove these rows",
        )
        return values

    def labels(self, name: str) -> tuple[str, ...]:
        """A column of class labels as text; the JSON numbers `1` and `1.0` are both `1`."""
        labels = tuple(_label(value) for value in self.column(name))
        self._check(
            [bool(label) for label in labels],
            f"Column {name!r} must hold a label in every row.",
            "an empty label, or a list or object instead of one",
            "fill or remove these rows",
        )
        return labels

    def numbers(self, *names: str) -> np.ndarray:
        """Columns of numbers, `(rows, columns)`, all finite."""
        columns = [
            np.array([_number(value) for value in self.column(name)], dtype=np.float64)
            for name in names
        ]
        for name, column in zip(names, columns, strict=True):
            self._check(
                np.isfinite(column).tolist(),
                f"Column {name!r} must hold a finite number in every row.",
                "something else",
                "correct or remove these rows; labels that are words need `labels`",
            )
        return np.stack(columns, axis=1)

    def _check(self, good: list[bool], rule: str, what: str, remedy: str) -> None:
        bad = [f"line {line}" for line, ok in zip(self.line_numbers, good, strict=True) if not ok]
        if bad:
            raise DataError(rule, got=f"{what} at {some(bad)} of '{self.path}'", remedy=remedy)


def read_table(path: Path | str, *, encoding: str = "utf-8", delimiter: str | None = None) -> Table:
    """Read a CSV or TSV file with a header line, or a JSONL file with one object per line.

    The format follows the name (`.csv`, `.tsv`, `.jsonl`, `.ndjson`, each also with `.gz`).
    """
    path = Path(path)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind in JSON_LINES:
        numbered = _collected(path, _json_rows(path, encoding))
    elif kind in DELIMITERS:
        numbered = _collected(path, _csv_rows(path, encoding, delimiter or DELIMITERS[kind]))
    else:
        known = ", ".join((*DELIMITERS, *JSON_LINES))
        raise DataError(
            f"A table is a file whose name ends in {known} (or one of these with .gz).",
            got=f"'{path}'",
            remedy="rename the file after its format, or convert it to CSV",
        )
    if not numbered:
        raise DataError(
            "A table must have rows.",
            got=f"no row in '{path}'",
            remedy="check that the file is the right one and complete",
        )
    numbers, rows = zip(*numbered, strict=True)
    return Table(path, rows, numbers)


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
    """A CSV file with a header line, whole or not at all."""
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


def _csv_rows(path: Path, encoding: str, delimiter: str) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(lines(path, encoding=encoding), delimiter=delimiter, strict=True)
    begin = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        require("columns", len(header), f"'{path}'")
        if twice := [name for name, count in Counter(header).items() if count > 1]:
            raise DataError(
                "Column names must differ.",
                got=f"{', '.join(map(repr, twice))} more than once in '{path}'",
                remedy="rename the columns in the first line",
            )
        begin = reader.line_num + 1
        for values in reader:
            if values and len(values) != len(header):
                raise DataError(
                    f"Every row must have the {len(header)} columns of the first line.",
                    got=f"{len(values)} at line {begin} of '{path}'",
                    remedy="the file is cut off there, or a text with delimiters or line breaks "
                    "is not in quotes: complete or quote it",
                )
            if values:
                yield begin, dict(zip(header, values, strict=True))
            begin = reader.line_num + 1
    except csv.Error as error:
        raise DataError(
            "A CSV file must have complete, well-quoted rows.",
            got=f"line {begin} of '{path}': {error}",
            remedy='close the quotes (a quote inside a text is written ""), or get the file again '
            "if it is cut off; texts above 131,072 characters need JSONL",
        ) from error


def _column_remedy(found: list[str]) -> str:
    joint = [mark for mark in ";\t|" if len(found) == 1 and mark in found[0]]
    if joint:
        return f"the columns seem to be separated by {joint[0]!r}: pass delimiter={joint[0]!r}"
    return "name one of the columns found, or add the missing one (CSV: in the first line)"


def _label(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:.17g}" if math.isfinite(value) else ""
    return str(value).strip() if isinstance(value, str | int) else ""


def _number(value: object) -> float:
    try:
        return float(value) if isinstance(value, str | int | float) else np.nan
    except (ValueError, OverflowError):
        return np.nan
