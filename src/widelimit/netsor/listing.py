"""A program as text: the lines a reader wants to see, with passing arithmetic folded in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from .nodes import (
    Dot,
    Initial,
    Map,
    MatMul,
    Node,
    Operation,
    ScalarArithmetic,
    ScalarMap,
    Vector,
    VectorArithmetic,
)

if TYPE_CHECKING:
    from .program import InputGroup, Program


def expression(node: Node, *, folded: frozenset[Node] = frozenset()) -> str:
    """The right-hand side of a line; operands in `folded` are written out in place."""
    match node:
        case Initial():
            return _group_law(node.program.groups[node.group])
        case MatMul():
            return f"{node.matrix.label} @ {_part(node.operand, folded, wrapped=tuple(Operation))}"
        case Map():
            vectors = ", ".join(_part(v, folded) for v in node.vectors)
            scalars = ", ".join(_part(s, folded) for s in node.scalars)
            return f"{node.function.name}({vectors}{'; ' + scalars if scalars else ''})"
        case Dot():
            left, right = (_part(v, folded, wrapped=tuple(Operation)) for v in node.sides)
            return f"n^(-1/2) {left}ᵀ {right}"
        case ScalarMap():
            arguments = ", ".join(_part(s, folded) for s in node.arguments)
            return f"{node.function.name}({arguments})[{node.component}]"
        case VectorArithmetic() | ScalarArithmetic():
            return _arithmetic(node, folded)
        case _:
            raise TypeError(f"no such line: {type(node).__name__}")


def _part(
    part: Node | float, folded: frozenset[Node], *, wrapped: tuple[Operation, ...] = ()
) -> str:
    """A line inside another; arithmetic of the `wrapped` kinds needs parentheses there."""
    if not isinstance(part, Node):
        return f"{part:.4g}"
    if part not in folded:
        return part.label
    text = expression(part, folded=folded)
    operation = getattr(part, "operation", None)
    return f"({text})" if operation in wrapped else text


def _arithmetic(node: VectorArithmetic | ScalarArithmetic, folded: frozenset[Node]) -> str:
    if node.operation is Operation.PRODUCT:
        texts = [_part(part, folded, wrapped=(Operation.SUM,)) for part in node.parts]
        return "-" + "·".join(texts[1:]) if node.parts[0] == -1.0 else "·".join(texts)
    first, *rest = (_part(part, folded) for part in node.parts)
    return first + "".join(f" - {t[1:]}" if t.startswith("-") else f" + {t}" for t in rest)


def _group_law(group: InputGroup) -> str:
    if len(group.labels) == 1:
        return f"N({group.mean[0]:g}, {group.covariance[0, 0]:g})"
    mean = "0" if not np.any(group.mean) else np.array2string(group.mean, precision=3)
    return f"N({mean}, K)"


def folded_nodes(program: Program) -> frozenset[Node]:
    """Unnamed arithmetic that one other line reads: shown inside that line."""
    uses: dict[Node, int] = {}
    for line in program.nodes:
        for node in line.operands:
            uses[node] = uses.get(node, 0) + 1
    return frozenset(
        node
        for node in program.nodes
        if isinstance(node, (VectorArithmetic, ScalarArithmetic))
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
        yield Line(nodes, text, _kind(node))


def _kind(node: Node) -> str:
    words = {MatMul: "MatMul", Dot: "Dot", ScalarMap: "Scalar", ScalarArithmetic: "Scalar"}
    word = words.get(type(node), "Nonlin")
    return f"{word} | p" if isinstance(node, Vector) and node.stage else word


def listing(program: Program) -> str:
    """The whole program: inputs, matrices, numbered lines, outputs."""
    rows = [f"{program.name} (width n → ∞)"]
    if program.groups:
        rows.append("inputs, i.i.d. over coordinates")
    for group in program.groups:
        rows.append(f"  {', '.join(group.labels)} ~ {_group_law(group)}")
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
        rows += [
            f"  {number:>3}  {line.kind:<10}  {line.label} := {line.text}"
            for number, line in enumerate(shown, 1)
        ]
    rows.append(f"outputs  {', '.join(v.label for v in program.outputs)}")
    return "\n".join(rows)
