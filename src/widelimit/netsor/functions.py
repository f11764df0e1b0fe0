"""Functions of coordinates and of scalars, with the properties the limit theorem asks for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import jax
import numpy as np
from scipy import special

from ..errors import NetworkError, NumericalError, ShapeError
from ..programs import closed_forms
from ..programs.closed_forms import ClosedForm
from ..programs.preconditions import Growth

if TYPE_CHECKING:
    from .nodes import Scalar, Vector

Array: TypeAlias = np.ndarray
ArrayFunction: TypeAlias = Callable[..., Any]


@dataclass(frozen=True)
class _Function:
    name: str
    fn: ArrayFunction
    bounded: bool = False
    growth: Growth | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    def evaluate(self, *arguments: Array) -> Array:
        """The function on arrays, in their precision."""
        # Functions written in jax.numpy would fall to float32 without the scope.
        with jax.enable_x64(True):
            return np.asarray(self.fn(*arguments))

    def validate(self, probes: list[Array], unit: str) -> None:
        """Raise unless `fn` takes the probes and maps their rows one by one to real numbers."""
        name, shape = self.name, probes[0].shape
        try:
            values = self.evaluate(*probes)
        except TypeError as error:
            raise ShapeError(
                f"The function '{name}' must accept {len(probes)} argument(s).",
                got=f"TypeError: {error}",
                remedy="match the function's arguments to the vectors and scalars it is given",
            ) from error
        if values.shape != shape:
            raise ShapeError(
                f"The function '{name}' must return an array of its arguments' shape.",
                got=f"shape {values.shape} for arguments of shape {shape}",
                remedy="write it elementwise; sums over coordinates are scalars, made by `dot`",
            )
        if values.dtype.kind not in "biuf":
            raise NumericalError(
                f"The function '{name}' must return real numbers.",
                got=f"dtype {values.dtype}",
                remedy="take the real part, or another real function of the result",
            )
        # The limit evaluates functions on integration points, not on coordinates of one vector.
        rows = [slice(i, i + 1) for i in range(len(values))]
        alone = np.concatenate([self.evaluate(*(probe[row] for probe in probes)) for row in rows])
        if not np.allclose(values, alone, rtol=1e-4, atol=1e-6, equal_nan=True):
            raise NetworkError(
                f"The function '{name}' must treat every {unit} by itself.",
                got=f"{values.tolist()} at once, {alone.tolist()} one by one",
                remedy="write it without sums, means, sorting or random numbers over that axis; "
                "sums over coordinates are scalars, made by `dot`",
            )


@dataclass(frozen=True, repr=False)
class CoordinateFunction(_Function):
    """`φ(g¹, …, gᵐ; p₁, …, pᵣ)`, applied to every coordinate; call it on vectors to build.

    `fn` takes one array per vector, then one per scalar, all of the same shape, and returns an
    array of that shape. `bounded` says that φ is bounded whatever its arguments. `growth=None`
    means undeclared: it is then probed numerically, and the check says so.
    """

    closed_form: ClosedForm | None = None

    def __call__(self, *vectors: Vector, scalars: Sequence[Scalar] = ()) -> Vector:
        """Add the vector `φ(vectors; scalars)` to the program the arguments belong to."""
        if not vectors:
            raise NetworkError(
                "A coordinatewise function needs at least one vector.",
                got=f"{self.name}() without vectors",
                remedy="pass the vectors it acts on; functions of scalars alone: ScalarFunction",
            )
        return vectors[0].program.map(self, *vectors, scalars=scalars)


@dataclass(frozen=True, repr=False)
class ScalarFunction(_Function):
    """A map of scalars to as many scalars, such as softmax; call it on scalars to build.

    `fn` takes and returns an array whose last axis holds the scalars.
    """

    growth: Growth = Growth.PSEUDO_LIPSCHITZ

    def __call__(self, scalars: Sequence[Scalar]) -> tuple[Scalar, ...]:
        """Add one scalar per component of `fn(scalars)` to the program."""
        scalars = tuple(scalars)
        if not scalars:
            raise NetworkError(
                "A function of scalars needs at least one scalar.",
                got=f"{self.name}([])",
                remedy="pass a list of scalars",
            )
        count = len(scalars)
        probe = np.linspace(-1.0, 1.0, 2 * count).reshape(2, count)
        self.validate([probe], "draw, on the first axis,")
        return scalars[0].program.scalar_map(self, scalars)


def probe_growth(fn: ArrayFunction, arity: int) -> Growth:
    """Guess the growth of `fn` from `L(r) = log|fn(±r·e)|` at r = 6, 12, 24.

    Along each axis and along the diagonal. A polynomial adds the same to L at every doubling;
    `exp(r^α)` multiplies the increment by `2^α`. Growth below degree eight passes at once.
    """
    radii = np.array([6.0, 12.0, 24.0])
    directions = [*np.eye(arity), np.ones(arity)]
    worst = Growth.PSEUDO_LIPSCHITZ
    for direction in directions:
        for sign in (-1.0, 1.0):
            arguments = [sign * radii if on else np.ones(3) for on in direction]
            with np.errstate(all="ignore"):
                size = np.abs(_Function("", fn).evaluate(*arguments))
                logs = np.log(np.maximum(size, 1e-300))
            if not np.all(np.isfinite(size)):
                return Growth.UNCONTROLLED
            first, second = logs[1] - logs[0], logs[2] - logs[1]
            if second < 8 * math.log(2) or first <= 0:
                continue
            exponent = math.log2(second / first)
            if exponent > 1.7:
                return Growth.UNCONTROLLED
            if exponent > 0.5:
                worst = Growth.CONTROLLED
    return worst


_SMOOTH = Growth.PSEUDO_LIPSCHITZ

relu = CoordinateFunction("relu", lambda x: np.maximum(x, 0), False, _SMOOTH, closed_forms.RELU)
erf = CoordinateFunction("erf", special.erf, True, _SMOOTH, closed_forms.ERF)
sin = CoordinateFunction("sin", np.sin, True, _SMOOTH, closed_forms.SIN)
cos = CoordinateFunction("cos", np.cos, True, _SMOOTH, closed_forms.COS)
exp = CoordinateFunction("exp", np.exp, False, Growth.CONTROLLED, closed_forms.EXP)
sign = CoordinateFunction("sign", np.sign, True, Growth.CONTROLLED, closed_forms.SIGN)
tanh = CoordinateFunction("tanh", np.tanh, True, _SMOOTH)
sigmoid = CoordinateFunction("sigmoid", special.expit, True, _SMOOTH)
softmax = ScalarFunction("softmax", lambda s: special.softmax(s, axis=-1), bounded=True)


def clip(limit: float) -> CoordinateFunction:
    """`x ↦ max(−limit, min(x, limit))`, the bounded input map the theorem's authors use."""
    if not (math.isfinite(limit) and limit > 0):
        raise NetworkError(
            "A clipping limit must be a positive finite number.",
            got=repr(limit),
            remedy="for instance clip(100.0)",
        )
    return CoordinateFunction(
        f"clip[{limit:g}]", lambda x: np.clip(x, -limit, limit), bounded=True, growth=_SMOOTH
    )
