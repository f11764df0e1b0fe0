"""Agreement of a limit with wide finite networks, judged by z-scores over repeated draws.

Kernels of a network of width n differ from their limit by O(1/n) on average. Of two widths n and
rn, `(r K(rn) − K(n)) / (r − 1)` has no such term, and its standard error follows from those of the
two. The farther apart the widths, the smaller it is: r = 4 wants a third of the draws of r = 2.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import widelimit as wl
from widelimit.finite.monte_carlo import monte_carlo_kernel
from widelimit.finite.widths import with_width
from widelimit.state import Kernels

# Standard errors must be below this share of the largest kernel entry …
PRECISION = 0.01
# … and no entry may be further from the limit than this many of them.
MOST = 5.0
# What single precision leaves of entries that do not vary between draws.
ROUNDING = 2e-6


@dataclass(frozen=True)
class Estimate:
    """A kernel extrapolated to infinite width, as a share of the limit's largest entry."""

    mean: np.ndarray
    error: np.ndarray
    limit: np.ndarray

    @classmethod
    def of_width(cls, mean: Any, error: Any, limit: Any) -> "Estimate":
        """From the draws of one width."""
        scale = np.abs(limit).max()
        limit = np.asarray(limit, np.float64) / scale
        return cls(mean / scale, np.maximum(error / scale, ROUNDING), limit)

    @classmethod
    def extrapolated(cls, narrow: "Estimate", wide: "Estimate", ratio: int = 2) -> "Estimate":
        """`(r K(rn) − K(n)) / (r − 1)` for widths whose ratio is r."""
        a, b = ratio / (ratio - 1), 1 / (ratio - 1)
        error = np.hypot(a * wide.error, b * narrow.error)
        return cls(a * wide.mean - b * narrow.mean, error, a * wide.limit - b * narrow.limit)

    def joined(self, other: "Estimate", rounds: int) -> "Estimate":
        """The average of `rounds` estimates, of which this is the average of all but `other`."""
        old, new = (rounds - 1) / rounds, 1 / rounds
        error = np.hypot(old * self.error, new * other.error)
        return Estimate(old * self.mean + new * other.mean, error, self.limit)

    def z(self, factor: float = 1.0) -> float:
        """The largest deviation from `factor` times the limit, in standard errors."""
        return float((np.abs(self.mean - factor * self.limit) / self.error).max())

    def precision(self) -> float:
        """The largest standard error."""
        return float(self.error.max())


def simulated(
    net: wl.Layer,
    x: Any,
    limit: wl.Layer,
    *,
    width: int,
    ratio: int,
    outputs: int,
    key: Any,
    **options: Any,
) -> dict[str, Estimate]:
    """Kernels of `net` at widths `width` and `ratio·width`, extrapolated, beside the limit's."""
    found: dict[str, list[Estimate]] = {"NNGP": [], "NTK": []}
    for factor in (1, ratio):
        sizes = {"width": factor * width, "outputs": outputs}
        drawn = monte_carlo_kernel(
            with_width(net, **sizes), x, key=jax.random.fold_in(key, factor), **options
        )
        exact = limit if isinstance(limit, Kernels) else with_width(limit, **sizes).kernel(x)
        found["NNGP"].append(Estimate.of_width(drawn.nngp, drawn.nngp_error, exact.nngp))
        found["NTK"].append(Estimate.of_width(drawn.ntk, drawn.ntk_error, exact.ntk))
    return {name: Estimate.extrapolated(*ends, ratio) for name, ends in found.items()}


def estimated(
    net: wl.Layer,
    x: Any,
    limit: wl.Layer | Kernels | None = None,
    *,
    width: int = 24,
    ratio: int = 2,
    outputs: int = 64,
    draws: int = 2_000,
    rounds: int = 10,
    **options: Any,
) -> dict[str, Estimate]:
    """Rounds of `draws` draws, until standard errors are well below 1 % of the largest entry.

    `limit`: the network whose kernels are compared (by default the same), or its kernels.
    """
    found: dict[str, Estimate] = {}
    limit = net if limit is None else limit
    for done in range(rounds):
        key = jax.random.key(done, impl="rbg")  # of all kinds of keys this compiles fastest
        sizes = {"width": width, "ratio": ratio, "outputs": outputs}
        more = simulated(net, x, limit, **sizes, key=key, draws=draws, **options)
        found = {n: found[n].joined(more[n], done + 1) if found else more[n] for n in more}
        if all(estimate.precision() < 0.9 * PRECISION for estimate in found.values()):
            break
    return found


def assert_agrees(net: wl.Layer, x: Any, limit: wl.Layer | Kernels | None = None, **options: Any):
    """The limit is what finite networks approach, and 7 % more or less would not be."""
    assert_close(estimated(net, x, limit, **options))


def assert_close(found: dict[str, Estimate]) -> None:
    """As far from the limit as chance allows, and 7 % more or less would be further."""
    for name, estimate in found.items():
        precision, z = estimate.precision(), estimate.z()
        assert precision < PRECISION, f"{name}: standard error {precision:.2%}, take more draws"
        assert z < MOST, f"{name}: {z:.1f} standard errors (of {precision:.2%}) away"
        for factor in (0.93, 1.07):
            assert estimate.z(factor) > MOST, f"{name}: cannot tell a factor of {factor}"


def assert_differs(found: dict[str, Estimate], right: Kernels, wrong: Kernels) -> None:
    """Kernels that are not the limit's are noticed, in one of the two kernels at least."""
    pairs = {"NNGP": (right.nngp, wrong.nngp), "NTK": (right.ntk, wrong.ntk)}
    z = [
        np.abs(found[name].mean - other / np.abs(limit).max()) / found[name].error
        for name, (limit, other) in pairs.items()
    ]
    assert np.max(z) > MOST
