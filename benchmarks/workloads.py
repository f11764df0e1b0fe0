"""What is measured: networks as plain data, their inputs, and how many operations they need.

Both libraries build their network from the same description, so this file imports NumPy alone. A
layer is a tuple: its name, then its options.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

Layers = tuple[tuple[Any, ...], ...]

W_STD, B_STD = 1.4, 0.1
DECAY = 0.5

_IMAGE = (("conv", 3), ("relu",), ("conv", 3), ("relu",))
_TEXT = (("conv", 9), ("relu",))
_ATTENTION = ("attention",)
_END = (("pool",), ("dense",))
_BLOCK = (
    ("residual", (("norm",), _ATTENTION)),
    ("residual", (("norm",), ("dense",), ("gelu",), ("dense",))),
)
_CNN = tuple(layer for _ in range(8) for layer in (("conv", 3), ("relu",)))
_FCN = tuple(layer for _ in range(5) for layer in (("dense",), ("relu",)))


@dataclass(frozen=True)
class Workload:
    """One row of the table. Sizes: examples for us, for the peer, and both for a quick run."""

    title: str
    shape: tuple[int, ...]  # one example: positions, channels
    layers: Layers
    ours: int
    peer: int
    quick: tuple[int, int]
    target: float
    lengths: tuple[int, int] | None = None  # shortest and longest sequence, where they vary

    def inputs(self, size: int) -> tuple[np.ndarray, np.ndarray | None]:
        """Inputs and a mask; fewer examples are the first of more."""
        drawn = [np.random.default_rng((7, i)) for i in range(size)]
        x = np.stack([rng.normal(size=self.shape) for rng in drawn]).astype(np.float32)
        if self.lengths is None:
            return x, None
        mask = np.arange(self.shape[0])[None, :] < self.real(size)[:, None]
        return np.where(mask[..., None], x, np.float32(0)), mask

    def real(self, size: int) -> np.ndarray:
        """How many real positions each example has."""
        if self.lengths is None:
            return np.full(size, int(np.prod(self.shape[:-1])))
        low, high = self.lengths
        spread = np.random.default_rng(11).uniform(size=4096)[:size]
        lengths = np.round(low + (high - low) * spread**2).astype(int)
        lengths[0] = high  # the longest is always there, so that all sizes have one shape
        return lengths


WORKLOADS = {
    "a8": Workload(
        "(a) conv-conv-attention, 8×8 images",
        (8, 8, 3), (*_IMAGE, _ATTENTION, ("relu",), *_END), 192, 32, (32, 8), 15,
    ),
    "a16": Workload(
        "(a) conv-conv-attention, 16×16 images",
        (16, 16, 3), (*_IMAGE, _ATTENTION, ("relu",), *_END), 48, 6, (6, 3), 15,
    ),
    "b100": Workload(
        "(b) text, lengths 10 to 100",
        (100, 50), (*_TEXT, _ATTENTION, ("relu",), *_END), 512, 16, (16, 6), 15, (10, 100),
    ),
    "b300": Workload(
        "(b) text, lengths 30 to 300",
        (300, 50), (*_TEXT, _ATTENTION, ("relu",), *_END), 160, 5, (6, 3), 15, (30, 300),
    ),
    "c": Workload(
        "(c) attention directly before pooling, 8×8 images",
        (8, 8, 3), (*_IMAGE, _ATTENTION, *_END), 192, 32, (32, 8), 30,
    ),
    "d": Workload(
        "(d) 4 transformer blocks, LayerNorm, GELU, 64 tokens",
        (64, 32), (("dense",), *_BLOCK * 4, *_END), 48, 12, (8, 4), 1.5,
    ),
    "e": Workload(
        "(e) 5 dense layers on 3,072 inputs",
        (3072,), (*_FCN, ("dense",)), 4000, 4000, (500, 500), 1.5,
    ),
    "f_pool": Workload(
        "(f) 8 convolutions with pooling, 8×8 images",
        (8, 8, 3), (*_CNN, *_END), 128, 32, (16, 8), 10,
    ),
    "f_flat": Workload(
        "(f) 8 convolutions with flatten, 8×8 images",
        (8, 8, 3), (*_CNN, ("flatten",), ("dense",)), 1000, 250, (100, 50), 1.5,
    ),
}  # fmt: skip


# --- operation counts ----------------------------------------------------------------------------

# Elementwise operations on one entry of κ and of Θ together: those of the closed forms, with the
# arc-cosine by two polynomials of degree 10.
_RELU, _GELU, _NORM, _AFFINE, _ADD = 64, 80, 4, 5, 4


@dataclass(frozen=True)
class Operations:
    """Floating-point operations, by the machine limit that bounds them."""

    products: float
    elementwise: float
    result_bytes: float


def operations(work: Workload, size: int) -> Operations:
    """Operations of the symmetric half of the kernel matrix, on real positions only."""
    real = work.real(size).astype(float)
    i, j = np.triu_indices(size)
    left, right = real[i], real[j]
    full = any(layer[0] in ("pool", "attention") for layer in work.layers)
    area = left * right if full else np.minimum(left, right)
    products = 2 * area * work.shape[-1]
    state = _Count(left, right, area, products, np.zeros_like(area), len(work.shape) - 1)
    state.walk(work.layers)
    return Operations(float(state.products.sum()), float(state.elementwise.sum()), 8.0 * size**2)


@dataclass
class _Count:
    left: np.ndarray
    right: np.ndarray
    area: np.ndarray
    products: np.ndarray
    elementwise: np.ndarray
    axes: int

    def walk(self, layers: Layers) -> None:
        for layer, after in zip(layers, (*layers[1:], ("end",)), strict=True):
            self._add(layer, after)

    def _add(self, layer: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        each = {"relu": _RELU, "gelu": _GELU, "norm": _NORM, "dense": _AFFINE}
        name = layer[0]
        if name in each:
            self.elementwise = self.elementwise + each[name] * self.area
        elif name == "conv":
            sums = 2 * (self.axes * (layer[1] - 1) + 1) + _AFFINE
            self.elementwise = self.elementwise + sums * self.area
        elif name == "attention" and after[0] == "pool":
            self.products = self.products + 4 * (self.area + self.right)
        elif name == "attention":
            self.products = self.products + 4 * self.area * (self.left + self.right)
        elif name == "residual":
            self.walk(layer[1])
            self.elementwise = self.elementwise + _ADD * self.area
        elif name in ("pool", "flatten"):
            self.elementwise = self.elementwise + 2 * self.area
            self.area = np.ones_like(self.area)
