"""One program from three: the same model traced at three widths, equation by equation.

Nested functions (`jit`, `remat`, `custom_jvp`, `custom_vjp`) are opened and scans unrolled, so that
a flat list of `Step`s remains. Calls of `jax.random` samplers stay whole: they are where
parameters come from.
"""

from __future__ import annotations

import itertools
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src import source_info_util
from jax.extend import core as jex

from ..programs.extents import Extent, fit_extent
from ..programs.refusals import NOWHERE, Place, RefusedError
from ..programs.steps import FlatProgram, Given, Operand, Slot, Step
from ..programs.table import record_of

_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")
_OPENED = {"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_lin"}
_OPENED |= {"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"}
_LIBRARIES = (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["stdlib"])
# The rooms that trace; lines of layers are a user's, as those of any model are.
_ROOMS = Path(__file__).resolve().parent.parent
_OURS = tuple(str(_ROOMS / room) for room in ("trace", "programs", "lift"))
MOST_STEPS = 200_000


def align(jaxprs: Sequence[Any], widths: tuple[int, ...]) -> FlatProgram:
    """Open and align the closed jaxprs of one model at several widths."""
    return _Aligner(widths).program(jaxprs)


class _Aligner:
    def __init__(self, widths: tuple[int, ...]):
        self.widths = widths
        self.steps: list[Step] = []
        self.platforms: set[int] = set()
        self.rounds = 0
        self.numbers = itertools.count()

    def program(self, closed: Sequence[Any]) -> FlatProgram:
        inner = [c.jaxpr for c in closed]
        inputs = tuple(
            self.slot(vs, NOWHERE) for vs in zip(*(j.invars for j in inner), strict=True)
        )
        outputs = self.run(closed, list(inputs), NOWHERE, fixed=False)
        if not any(slot.wide_axes for step in self.steps for slot in step.results):
            raise RefusedError(
                "No axis grew: the model has the same sizes at every width.",
                place=self.steps[-1].place if self.steps else NOWHERE,
                got=f"the same arrays at widths {self.widths}",
                remedy="let make(width, key) build the model at that width, e.g. "
                "lambda width, key: Model(hidden=width, key=key)",
            )
        return FlatProgram(self.widths, inputs, tuple(self.steps), tuple(outputs))

    def shape(self, shapes: Sequence[tuple[int, ...]], place: Place) -> tuple[Extent, ...]:
        if len({len(shape) for shape in shapes}) != 1:
            raise _differs("arrays of different rank", place)
        found = []
        for sizes in zip(*shapes, strict=True):
            extent = fit_extent(sizes, self.widths)
            if extent is None:
                raise RefusedError(
                    "Every axis has constant length, or a·n + b of them at width n.",
                    place=place,
                    got=f"lengths {sizes} at widths {self.widths}",
                    remedy="make sizes proportional to the width, without rounding, or trace at "
                    "widths that divide evenly, widths=(…)",
                )
            found.append(extent)
        return tuple(found)

    def slot(self, variables: Sequence[Any], place: Place) -> Slot:
        avals = [v.aval for v in variables]
        shape = self.shape([a.shape for a in avals], place)
        return Slot(next(self.numbers), shape, avals[0].dtype)

    def given(self, values: Sequence[Any], place: Place) -> Given:
        return Given(tuple(values), self.shape([np.shape(v) for v in values], place))

    def run(
        self, jaxprs: Sequence[Any], operands: list[Operand], place: Place, *, fixed: bool
    ) -> list[Operand]:
        """The steps of aligned (closed) jaxprs; `fixed`: the caller's line stands for all."""
        inner = [getattr(j, "jaxpr", j) for j in jaxprs]
        environment: dict[Any, Operand] = dict(zip(inner[0].invars, operands, strict=True))
        for variables in zip(*(j.constvars for j in inner), strict=True):
            values = [
                c.consts[j.constvars.index(v)]
                for c, j, v in zip(jaxprs, inner, variables, strict=True)
            ]
            environment[variables[0]] = self.given(values, place)

        def read(atoms: tuple[Any, ...]) -> Operand:
            if isinstance(atoms[0], jex.Literal):
                return self.given([a.val for a in atoms], place)
            return environment[atoms[0]]

        if len({len(j.eqns) for j in inner}) != 1:
            counts = ", ".join(str(len(j.eqns)) for j in inner)
            raise _differs(f"programs of {counts} operations", _first_difference(inner, place))
        for equations in zip(*(j.eqns for j in inner), strict=True):
            here, own = place_of(equations[0])
            at = place if fixed or (not own and place is not NOWHERE) else here
            if len({e.primitive.name for e in equations}) != 1:
                raise _differs(f"{[e.primitive.name for e in equations]}", at)
            arguments = [read(atoms) for atoms in zip(*(e.invars for e in equations), strict=True)]
            results = self.equation(equations, arguments, at, fixed or own)
            environment.update(zip(equations[0].outvars, results, strict=True))
            if len(self.steps) > MOST_STEPS:
                raise _too_long("more operations", at)
        return [read(atoms) for atoms in zip(*(j.outvars for j in inner), strict=True)]

    def equation(
        self, equations: Sequence[Any], operands: list[Operand], place: Place, fixed: bool
    ) -> list[Operand]:
        first = equations[0]
        name = first.primitive.name
        if name in _OPENED and record_of(first.params.get("name")).law is None:
            key = next(k for k in _INNER if k in first.params)
            return self.run([e.params[key] for e in equations], operands, place, fixed=fixed)
        if name == "scan":
            return self.scan(equations, operands, place)
        if name == "cond":
            index, *rest = operands
            platform = isinstance(index, Slot) and index.index in self.platforms
            if not platform and not isinstance(index, Given):
                raise RefusedError(
                    "Branches are chosen when the program is traced, not by data.",
                    place=place,
                    got="lax.cond or lax.switch on a computed value",
                    remedy="use jnp.where, or choose the branch in Python",
                )
            # All branches for platforms compute the same; the first is as good as any.
            choice = int(index.values[0]) if isinstance(index, Given) else 0
            branches = [e.params["branches"][choice] for e in equations]
            return self.run(branches, rest, place, fixed=fixed)
        if name == "while":
            raise RefusedError(
                "Loops run a number of times that is known when the program is traced.",
                place=place,
                got="a while loop",
                remedy="use jax.lax.scan, or fori_loop with bounds that are Python integers",
            )
        if name in ("jit", "pjit"):
            name = first.params["name"]
        results = [self.slot(vs, place) for vs in zip(*(e.outvars for e in equations), strict=True)]
        if name == "platform_index":
            self.platforms.add(results[0].index)
            return list(results)
        params = tuple(dict(e.params) for e in equations)
        self.add(name, params, operands, results, place, first.primitive)
        return list(results)

    def add(
        self,
        name: str,
        params: tuple[dict[str, Any], ...],
        operands: Sequence[Operand],
        results: Sequence[Slot],
        place: Place,
        primitive: Any = None,
    ) -> None:
        step = (name, primitive, params, tuple(operands), tuple(results), place, record_of(name))
        self.steps.append(Step(*step))

    def scan(
        self, equations: Sequence[Any], operands: list[Operand], place: Place
    ) -> list[Operand]:
        """Unrolled: slices of the scanned arrays go in, stacked results come out."""
        params = [e.params for e in equations]
        lengths = {int(p["length"]) for p in params}
        if len(lengths) != 1:
            raise RefusedError(
                "A scan runs equally often at every width.",
                place=place,
                got=f"scans of lengths {sorted(lengths)}",
                remedy="scan over layers or time steps, not over channels",
            )
        length, first = lengths.pop(), params[0]
        self.rounds += length
        if self.rounds > MOST_STEPS:  # before any is unrolled: rounds may be empty
            raise _too_long(f"loops of {self.rounds} rounds", place)
        consts = operands[: first["num_consts"]]
        carry = operands[first["num_consts"] : first["num_consts"] + first["num_carry"]]
        scanned = operands[first["num_consts"] + first["num_carry"] :]
        order = range(length - 1, -1, -1) if first["reverse"] else range(length)
        stacked: list[list[Operand]] = []
        for i in order:
            rows = [self.taken(x, i, place) for x in scanned]
            out = self.run(
                [p["jaxpr"] for p in params], [*consts, *carry, *rows], place, fixed=False
            )
            carry = out[: first["num_carry"]]
            stacked.append(out[first["num_carry"] :])
        if first["reverse"]:
            stacked.reverse()
        slots = [
            self.slot(vs, place)
            for vs in zip(*(e.outvars[first["num_carry"] :] for e in equations), strict=True)
        ]
        columns = list(zip(*stacked, strict=True)) if stacked else [()] * len(slots)
        for column, result in zip(columns, slots, strict=True):
            self.add("stack", ({"axis": 0},) * 3, column, [result], place)
        return [*carry, *slots]

    def taken(self, x: Operand, index: int, place: Place) -> Operand:
        if isinstance(x, Given):
            return self.given([np.asarray(v)[index] for v in x.values], place)
        result = Slot(next(self.numbers), x.shape[1:], x.dtype)
        self.add("take", ({"index": index},) * 3, [x], [result], place)
        return result


