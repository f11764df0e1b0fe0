"""A model at finite width beside its limit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..compilation import jitted
from ..errors import ShapeError
from ..figures import one_axes
from ..laws.marginal import jackknifed

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .law import TracedLaw
    from .program import Traced

_GROUPS = 64
_BLOCK = 512


@dataclass(frozen=True)
class AtWidth:
    """What `draws` random models of one width show; errors are standard errors."""

    width: int
    outputs: np.ndarray
    """(draws, coordinates)."""
    second: np.ndarray
    second_error: np.ndarray
    kurtosis: np.ndarray
    kurtosis_error: np.ndarray
    second_z: np.ndarray
    kurtosis_z: np.ndarray


@dataclass(frozen=True)
class Comparison:
    """Second moments (all pairs of outputs) and excess kurtosis (each output) by width."""

    law: TracedLaw
    second: np.ndarray
    second_error: np.ndarray
    kurtosis: np.ndarray
    kurtosis_error: np.ndarray
    widths: tuple[AtWidth, ...]

    def __str__(self) -> str:
        rows = [f"{'width':>8} {'largest z':>10} {'relative error':>15} {'kurtosis':>9} {'z':>6}"]
        scale = np.abs(self.second).max()
        for one in self.widths:
            off = np.abs(one.second - self.second).max() / scale
            rows.append(
                f"{one.width:>8} {np.abs(one.second_z).max():>10.2f} {off:>15.4f} "
                f"{one.kurtosis[0]:>9.3f} {np.abs(one.kurtosis_z).max():>6.2f}"
            )
        rows.append(f"{'∞':>8} {'':>10} {'':>15} {self.kurtosis[0]:>9.3f}")
        return "\n".join(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The density of the first output at infinite width, and histograms at finite widths."""
        ax = one_axes(ax, (5.4, 3.8))
        deviation = float(np.sqrt(self.second[0, 0]))
        grid = np.linspace(-4.5, 4.5, 241) * deviation
        marginal = self.law.at(*(0,) * len(self.law.shape))
        for one in self.widths:
            values = one.outputs[:, 0] - float(self.law.mean.ravel()[0])
            count, edges = np.histogram(values, bins=60, range=(grid[0], grid[-1]))
            density = count / (len(values) * np.diff(edges))
            ax.plot(
                (edges[1:] + edges[:-1]) / 2, density, ".", markersize=4, label=f"width {one.width}"
            )
        ax.plot(
            grid, marginal.density(grid).value, color="black", linewidth=1.2, label="infinite width"
        )
        ax.set_yscale("log")
        ax.set_ylim(bottom=1e-5 / deviation)
        ax.set_xlabel("first output")
        ax.set_ylabel("density")
        ax.legend(frameon=False)
        return ax


def finite_outputs(traced: Traced, width: int, draws: int, key: Any) -> np.ndarray:
    """Outputs of random models, (draws, coordinates)."""
    x = jnp.asarray(traced.x)
    run = jitted(jax.vmap(lambda k: traced.model(width, k)(x)))
    keys = jax.random.split(key, draws)
    block = max(1, min(_BLOCK, draws, (1 << 26) // (width * width)))
    parts = [np.asarray(run(keys[i : i + block])) for i in range(0, draws - draws % block, block)]
    if draws % block:
        parts.append(np.asarray(run(keys[-(draws % block) :])))
    found = np.concatenate(parts).astype(np.float64)
    return found.reshape(draws, -1)


def compared(traced: Traced, widths: tuple[int, ...], draws: int, key: Any) -> Comparison:
    """Draw models and put their moments beside the limit's."""
    if draws < 2 * _GROUPS or not widths:
        raise ShapeError(
            f"A comparison takes at least {2 * _GROUPS} draws at one width or more.",
            got=f"draws={draws}, widths={widths}",
            remedy="give draws=4096, widths=(64, 256)",
        )
    law = traced.limit()
    mean = law.mean.ravel()
    size = law.real.size
    coordinates = range(size)
    limit = _flat(law)
    kurtoses = [law._marginal(_unit(law, i)).kurtosis() for i in coordinates]
    kurtosis = np.array([k.value for k in kurtoses])
    kurtosis_error = np.array([k.error for k in kurtoses])
    found = []
    for number, width in enumerate(widths):
        outputs = finite_outputs(traced, width, draws, jax.random.fold_in(key, number))
        if outputs.shape[1] != size:
            # One channel of outputs that have a width axis.
            outputs = outputs.reshape(draws, size, -1)[:, :, 0]
        centred = outputs - mean
        groups = draws // _GROUPS
        kept = centred[: groups * _GROUPS].reshape(_GROUPS, groups, size)
        products = np.einsum("gki,gkj->gij", kept, kept) / groups
        second = products.mean(axis=0)
        error = products.std(axis=0, ddof=1) / np.sqrt(_GROUPS)
        fourth = np.mean(kept**4, axis=1)
        square = np.mean(kept**2, axis=1)
        tail = jackknifed(lambda f, s: f / s**2 - 3, fourth, square)
        total = np.hypot(error, limit[1])
        found.append(
            AtWidth(
                width,
                outputs,
                second,
                error,
                np.asarray(tail.value),
                np.asarray(tail.error),
                (second - limit[0]) / np.maximum(total, 1e-300),
                (tail.value - kurtosis) / np.maximum(np.hypot(tail.error, kurtosis_error), 1e-300),
            )
        )
    return Comparison(law, limit[0], limit[1], kurtosis, kurtosis_error, tuple(found))


def _flat(law: TracedLaw) -> tuple[np.ndarray, np.ndarray]:
    kernels = law.kernels if law.replicates is None else law.replicates
    error = (
        kernels.std(axis=0, ddof=1) / np.sqrt(len(kernels)) if len(kernels) > 1 else 0 * kernels[0]
    )
    return kernels.mean(axis=0), error


def _unit(law: TracedLaw, index: int) -> np.ndarray:
    weights = np.zeros(law.real.size)
    weights[index] = 1.0
    return weights.reshape(law.shape)
