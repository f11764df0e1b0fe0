"""A network as boxes from top to bottom, branches side by side: one piece of HTML for every page.

Notebooks show it too, so that it carries its styles itself and needs no template.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

from ...engine.inputs import outline_of
from ...layers.base import Layer
from ...layers.branches import Residual
from ...layers.compose import Parallel, Serial
from .labels import Family, label

_COLOURS = {
    Family.WEIGHTS: ("#e3edf6", "#24527a"),
    Family.ACTIVATION: ("#fdebd0", "#a05a00"),
    Family.ATTENTION: ("#f9dfdc", "#a93226"),
    Family.NORM: ("#e8e6f3", "#5b4a99"),
    Family.POOL: ("#dff2ea", "#1e7a55"),
    Family.OTHER: ("#f3f5f7", "#6b7a88"),
}
_SOFT = "color:#4a5a6a;font-size:12px"
_CHAIN = "display:flex;flex-direction:column;align-items:center"
_FRAME = f"{_CHAIN};border:1.5px dashed #8a97a5;border-radius:9px;padding:8px 10px"
_ROW = "display:flex;gap:14px;align-items:stretch"
_ARROW = '<div style="color:#8a97a5;line-height:1.1;font-size:15px">↓</div>'


def diagram(net: Layer, shape: Sequence[int] | None, *, title: str = "the network") -> str:
    """The network as one HTML element; with a `shape`, its input's and output's are said.

    `shape` is that of one example, (positions…, channels), or positions of tokens.
    """
    before = None if shape is None else outline_of(net, tuple(shape))
    start = _box("input", "" if before is None else _shape(before), Family.OTHER)
    end = _box("output", "" if before is None else _shape(net.outline(before)), Family.OTHER)
    return (
        f'<div class="network" role="img" aria-label="{html.escape(title, quote=True)}" '
        f'style="{_CHAIN};width:max-content;font:14px/1.35 system-ui,sans-serif">'
        f"{_ARROW.join([start, *_chain(net), end])}</div>"
    )


def _chain(layer: Layer) -> list[str]:
    """What stands below each other: the parts of a chain, and everything else by itself."""
    if isinstance(layer, Serial) and layer.parts:
        return [box for part in layer.parts for box in _chain(part)]
    if isinstance(layer, Residual):
        inside = _ARROW.join(_chain(layer.parts[-1]))
        return [_element(_FRAME, f"{inside}{_note(label(layer).title)}")]
    if not layer.parts:
        return [_box(*label(layer))]
    streams = isinstance(layer, Parallel)
    columns = [
        _element(_CHAIN, (_note(f"stream {i}") if streams else "") + _ARROW.join(_chain(part)))
        for i, part in enumerate(layer.parts, start=1)
    ]
    below = "" if streams else _note(label(layer).title)
    return [_element(_FRAME, _element(_ROW, "".join(columns)) + below)]


def _shape(outline: Any) -> str:
    if isinstance(outline, tuple):
        return " and ".join(_shape(part) for part in outline)
    positions = "×".join(map(str, outline.positions))
    count = math.prod(outline.positions)
    if not outline.positions:
        return f"{outline.channels} channels" if outline.channels > 1 else "one number"
    tail = f" × {outline.channels} channels" if outline.channels else " tokens"
    return f"{positions}{' positions' if count and outline.channels == 0 else ''}{tail}"


def _box(name: str, details: str, family: Family) -> str:
    fill, colour = _COLOURS[family]
    style = (
        f"background:{fill};border:1px solid {colour}59;border-radius:7px;padding:5px 12px;"
        "min-width:7.5rem;text-align:center"
    )
    small = _note(details) if details else ""
    return _element(style, f'<b style="color:{colour}">{html.escape(name)}</b>{small}')


def _note(text: str) -> str:
    return _element(_SOFT, html.escape(text))


def _element(style: str, inside: str) -> str:
    return f'<div style="{style}">{inside}</div>'
