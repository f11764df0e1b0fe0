"""A network as an SVG diagram: boxes from top to bottom, branches side by side, skips around.

Every part of a drawing is a `Sketch`: SVG elements around a vertical line at `axis`, which
enters at the top and leaves at the bottom. Larger sketches are put together from smaller ones.
"""

import html
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...duals.rectified import Rectifier
from ...engine.door import outline_of
from ...layers.activations import Activation
from ...layers.attention.heads import INFINITE
from ...layers.attention.layer import Attention
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Branches, Concat, Product, Residual
from ...layers.compose import Parallel, Serial
from ...layers.conv import Conv
from ...layers.dense import Dense, Embedding
from ...layers.norm import Dropout, LayerNorm
from ...layers.pool import Flatten, MeanPool, Select, SumPool
from ...state import Outline

_BOX_HEIGHT, _GAP, _CHARACTER, _MARGIN = 40, 24, 7.0, 16
_NARROWEST = 132
_ARC = 26  # how far a skip connection stands out
_COLOURS = {
    "weights": ("#e3edf6", "#24527a"),
    "activation": ("#fdebd0", "#a05a00"),
    "attention": ("#f9dfdc", "#a93226"),
    "norm": ("#e8e6f3", "#5b4a99"),
    "pool": ("#dff2ea", "#1e7a55"),
    "end": ("#f3f5f7", "#6b7a88"),
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


def network_svg(net: Layer, shape: Sequence[int], *, title: str = "the network") -> str:
    """The network as one `<svg>` element, with the shape of one example after every layer.

    `shape` is that of one example, (positions…, channels), or positions of tokens.
    """
    before = outline_of(net, tuple(shape))
    start = _box("input", _shape(before), "end")
    body = _layer(net, before)
    end = _box("output", _shape(net.outline(before)), "end")
    whole = _stacked([start, body, end])
    width, height = whole.width + 2 * _MARGIN, whole.height + 2 * _MARGIN
    label = html.escape(title, quote=True)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{label}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'style="{_STYLE}"><title>{label}</title>{_placed(whole, _MARGIN, _MARGIN)}</svg>'
    )


# --- layers -----------------------------------------------------------------------------------


def _layer(layer: Layer, before: Outline) -> Sketch:
    if isinstance(layer, Serial):
        return _chain(layer, before)
    if isinstance(layer, Residual):
        return _skip(layer, before)
    if isinstance(layer, Branches):
        return _side_by_side(layer, before)
    if isinstance(layer, Parallel):
        return _box("streams", f"{len(layer.networks)} networks, one for each", "weights")
    return _box(*_words(layer))


def _chain(layer: Serial, before: Any) -> Sketch:
    parts = []
    for inner in layer.layers:
        parts.append(_layer(inner, before))
        before = inner.outline(before)
    return _stacked(parts) if parts else _box("identity", "", "end")


def _skip(layer: Residual, before: Outline) -> Sketch:
    """The branch, with a line around it that joins at a circle."""
    inner = _layer(layer.branches[-1], before)
    return _around(inner, _weight_text(layer))


def _weight_text(layer: Residual) -> str:
    weight = layer.weight
    if weight is None:
        return "x + g(x)"
    alpha = float(np.asarray(weight))
    return f"√{alpha:.3g} x + √{1 - alpha:.3g} g(x)"


def _around(inner: Sketch, text: str) -> Sketch:
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


def _side_by_side(layer: Branches, before: Outline) -> Sketch:
    """Branches in columns, joined by what merges them."""
    columns = [_layer(branch, before) for branch in layer.branches]
    tallest = max(column.height for column in columns)
    width = sum(column.width for column in columns) + _MARGIN * (len(columns) - 1)
    axis, elements, left = width / 2, "", 0.0
    top, bottom = _GAP, _GAP + tallest
    for column in columns:
        place = left + column.axis
        elements += _placed(column, left, top)
        elements += (
            _line(place, top / 2, place, top) if column.bare else _arrow(place, top / 2, top - 2)
        )
        elements += _line(place, top + column.height, place, bottom + _GAP / 2)
        left += column.width + _MARGIN
    first, last = columns[0].axis, width - columns[-1].width + columns[-1].axis
    elements += _line(axis, 0, axis, top / 2) + _line(first, top / 2, last, top / 2)
    elements += _line(first, bottom + _GAP / 2, last, bottom + _GAP / 2)
    sign = {Product: "×", Concat: "concat"}.get(type(layer), "+")
    elements += _arrow(axis, bottom + _GAP / 2, bottom + _GAP + 4)
    elements += _text(axis, bottom + _GAP + 16, sign, size=13)
    return Sketch(elements, width, bottom + _GAP + 20, axis, bare=True)


def _words(layer: Layer) -> tuple[str, str, str]:
    """What stands in the box of a layer: name, details, colour."""
    name = type(layer).__name__
    if isinstance(layer, Attention):
        count = "∞" if layer.heads == INFINITE else str(int(layer.heads))
        heads = f"{count} head{'' if layer.heads == 1 else 's'}"
        scale = "1/d" if layer.scaling is Scaling.LINEAR else "1/√d"
        parts = [heads, scale, type(layer.score_map).__name__.lower()]
        if layer.positions.encoding is not None:
            parts.append(type(layer.positions.encoding).__name__.lower())
        if layer.positions.rotary is not None:
            parts.append("rotary")
        return name, ", ".join(parts), "attention"
    if isinstance(layer, Conv):
        window = layer.window if isinstance(layer.window, int) else "×".join(map(str, layer.window))
        return "Conv", f"window {window}, {_deviations(layer)}", "weights"
    if isinstance(layer, Dense):
        return "Dense", _deviations(layer), "weights"
    if isinstance(layer, Embedding):
        return "Embedding", f"{layer.vocabulary:,} words", "weights"
    if isinstance(layer, Activation):
        return _activation(layer), "", "activation"
    if isinstance(layer, LayerNorm | Dropout):
        return name, "", "norm"
    if isinstance(layer, MeanPool | SumPool):
        window = "" if layer.window is None else f"window {layer.window}"
        return name, window or "over all positions", "pool"
    if isinstance(layer, Select | Flatten):
        return name, "", "pool"
    return name, "", "attention" if "Attention" in name else "weights"


def _activation(layer: Activation) -> str:
    """The name of the function; rectifiers are told apart by their slopes."""
    dual = layer.dual
    if not isinstance(dual, Rectifier):
        return type(dual).__name__
    negative, positive = (float(np.asarray(slope)) for slope in (dual.negative, dual.positive))
    known = {(0.0, 1.0): "ReLU", (-1.0, 1.0): "Abs"}
    return known.get((negative, positive), f"ReLU, slopes {negative:.3g} and {positive:.3g}")


def _deviations(layer: Dense | Conv) -> str:
    w_std = float(np.mean(np.asarray(layer.weights.w_std)))
    b_std = float(np.mean(np.asarray(layer.weights.b_std)))
    return f"σ_w {w_std:.3g}" + (f", σ_b {b_std:.3g}" if b_std else "")


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


def _box(name: str, details: str, kind: str) -> Sketch:
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
