"""Limit laws of networks with finitely many heads, and finite-width simulation.

`net.law(x)` is the way in; `law_from_covariance` where an input is known by its covariance alone.
`simulate` draws a layer of finite width, and `distances` says how far a sample is from a law.
"""

from ..engine.refusals import refuse_factorised_ntk, refuse_finite_heads
from ..engine.variants import finite_layers
from ..statistics import Estimate
from .law import Law, law_from_covariance, tokens_with_covariance
from .marginal import Marginal, ScaleMixture
from .narrow import HeadWidths
from .points import Points
from .simulation import SimulatedAttention, simulate
from .simulation_inputs import GaussianInputs, GivenGram, GivenInputs

__all__ = [
    "Estimate",
    "GaussianInputs",
    "GivenGram",
    "GivenInputs",
    "HeadWidths",
    "Law",
    "Marginal",
    "Points",
    "ScaleMixture",
    "SimulatedAttention",
    "finite_layers",
    "law_from_covariance",
    "refuse_factorised_ntk",
    "refuse_finite_heads",
    "simulate",
    "tokens_with_covariance",
]
