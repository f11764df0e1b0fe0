"""Random keys as numbers: equal numbers for equal keys, without computing any."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from .steps import Step

if TYPE_CHECKING:
    pass


def _children() -> bool:
    """Whether `split(key, m)[i]` is `fold_in(key, i)`, whatever m: JAX's default since 0.5."""
    return bool(jax.config.jax_threefry_partitionable)  # pyright: ignore


class Keys:
    """Numbers for keys, by how they were derived."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def number(self, derivation: Any) -> int:
        """The number of a key."""
        return self._numbers.setdefault(derivation, len(self._numbers))

    def given(self, key: Any) -> np.ndarray:
        """Concrete keys."""
        data = np.asarray(jax.random.key_data(key))
        flat = data.reshape(-1, data.shape[-1])
        numbers = [self.number(("data", row.tobytes())) for row in flat]
        return np.array(numbers, np.int64).reshape(data.shape[:-1])

    def derive(self, step: Step, *arrays: np.ndarray) -> np.ndarray:
        """What a step on keys makes."""
        first = arrays[0]
        match step.name:
            case "random_split":
                shape = tuple(int(e) for e in step.params[0]["shape"])
                how = ("child",) if _children() else ("split", shape)
                found = [
                    self.number((int(parent), *how, k))
                    for parent in first.ravel()
                    for k in range(int(np.prod(shape, dtype=int)))
                ]
                return np.array(found, np.int64).reshape(*first.shape, *shape)
            case "random_fold_in":
                parents, data = np.broadcast_arrays(first, arrays[1])
                how = "child" if _children() else "fold"
                found = [
                    self.number((int(p), how, int(d)))
                    for p, d in zip(parents.ravel(), data.ravel(), strict=True)
                ]
                return np.array(found, np.int64).reshape(parents.shape)
            case "random_seed":
                found = [self.number(("seed", int(s))) for s in first.ravel()]
                return np.array(found, np.int64).reshape(first.shape)
            case "random_wrap":
                flat = first.reshape(-1, first.shape[-1])
                found = [self.number(("data", row.tobytes())) for row in flat]
                return np.array(found, np.int64).reshape(first.shape[:-1])
            case "random_unwrap":
                # The words of a key are its number, repeated: they only identify it.
                words = [int(e) for e in step.results[0].shape[first.ndim :]]  # pyright: ignore
                return np.broadcast_to(first[..., None], (*first.shape, *words))
            case _:
                return first
