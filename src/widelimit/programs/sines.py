"""Tables of sines and cosines that were made with NumPy, as functions of a channel's place.

Row p of such a table holds `sin(ω p)` and `cos(ω p)`, with frequencies `ω = c·r^k` along the
channels: side by side in halves, or every other channel. In the limit ω is `c·e^{bu}` of a place u
that is uniform between 0 and 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

_TOLERANCE = 1e-5  # of numbers that went through single precision
_SEEN = 1e-2  # smaller frequencies are not read off single precision, only checked


@dataclass(frozen=True)
class SineTable:
    """One wave for each of the `major`·`minor` blocks of channels."""

    major: int
    minor: int
    waves: tuple[Wave, ...]


@dataclass(frozen=True)
class Wave:
    """`sin(row · start · exp(rate·u) + phase)` at places u between 0 and 1."""

    phase: float
    start: float
    rate: float


def sine_table(tables: list[np.ndarray]) -> SineTable | None:
    """The waves of a table (rows, channels), given at several widths; None if it is another one."""
    rows, _ = tables[0].shape
    if rows < 2 or any(table.shape[1] % 2 for table in tables):
        return None
    for major, minor in ((2, 1), (1, 2)):
        halves = [
            [t[:, k::2] if minor == 2 else np.split(t, 2, axis=1)[k] for t in tables]
            for k in range(2)
        ]
        waves = [_wave(half) for half in halves]
        if all(wave is not None for wave in waves):
            return SineTable(major, minor, tuple(wave for wave in waves if wave is not None))
    return None


def _wave(tables: list[np.ndarray]) -> Wave | None:
    """The wave of one block, if its channels are one at every width."""
    for phase in (0.0, np.pi / 2):
        fits = [_fit(table, phase) for table in tables]
        if any(fit is None for fit in fits):
            continue
        starts, rates = np.array(fits, float).T
        channels = np.array([table.shape[1] for table in tables])
        if not np.allclose(starts, starts[0], rtol=1e-3):
            continue
        for count in (channels, channels - 1):  # 10000^(−k/m), or the last one at its end
            if np.allclose(rates * count, rates[0] * count[0], rtol=1e-3):
                return Wave(phase, float(starts[-1]), float(rates[-1] * count[-1]))
    return None


def _fit(table: np.ndarray, phase: float) -> tuple[float, float] | None:
    """Start and rate of `sin(row · start · exp(rate·k) + phase)` in channel k."""
    rows, channels = table.shape
    with np.errstate(invalid="ignore"):
        frequencies = (np.arccos if phase else np.arcsin)(np.clip(table[1], -1, 1))
    seen = frequencies > _SEEN
    if seen.sum() < 2:
        return None
    rate, start = np.polyfit(np.flatnonzero(seen), np.log(frequencies[seen]), 1)
    angles = np.arange(rows)[:, None] * np.exp(start + rate * np.arange(channels))
    wrong = np.abs(table - np.sin(angles + phase)).max()
    return None if wrong > _TOLERANCE * max(1, rows) else (math.exp(start), float(rate))
