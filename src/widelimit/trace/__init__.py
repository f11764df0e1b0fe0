"""From ordinary JAX code to its infinite-width law."""

from ..programs.compare import AtWidth, Comparison
from ..programs.refusals import Place, RefusedError
from .audit import Audit, Row, Verdict
from .law import TracedLaw
from .program import Traced, trace

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
