"""How wide is wide enough: finite networks approach the finite-head law as the width grows.

Two heads, widths 16 to 1024, for clipped-identity inputs and for ReLU inputs. The ReLU inputs break
a precondition of the theorem (the input map is unbounded) and follow the law all the same.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ...laws.simulation_inputs import relu
from ...layers.attention.layer import Attention
from ...progress import Callback
from ..drawing.plots import canvas
from . import finite_heads as setting
from .study import Result, Size, Study, publish, tracked

WIDTHS = (16, 64, 256, 1024)
HEADS = 2


def run_width(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Clipped-identity inputs."""
    scale = setting.simulation_size(size)
    return _run("width", setting.identity_covariance(), None, scale, out, progress)


def run_relu(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """ReLU inputs, with twice the networks, as published."""
    scale = setting.simulation_size(size)
    scale = scale._replace(runs=2 * scale.runs)
    return _run("relu", setting.relu_covariance(), relu, scale, out, progress)


def _run(
    name: str,
    covariance: np.ndarray,
    input_map: setting.InputMap | None,
    scale: setting.SimulationSize,
    out: Path,
    progress: Callback | None,
) -> dict[str, Any]:
    limit = setting.limit_law(HEADS, covariance, scale.draws)
    rows, samples = [], {}
    steps = [(width, seed) for width in WIDTHS for seed in range(scale.seeds)]
    for width, seed in tracked(steps, progress):
        layer = Attention(width, heads=HEADS)
        y, variances = setting.networks(layer, runs=scale.runs, seed=seed, input_map=input_map)
        samples.setdefault(width, y)
        found = setting.compared(y, variances, limit, seed=seed)
        rows.append({"width": width, "seed": seed, **found})
    by_width = {
        str(width): setting.averaged(
            [r for r in rows if r["width"] == width],
            (*setting.DISTANCES, "kurtosis_from_variances"),
        )
        for width in WIDTHS
    }
    law = limit.kurtosis()
    result = {
        "heads": HEADS,
        "runs": scale.runs,
        "seeds": scale.seeds,
        "limit": {
            "variance": float(limit.variance),
            "kurtosis": float(law.value),
            "kurtosis_error": float(law.error),
            "kl_from_gaussian": setting.gaussian_kl(limit),
        },
        "widths": by_width,
    }
    publish(out, name, result, rows, _plot(limit, samples, by_width))
    return result


def _plot(limit: Any, samples: dict[int, np.ndarray], found: dict[str, Any]) -> Any:
    figure, axes = canvas(3)
    for axis, width in zip(axes[0], (WIDTHS[0], WIDTHS[-1]), strict=False):
        setting.draw_density(axis, samples[width], limit, label=f"networks, n={width}", color="C3")
        axis.legend(frameon=False, loc="upper right")
    axes[0, 0].set_ylabel("density")
    axis = axes[0, 2]

    def curve(key: str) -> np.ndarray:
        return np.array([found[str(width)][key] for width in WIDTHS])

    estimators = {
        "kl_kernel_density": ("o-", "C0", "kernel density, as published"),
        "kl_histogram": ("^-", "C1", "histogram, 100 bins"),
    }
    for key, (style, colour, label) in estimators.items():
        axis.loglog(WIDTHS, curve(key), style, color=colour, label=label)
        axis.loglog(WIDTHS, curve(f"{key}_floor"), ":", color=colour, label="its floor")
    excess = curve("kl_density") - curve("kl_density_floor")
    axis.loglog(WIDTHS, excess, "s-", color="C3", label="densities, floor subtracted")
    axis.loglog(WIDTHS, curve("kl_density_floor"), ":", color="C3", label="that floor")
    axis.set_xlabel("width $n$")
    axis.set_ylabel("KL(networks ‖ limit)")
    axis.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    axis.set_xticks([], minor=True)
    axis.legend(frameon=False, fontsize=7)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    widths, limit = result["widths"], result["limit"]
    first, last = (widths[name] for name in (min(widths, key=int), max(widths, key=int)))
    gaps = [max(one["kl_density"] - one["kl_density_floor"], 0.0) for one in (first, last)]
    return [
        f"The limit with {result['heads']} heads is not Gaussian: excess kurtosis "
        f"{limit['kurtosis']:.4f} ± {limit['kurtosis_error']:.4f}.",
        f"From width {min(widths, key=int)} to width {max(widths, key=int)} the divergence of "
        f"networks from the law, beyond what chance gives, goes from {gaps[0]:.1e} to "
        f"{gaps[1]:.1e}; the Kolmogorov distance from {first['ks']:.4f} to {last['ks']:.4f}.",
        f"At width {max(widths, key=int)} kernel density estimates, the published estimator, give "
        f"{last['kl_kernel_density']:.1e}, where two samples of one distribution would give "
        f"{last['kl_kernel_density_floor']:.1e}; the histogram gives {last['kl_histogram']:.1e} "
        f"over a floor of {last['kl_histogram_floor']:.1e}.",
    ]


_CAPTION = (
    f"{setting.DENSITIES} Right: the Kullback-Leibler divergence of networks from the law by "
    "width, by three estimators; dotted lines are what each shows by chance alone."
)
STUDIES = (
    Study(
        "width",
        "Networks approach the finite-head law",
        "Two heads, widths 16 to 1024: histograms of one output against the law, KL by width.",
        run_width,
        {"width": _CAPTION},
        conclude,
    ),
    Study(
        "relu",
        "ReLU inputs",
        "The width study with unbounded inputs, which break a precondition of the theorem.",
        run_relu,
        {"relu": f"{_CAPTION} Inputs are ReLU, unbounded."},
        conclude,
    ),
)
