"""Tables by pandas: CSV, JSON and Parquet files as frames, with errors that say where and what.

The dtypes that pandas finds say what a column is; texts that all are ISO dates become dates. What
pandas cannot read is the user's to convert. Files are measured before they are read.
"""

import csv
import enum
import gzip
import json
import re
import warnings
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import MissingExtraError
from .errors import DataError
from .files import lines, reading, require_file
from .limits import require

if TYPE_CHECKING:
    from pandas import DataFrame

MARKS = (",", ";", "\t", "|")
"""What separates columns, as far as it is found out."""


class Holds(enum.Enum):
    """What a column holds; the values are words for messages."""

    NUMBERS = "numbers"
    DATES = "dates"
    CATEGORIES = "categories"
    TEXTS = "texts"
    NAMES = "a different name in every row"
    WORDS = "too many different words"
    ONE_VALUE = "the same in every row"
    NOTHING = "empty"
    LISTS = "lists or objects"

    def __str__(self) -> str:
        return self.value


_JSON = (".json", ".jsonl", ".ndjson")
_FRACTION = re.compile(r"\s*[+-]?\d*\.\d*([eE][+-]?\d+)?\s*")
_CHUNK = 1 << 20
_FEW_CATEGORIES, _MOST_CATEGORIES = 20, 100
_ROWS_PER_CATEGORY = 10  # where there are more than a few
_ROWS_PER_PHRASE = 20  # long texts that come back so often are categories
_WORDS_OF_A_TEXT = 3.0  # on average; names and categories have fewer


