"""A kernel matrix, targets and tests for Gaussian-process inference, in double precision."""

from typing import NamedTuple

import numpy as np

NOISE = 0.1
TESTS = 200


class Problem(NamedTuple):
    """What inference starts from."""

    train: np.ndarray
    targets: np.ndarray
    cross: np.ndarray
    corner: np.ndarray


def problem(size: int) -> Problem:
    """The arc-cosine kernel of random inputs."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(size + TESTS, 64))
    norms = np.sqrt(np.einsum("nd,nd->n", x, x))
    scale = norms[:, None] * norms[None, :]
    c = np.clip(x @ x.T / scale, -1, 1)
    kernel = scale * (np.sqrt(1 - c**2) + (np.pi - np.arccos(c)) * c) / (2 * np.pi * 64)
    targets = np.sin(x[:size, :1])
    return Problem(kernel[:size, :size].copy(), targets, kernel[size:, :size], kernel[size:, size:])
