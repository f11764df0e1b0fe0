"""Bounds on what a file may ask for: a stranger's file must not take the machine's memory.

Each is checked before the memory is taken. `WIDELIMIT_ALLOW="bytes=8GB,columns=200000"` in the
environment raises some for a file that one trusts.
"""

import os
import re

from .errors import DataError

ENVIRONMENT = "WIDELIMIT_ALLOW"

LIMITS = {
    "bytes": (2 * 1024**3, "bytes of one file when it is unpacked"),
    "line": (16 * 1024**2, "bytes of one line of a text file"),
    "rows": (5_000_000, "rows, examples or words of one file"),
    "columns": (20_000, "columns of a table"),
    "cells": (20_000_000, "values of a table"),
    "pixels": (50_000_000, "pixels of one image"),
    "positions": (4096, "positions (pixels, words) of one example that look at one another"),
}
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_VALUE = re.compile(r"(\d{1,15})\s*([kmgt]?)b?", re.IGNORECASE)


def limit(name: str) -> int:
    """The bound called `name`, as it is or as the user has raised it."""
    return allowed(os.environ.get(ENVIRONMENT, "")).get(name, LIMITS[name][0])


def require(name: str, wanted: int, what: str) -> None:
    """Raise if `what` needs more than the bound called `name`."""
    most = limit(name)
    if wanted > most:
        raise DataError(
            f"At most {most:,} {LIMITS[name][1]} are taken, unless you allow more.",
            got=f"{what}: {wanted:,}",
            remedy=f"if you trust the file, set the environment variable "
            f"{ENVIRONMENT}={name}={wanted}",
        )


def allowed(text: str) -> dict[str, int]:
    """Bounds from a text such as `bytes=8GB,columns=200000`."""
    found = {}
    for part in filter(None, map(str.strip, text.split(","))):
        name, _, value = part.partition("=")
        number = _VALUE.fullmatch(value.strip())
        if name not in LIMITS or number is None:
            raise DataError(
                f"{ENVIRONMENT} raises no limit with {part!r}.",
                got=f"'{text}'",
                remedy="write for instance bytes=8GB or columns=100000; limits are called "
                f"{', '.join(LIMITS)}",
            )
        found[name] = int(number[1]) * _UNITS[number[2].lower()]
    return found
