"""From ordinary JAX code to its infinite-width law."""

from ..programs.front import AtWidth, Comparison
from ..programs.refusals import Place, RefusedError
from .audit import Audit, Row, Verdict
from .program import Traced, TracedLaw, trace

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
