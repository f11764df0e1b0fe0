"""How kernels are computed: inputs are read, each example encoded once, pairs crossed by tiles."""

from .budget import ToleranceWarning
from .propagation import Quantity, SignalProfile, phase_diagram
from .sampling import ResidualWarning, Sampler

__all__ = [
    "Quantity",
    "ResidualWarning",
    "Sampler",
    "SignalProfile",
    "ToleranceWarning",
    "phase_diagram",
]