def place_of(equation: Any) -> tuple[Place, bool]:
    """The innermost line of the user's own files, and whether there was one.

    Lines of installed packages stand in where no file of the user's is on the stack.
    """
    frames = [
        Place(f.file_name, f.start_line, f.function_name)
        for f in source_info_util.user_frames(equation.source_info.traceback)
    ]
    frames = [f for f in frames if not f.file.startswith(_OURS)]
    for frame in frames:
        if not frame.file.startswith(_LIBRARIES):
            return frame, True
    return (frames[0], False) if frames else (NOWHERE, False)


def said(error: Exception) -> str:
    """What a model's code raised, in one sentence, and at which line of the user's files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*_OURS, *_LIBRARIES))]
    line = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    message = next((text.strip() for text in str(error).splitlines() if text.strip()), "")
    return f"{type(error).__name__}: {message[:200]}{line}"


def _first_difference(jaxprs: Sequence[Any], place: Place) -> Place:
    """Where programs of different lengths part."""
    longest = max(jaxprs, key=lambda j: len(j.eqns))
    for number, equation in enumerate(longest.eqns):
        names = {j.eqns[number].primitive.name if number < len(j.eqns) else "" for j in jaxprs}
        if len(names) > 1:
            here, own = place_of(equation)
            return here if own or place is NOWHERE else place
    return place


def _too_long(got: str, place: Place) -> RefusedError:
    return RefusedError(
        f"Unrolled, the loops of a model exceed {MOST_STEPS} operations.",
        place=place,
        got=got,
        remedy="trace fewer layers or steps",
    )


def _differs(got: str, place: Place) -> RefusedError:
    return RefusedError(
        "At every width the model runs the same operations.",
        place=place,
        got=got,
        remedy="keep Python conditions independent of the width, or trace at other widths=(…)",
    )


def trace_at(function: Any, key: Any, x: np.ndarray) -> Any:
    """The closed jaxpr in double precision, or in single where the code insists on it.

    A scan whose first carry is written as float32 cannot carry double precision.
    """
    real = x.dtype.kind == "f"
    try:
        with jax.enable_x64(True):
            return jax.make_jaxpr(function)(key, jnp.asarray(x, float if real else None))
    except TypeError as error:
        if isinstance(error, jax.errors.JAXTypeError):
            raise
    with jax.enable_x64(False):
        return jax.make_jaxpr(function)(key, jnp.asarray(x, jnp.float32 if real else None))
