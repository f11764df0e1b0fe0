"""neural-tangents' API over this library: change one import.

    import widelimit.neural_tangents as nt
    from widelimit.neural_tangents import stax

Layers, kernel functions, predictors and empirical kernels have neural-tangents' names, arguments
and conventions; what is computed is the library's. `docs/neural-tangents.md` says what differs.
"""

from ..inference import linearize
from . import predict, stax
from .empirical import (
    NtkImplementation,
    empirical_kernel_fn,
    empirical_nngp_fn,
    empirical_ntk_fn,
    empirical_ntk_vp_fn,
    monte_carlo_kernel_fn,
    taylor_expand,
)
from .functions import batch
from .kernel import Kernel

__all__ = [
    "Kernel",
    "NtkImplementation",
    "batch",
    "empirical_kernel_fn",
    "empirical_nngp_fn",
    "empirical_ntk_fn",
    "empirical_ntk_vp_fn",
    "linearize",
    "monte_carlo_kernel_fn",
    "predict",
    "stax",
    "taylor_expand",
]
