"""A program as text: the lines a reader wants to see, with passing arithmetic folded in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..programs.listing import numbered
from .nodes import Arithmetic, Initial, Node, Operation, ScalarMap, Vector

if TYPE_CHECKING:
    from .program import Program


def expression(node: Node, *, folded: frozenset[Node] = frozenset()) -> str:
    """The right-hand side of a line; operands in `folded` are written out in place."""

    def text(part: Node | float, *wrapped: Operation) -> str:
        if not isinstance(part, Node):
            return f"{part:.4g}"
        if part not in folded:
            return part.label
        inside = part.text(text)
        return f"({inside})" if getattr(part, "operation", None) in wrapped else inside

    return node.text(text)


def folded_nodes(program: Program) -> frozenset[Node]:
    """Unnamed arithmetic that one other line reads: shown inside that line."""
    uses: dict[Node, int] = {}
    for line in program.nodes:
        for node in line.operands:
            uses[node] = uses.get(node, 0) + 1
    return frozenset(
        node
        for node in program.nodes
        if isinstance(node, Arithmetic)
        and not program.is_named(node)
        and uses.get(node, 0) == 1
        and node not in program.outputs
    )


@dataclass(frozen=True)
class Line:
    """What is shown as one line: one node, or the components of one function of scalars."""

    nodes: tuple[Node, ...]
    text: str
    kind: str

    @property
    def label(self) -> str:
        """The names on the left of `:=`."""
        return ", ".join(node.label for node in self.nodes)


def lines(program: Program) -> Iterator[Line]:
    """The visible lines after the inputs, in program order."""
    folded = folded_nodes(program)
    done: set[Node] = set()
    for node in program.nodes:
        if isinstance(node, Initial) or node in folded or node in done:
            continue
        nodes: tuple[Node, ...] = (node,)
        text = expression(node, folded=folded)
        if isinstance(node, ScalarMap):
            nodes = tuple(
                other
                for other in program.nodes
                if isinstance(other, ScalarMap)
                and other.function is node.function
                and other.arguments == node.arguments
                and other not in done
            )
            if len(nodes) > 1:
                text = text.removesuffix(f"[{node.component}]")
        done.update(nodes)
        kind = f"{node.kind} | p" if isinstance(node, Vector) and node.stage else node.kind
        yield Line(nodes, text, kind)


def listing(program: Program) -> str:
    """The whole program: inputs, matrices, numbered lines, outputs."""
    rows = [f"{program.name} (width n → ∞)"]
    if program.groups:
        rows.append("inputs, i.i.d. over coordinates")
    for group in program.groups:
        rows.append(f"  {', '.join(group.labels)} ~ {group.text}")
        if len(group.labels) > 1:
            text = np.array2string(group.covariance, precision=3, suppress_small=True, threshold=64)
            rows += [
                f"    {'K = ' if i == 0 else '    '}{t}" for i, t in enumerate(text.split("\n"))
            ]
    if program.matrices:
        rows.append("matrices, entries N(0, σ²/n)")
        by_std: dict[float, list[str]] = {}
        for matrix in program.matrices:
            by_std.setdefault(matrix.std, []).append(matrix.label)
        rows += [f"  σ = {std:.4g}: {', '.join(labels)}" for std, labels in by_std.items()]
    shown = list(lines(program))
    if shown:
        rows.append("lines" + (" (| p: given the scalars)" if program.dots else ""))
        rows += numbered((line.kind, f"{line.label} := {line.text}") for line in shown)
    rows.append(f"outputs  {', '.join(v.label for v in program.outputs)}")
    return "\n".join(rows)
