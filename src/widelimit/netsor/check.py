"""What the limit theorem asks about, read off a program written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..programs.preconditions import Facts, Growth, Score, ScoreSide
from .functions import probe_growth
from .nodes import Dot, MatMul, Node

if TYPE_CHECKING:
    from .program import Program


def facts_of(program: Program) -> Facts:
    """The facts of all lines."""
    scores = []
    for dot in program.dots:
        where = f"{dot.label} = dot({', '.join(side.label for side in dot.operands)})"
        left, right = map(_side, dot.operands)
        scores.append(Score(dot.label, where, (left, right)))
    late = [n.label for n in program.nodes if isinstance(n, MatMul) and n.stage > 0]
    return Facts(program.name, tuple(scores), _reused(program), _growths(program), tuple(late))


def _side(vector: Node) -> ScoreSide:
    if not isinstance(vector, MatMul):
        return ScoreSide(vector.label, None)
    (operand,) = vector.operands
    function = operand.params.get("function")
    maker = "MatMul" if isinstance(operand, MatMul) else "unbounded input or arithmetic"
    source = f"{operand.label} ({function.name if function else maker})"
    return ScoreSide(vector.label, _matrix(vector), source, operand.bounded)


def _matrix(vector: Node) -> str:
    matrix: Any = vector.parts[0]
    return matrix.label


def _reused(program: Program) -> tuple[tuple[str, tuple[str, ...]], ...]:
    score: dict[str, str] = {}
    for dot in program.dots:
        for side in dot.operands:
            if isinstance(side, MatMul):
                score.setdefault(_matrix(side), dot.label)
    lines = (line for line in program.nodes if not isinstance(line, Dot))
    uses = [
        (node, f"{node.label} read by {line.label}") for line in lines for node in line.operands
    ]
    uses += [(output, f"output {output.label}") for output in program.outputs]
    elsewhere: dict[str, list[str]] = {}
    for node, use in uses:
        if isinstance(node, MatMul) and _matrix(node) in score:
            elsewhere.setdefault(_matrix(node), []).append(use)
    return tuple(
        (f"{matrix} makes the score {score[matrix]}", tuple(places))
        for matrix, places in elsewhere.items()
    )


def _growths(program: Program) -> tuple[tuple[str, Growth, tuple[str, ...]], ...]:
    seen: dict[tuple[str, Growth], list[str]] = {}
    for node in program.nodes:
        function = node.params.get("function")
        if function is not None:
            how = "found by probing" if function.growth is None else "declared"
            growth = function.growth or probe_growth(function.fn, len(node.operands))
            seen.setdefault((f"'{function.name}' ({how})", growth), []).append(node.label)
    return tuple((name, growth, tuple(labels)) for (name, growth), labels in seen.items())
