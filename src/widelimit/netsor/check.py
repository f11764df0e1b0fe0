"""What the limit theorem asks about, read off a program written by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..programs.preconditions import Facts, Growth, Score, ScoreSide
from .nodes import Dot, Map, MatMul, Matrix, ScalarMap, Vector

if TYPE_CHECKING:
    from .program import Program


def facts_of(program: Program) -> Facts:
    """The facts of all lines."""
    scores = tuple(
        Score(
            dot.label,
            f"{dot.label} = dot({dot.left.label}, {dot.right.label})",
            (_side(dot.left), _side(dot.right)),
        )
        for dot in program.dots
    )
    late = [n.label for n in program.nodes if isinstance(n, MatMul) and n.stage > 0]
    return Facts(program.name, scores, _reused(program), _growths(program), tuple(late))


def _side(vector: Vector) -> ScoreSide:
    if not isinstance(vector, MatMul):
        return ScoreSide(vector.label, None)
    operand = vector.operand
    source = f"{operand.label} ({_maker(operand)})"
    return ScoreSide(vector.label, vector.matrix.label, source, operand.bounded)


def _maker(vector: Vector) -> str:
    if isinstance(vector, Map):
        return vector.function.name
    return "MatMul" if isinstance(vector, MatMul) else "unbounded input or arithmetic"


def _reused(program: Program) -> tuple[tuple[str, tuple[str, ...]], ...]:
    score: dict[Matrix, Dot] = {}
    for dot in program.dots:
        for side in dot.operands:
            if isinstance(side, MatMul):
                score.setdefault(side.matrix, dot)
    elsewhere: dict[Matrix, list[str]] = {}
    for line in program.nodes:
        if isinstance(line, Dot):
            continue
        for node in line.operands:
            if isinstance(node, MatMul) and node.matrix in score:
                elsewhere.setdefault(node.matrix, []).append(f"{node.label} read by {line.label}")
    for output in program.outputs:
        if isinstance(output, MatMul) and output.matrix in score:
            elsewhere.setdefault(output.matrix, []).append(f"output {output.label}")
    return tuple(
        (f"{matrix.label} makes the score {score[matrix].label}", tuple(places))
        for matrix, places in elsewhere.items()
    )


def _growths(program: Program) -> tuple[tuple[str, Growth, tuple[str, ...]], ...]:
    seen: dict[tuple[str, Growth], list[str]] = {}
    for node in program.nodes:
        if not isinstance(node, Map | ScalarMap):
            continue
        growth, how = node.function.growth, "declared"
        if growth is None and isinstance(node, Map):
            growth, how = node.function.growth_for(len(node.operands)), "found by probing"
        assert growth is not None
        seen.setdefault((f"'{node.function.name}' ({how})", growth), []).append(node.label)
    return tuple((name, growth, tuple(labels)) for (name, growth), labels in seen.items())
