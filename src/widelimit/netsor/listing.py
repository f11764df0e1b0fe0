"""A program as text: the lines a reader wants to see, with passing arithmetic folded in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..programs.listing import listed
from .nodes import Node, Scalar, Vector

if TYPE_CHECKING:
    from .program import Program

Text = Callable[..., str]
"""`text(part, *wrapped)`: a part of a formula, in parentheses if it is one of these operations."""
ARITHMETIC = ("add", "mul")


def expression(node: Node, *, folded: frozenset[Node] = frozenset()) -> str:
    """The right-hand side of a line; operands in `folded` are written out in place."""

    def text(part: Any, *wrapped: str) -> str:
        if not isinstance(part, Node):
            return f"{part:.4g}"
        if part not in folded:
            return part.label
        inside = _formula(part, text)
        return f"({inside})" if part.name in wrapped else inside

    return _formula(node, text)


def _formula(node: Node, text: Text) -> str:
    parts: tuple[Any, ...] = node.parts
    match node.name:
        case "initial":
            return node.params["group"].text
        case "dot_general":
            return f"{parts[0].label} @ {text(parts[1], *ARITHMETIC)}"
        case "dot":
            left, right = (text(part, *ARITHMETIC) for part in parts)
            return f"n^(-1/2) {left}ᵀ {right}"
        case "mul":
            texts = [text(part, "add") for part in parts]
            return "-" + "·".join(texts[1:]) if parts[0] == -1.0 else "·".join(texts)
        case "add":
            first, *rest = map(text, parts)
            return first + "".join(f" - {t[1:]}" if t[0] == "-" else f" + {t}" for t in rest)
    kinds = ([p for p in parts if isinstance(p, kind)] for kind in (Vector, Scalar))
    inside = "; ".join(", ".join(map(text, kind)) for kind in kinds if kind)
    component = f"[{node.params['component']}]" if "component" in node.params else ""
    return f"{node.params['function'].name}({inside}){component}"


def folded_nodes(program: Program) -> frozenset[Node]:
    """Unnamed arithmetic that one other line reads: shown inside that line."""
    uses = Counter(node for line in program.nodes for node in line.operands)
    return frozenset(
        node
        for node in program.nodes
        if node.name in ARITHMETIC
        and not program.is_named(node)
        and uses[node] == 1
        and node not in program.outputs
    )


@dataclass(frozen=True)
class Line:
    """What is shown as one line: one node, or the components of one function of scalars."""

    nodes: tuple[Node, ...]
    text: str
    kind: str


def lines(program: Program) -> Iterator[Line]:
    """The visible lines after the inputs, in program order."""
    folded = folded_nodes(program)
    whole: dict[Any, list[Node]] = {}
    for node in program.nodes:
        if node.name != "initial" and node not in folded:
            function = node.params["function"] if "component" in node.params else node
            whole.setdefault((function, node.parts), []).append(node)
    for nodes in whole.values():
        node, text = nodes[0], expression(nodes[0], folded=folded)
        if len(nodes) > 1:
            text = text.removesuffix(f"[{node.params['component']}]")
        given = " | p" if isinstance(node, Vector) and node.stage else ""
        yield Line(tuple(nodes), text, node.kind + given)


def listing(program: Program) -> str:
    """The whole program: inputs, matrices, numbered lines, outputs."""
    rows = ["inputs, i.i.d. over coordinates"] if program.groups else []
    for group in program.groups:
        rows.append(f"  {', '.join(group.labels)} ~ {group.text}")
        if len(group.labels) > 1:
            text = np.array2string(group.covariance, precision=3, suppress_small=True, threshold=64)
            rows += [f"    {'    ' if i else 'K = '}{t}" for i, t in enumerate(text.split("\n"))]
    if program.matrices:
        rows.append("matrices, entries N(0, σ²/n)")
        by_std: dict[float, list[str]] = {}
        for matrix in program.matrices:
            by_std.setdefault(matrix.std, []).append(matrix.label)
        rows += [f"  σ = {std:.4g}: {', '.join(labels)}" for std, labels in by_std.items()]
    shown = [
        (line.kind, f"{', '.join(node.label for node in line.nodes)} := {line.text}")
        for line in lines(program)
    ]
    if shown:
        rows.append("lines" + (" (| p: given the scalars)" if program.dots else ""))
    end = f"outputs  {', '.join(v.label for v in program.outputs)}"
    return listed(program.name, rows, shown, end)
