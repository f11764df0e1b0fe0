"""The preconditions of a program written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..programs.preconditions import Finding, Precondition, PreconditionReport, Severity
from .functions import Growth
from .nodes import Dot, Map, MatMul, Matrix, Node, ScalarMap, Vector

if TYPE_CHECKING:
    from .program import Program


def check(program: Program) -> PreconditionReport:
    """Every precondition the program violates, errors first."""
    found = [
        *_sides(program),
        *_two_matrices(program),
        *_score_matrices(program),
        *_growth(program),
        *_bounded_inputs(program),
        *_after_scalars(program),
    ]
    order = list(Severity)
    return PreconditionReport(
        program.name, tuple(sorted(found, key=lambda f: order.index(f.severity)))
    )


def _names(nodes: list[str]) -> str:
    shown = list(dict.fromkeys(nodes))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _score_sides(program: Program) -> Iterator[tuple[Dot, MatMul]]:
    for dot in program.dots:
        for side in (dot.left, dot.right):
            if isinstance(side, MatMul):
                yield dot, side


def _sides(program: Program) -> Iterator[Finding]:
    for dot in program.dots:
        for side in (dot.left, dot.right):
            if not isinstance(side, MatMul):
                yield Finding(
                    Precondition.MATMUL_SIDES,
                    Severity.ERROR,
                    f"{side.label} in {dot.label} = dot({dot.left.label}, {dot.right.label})",
                    "Otherwise n^(-1/2) gᵀg' need not be centred and may grow like √n.",
                    "multiply both sides by fresh matrices first",
                )


def _two_matrices(program: Program) -> Iterator[Finding]:
    for dot in program.dots:
        left, right = dot.left, dot.right
        if isinstance(left, MatMul) and isinstance(right, MatMul) and left.matrix is right.matrix:
            yield Finding(
                Precondition.TWO_MATRICES,
                Severity.ERROR,
                f"{left.matrix.label} on both sides of {dot.label} = "
                f"dot({left.label}, {right.label})",
                "The scalar's mean then grows like √n.",
                "use two independent matrices",
            )


def _score_matrices(program: Program) -> Iterator[Finding]:
    score: dict[Matrix, Dot] = {}
    for dot, side in _score_sides(program):
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
    for matrix, places in elsewhere.items():
        yield Finding(
            Precondition.SCORE_MATRIX_ONLY,
            Severity.ERROR,
            f"{matrix.label} makes the score {score[matrix].label} and also {_names(places)}",
            "The scalars would then not be independent of the vectors.",
            "use a separate matrix outside the scores",
        )


def _growth(program: Program) -> Iterator[Finding]:
    seen: dict[tuple[str, Growth, bool], list[str]] = {}
    for node in program.nodes:
        if isinstance(node, Map):
            arity = len(node.vectors) + len(node.scalars)
            key = (
                node.function.name,
                node.function.growth_for(arity),
                node.function.growth is not None,
            )
        elif isinstance(node, ScalarMap):
            key = (node.function.name, node.function.growth, True)
        else:
            continue
        seen.setdefault(key, []).append(node.label)
    for (name, growth, declared), labels in seen.items():
        if growth is Growth.PSEUDO_LIPSCHITZ:
            continue
        uncontrolled = growth is Growth.UNCONTROLLED
        source = "declared" if declared else "found by probing; nothing was declared"
        yield Finding(
            Precondition.PSEUDO_LIPSCHITZ,
            Severity.ERROR if uncontrolled else Severity.WARNING,
            f"'{name}' in {_names(labels)} ({source})",
            f"It is {growth.value}.",
            "replace the function by one of polynomial growth, or declare growth= if the probe "
            "is mistaken",
        )


def _bounded_inputs(program: Program) -> Iterator[Finding]:
    unbounded = [(dot, side) for dot, side in _score_sides(program) if not side.operand.bounded]
    by_input: dict[Vector, list[str]] = {}
    for dot, side in unbounded:
        by_input.setdefault(side.operand, []).append(dot.label)
    if by_input:
        kinds = {_maker(vector) for vector in by_input}
        yield Finding(
            Precondition.BOUNDED_INPUT,
            Severity.WARNING,
            f"{_names([v.label for v in by_input])} ({_names(sorted(kinds))}) feeding "
            f"{_names([s for scores in by_input.values() for s in scores])}",
            "The proof uses the bound; unbounded maps such as ReLU are seen to obey the same law.",
            "clip the input, for instance clip(100.0)(x), or accept the law as empirical",
        )


def _maker(vector: Vector) -> str:
    if isinstance(vector, Map):
        return vector.function.name
    return "MatMul" if isinstance(vector, MatMul) else "unbounded input or arithmetic"


def _after_scalars(program: Program) -> Iterator[Finding]:
    late: list[Node] = [n for n in program.nodes if isinstance(n, MatMul) and n.stage > 0]
    if late:
        yield Finding(
            Precondition.NO_MATMUL_AFTER_SCALARS,
            Severity.NOTE,
            _names([node.label for node in late]),
            "The theorem ends there; the limit continues by the conditional recursion (Gaussian "
            "given all earlier scalars), an extension of the theorem.",
            "none needed; compare with `simulate` where it matters",
        )
