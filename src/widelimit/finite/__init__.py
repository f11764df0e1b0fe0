"""Networks of finite width: drawn and run, widened, and their kernels measured."""

from .empirical import NtkMethod, empirical_ntk
from .monte_carlo import monte_carlo_kernel
from .summary import Summary
from .widths import with_heads, with_width

__all__ = [
    "NtkMethod",
    "Summary",
    "empirical_ntk",
    "monte_carlo_kernel",
    "with_heads",
    "with_width",
]
