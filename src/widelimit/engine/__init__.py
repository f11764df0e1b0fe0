"""How kernels are computed: inputs are read, each example encoded once, pairs crossed by tiles."""

from . import diagonal as _diagonal  # noqa: F401 - a method of every network
from .budget import ToleranceWarning
from .propagation import Quantity, SignalProfile, phase_diagram, plot_phase_diagram, signal
from .sampling import ResidualWarning, Sampler

__all__ = [
    "Quantity",
    "ResidualWarning",
    "Sampler",
    "SignalProfile",
    "ToleranceWarning",
    "phase_diagram",
    "plot_phase_diagram",
    "signal",
]
