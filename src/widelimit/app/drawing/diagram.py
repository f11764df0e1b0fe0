"""A network as boxes from top to bottom, branches side by side: one piece of HTML for every page.

Notebooks show it too, so that it carries its styles itself and needs no template.
"""

import html
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...engine.inputs import outline_of
from ...layers.activations import Activation
from ...layers.attention.heads import INFINITE
from ...layers.attention.multihead import MultiHead
from ...layers.attention.scores import Scaling
from ...layers.base import Layer
from ...layers.branches import Branches, Concat, Product, Residual
from ...layers.compose import Parallel, Serial
from ...layers.conv import Convolution
from ...layers.dense import Dense, Embedding
from ...layers.norm import Dropout, LayerNorm, RMSNorm
from ...layers.pool import Flatten, MeanPool, PositionMap, SumPool
from ...layers.streams import AddStreams
from ...layers.tokens import TrainedVectors
from ...printing import written

_GREY = ("#f3f5f7", "#6b7a88")
_COLOURS: dict[type, tuple[str, str]] = {
    **dict.fromkeys((Dense, Embedding, Convolution, TrainedVectors), ("#e3edf6", "#24527a")),
    Activation: ("#fdebd0", "#a05a00"),
    MultiHead: ("#f9dfdc", "#a93226"),
    **dict.fromkeys((LayerNorm, RMSNorm, Dropout), ("#e8e6f3", "#5b4a99")),
    **dict.fromkeys((PositionMap, Flatten, MeanPool, SumPool), ("#dff2ea", "#1e7a55")),
    Layer: _GREY,
}
"""Fill and text by class."""
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
    start = _box("input", "" if before is None else _shape(before))
    end = _box("output", "" if before is None else _shape(net.outline(before)))
    return (
        f'<div class="network" role="img" aria-label="{html.escape(title, quote=True)}" '
        f'style="{_CHAIN};width:max-content;font:14px/1.35 system-ui,sans-serif">'
        f"{_ARROW.join([start, *_chain(net), end])}</div>"
    )


def _chain(layer: Layer) -> list[str]:
    """What stands below each other: the parts of a chain, and everything else by itself."""
    if isinstance(layer, Serial):
        return [box for part in layer.parts for box in _chain(part)] or [_box("identity", "")]
    if isinstance(layer, Residual):
        inside = _ARROW.join(_chain(layer.parts[-1]))
        return [_element(_FRAME, f"{inside}{_note(_sum(layer))}")]
    if not layer.parts:
        colours = next(_COLOURS[kind] for kind in type(layer).__mro__ if kind in _COLOURS)
        return [_box(*_words(layer), colours)]
    streams = isinstance(layer, Parallel)
    columns = [
        _element(_CHAIN, (_note(f"stream {i}") if streams else "") + _ARROW.join(_chain(part)))
        for i, part in enumerate(layer.parts, start=1)
    ]
    joined = {Concat: "concat", Product: "×", Branches: "+"}
    word = next((word for kind, word in joined.items() if isinstance(layer, kind)), "")
    below = "" if streams else _note(word or type(layer).__name__)
    return [_element(_FRAME, _element(_ROW, "".join(columns)) + below)]


def _words(layer: Layer) -> tuple[str, str]:
    """A title and details: what the layer prints, less its width, which is infinite."""
    if isinstance(layer, AddStreams):
        return "streams added", " + ".join(f"{share:.2g}" for share in np.asarray(layer.shares))
    if isinstance(layer, MultiHead):
        return type(layer).__name__, _attention(layer)
    if isinstance(layer, MeanPool | SumPool) and layer.window is None:
        return type(layer).__name__, "over all positions"
    if isinstance(layer, Activation):
        return layer.dual.name, ""
    name = type(layer).__name__
    return name, written(layer, hidden=("width",))[len(name) + 1 : -1]


def _attention(layer: MultiHead) -> str:
    count = "∞" if layer.heads == INFINITE else str(int(layer.heads))
    scales = {Scaling.SQRT: "1/√d", Scaling.LINEAR: "1/d", Scaling.UNTIED: "1/d untied"}
    parts = [f"{count} head{'' if layer.heads == 1 else 's'}", scales[layer.scaling]]
    parts.append(type(layer.score_map).__name__.lower())
    if layer.positions.encoding is not None:
        parts.append(type(layer.positions.encoding).__name__.lower())
    if layer.positions.rotary is not None:
        parts.append("rotary")
    if layer.positions.projections.qk_norm:
        parts.append("qk norm")
    return ", ".join(parts)


def _sum(layer: Residual) -> str:
    if layer.weight is None:
        return "x + g(x)"
    alpha = float(np.asarray(layer.weight))
    return f"√{alpha:.3g} x + √{1 - alpha:.3g} g(x)"


def _shape(outline: Any) -> str:
    if isinstance(outline, tuple):
        return " and ".join(_shape(part) for part in outline)
    positions = "×".join(map(str, outline.positions))
    count = math.prod(outline.positions)
    if not outline.positions:
        return f"{outline.channels} channels" if outline.channels > 1 else "one number"
    tail = f" × {outline.channels} channels" if outline.channels else " tokens"
    return f"{positions}{' positions' if count and outline.channels == 0 else ''}{tail}"


def _box(name: str, details: str, colours: tuple[str, str] = _GREY) -> str:
    fill, colour = colours
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
