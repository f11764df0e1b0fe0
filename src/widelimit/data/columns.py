"""What a column of a table holds: numbers, dates, yes and no, categories, texts, or nothing."""

import enum
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .dates import DateOrder, parsed

MISSING = frozenset(
    ("", "NA", "N/A", "n/a", "<NA>", "#N/A", "#NA", "nan", "NaN", "NAN", "Nan", "-nan", "-NaN",
     "NaT", "null", "NULL", "None", "?", "-", "--", ".", "#DIV/0!", "#VALUE!", "#REF!")
)  # fmt: skip
"""What stands for a value that is not known."""

YES = frozenset(("yes", "y", "true", "t", "on"))
NO = frozenset(("no", "n", "false", "f", "off"))

_MOST_SHARE = 0.8  # from which on other values of a column are mistakes in it
_WORDS_OF_A_TEXT = 3.0  # on average; names and categories have fewer
_FEW_CATEGORIES = 20
_MOST_CATEGORIES = 100
_ROWS_PER_CATEGORY = 10  # where there are more than a few
_ROWS_PER_PHRASE = 20  # long texts that come back so often are categories
_IDENTIFIER = re.compile(r"(.*[^a-z])?(id|ids|key|uuid|guid|index|idx|nr|no|row|rownames|column 1)")
_CAMEL_IDENTIFIER = re.compile(r".*[a-z](Id|ID|Key|Nr|No)")

_UNITS = re.compile(r"[€$£]?\s*(.*?)\s*[%€$£]?")
_GROUPS = {
    ".": re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+(\.\d+)?"),
    ",": re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})+(,\d+)?"),
}
_SPACED = re.compile(r"(?<=\d)[\u00a0\u202f' ](?=\d{3}(\D|$))")
_FRACTION = re.compile(r"[-+]?(\d+)([.,])(\d+)")


class Holds(enum.Enum):
    """What a column holds; the values are words for messages."""

    NUMBERS = "numbers"
    FLAGS = "yes and no"
    DATES = "dates"
    CATEGORIES = "categories"
    TEXTS = "texts"
    NAMES = "a different name or number in every row"
    WORDS = "too many different words"
    ONE_VALUE = "the same in every row"
    NOTHING = "empty"
    LISTS = "lists or objects"

    def __str__(self) -> str:
        return self.value


USABLE = (Holds.NUMBERS, Holds.FLAGS, Holds.DATES, Holds.CATEGORIES)
"""What a network takes as columns."""


