"""Duals: the Gaussian expectations E[φ(u)φ(v)] and E[φ'(u)φ'(v)] of an activation φ."""

from .base import Dual
from .rectified import Identity, Rectifier, Sign, absolute, leaky_relu, relu
from .smooth import Erf, Exp, Gaussian, Gelu, Sine, cosine

__all__ = [
    "Dual",
    "Erf",
    "Exp",
    "Gaussian",
    "Gelu",
    "Identity",
    "Rectifier",
    "Sign",
    "Sine",
    "absolute",
    "cosine",
    "leaky_relu",
    "relu",
]
