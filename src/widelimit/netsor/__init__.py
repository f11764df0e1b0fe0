"""Tensor programs: build a network line by line, derive its infinite-width law, simulate it."""

from ..programs.closed_forms import ClosedForm
from ..programs.integration import Integration, LimitValue, Method
from ..programs.preconditions import (
    Finding,
    Growth,
    Precondition,
    PreconditionReport,
    PreconditionWarning,
    Severity,
)
from .functions import (
    CoordinateFunction,
    ScalarFunction,
    clip,
    cos,
    erf,
    exp,
    relu,
    sigmoid,
    sign,
    sin,
    softmax,
    tanh,
)
from .limit import ConditionalLaw, LimitLaw
from .nodes import Dot, MatMul, Matrix, Scalar, Vector
from .program import Program
from .simulate import Simulation

__all__ = [
    "ClosedForm",
    "ConditionalLaw",
    "CoordinateFunction",
    "Dot",
    "Finding",
    "Growth",
    "Integration",
    "LimitLaw",
    "LimitValue",
    "MatMul",
    "Matrix",
    "Method",
    "Precondition",
    "PreconditionReport",
    "PreconditionWarning",
    "Program",
    "Scalar",
    "ScalarFunction",
    "Severity",
    "Simulation",
    "Vector",
    "clip",
    "cos",
    "erf",
    "exp",
    "relu",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "tanh",
]
