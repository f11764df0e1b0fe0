"""A network as a table: its layers, the shape after each, and how many parameters it draws."""

import html
import math
from dataclasses import dataclass
from typing import Any

import jax

from ..compilation import require_own_jax
from ..engine.inputs import outline_of
from ..errors import NetworkError
from ..layers.base import Layer
from ..layers.compose import Serial
from ..state import Outline


@dataclass(frozen=True)
class SummaryRow:
    """One layer: how it is written, the shape of one example after it, its parameters."""

    depth: int
    layer: str
    shape: tuple[Any, ...]
    parameters: int | None


@dataclass(frozen=True)
class Summary:
    """What `net.summary(shape)` shows; a notebook adds the diagram."""

    net: Layer
    shape: tuple[Any, ...]
    rows: tuple[SummaryRow, ...]

    @property
    def parameters(self) -> int | None:
        """All parameters of the finite network; None where it has infinitely many heads."""
        counts = [row.parameters for row in self.rows]
        return None if None in counts else sum(count for count in counts if count is not None)

    def _cells(self) -> list[tuple[str, str, str]]:
        cells = [("layer", "shape after it", "parameters"), ("input", _words(self.shape), "")]
        for row in self.rows:
            name = "  " * row.depth + row.layer
            cells.append((name, _words(row.shape), _count(row.parameters)))
        return [*cells, ("in all", "", _count(self.parameters))]

    def __str__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        return "\n".join(
            f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in cells
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        first, *rest = self._cells()
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in first)
        body = "".join(
            "<tr>"
            + "".join(f"<td>{html.escape(c).replace('  ', '&emsp;')}</td>" for c in row)
            + "</tr>"
            for row in rest
        )
        table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        return f"{self.net.diagram(self.shape)}{table}"


def summarise(net: Layer, shape: Any) -> Summary:
    """The layers one after another, for examples of this shape."""
    require_own_jax()
    before = outline_of(net, shape)
    net.outline(before)
    return Summary(net, tuple(shape), tuple(_rows(net, before, 0)))


def _rows(layer: Layer, before: Any, depth: int) -> list[SummaryRow]:
    if isinstance(layer, Serial):
        rows = []
        for part in layer.parts:
            rows += _rows(part, before, depth)
            before = part.outline(before)
        return rows
    after = layer.outline(before)
    if not layer.parts:
        return [SummaryRow(depth, repr(layer), _shape(after), _parameters(layer, before))]
    streams = before if isinstance(before, tuple) else (before,) * len(layer.parts)
    inner = [
        row
        for part, entering in zip(layer.parts, streams, strict=True)
        for row in _rows(part, entering, depth + 1)
    ]
    return [SummaryRow(depth, type(layer).__name__, _shape(after), 0), *inner]


def _parameters(layer: Layer, before: Any) -> int | None:
    """How many numbers the finite layer draws, without drawing them."""
    try:
        params = jax.eval_shape(lambda key: layer.init_params(key, before), jax.random.key(0))
    except NetworkError:
        return None
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params))


def _shape(outline: Any) -> tuple[Any, ...]:
    if isinstance(outline, Outline):
        return outline.shape
    return tuple(part.shape for part in outline)


def _words(shape: tuple[Any, ...]) -> str:
    if shape and isinstance(shape[0], tuple):
        return " and ".join(map(_words, shape))
    return " × ".join(map(str, shape))


def _count(number: int | None) -> str:
    return "∞" if number is None else f"{number:,}"
