"""Limit laws of networks with finitely many heads, and finite-width simulation.

`net.law(x)` is the way in; `law_from_covariance` where an input is known by its covariance alone.
`simulate` draws a layer of finite width, and `distances` says how far a sample is from a law.
"""

from ..statistics import Estimate
from .law import JointLaw, Law
from .marginal import Marginal, ScaleMixture
from .narrow import HeadWidths
from .network import NetworkLaw, law_from_covariance, tokens_with_covariance
from .simulation import SimulatedAttention, simulate
from .simulation_inputs import GaussianInputs, GivenGram

__all__ = [
    "Estimate",
    "GaussianInputs",
    "GivenGram",
    "HeadWidths",
    "JointLaw",
    "Law",
    "Marginal",
    "NetworkLaw",
    "ScaleMixture",
    "SimulatedAttention",
    "law_from_covariance",
    "simulate",
    "tokens_with_covariance",
]
