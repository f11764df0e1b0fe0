"""The pairs of a kernel, in the precision that its numbers need."""

from contextlib import suppress
from typing import Any

from ..engine.kernel import Problem
from ..engine.phases import precision
from ..engine.precision import precisions
from ..engine.sampling import realisations
from ..engine.tiles import LengthGroup, Pairs
from ..errors import PrecisionError


def make_pairs(problem: Problem, cuts: list[list[LengthGroup]]) -> Pairs:
    """As a kernel of this dtype is computed: in double precision where single has no digits."""
    *others, last = precisions(problem.dtype, problem.inputs)
    for inside in others:
        with suppress(PrecisionError):
            return _pairs(problem, cuts, inside)
    return _pairs(problem, cuts, last)


def _pairs(problem: Problem, cuts: list[list[LengthGroup]], inside: Any) -> Pairs:
    sides = [side.astype(inside) for side in problem.inputs]
    with precision(inside):
        return Pairs(
            realisations(problem.net, problem.sampler, inside),
            sides[0],
            None if problem.columns is None else sides[1],
            cuts=cuts,
            dtype=inside,
            with_ntk=problem.ntk,
            memory=problem.memory,
        )
