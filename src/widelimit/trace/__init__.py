"""From ordinary JAX code to its infinite-width law.

`netsor` derives limits too, and stays a second engine on purpose. A `netsor.Program` is an object
of study: a few lines, any of which may be asked for its law, given scalars of one's choice, by
Wick's formula and closed forms with an error for every number; powers of n are part of its grammar.
A traced model has hundreds of lines over families of tokens, heads and inputs, powers of n that
must be found, and only its outputs are of interest: members of one family are integrated together,
by Hermite series, for hundreds of draws at once. Either integrator would be wrong for the other's
task. What means the same is one thing: preconditions and their report, laws and marginals, roots of
covariances and Gaussians given others (`gaussians`).
"""

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
