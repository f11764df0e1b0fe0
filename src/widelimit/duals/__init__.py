"""Duals: the Gaussian expectations E[φ(u)φ(v)] and E[φ'(u)φ'(v)] of an activation φ."""

from .base import Dual
from .polynomial import Hermite, Polynomial, monomial
from .rectified import Identity, Rectifier, Sign, absolute, leaky_relu, relu
from .series import Series, sigmoid, silu, softplus, tanh, tanh_gelu
from .smooth import Erf, Exp, Gaussian, Gelu, Sine, cosine

__all__ = [
    "Dual",
    "Erf",
    "Exp",
    "Gaussian",
    "Gelu",
    "Hermite",
    "Identity",
    "Polynomial",
    "Rectifier",
    "Series",
    "Sign",
    "Sine",
    "absolute",
    "cosine",
    "leaky_relu",
    "monomial",
    "relu",
    "sigmoid",
    "silu",
    "softplus",
    "tanh",
    "tanh_gelu",
]
