"""Columns of a table as numbers: what is missing is filled in, and a column of its own says where.

Everything is fitted on training rows and kept with the model.
"""

from dataclasses import dataclass

import numpy as np

from ...data import Table
from ...data.dates import DateOrder
from .columns import feature, numbers

_DAY, _WEEK, _YEAR = 1.0, 7.0, 365.2425
_SECONDS = 86400.0
_RAREST = 0.2  # the smallest deviation by which a column of zeros and ones is divided


@dataclass(frozen=True)
class NumberFeature:
    """A number; where it is missing, the median of the training rows, and a 1 beside it."""

    name: str
    fill: float
    gaps: bool
    """Whether training rows had missing values: then a second column says which."""

    @classmethod
    def fit(cls, name: str, column: np.ndarray) -> "NumberFeature":
        """The median of the numbers that are there."""
        there = column[np.isfinite(column)]
        return cls(name, float(np.median(there)) if len(there) else 0.0, len(there) < len(column))

    @property
    def binary(self) -> list[bool]:
        """Which of its columns are zeros and ones."""
        return [False, True] if self.gaps else [False]

    def __call__(self, column: np.ndarray) -> np.ndarray:
        """(N, 1), or (N, 2) with the missing ones marked."""
        gone = ~np.isfinite(column)
        filled = np.where(gone, self.fill, column)
        return np.stack([filled, gone], axis=1) if self.gaps else filled[:, None]

    def read(self, table: Table) -> np.ndarray:
        """Its column in another file."""
        return numbers(table, self.name)

    def notes(self, column: np.ndarray) -> list[str]:
        """How many values are missing."""
        gone = int((~np.isfinite(column)).sum())
        return [_missing(self.name, gone, len(column))] if gone else []


@dataclass(frozen=True)
class CategoryFeature:
    """One 0/1 entry for each word; a missing value is a category too if training rows had it."""

    name: str
    categories: tuple[str, ...]

    @classmethod
    def fit(cls, name: str, column: np.ndarray) -> "CategoryFeature":
        """The different words."""
        return cls(name, tuple(sorted(set(column.tolist()))))

    @property
    def binary(self) -> list[bool]:
        """All of its columns are zeros and ones."""
        return [True] * len(self.categories)

    def __call__(self, column: np.ndarray) -> np.ndarray:
        """(N, categories); a category that was not there before has all zeros."""
        return (column[:, None] == np.array(self.categories)[None, :]).astype(np.float64)

    def read(self, table: Table) -> np.ndarray:
        """Its column in another file."""
        return table.column(self.name).words.astype(str)

    def notes(self, column: np.ndarray) -> list[str]:
        """Missing values, and categories that were not there in training."""
        gone = int((column == "").sum())
        notes = [_missing(self.name, gone, len(column))] if gone else []
        new = sorted(set(column.tolist()) - {*self.categories, ""})
        return [*notes, f"new in {self.name!r}: {', '.join(new[:5])}"] if new else notes


@dataclass(frozen=True)
class DateFeature:
    """A date: days, and places in the day, the week and the year as far as these come around."""

    name: str
    order: DateOrder
    days: NumberFeature
    periods: tuple[float, ...]

    @classmethod
    def fit(cls, name: str, column: np.ndarray, order: DateOrder) -> "DateFeature":
        """Periods that the training rows span at least twice over, a year half."""
        days = _days(column)
        there = days[np.isfinite(days)]
        span = float(np.ptp(there)) if len(there) else 0.0
        timed = bool((there != np.round(there)).any())
        wanted = ((_DAY, timed), (_WEEK, span >= 2 * _WEEK), (_YEAR, span >= _YEAR / 2))
        periods = tuple(period for period, there in wanted if there)
        return cls(name, order, NumberFeature.fit(name, days), periods)

    @property
    def binary(self) -> list[bool]:
        """Which of its columns are zeros and ones."""
        return [*self.days.binary, *[False] * (2 * len(self.periods))]

    def __call__(self, column: np.ndarray) -> np.ndarray:
        """Days, whether they are missing, and a sine and cosine of every period."""
        days = self.days(_days(column))
        turns = [2 * np.pi * days[:, :1] / period for period in self.periods]
        waves = [wave(turn) for turn in turns for wave in (np.sin, np.cos)]
        return np.concatenate([days, *waves], axis=1)

    def read(self, table: Table) -> np.ndarray:
        """Its column in another file, with day and month as in training."""
        return feature(table, self.name, self.order)

    def notes(self, column: np.ndarray) -> list[str]:
        """How many dates are missing."""
        return self.days.notes(_days(column))


Feature = NumberFeature | CategoryFeature | DateFeature


def fitted_feature(name: str, column: np.ndarray, given: np.ndarray | None) -> Feature:
    """By what a column holds: numbers, dates, or words; `given` are a date's own words."""
    if column.dtype.kind == "f":
        return NumberFeature.fit(name, column)
    if column.dtype.kind == "M":
        order = DateOrder.of([str(v) for v in given]) if given is not None else DateOrder(False)
        return DateFeature.fit(name, column, order)
    return CategoryFeature.fit(name, column)


def joined(features: tuple[Feature, ...], columns: dict[str, np.ndarray]) -> np.ndarray:
    """All features side by side, (N, width)."""
    return np.concatenate([one(columns[one.name]) for one in features], axis=1)


def deviations(features: tuple[Feature, ...], std: np.ndarray) -> np.ndarray:
    """What columns are divided by: rare categories would outweigh everything by their own."""
    binary = np.array([flag for one in features for flag in one.binary], dtype=bool)
    return np.where(binary, np.maximum(std, _RAREST), std) if len(binary) else std


def _days(column: np.ndarray) -> np.ndarray:
    """Days since 1970, not a number where there is no date."""
    seconds = column.astype("datetime64[s]")
    days = seconds.astype(np.int64) / _SECONDS
    return np.where(np.isnat(seconds), np.nan, days)


def _missing(name: str, gone: int, rows: int) -> str:
    return f"{name!r} {gone:,} ({gone / rows:.1%})"
