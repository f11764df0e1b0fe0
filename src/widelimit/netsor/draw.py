"""A program as a picture: Mermaid text, which notebooks, GitHub and documentation render."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import NetworkError
from .listing import Line, folded_nodes, lines
from .nodes import Dot, MatMul, Node, Scalar

if TYPE_CHECKING:
    from .program import Program

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
    if node.stage:
        return "mixture"
    return "matmul" if isinstance(node, MatMul) else "nonlin"


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
