"""A network as an SVG diagram: boxes from top to bottom, branches side by side, skips around.

Every part of a drawing is a `Sketch`: SVG elements around a vertical line at `axis`, which
enters at the top and leaves at the bottom. Larger sketches are put together from smaller ones.
"""

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from ...engine.door import outline_of
from ...layers.base import Layer
from ...layers.labels import Arrangement, Family
from ...layers.readings import reading

_BOX_HEIGHT, _GAP, _CHARACTER, _MARGIN = 40, 24, 7.0, 16
_NARROWEST = 132
_ARC = 26  # how far a skip connection stands out
_COLOURS = {
    Family.WEIGHTS: ("#e3edf6", "#24527a"),
    Family.ACTIVATION: ("#fdebd0", "#a05a00"),
    Family.ATTENTION: ("#f9dfdc", "#a93226"),
    Family.NORM: ("#e8e6f3", "#5b4a99"),
    Family.POOL: ("#dff2ea", "#1e7a55"),
    Family.OTHER: ("#f3f5f7", "#6b7a88"),
}
_STYLE = "font-family:system-ui,sans-serif;max-width:100%;height:auto;display:block;margin:auto"


class Sketch(NamedTuple):
    """A part of a drawing, its size, and where the signal runs through it."""

    elements: str
    width: float
    height: float
    axis: float
    bare: bool = False
    """Whether it begins with a line, so that no arrow need point at it."""


@reading
def diagram(net: Layer, shape: Sequence[int] | None, *, title: str = "the network") -> str:
    """The network as one `<svg>` element; with a `shape`, its input's and output's are said.

    `shape` is that of one example, (positions…, channels), or positions of tokens.
    """
    before = None if shape is None else outline_of(net, tuple(shape))
    start = _box("input", "" if before is None else _shape(before), Family.OTHER)
    body = _layer(net)
    end = _box("output", "" if before is None else _shape(net.outline(before)), Family.OTHER)
    whole = _stacked([start, body, end])
    width, height = whole.width + 2 * _MARGIN, whole.height + 2 * _MARGIN
    label = html.escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="{_STYLE}"><title>{label}</title>{_placed(whole, _MARGIN, _MARGIN)}</svg>'
    )


# --- layers -----------------------------------------------------------------------------------


def _layer(layer: Layer) -> Sketch:
    if layer.arrangement is Arrangement.CHAIN and layer.parts:
        return _stacked([_layer(part) for part in layer.parts])
    if layer.arrangement is Arrangement.SKIP:
        return _around(_layer(layer.parts[-1]), layer.label.title)
    if layer.arrangement in (Arrangement.BRANCHES, Arrangement.STREAMS):
        return _side_by_side(layer)
    return _box(*layer.label)


def _around(inner: Sketch, text: str) -> Sketch:
    """A branch, with a line around it that joins at a circle."""
    top, join = _GAP, 22.0
    height = top + inner.height + _GAP + join
    left = _ARC + 8.0
    axis = left + inner.axis
    middle = height - join / 2
    body = _placed(inner, left, top)
    begin = _line(axis, 0, axis, top) if inner.bare else _arrow(axis, 0, top - 2)
    lines = begin + _arrow(axis, top + inner.height, middle - 9)
    skip = (
        f'<path d="M{axis:.1f} {top / 2:.1f} H{left - _ARC + 6:.1f} V{middle:.1f} '
        f'H{axis - 10:.1f}" fill="none" stroke="#8a97a5" stroke-width="1.5" '
        f'stroke-dasharray="5 3"/>'
    )
    circle = (
        f'<circle cx="{axis:.1f}" cy="{middle:.1f}" r="9" fill="#fff" stroke="#8a97a5" '
        f'stroke-width="1.5"/><path d="M{axis - 5:.1f} {middle:.1f} H{axis + 5:.1f} '
        f'M{axis:.1f} {middle - 5:.1f} V{middle + 5:.1f}" stroke="#4a5a6a" stroke-width="1.5"/>'
    )
    note = _text(axis + 16, middle + 4, text, size=11, anchor="start", colour="#4a5a6a")
    width = max(left + inner.width, axis + 16 + len(text) * 6.2)
    return Sketch(body + lines + skip + circle + note, width, height, axis, bare=True)


