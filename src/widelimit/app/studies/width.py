"""How wide is wide enough: finite networks approach the finite-head law as the width grows.

Two heads, widths 16 to 1024, for clipped-identity inputs and for ReLU inputs. The ReLU inputs break
a precondition of the theorem (the input map is unbounded) and follow the law all the same. A third
study, which is not published, has sequences of 2 to 32 tokens.
"""

from pathlib import Path
from typing import Any

import numpy as np

from ...laws.simulation_inputs import relu
from ...layers.attention.layer import Attention
from ..drawing import canvas
from . import finite_heads as setting
from .study import Progress, Size, publish, tracked

WIDTHS = (16, 64, 256, 1024)
HEADS = 2
LENGTHS = (2, 4, 8, 16, 32)


def run_width(size: Size, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Clipped-identity inputs."""
    scale = setting.simulation_size(size)
    return _run("width", setting.identity_covariance(), None, scale, out, progress)


def run_relu(size: Size, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """ReLU inputs, with twice the networks, as published."""
    scale = setting.simulation_size(size)
    scale = scale._replace(runs=2 * scale.runs)
    return _run("relu", setting.relu_covariance(), relu, scale, out, progress)


def run_length(size: Size, out: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Clipped-identity inputs of several lengths: divergence of networks from the law by width."""
    scale = setting.simulation_size(size)
    scale = scale._replace(seeds=min(scale.seeds, 3))
    limits = {
        tokens: setting.limit_law(HEADS, setting.identity_covariance(tokens), scale.draws)
        for tokens in LENGTHS
    }
    rows = []
    steps = [(s, w, seed) for s in LENGTHS for w in WIDTHS for seed in range(scale.seeds)]
    for tokens, width, seed in tracked(steps, progress):
        layer = Attention(width, heads=HEADS)
        _, variances = setting.networks(layer, runs=scale.runs, seed=seed, tokens=tokens)
        limit = limits[tokens]
        again = np.random.default_rng(seed).choice(limit.variances, size=scale.runs)
        found = {
            "kl_density": setting.density_kl(variances, limit),
            "kl_density_floor": setting.density_kl(again, limit),
        }
        rows.append({"tokens": tokens, "width": width, "seed": seed, **found})
    names = ("kl_density", "kl_density_floor")
    lengths: dict[str, Any] = {}
    for tokens, limit in limits.items():
        law = limit.kurtosis()
        lengths[str(tokens)] = {
            "kurtosis": float(law.value),
            "kurtosis_error": float(law.error),
            "kl_from_gaussian": setting.gaussian_kl(limit),
            "widths": {
                str(width): setting.averaged(
                    [r for r in rows if (r["tokens"], r["width"]) == (tokens, width)], names
                )
                for width in WIDTHS
            },
        }
    result = {"heads": HEADS, "runs": scale.runs, "seeds": scale.seeds, "lengths": lengths}
    publish(out, "length", result, rows, _plot_lengths(lengths))
    return result


def _plot_lengths(lengths: dict[str, Any]) -> Any:
    figure, axes = canvas(2)
    for number, (tokens, found) in enumerate(lengths.items()):
        by_width = found["widths"].values()
        excess = [one["kl_density"] - one["kl_density_floor"] for one in by_width]
        axes[0, 0].loglog(WIDTHS, excess, "o-", color=f"C{number}", label=f"{tokens} tokens")
    axes[0, 0].set_xlabel("width $n$")
    axes[0, 0].set_ylabel("KL(networks ‖ limit), floor subtracted")
    axes[0, 0].set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    axes[0, 0].set_xticks([], minor=True)
    axes[0, 0].legend(frameon=False, fontsize=8)
    sizes = [int(tokens) for tokens in lengths]
    axes[0, 1].semilogx(sizes, [one["kurtosis"] for one in lengths.values()], "o-", color="C3")
    axes[0, 1].set_xticks(sizes, [str(size) for size in sizes])
    axes[0, 1].set_xticks([], minor=True)
    axes[0, 1].set_ylim(bottom=0)
    axes[0, 1].set_xlabel("tokens")
    axes[0, 1].set_ylabel("excess kurtosis of the limit")
    return figure


def _run(
    name: str,
    covariance: np.ndarray,
    input_map: setting.InputMap | None,
    scale: setting.SimulationSize,
    out: Path,
    progress: Progress | None,
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
