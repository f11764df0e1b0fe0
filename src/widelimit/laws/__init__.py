"""Limit laws of networks with finitely many heads, and finite-width simulation.

`net.law(x)` is the way in; `law_from_covariance` where an input is known by its covariance alone.
"""

from ..engine.refusals import refuse_factorised_ntk, refuse_finite_heads
from ..engine.variants import finite_layers
from .law import Law, law_from_covariance, tokens_with_covariance
from .marginal import Estimated, Marginal
from .points import Points

__all__ = [
    "Estimated",
    "Law",
    "Marginal",
    "Points",
    "finite_layers",
    "law_from_covariance",
    "refuse_factorised_ntk",
    "refuse_finite_heads",
    "tokens_with_covariance",
]
