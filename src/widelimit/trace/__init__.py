"""From ordinary JAX code to its infinite-width law."""

from .audit import Audit, Row, Verdict
from .compare import AtWidth, Comparison
from .law import TracedLaw
from .program import Traced, trace
from .refusals import Place, RefusedError

__all__ = [
    "AtWidth",
    "Audit",
    "Comparison",
    "Place",
    "RefusedError",
    "Row",
    "Traced",
    "TracedLaw",
    "Verdict",
    "trace",
]
