"""A program as text and as a picture: the lines a reader wants to see.

Passing arithmetic is folded in. Mermaid text is rendered by notebooks, GitHub and documentation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import NetworkError
from ..programs.listing import listed
from .nodes import Dot, MatMul, Node, Scalar, Vector

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
        and node.label not in program.named
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


_LEGEND = {
    "input": ("input", "fill:#f2f2f2,stroke:#555555"),
    "matmul": ("MatMul: Gaussian", "fill:#dbe9f6,stroke:#2b6cb0"),
    "nonlin": ("Nonlin: coordinatewise", "fill:#e3f4e1,stroke:#2f855a"),
    "mixture": ("vector that depends on scalars: a mixture", "fill:#fdebd0,stroke:#b7791f"),
    "scalar": ("scalar: dot product, or function of scalars", "fill:#fbdada,stroke:#c53030"),
}


def mermaid(program: Program) -> str:
    """One box for every input and listed line, an arrow from each to those that read it."""
    if not program.nodes:
        raise NetworkError(
            "A program without lines cannot be drawn.",
            got=repr(program),
            remedy="add inputs first",
        )
    boxes: list[tuple[str, str, tuple[Node, ...]]] = [
        ("input", node.label, (node,)) for node in program.nodes if node.name == "initial"
    ]
    boxes += [(_kind(line.nodes[0]), _caption(line), line.nodes) for line in lines(program)]
    owner = {node: i for i, (_, _, nodes) in enumerate(boxes) for node in nodes}
    folded = folded_nodes(program)
    rows = [f"---\ntitle: {_plain(program.name)}\n---", "flowchart LR"]
    for i, (kind, caption, nodes) in enumerate(boxes):
        end = ":::output" if any(node in program.outputs for node in nodes) else ""
        rows.append(f'  b{i}["{_plain(caption)}"]:::{kind}{end}')
    for i, (_, _, nodes) in enumerate(boxes):
        for source in sorted(_sources(nodes, folded, owner)):
            rows.append(f"  b{source} {'-.->' if boxes[source][0] == 'scalar' else '-->'} b{i}")
    used = [kind for kind in _LEGEND if any(kind == box[0] for box in boxes)]
    rows += ["  subgraph legend", *(f'    {k}["{_LEGEND[k][0]}"]:::{k}' for k in used), "  end"]
    rows += [f"  classDef {kind} {_LEGEND[kind][1]}" for kind in used]
    return "\n".join([*rows, "  classDef output stroke-width:3px"])


def _sources(nodes: tuple[Node, ...], folded: frozenset[Node], owner: dict[Node, int]) -> set[int]:
    """The boxes that some lines read; folded arithmetic is looked through."""
    stack = [operand for node in nodes for operand in node.operands]
    found: set[int] = set()
    while stack:
        operand = stack.pop()
        if operand in folded:
            stack.extend(operand.operands)
        else:
            found.add(owner[operand])
    return found


def _kind(node: Node) -> str:
    if isinstance(node, Scalar):
        return "scalar"
    made = "matmul" if isinstance(node, MatMul) else "nonlin"
    return "mixture" if node.stage else made


def _caption(line: Line) -> str:
    first, last = line.nodes[0], line.nodes[-1]
    names = first.label if first is last else f"{first.label} … {last.label}"
    if isinstance(first, Dot):
        return names
    if len(line.text) <= 30:
        return f"{names} = {line.text}"
    function = first.params.get("function")
    return f"{names} = {function.name}(…)" if function else f"{names} = Σ …"


def _plain(text: str) -> str:
    """Text inside a box: what Mermaid or HTML would read is written as its code."""
    return "".join(c if c.isalnum() or c in " _…·=+-()[].,@^;ᵀΣ" else f"#{ord(c)};" for c in text)
