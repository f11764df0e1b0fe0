"""Duals: the Gaussian expectations E[φ(u)φ(v)] and E[φ'(u)φ'(v)] of an activation φ."""

from .base import Dual
from .given import Given, RectifiedMonomial, gabor, normalised_exponential, step
from .polynomial import Hermite, Polynomial
from .rectified import Identity, Rectifier, Sign, relu
from .series import Series, tanh_gelu
from .smooth import Erf, Exp, Gaussian, Gelu, Sine, cosine

__all__ = [
    "Dual",
    "Erf",
    "Exp",
    "Gaussian",
    "Gelu",
    "Given",
    "Hermite",
    "Identity",
    "Polynomial",
    "RectifiedMonomial",
    "Rectifier",
    "Series",
    "Sign",
    "Sine",
    "cosine",
    "gabor",
    "normalised_exponential",
    "relu",
    "step",
    "tanh_gelu",
]
