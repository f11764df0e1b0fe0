"""Dates and times in the ways people write them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_TIME = r"(?:[ T](\d{1,2}):(\d{2})(?::(\d{2})(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?"
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})" + _TIME)
_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})" + _TIME)
_MONTHS = 12


@dataclass(frozen=True)
class DateOrder:
    """Whether the day stands before the month where the year comes last; `sure` if it must."""

    day_first: bool
    sure: bool = True

    @classmethod
    def of(cls, values: Sequence[str]) -> "DateOrder":
        """From numbers that are no months; with points, days come first, with slashes months."""
        found = [m for value in values if (m := _YEAR_LAST.fullmatch(value.strip()))]
        first, second = (max((int(m[i]) for m in found), default=0) for i in (1, 3))
        if first > _MONTHS or second > _MONTHS:
            return cls(first > _MONTHS)
        points = any(m[2] == "." for m in found)
        return cls(points, points or not found)


def parsed(values: Sequence[str], order: DateOrder) -> np.ndarray:
    """`datetime64[s]`, not a time (`NaT`) where a value is no date. Time zones are left aside."""
    return np.array([_parsed(value.strip(), order) for value in values], dtype="datetime64[s]")


def _parsed(value: str, order: DateOrder) -> np.datetime64:
    if match := _YEAR_FIRST.fullmatch(value):
        year, _, month, day, *time = match.groups()
    elif match := _YEAR_LAST.fullmatch(value):
        day, _, month, year, *time = match.groups()
        day, month = (day, month) if order.day_first else (month, day)
    else:
        return np.datetime64("NaT")
    hour, minute, second = (part or "0" for part in time)
    try:
        clock = f"{int(hour):02}:{minute:0>2}:{second:0>2}"
        return np.datetime64(f"{year}-{int(month):02}-{int(day):02}T{clock}", "s")
    except ValueError:  # the thirtieth of February
        return np.datetime64("NaT")
