"""The picture that opened the question: one head stays non-Gaussian at every width."""

from pathlib import Path
from typing import Any

import numpy as np

from ...laws.marginal import ScaleMixture
from ...layers.attention.layer import Attention
from ...progress import Callback
from ..drawing.plots import canvas
from . import finite_heads as setting
from .study import Result, Size, Study, publish, tracked

HEADS, WIDTH = (1, 2, 8, 64), 1024
# Bins of a histogram with fewer networks than these are not drawn: seen ones alone mislead.
_FEWEST = 8


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Log densities of the laws of 1 to 64 heads, and of networks with one."""
    scale, covariance = setting.simulation_size(size), setting.identity_covariance()
    limits = {h: setting.limit_law(h, covariance, scale.draws) for h in tracked(HEADS, progress)}
    fitted = ScaleMixture(np.array([float(limits[1].variance)]))
    std = float(limits[1].variance) ** 0.5
    runs = scale.runs * scale.seeds
    y, _ = setting.networks(Attention(WIDTH, heads=1), runs=runs, seed=0)
    kurtosis, error = setting.sample_kurtosis(y)
    grid = np.linspace(0, 5.5, 111) * std
    curves = {"y": grid, "gaussian": np.log(fitted.density(grid))}
    laws = {}
    for heads, limit in limits.items():
        curves[f"law_{heads}"] = np.log(limit.mixture.density(grid))
        said, far = limit.kurtosis(), np.array(5 * std)
        laws[str(heads)] = {
            "kurtosis": float(said.value),
            "kurtosis_error": float(said.error),
            "tail_ratio_at_5_sd": float(limit.mixture.sf(far) / fitted.sf(far)),
        }
    networks = {"width": WIDTH, "runs": runs, "kurtosis": kurtosis, "kurtosis_error": error}
    result = {"networks": networks, "laws": laws}
    publish(out, "single_head", result, curves, _plot(y, curves, fitted))
    return result


def _plot(y: np.ndarray, curves: dict[str, np.ndarray], fitted: ScaleMixture) -> Any:
    figure, axes = canvas(2)
    grid, gaussian = curves["y"], curves["gaussian"]
    edges = np.linspace(0, grid[-1], 45)
    counts = np.histogram(np.abs(y), edges)[0]
    seen = counts >= _FEWEST
    middle = (0.5 * (edges[1:] + edges[:-1]))[seen]
    density = np.log(counts[seen] / (2 * len(y) * np.diff(edges)[seen]))
    noise = 1 / np.sqrt(counts[seen])
    bases = (np.zeros_like(grid), np.zeros_like(middle)), (gaussian, np.log(fitted.density(middle)))
    for axis, (base, at_middle) in zip(axes[0], bases, strict=True):
        axis.errorbar(
            middle, density - at_middle, noise, fmt=".", color="0.5", label=f"H=1, n={WIDTH}"
        )
        for h in HEADS:
            axis.plot(grid, curves[f"law_{h}"] - base, label=f"law, H={h}")
        axis.plot(grid, gaussian - base, "k--", label="fitted Gaussian")
        axis.set_xlabel("$|y|$")
    axes[0, 0].set_ylabel("log density")
    axes[0, 1].set(ylabel="log density − log Gaussian", ylim=(-0.4, 4.5))
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    seen = result["networks"]
    said = [
        f"{heads} head{'s' if heads != '1' else ''} at infinite width: excess kurtosis "
        f"{one['kurtosis']:.3f} ± {one['kurtosis_error']:.3f}; values beyond five standard "
        f"deviations are {one['tail_ratio_at_5_sd']:.3g} times as frequent as for the Gaussian."
        for heads, one in result["laws"].items()
    ]
    return [
        *said,
        f"Networks of width {seen['width']} with one head: excess kurtosis {seen['kurtosis']:.3f} "
        f"± {seen['kurtosis_error']:.3f}. Width does not make them Gaussian; heads do.",
    ]


STUDY = Study(
    "single-head",
    "A single head stays non-Gaussian",
    "Log density against the fitted Gaussian, at infinite width and at width 1024.",
    run,
    {
        "single_head": "Left: log density of one output of networks with one head and of the "
        "laws, beside the Gaussian of the same variance. Right: what is left when the "
        "Gaussian's log density is subtracted."
    },
    conclude,
)
