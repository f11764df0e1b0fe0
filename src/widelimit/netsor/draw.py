"""A program as a picture: lines as boxes in columns, what they read as arrows."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import NetworkError
from ..figures import pyplot
from .layout import layered
from .listing import Line, folded_nodes, lines
from .nodes import Dot, Initial, MatMul, Node, Scalar

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .program import Program


@dataclass(frozen=True)
class _Style:
    face: str
    edge: str
    legend: str


_STYLES = {
    "input": _Style("#f2f2f2", "#555555", "input"),
    "matmul": _Style("#dbe9f6", "#2b6cb0", "MatMul: Gaussian"),
    "nonlin": _Style("#e3f4e1", "#2f855a", "Nonlin: coordinatewise"),
    "mixed": _Style("#fdebd0", "#b7791f", "vector that depends on scalars: a mixture"),
    "scalar": _Style("#fbdada", "#c53030", "scalar: dot product, or function of scalars"),
}
_FONT = 9.0
_GAP = 0.55  # inches between columns
_ROW = 0.46  # inches between rows
_PAD = 0.09  # inches between a caption and its frame


@dataclass(frozen=True, eq=False)
class _Box:
    style: str
    caption: str
    nodes: tuple[Node, ...]


def plot(program: Program, ax: Axes | None = None) -> Axes:
    """The program as a graph; see `Program.plot`."""
    pyplot()  # before the captions are measured
    boxes = _boxes(program)
    if not boxes:
        raise NetworkError(
            "Only a program with lines can be drawn.", got=repr(program), remedy="add inputs first"
        )
    reads = _reads(program, boxes)
    layout = layered(reads)
    half = np.array([_text_width(box.caption) / 2 + _PAD for box in boxes])
    wide = np.array([half[layout.column == c].max() + _PAD for c in range(layout.column.max() + 1)])
    total = float(np.sum(2 * wide + _GAP))
    rows_of_legend = 1 if total > 12 else 2
    # In inches: on axes of this size captions fill their boxes.
    width = max(total, 6.5)
    height = max(2 * layout.extent * _ROW, 0.5) + 1.2 + 0.25 * rows_of_legend
    if ax is None:
        ax = cast("Axes", pyplot().figure(figsize=(width, height)).add_axes((0.0, 0.0, 1.0, 1.0)))
    ax.set(xlim=(0, width), ylim=(0, height))
    ax.set_axis_off()
    lanes = np.cumsum(2 * wide + _GAP) - wide - _GAP / 2 + (width - total) / 2
    level = height - 0.85 - layout.extent * _ROW
    x, y = lanes[layout.column], level + layout.row * _ROW
    for target, sources in enumerate(reads):
        for source in sources:
            # The route is level inside columns and bends only in the gaps between them.
            rows = [layout.row[source], *layout.passes[source, target], layout.row[target]]
            first, last = layout.column[source], layout.column[target]
            route = [(x[source] + half[source], y[source])]
            for column, row in zip(range(first, last + 1), rows, strict=True):
                here = level + row * _ROW
                route += [
                    (lanes[column] - wide[column], here),
                    (lanes[column] + wide[column], here),
                ]
            route = [route[0], *route[2:-1], (x[target] - half[target], y[target])]
            _draw_arrow(ax, route, boxes[source].style == "scalar")
    for i, box in enumerate(boxes):
        output = any(node in program.outputs for node in box.nodes)
        _draw_box(ax, box, x[i], y[i], half[i], output)
    _draw_frame(ax, program, boxes, width, height)
    return ax


def _boxes(program: Program) -> list[_Box]:
    """One box per input and per listed line."""
    inputs = [node for node in program.nodes if isinstance(node, Initial)]
    return [_Box("input", node.label, (node,)) for node in inputs] + [
        _Box(_style(line), _caption(line), line.nodes) for line in lines(program)
    ]


def _reads(program: Program, boxes: list[_Box]) -> list[list[int]]:
    """For every box, the boxes it reads; folded arithmetic is looked through."""
    owner = {node: i for i, box in enumerate(boxes) for node in box.nodes}
    folded = folded_nodes(program)
    reads = []
    for box in boxes:
        stack = [operand for node in box.nodes for operand in node.operands]
        found: set[int] = set()
        while stack:
            operand = stack.pop()
            if operand in folded:
                stack.extend(operand.operands)
            else:
                found.add(owner[operand])
        reads.append(sorted(found))
    return reads


def _style(line: Line) -> str:
    node = line.nodes[0]
    if isinstance(node, Scalar):
        return "scalar"
    if isinstance(node, MatMul):
        return "matmul"
    return "mixed" if node.stage else "nonlin"


def _caption(line: Line) -> str:
    first, last = line.nodes[0], line.nodes[-1]
    names = first.label if first is last else f"{first.label} … {last.label}"
    if isinstance(first, Dot):
        return names
    if len(line.text) <= 30:
        return f"{names} = {line.text}"
    function = getattr(first, "function", None)
    return f"{names} = {function.name}(…)" if function else f"{names} = Σ …"


def _text_width(text: str) -> float:
    """Inches a caption takes, from the font's own metrics."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), text, size=_FONT).get_extents().width) / 72 if text else 0.0


def _draw_box(axes: Any, box: _Box, x: float, y: float, half: float, output: bool) -> None:
    from matplotlib.patches import FancyBboxPatch

    style = _STYLES[box.style]
    high = 0.13
    patch = FancyBboxPatch(
        (x - half, y - high),
        2 * half,
        2 * high,
        boxstyle="round,pad=0,rounding_size=0.06" if box.style != "scalar" else "square,pad=0",
        facecolor=style.face,
        edgecolor=style.edge,
        linewidth=2.2 if output else 1.0,
        zorder=3,
    )
    axes.add_patch(patch)
    axes.text(x, y, box.caption, ha="center", va="center_baseline", fontsize=_FONT, zorder=4)


def _draw_arrow(axes: Any, route: list[tuple[float, float]], scalar: bool) -> None:
    """A curve through the points of `route`, level at each of them."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    vertices, codes = [route[0]], [Path.MOVETO]
    for (x0, y0), (x1, y1) in pairwise(route):
        bend = (x0 + x1) / 2
        vertices += [(bend, y0), (bend, y1), (x1, y1)]
        codes += [Path.CURVE4] * 3
    arrow = FancyArrowPatch(
        path=Path(vertices, codes),
        arrowstyle="-|>",
        mutation_scale=8,
        color=_STYLES["scalar"].edge if scalar else "#8a8a8a",
        linewidth=0.8,
        linestyle="--" if scalar else "-",
        zorder=1,
    )
    axes.add_patch(arrow)


def _draw_frame(
    axes: Any, program: Program, boxes: list[_Box], width: float, height: float
) -> None:
    from matplotlib.patches import Patch

    axes.text(0.2, height - 0.3, program.name, fontsize=12, weight="bold", va="center")
    used = [style for name, style in _STYLES.items() if any(box.style == name for box in boxes)]
    handles = [Patch(facecolor=s.face, edgecolor=s.edge, label=s.legend) for s in used]
    axes.legend(
        handles=handles,
        loc="lower left",
        ncols=max(1, min(len(handles), int(width / 2.9))),
        frameon=False,
        fontsize=8,
    )