def _side_by_side(layer: Layer) -> Sketch:
    """Branches in columns, joined by what merges them; streams go on to the next layer together."""
    columns = [_layer(branch) for branch in layer.parts]
    streams = layer.arrangement is Arrangement.STREAMS
    tallest = max(column.height for column in columns)
    width = sum(column.width for column in columns) + _MARGIN * (len(columns) - 1)
    axis, elements, left = width / 2, "", 0.0
    fork, top = _GAP / 2, _GAP + 14.0 if streams else _GAP
    join = top + tallest + _GAP / 2
    for number, column in enumerate(columns, start=1):
        place = left + column.axis
        elements += _placed(column, left, top)
        elements += _line(place, fork, place, top) if column.bare else _arrow(place, fork, top - 2)
        elements += _line(place, top + column.height, place, join)
        if streams:
            name = f"stream {number}"
            elements += _text(place + 7, fork + 15, name, size=11, anchor="start", colour="#4a5a6a")
        left += column.width + _MARGIN
    first, last = columns[0].axis, width - columns[-1].width + columns[-1].axis
    elements += _line(axis, 0, axis, fork) + _line(first, fork, last, fork)
    elements += _line(first, join, last, join)
    if streams:
        return Sketch(elements, width, join, axis, bare=True)
    elements += _arrow(axis, join, join + _GAP / 2 + 4)
    elements += _text(axis, join + _GAP / 2 + 16, layer.label.title, size=13)
    return Sketch(elements, width, join + _GAP / 2 + 20, axis, bare=True)


def _shape(outline: Any) -> str:
    if isinstance(outline, tuple):
        return " and ".join(_shape(part) for part in outline)
    positions = "×".join(map(str, outline.positions))
    count = math.prod(outline.positions)
    if not outline.positions:
        return f"{outline.channels} channels" if outline.channels > 1 else "one number"
    tail = f" × {outline.channels} channels" if outline.channels else " tokens"
    return f"{positions}{' positions' if count and outline.channels == 0 else ''}{tail}"


# --- strokes ----------------------------------------------------------------------------------


def _box(name: str, details: str, kind: Family) -> Sketch:
    fill, colour = _COLOURS[kind]
    width = max(_NARROWEST, _CHARACTER * max(len(name), 0.9 * len(details)) + 20)
    middle = width / 2
    rect = (
        f'<rect width="{width:.1f}" height="{_BOX_HEIGHT}" rx="7" fill="{fill}" '
        f'stroke="{colour}" stroke-opacity=".35"/>'
    )
    if not details:
        return Sketch(
            rect + _text(middle, 25, name, size=14, colour=colour, bold=True),
            width,
            _BOX_HEIGHT,
            middle,
        )
    lines = _text(middle, 17, name, size=14, colour=colour, bold=True)
    lines += _text(middle, 32, details, size=11, colour="#4a5a6a")
    return Sketch(rect + lines, width, _BOX_HEIGHT, middle)


def _stacked(parts: Sequence[Sketch]) -> Sketch:
    """One below the other on a common axis, with arrows between."""
    axis = max(part.axis for part in parts)
    right = max(part.width - part.axis for part in parts)
    elements, y = "", 0.0
    for index, part in enumerate(parts):
        elements += _placed(part, axis - part.axis, y)
        y += part.height
        if index + 1 < len(parts):
            below = parts[index + 1]
            stroke = _line(axis, y, axis, y + _GAP) if below.bare else _arrow(axis, y, y + _GAP - 2)
            elements += stroke
            y += _GAP
    return Sketch(elements, axis + right, y, axis, bare=parts[0].bare)


def _placed(sketch: Sketch, x: float, y: float) -> str:
    return f'<g transform="translate({x:.1f} {y:.1f})">{sketch.elements}</g>'


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" '
        'stroke="#8a97a5" stroke-width="1.5"/>'
    )


def _arrow(x: float, y1: float, y2: float) -> str:
    tip = f"M{x - 4:.1f} {y2 - 6:.1f} L{x:.1f} {y2:.1f} L{x + 4:.1f} {y2 - 6:.1f}"
    head = f'<path d="{tip}" fill="none" stroke="#8a97a5" stroke-width="1.5"/>'
    return _line(x, y1, x, y2) + head


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    colour: str = "#1c2733",
    anchor: str = "middle",
    bold: bool = False,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{html.escape(text)}</text>'
    )
