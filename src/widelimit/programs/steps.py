"""The steps of a flat program: read off JAX's own programs, or written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp

from .extents import Extent, Wide
from .records import Record
from .refusals import Place, RefusedError

SAMPLERS = {"_uniform", "_normal", "_normal_real", "_truncated_normal", "_bernoulli"}
"""Calls of `jax.random` that stay whole: they are where parameters come from."""


def cells_of(shape: tuple[Extent, ...]) -> tuple[int, ...]:
    """A shape with 1 in place of the width axes."""
    return tuple(1 if isinstance(extent, Wide) else int(extent) for extent in shape)


@dataclass(frozen=True)
class Slot:
    """A value of the flat program: its number, extents, and NumPy dtype kind."""

    index: int
    shape: tuple[Extent, ...]
    dtype: Any

    @property
    def wide_axes(self) -> tuple[int, ...]:
        """The axes that grow with the width."""
        return tuple(i for i, extent in enumerate(self.shape) if isinstance(extent, Wide))

    @property
    def cells(self) -> tuple[int, ...]:
        """The shape with 1 in place of the width axes."""
        return cells_of(self.shape)

    @property
    def is_complex(self) -> bool:
        """Whether these are complex numbers; keys are none."""
        return bool(jnp.issubdtype(self.dtype, jnp.complexfloating))


@dataclass(frozen=True)
class Given:
    """A literal or captured array, at the three widths."""

    values: tuple[Any, ...]
    shape: tuple[Extent, ...]


Operand = Slot | Given


@dataclass(frozen=True)
class Step:
    """One equation: its primitive, and its parameters at the three widths."""

    name: str
    primitive: Any
    params: tuple[dict[str, Any], ...]
    operands: tuple[Operand, ...]
    results: tuple[Slot, ...]
    place: Place
    record: Record

    def refuse(self, rule: str, *, got: str | None = None, remedy: str) -> RefusedError:
        """An error that names this step's line."""
        return RefusedError(
            rule, place=self.place, got=got or f"the operation '{self.name}'", remedy=remedy
        )


@dataclass(frozen=True)
class FlatProgram:
    """Steps from inputs to outputs."""

    widths: tuple[int, ...]
    inputs: tuple[Slot, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Operand, ...]
