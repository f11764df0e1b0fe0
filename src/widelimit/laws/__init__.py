"""Limit laws of networks with finitely many heads, and finite-width simulation.

`net.law(x)` is the way in; `law_from_covariance` where an input is known by its covariance alone.
"""

from widelimit.laws.law import Law, law_from_covariance, tokens_with_covariance
from widelimit.laws.marginal import Estimated, Marginal
from widelimit.laws.points import Points
from widelimit.laws.refusals import refuse_factorised_ntk, refuse_finite_heads
from widelimit.laws.variants import finite_layers

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
