"""Random keys as numbers: equal numbers for equal keys, without computing any."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from .steps import Step


def _children() -> bool:
    """Whether `split(key, m)[i]` is `fold_in(key, i)`, whatever m: JAX's default since 0.5."""
    return bool(jax.config.jax_threefry_partitionable)  # pyright: ignore


class Keys:
    """Numbers for keys, by how they were derived; a method for every primitive that derives."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}

    def _numbers(self, derivations: Iterable[Any], *shape: int) -> np.ndarray:
        found = [self._known.setdefault(how, len(self._known)) for how in derivations]
        return np.array(found, np.int64).reshape(shape)

    def given(self, key: Any) -> np.ndarray:
        """Concrete keys."""
        return self.wrap(None, np.asarray(jax.random.key_data(key)))

    def wrap(self, step: Step | None, data: np.ndarray) -> np.ndarray:
        """Words."""
        rows = data.reshape(-1, data.shape[-1])
        return self._numbers((("data", row.tobytes()) for row in rows), *data.shape[:-1])

    def unwrap(self, step: Step, keys: np.ndarray) -> np.ndarray:
        """The words of a key are its number, repeated: they only identify it."""
        words = [int(e) for e in step.results[0].shape[keys.ndim :]]  # pyright: ignore
        return np.broadcast_to(keys[..., None], (*keys.shape, *words))

    def seed(self, step: Step, seeds: np.ndarray) -> np.ndarray:
        """Keys of seeds."""
        return self._numbers((("seed", int(s)) for s in seeds.ravel()), *seeds.shape)

    def split(self, step: Step, keys: np.ndarray) -> np.ndarray:
        """Keys of keys."""
        shape = tuple(int(e) for e in step.params[0]["shape"])
        how = ("child",) if _children() else ("split", shape)
        found = ((int(p), *how, k) for p in keys.ravel() for k in range(math.prod(shape)))
        return self._numbers(found, *keys.shape, *shape)

    def fold_in(self, step: Step, keys: np.ndarray, data: np.ndarray) -> np.ndarray:
        """Keys of keys and numbers."""
        keys, data = np.broadcast_arrays(keys, data)
        how = "child" if _children() else "fold"
        pairs = zip(keys.ravel(), data.ravel(), strict=True)
        return self._numbers(((int(p), how, int(d)) for p, d in pairs), *keys.shape)
