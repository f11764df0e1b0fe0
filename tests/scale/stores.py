"""What the tests of stores share: a small network, its examples, and ways to spoil a store."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

import widelimit as wl
from widelimit.engine.tiles import Pairs

TILE = 8


def network(w_std: float = 1.3) -> wl.Layer:
    return wl.Serial(wl.Dense(8, w_std=w_std, b_std=0.2), wl.Relu(), wl.Dense(1))


def examples(count: int = 30, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 4))


def chunks(folder: Path, name: str = "nngp") -> list[Path]:
    """The files of the tiles, in order."""
    return sorted(p for p in (folder / name / "c").rglob("*") if p.is_file())


def corrupt(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


class Counter:
    """How many entries of tiles the engine has computed."""

    def __init__(self, monkeypatch):
        self.tiles = 0
        self.listeners: list[Callable[[], object]] = []
        real = Pairs.computed

        def computed(pairs, place):
            self.tiles += 1
            for listener in self.listeners:
                listener()
            return real(pairs, place)

        monkeypatch.setattr(Pairs, "computed", computed)