@dataclass(frozen=True, eq=False)
class Column:
    """The values of one column as the file has them, and their readings."""

    name: str
    values: tuple[Any, ...]
    decimal: str = "."

    def __len__(self) -> int:
        return len(self.values)

    @cached_property
    def missing(self) -> np.ndarray:
        """Which values are not known."""
        if np.isfinite(self.numbers).all():
            return np.zeros(len(self), dtype=bool)
        return np.array([_is_missing(value) for value in self.values], dtype=bool)

    @property
    def blank(self) -> np.ndarray:
        """Which values are no label: nothing, or a list; a class may well be called `NA`."""
        return np.array([_is_blank(value) for value in self.values], dtype=bool)

    @cached_property
    def numbers(self) -> np.ndarray:
        """`float64`; not a number where a value is missing or something else."""
        if self.decimal == ".":
            try:
                return np.array([float(value) for value in self.values])
            except (TypeError, ValueError, OverflowError):
                pass
        return np.array([_number(value, self.decimal) for value in self.values])

    @cached_property
    def words(self) -> np.ndarray:
        """Texts without spaces around them; empty where a value is missing."""
        return np.array(
            ["" if gone else _word(v) for v, gone in zip(self.values, self.missing, strict=True)],
            dtype=object,
        )

    @cached_property
    def flags(self) -> np.ndarray:
        """1 for yes, 0 for no, not a number for anything else."""
        known = {**dict.fromkeys(YES, 1.0), **dict.fromkeys(NO, 0.0)}
        return np.array([known.get(word.lower(), np.nan) for word in self.words])

    @cached_property
    def date_order(self) -> DateOrder:
        """Which of day and month comes first."""
        return DateOrder.of(self.words.tolist())

    def dates(self, order: DateOrder | None = None) -> np.ndarray:
        """`datetime64[s]`, `NaT` where a value is missing or no date."""
        return parsed(self.words.tolist(), order or self.date_order)

    @cached_property
    def mean_words(self) -> float:
        """Words of a value on average; numbers have none."""
        counts = [len(v.split()) for v in self.values if isinstance(v, str)]
        return sum(counts) / max(1, len(self.values))

    @cached_property
    def holds(self) -> Holds:
        """What most values are."""
        present = ~self.missing
        if not present.any():
            return Holds.NOTHING
        if any(isinstance(value, list | dict) for value in self.values):
            return Holds.LISTS
        complete = bool(present.all())
        if np.isfinite(self.numbers[present]).mean() >= _MOST_SHARE:
            return self._of_numbers(complete)
        words = self.words[present].tolist()
        distinct = set(words)
        if len(distinct) == 1 and complete:
            return Holds.ONE_VALUE
        if {word.lower() for word in distinct} <= YES | NO:
            return Holds.FLAGS
        if self._are_dates(words):
            return Holds.DATES
        return self._of_words(len(distinct), len(words))

    def _of_numbers(self, complete: bool) -> Holds:
        found = self.numbers[np.isfinite(self.numbers)]
        if complete and len(found) == len(self) and (found == found[0]).all():
            return Holds.ONE_VALUE
        whole = complete and (found == np.round(found)).all()
        named = _IDENTIFIER.fullmatch(self.name.lower()) or _CAMEL_IDENTIFIER.fullmatch(self.name)
        if whole and named and len(np.unique(found)) == len(self):
            return Holds.NAMES
        return Holds.NUMBERS

    def _are_dates(self, words: list[str]) -> bool:
        few = words[:: max(1, len(words) // 50)]
        if np.isnat(parsed(few, DateOrder.of(few))).mean() > 1 - _MOST_SHARE:
            return False
        gone = np.isnat(self.dates()) & ~self.missing
        return bool(gone.sum() <= (1 - _MOST_SHARE) * len(words))

    def _of_words(self, distinct: int, rows: int) -> Holds:
        repeated = distinct <= _FEW_CATEGORIES and rows >= _ROWS_PER_PHRASE * distinct
        if self.mean_words >= _WORDS_OF_A_TEXT and not repeated:
            return Holds.TEXTS
        few = distinct <= min(_FEW_CATEGORIES, rows // 2)
        if few or distinct <= min(_MOST_CATEGORIES, rows // _ROWS_PER_CATEGORY):
            return Holds.CATEGORIES
        return Holds.NAMES if distinct == rows else Holds.WORDS


def decimal_mark(values: Sequence[Any], delimiter: str) -> str:
    """Whether numbers among these texts have a point or a comma before their fractions.

    Three digits behind a comma may be thousands: they count for a decimal comma only after a zero,
    or where nothing else speaks and columns are separated by semicolons, as where commas are usual.
    """
    votes = {".": 0, ",": 0}
    doubtful = 0
    for value in values:
        match = _FRACTION.fullmatch(value.strip()) if isinstance(value, str) else None
        if match is None:
            continue
        whole, mark, digits = match.groups()
        thousands = len(digits) == 3 and len(whole) <= 3 and not whole.startswith("0")
        votes[mark] += not thousands
        doubtful += thousands and mark == ","
    if votes[","] == votes["."] == 0:
        return "," if doubtful and delimiter == ";" else "."
    return "," if votes[","] > votes["."] else "."


def looks_like_other_mark(value: Any, decimal: str) -> bool:
    """Whether a text that is no number would be one with the other decimal mark."""
    match = _FRACTION.fullmatch(value.strip()) if isinstance(value, str) else None
    return match is not None and match[2] != decimal


def _is_missing(value: Any) -> bool:
    if isinstance(value, str):
        return value in MISSING or value.strip() in MISSING
    return value is None or (isinstance(value, float) and value != value)


def _is_blank(value: Any) -> bool:
    if isinstance(value, str):
        return not value.strip()
    return not isinstance(value, int | float) or value != value


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return value.strip() if isinstance(value, str) else str(value)


def _number(value: Any, decimal: str) -> float:
    try:
        if isinstance(value, str):
            return float(_plain(value.strip(), decimal))
        return float(value) if isinstance(value, int | float) else np.nan
    except (ValueError, OverflowError):
        return np.nan


def _plain(text: str, decimal: str) -> str:
    """A number as Python writes it: without units, and groups of thousands together."""
    unit = _UNITS.fullmatch(text)
    text = _SPACED.sub("", unit[1] if unit else text)
    group = "," if decimal == "." else "."
    if _GROUPS[decimal].fullmatch(text):
        text = text.replace(group, "")
    if decimal == "," and "." in text:
        return "no number with a decimal comma"
    return text.replace(decimal, ".")
