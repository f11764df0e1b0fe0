"""KL divergence by kernel density estimates, as the finite-head paper's authors measure it."""

import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Float
from scipy.special import rel_entr

from ..errors import NumericalError
from ..options import whole
from .distances import Distance, checked_sample

_ADDED = 1e-12
"""What the authors add to both densities before they take logarithms."""

_SPLITS = 24
"""Random splits of the two samples together, behind a floor."""

_CELLS = 16
"""Cells of the binned sample in one bandwidth: densities are exact to 1e-4 of the largest."""


def kl_kernel_density(
    sample: ArrayLike,
    other: ArrayLike,
    *,
    points: int = 500,
    span: tuple[float, float] | None = None,
) -> Distance:
    """KL(sample ‖ other) of two samples, each smoothed by Gaussians of Scott's bandwidth.

    `Σ_k p_k log(p_k/q_k)` over `points` even points on `span` (both samples by default), with
    `1e-12` added to both densities and both normalised to sum 1: the estimator of the numerical
    simulations of *Infinite-Width Limit of a Single Attention Layer*
    (github.com/manasakai/infinite-width-attention, `src/kl_divergence.py`), where the second sample
    is one of the limit. `floor` is its mean over random splits of both samples together, the
    value for two samples of one distribution; `error` is the spread over these splits, which holds
    while the divergence is small.
    """
    one, two = checked_sample(sample), checked_sample(other)
    whole("points", points, least=2)
    pooled = np.concatenate([one, two])
    low, high = (pooled.min(), pooled.max()) if span is None else span
    if not (high > low and one.std() > 0.0 and two.std() > 0.0):
        raise NumericalError(
            "Kernel density estimates need samples whose values differ, and a span from low to "
            "high.",
            got=f"standard deviations {one.std():.3g} and {two.std():.3g}, span ({low}, {high})",
            remedy="check that the samples are not constant",
        )
    grid = np.linspace(low, high, points)
    splits = []
    rng = np.random.default_rng(0)
    for _ in range(_SPLITS):
        mixed = rng.permutation(pooled)
        splits.append(_divergence(mixed[: one.size], mixed[one.size :], grid))
    return Distance(
        value=_divergence(one, two, grid),
        error=float(np.std(splits, ddof=1)),
        floor=float(np.mean(splits)),
    )


def _divergence(one: np.ndarray, two: np.ndarray, grid: Float[np.ndarray, " points"]) -> float:
    p, q = (smoothed(values, grid) + _ADDED for values in (one, two))
    return float(rel_entr(p / p.sum(), q / q.sum()).sum())


def smoothed(
    values: Float[np.ndarray, " draws"], grid: Float[np.ndarray, " points"]
) -> Float[np.ndarray, " points"]:
    """`mean_i N(y; x_i, h²)`, `h = std N^{-1/5}`, from values shared out over fine cells."""
    bandwidth = values.std(ddof=1) * values.size**-0.2
    cell = bandwidth / _CELLS
    low = values.min()
    place = (values - low) / cell
    left = place.astype(np.int64)
    share = place - left
    count = int(left.max()) + 2
    mass = np.bincount(left, 1.0 - share, count) + np.bincount(left + 1, share, count)
    used = np.flatnonzero(mass)
    centres = low + cell * used
    # Sharing out between two cells widens a value by cell²/6 on average.
    width = np.sqrt(bandwidth**2 - cell**2 / 6)
    z = (grid[:, None] - centres[None, :]) / width
    return np.exp(-0.5 * np.square(z)) @ mass[used] / (np.sqrt(2.0 * np.pi) * width * values.size)