def read_frame(
    path: Path | str,
    *,
    encoding: str = "utf-8",
    delimiter: str | None = None,
    decimal: str = ".",
    date_format: str = "ISO8601",
    no_header: bool = False,
    skip: bool = False,
) -> "DataFrame":
    """A table from a `.csv`, `.tsv`, `.json`, `.jsonl` or `.parquet` file (text also as `.gz`).

    The delimiter is the most frequent of `,`, `;`, tab and `|` in the first line unless it is
    given. `no_header`: the first line is a row, and columns are called by their place. `skip`
    leaves out lines with too many columns. Rows are numbered from 1.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise MissingExtraError("pandas", "cli") from error
    path = Path(path)
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    require_file(path)
    with reading(path), _pandas_errors(path, encoding):
        if kind == ".parquet":
            frame = _read_parquet(path)
        elif kind in _JSON:
            frame = pd.DataFrame(_json_rows(path, encoding, lined=kind != ".json"))
        elif kind in (".csv", ".tsv", ".txt", ".data"):
            rows = _measure(path)
            first = next(lines(path, encoding=encoding), "")
            mark = delimiter or max(MARKS, key=first.count)
            names = next(csv.reader([first], delimiter=mark), []) if len(mark) == 1 else []
            width = first.count(mark) + 1
            require("columns", width, f"'{path}'")
            require("cells", (rows - (not no_header)) * width, f"'{path}' with {rows:,} lines")
            if not no_header:
                _require_names(path, [n.strip() for n in names if n.strip()], line=True)
            frame = pd.read_csv(
                path,
                sep=mark,
                decimal=decimal,
                encoding="utf-8-sig" if encoding == "utf-8" else encoding,
                header=None if no_header else 0,
                index_col=False,
                na_values=["?"],
                skipinitialspace=True,
                on_bad_lines="skip" if skip else "error",
                low_memory=False,
            )
            if not skip and len(mark) == 1 and len(frame) and frame.iloc[-1:, -1].isna().all():
                _require_whole(path, encoding, mark, frame.shape[1])
        else:
            raise DataError(
                f"'{path.name}' is no table by its name.",
                got=f"the ending {path.suffix!r}",
                remedy="save it as .csv, .tsv, .jsonl or .parquet",
            )
    return _checked(frame, path, date_format, no_header=no_header, skip=skip)


def _checked(
    frame: Any, path: Path, date_format: str, *, no_header: bool, skip: bool
) -> "DataFrame":
    """Rows numbered from 1, columns named by texts, dates as dates, no infinite number."""
    if frame.empty:
        raise _no_rows(path)
    require("cells", frame.size, f"'{path}'")
    names = [f"column {i}" for i in range(1, frame.shape[1] + 1)] if no_header else frame.columns
    frame.columns = [str(name).strip() for name in names]
    frame.index = range(1, len(frame) + 1)
    _require_names(path, list(frame.columns))
    for name, column in frame.items():
        if column.dtype.kind in "fiu":
            infinite = frame.index[np.isinf(column)]
            if skip:
                frame[name] = column.replace([np.inf, -np.inf], np.nan)
            elif len(infinite):
                raise DataError(
                    f"Column {name!r} holds an infinite number in row {infinite[0]}.",
                    got=f"{len(infinite)} of {len(frame)} rows of '{path}'",
                    remedy="correct these rows, or leave them out",
                    option="skip",
                )
        elif (dates := _dates(column, date_format)) is not None:
            frame[name] = dates
    return frame


def _dates(column: Any, form: str) -> Any:
    """The column as dates, if all that is there is one; None where it is not."""
    import pandas as pd

    there = column.dropna()
    if there.empty or not all(isinstance(value, str) for value in there):
        return None
    try:
        dates = pd.to_datetime(column, format=form, utc=True).dt.tz_localize(None)
    except (ValueError, TypeError, OverflowError):
        return None
    return dates if (dates.isna() == column.isna()).all() else None


def _no_rows(path: Path) -> DataError:
    return DataError(
        f"'{path}' has no rows.",
        got="an empty table",
        remedy="write the names of columns and a line for every example",
    )


# --- what columns are -----------------------------------------------------------------------------


def column_holds(column: Any) -> Holds:
    """What a column is: by its dtype, and texts by how often they come back."""
    from pandas.api import types

    there = column.dropna()
    if there.empty:
        return Holds.NOTHING
    try:
        distinct = there.nunique()
    except TypeError:  # lists and objects cannot be compared
        return Holds.LISTS
    if distinct == 1 and len(there) == len(column):
        return Holds.ONE_VALUE
    if types.is_datetime64_any_dtype(column):
        return Holds.DATES
    if types.is_bool_dtype(there) or isinstance(column.dtype, types.CategoricalDtype):
        return Holds.CATEGORIES
    if types.is_numeric_dtype(column):
        return Holds.NUMBERS
    rows = len(there)
    words = float(np.mean([len(str(value).split()) for value in there]))
    repeated = distinct <= _FEW_CATEGORIES and rows >= _ROWS_PER_PHRASE * distinct
    if words >= _WORDS_OF_A_TEXT and not repeated:
        return Holds.TEXTS
    few = distinct <= min(_FEW_CATEGORIES, rows // 2)
    if few or distinct <= min(_MOST_CATEGORIES, rows // _ROWS_PER_CATEGORY):
        return Holds.CATEGORIES
    return Holds.NAMES if distinct == rows else Holds.WORDS


def find_leaks(frame: Any, target: str) -> list[str]:
    """Sentences about columns that give the target away, alone or as a sum.

    A column gives it away if each of its values, on average met at least three times, goes with one
    target, or if it is a straight line of it; columns add up to it if least squares leaves nothing.
    """
    wanted = frame[target]
    found = []
    numeric = frame.drop(columns=target).select_dtypes("number").dropna(axis=1)
    number = wanted.dtype.kind in "fiu" and bool(wanted.notna().all())
    line = number and len(frame) > 2 and wanted.nunique() > 2
    for name in frame.columns.drop(target):
        column = frame[name]
        if column_holds(column) in (Holds.LISTS, Holds.ONE_VALUE, Holds.NOTHING):
            continue
        told = wanted.groupby(column, dropna=False, observed=True).nunique(dropna=False)
        known = len(told) > 1 and 3 * len(told) <= len(frame) and bool((told == 1).all())
        if known or (line and name in numeric and _explained(numeric[[name]], wanted)):
            found.append(f"{name!r} alone predicts {target!r} perfectly")
    if line and not found and 1 < numeric.shape[1] < len(frame) // 2:
        weights = _explained(numeric, wanted)
        if weights:
            found.append(f"{', '.join(map(repr, weights))} together add up to {target!r}")
    return found


def _explained(columns: Any, target: Any) -> list[str]:
    """The columns of which the target is a linear map; none where it is not."""
    x, y = columns.to_numpy(np.float64), target.to_numpy(np.float64)
    x, y = (x - x.mean(axis=0)), y - y.mean()
    size = np.maximum(np.abs(x).max(axis=0), np.finfo(float).tiny)
    weights = np.linalg.lstsq(x / size, y, rcond=None)[0]
    left = np.abs(y - x / size @ weights).max()
    if left > 1e-9 * np.abs(y).max():
        return []
    used = np.abs(weights) > 1e-6 * np.abs(y).max()
    return columns.columns[used].tolist()


# --- files ----------------------------------------------------------------------------------------


def _measure(path: Path) -> int:
    """The number of lines; refuse more bytes, lines or longer lines than are allowed."""
    size = rows = line = 0
    with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            require("bytes", size, f"'{path}', as far as it was unpacked")
            rows += chunk.count(b"\n")
            require("rows", rows, f"'{path}'")
            end = chunk.rfind(b"\n")
            line = line + len(chunk) if end < 0 else len(chunk) - end - 1
            require("line", line, f"line {rows + 1} of '{path}'")
    return rows + (line > 0)


def _require_whole(path: Path, encoding: str, mark: str, width: int) -> None:
    """The last line has a cell for every column: one that has not ends a file that is cut off."""
    rows = ((n, line) for n, line in enumerate(lines(path, encoding=encoding), 1) if line.strip())
    number, last = deque(rows, maxlen=1).pop()
    cells = len(next(csv.reader([last], delimiter=mark)))
    if cells < width and last.count('"') % 2 == 0:  # an odd one closes a cell of several lines
        raise DataError(
            f"Line {number} of '{path}', the last one, ends after {cells} of {width} cells.",
            got="a file that was cut off, perhaps",
            remedy="get it again, complete that line, or leave incomplete rows out",
            option="skip",
        )


def _require_names(path: Path, names: list[str], *, line: bool = False) -> None:
    """Names differ; those of a first line are no fractions, which would be a row."""
    for name in (name for name in names if names.count(name) > 1):
        raise DataError(
            f"Two columns are called {name!r}.", got=f"'{path}'", remedy="rename one of them"
        )
    fractions = [name for name in names if _FRACTION.fullmatch(name)]
    if line and len(names) > 1 and 2 * len(fractions) >= len(names):
        raise DataError(
            f"The first line of '{path}' names no columns.",
            got=f"numbers such as {fractions[0]!r}",
            remedy="write a line with names above it, or say that there is none",
            option="no_header",
        )


def _read_parquet(path: Path) -> "DataFrame":
    try:
        from pyarrow.parquet import ParquetFile
    except ImportError as error:
        raise MissingExtraError("pyarrow", "parquet") from error
    import pandas as pd

    with ParquetFile(path) as file:
        facts = file.metadata
        size = sum(facts.row_group(i).total_byte_size for i in range(facts.num_row_groups))
    rows, columns = facts.num_rows, facts.num_columns
    for name, found in (
        ("bytes", size),
        ("rows", rows),
        ("columns", columns),
        ("cells", rows * columns),
    ):
        require(name, found, f"'{path}', unpacked")
    return pd.read_parquet(path)


def _json_rows(path: Path, encoding: str, *, lined: bool) -> Any:
    """An object on every line; or in the whole file a list of them, or an object of columns."""
    text, rows = lines(path, encoding=encoding), []
    for number, part in enumerate(text if lined else ["".join(text)], start=1):
        require("rows", number, f"'{path}'")
        try:
            rows += [json.loads(part, parse_int=_bounded)] if part.strip() else []
        except (ValueError, RecursionError) as error:
            line = number if lined else getattr(error, "lineno", 1)
            raise _no_object(f"Line {line} of '{path}'", str(error)) from error
        if lined and rows and not isinstance(rows[-1], dict):
            raise _no_object(f"Line {number} of '{path}'", f"a {type(rows[-1]).__name__}")
    found, names = rows if lined or not rows else rows[0], set()
    for number, row in enumerate(found if isinstance(found, list) else (), start=1):
        if not isinstance(row, dict):
            raise _no_object(f"Row {number} of '{path}'", f"a {type(row).__name__}")
        names |= row.keys()  # every name becomes a column of all rows
        require("columns", len(names), f"'{path}' up to row {number}")
        require("cells", number * len(names), f"'{path}' up to row {number}")
    return found


def _no_object(what: str, got: str) -> DataError:
    return DataError(
        f"{what} is no JSON object.",
        got=got[:200],
        remedy='write every row as one line such as {"text": "...", "label": 1}',
    )


def _bounded(digits: str) -> int | float:
    """A whole number, as a float where 64 bits do not hold it."""
    return int(digits) if len(digits) < 19 else float(digits)


@contextmanager
def _pandas_errors(path: Path, encoding: str) -> Iterator[None]:
    """Turn what pandas raises into an error with the file and the option that may help."""
    from pandas.errors import EmptyDataError

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of mixed columns, which are texts then
            warnings.filterwarnings("error", message="Length of header")  # cells would be lost
            yield
    except (DataError, MissingExtraError, OSError, EOFError):
        raise
    except EmptyDataError as error:
        raise _no_rows(path) from error
    except Exception as error:  # pandas and its parsers raise many kinds
        if isinstance(error, UnicodeError | LookupError):
            for _ in lines(path, encoding=encoding):  # which names the line
                pass
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
        what = f"'{path}' cannot be read as a table."
        if found := re.search(r"EOF inside string starting at row (\d+)", why):
            what = f"Line {int(found[1]) + 1} of '{path}' opens a quote that is never closed."
        elif found := re.search(r"Expected (\d+) fields in line (\d+)", why):
            what = f"Line {found[2]} of '{path}' has more cells than there are columns."
        elif "Length of header" in why:
            what = f"Line 2 of '{path}' has more cells than line 1 has names."
        raise DataError(
            what,
            got=why[:300],
            remedy="correct that line, name what separates columns, or leave such lines out; what "
            "pandas cannot read must be converted first",
            option=("delimiter", "skip"),
        ) from error
