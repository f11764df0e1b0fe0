"""One head, many heads, narrow heads: where the Gaussian holds and where the law is needed."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy

from ...laws.marginal import Marginal, ScaleMixture
from ...layers.attention.layer import Attention
from ...progress import Callback
from ..drawing.plots import canvas
from . import finite_heads as setting
from .study import Result, Size, Study, publish, tracked

# Bins of a histogram with fewer networks than these are not drawn: seen ones alone mislead.
_FEWEST = 8


def run_heads(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """H = 1 and 256 at width 256, against the law with H heads and the infinite-head Gaussian."""
    scale = setting.simulation_size(size)
    layers = [Attention(256, heads=heads) for heads in (1, 256)]
    return _run("heads", layers, scale, out, progress)


def run_low_rank(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Heads of width 64 in a network of width 64H, as in practice; H = 1, 4, 16."""
    scale = setting.simulation_size(size)
    layers = [
        Attention(64 * heads, heads=heads, key_width=64, value_width=64) for heads in (1, 4, 16)
    ]
    return _run("low_rank", layers, scale, out, progress)


def _run(
    name: str,
    layers: list[Attention],
    scale: setting.SimulationSize,
    out: Path,
    progress: Callback | None,
) -> dict[str, Any]:
    covariance = setting.identity_covariance()
    limits = {
        int(each.heads): setting.limit_law(int(each.heads), covariance, scale.draws)
        for each in layers
    }
    # The mean over heads does not depend on their number: E[K_p] is the infinite-head kernel.
    variance = float(limits[1].variance)
    gaussian = ScaleMixture(np.array([variance]))
    rows, samples = [], {}
    steps = [(layer, seed) for layer in layers for seed in range(scale.seeds)]
    for layer, seed in tracked(steps, progress):
        y, variances = setting.networks(layer, runs=scale.runs, seed=seed)
        samples.setdefault(int(layer.heads), y)
        found = setting.compared(y, variances, limits[int(layer.heads)], seed=seed)
        found["ks_gaussian"] = scipy.stats.kstest(y, gaussian.cdf).statistic
        rows.append({"heads": layer.heads, "width": layer.width, "seed": seed, **found})
    result: dict[str, Any] = {"runs": scale.runs, "seeds": scale.seeds, "gaussian": variance}
    for heads, limit in limits.items():
        law = limit.kurtosis()
        result[str(heads)] = {
            "law_kurtosis": float(law.value),
            "law_kurtosis_error": float(law.error),
            "law_ks_from_gaussian": law_ks(limit, variance),
            "law_kl_from_gaussian": setting.gaussian_kl(limit),
            **setting.averaged(
                [r for r in rows if r["heads"] == heads],
                (*setting.DISTANCES, "ks_gaussian", "variance"),
            ),
        }
    figure, axes = canvas(len(layers))
    for axis, layer in zip(axes[0], layers, strict=True):
        label = f"networks, H={layer.heads}, n={layer.width}"
        setting.draw_density(
            axis, samples[layer.heads], limits[int(layer.heads)], label=label, color="C3"
        )
        low, high = axis.get_xlim()
        grid = np.linspace(low, high, 401)
        axis.plot(grid, gaussian.density(grid), "--", color="C0", label="infinitely many heads")
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    axes[0, 0].set_ylabel("density")
    publish(out, name, result, rows, figure)
    return result


def law_ks(limit: Marginal, variance: float) -> float:
    """`sup |F_law − F_Gaussian|`."""
    y = np.linspace(-6, 6, 4001) * math.sqrt(variance)
    gap = limit.mixture.cdf(y) - ScaleMixture(np.array([variance])).cdf(y)
    return float(np.abs(gap).max())


def run_single_head(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """The picture that opened the question: one head stays non-Gaussian at every width."""
    scale = setting.simulation_size(size)
    covariance = setting.identity_covariance()
    heads = (1, 2, 8, 64)
    limits = {h: setting.limit_law(h, covariance, scale.draws) for h in tracked(heads, progress)}
    variance = float(limits[1].variance)
    layer = Attention(1024, heads=1)
    runs = scale.runs * scale.seeds
    y, _ = setting.networks(layer, runs=runs, seed=0)
    kurtosis, error = setting.sample_kurtosis(y)
    grid = np.linspace(0, 5.5, 111) * math.sqrt(variance)
    fitted = ScaleMixture(np.array([variance]))
    far = np.array(5 * math.sqrt(variance))
    rows = [
        {
            "y": point,
            "gaussian": math.log(float(fitted.density(point))),
            **{
                f"law_{h}": math.log(float(limit.mixture.density(point)))
                for h, limit in limits.items()
            },
        }
        for point in grid
    ]
    result = {
        "networks": {"width": 1024, "runs": runs, "kurtosis": kurtosis, "kurtosis_error": error},
        "laws": {
            str(h): {
                "kurtosis": float(limit.kurtosis().value),
                "kurtosis_error": float(limit.kurtosis().error),
                "tail_ratio_at_5_sd": float(limit.mixture.sf(far) / fitted.sf(far)),
            }
            for h, limit in limits.items()
        },
    }
    publish(out, "single_head", result, rows, _plot_single(y, rows, heads, fitted))
    return result


def _plot_single(
    y: np.ndarray, rows: list[dict[str, Any]], heads: tuple[int, ...], fitted: ScaleMixture
) -> Any:
    figure, axes = canvas(2)
    grid = np.array([row["y"] for row in rows])
    gaussian = np.array([row["gaussian"] for row in rows])
    edges = np.linspace(0, grid[-1], 45)
    counts = np.histogram(np.abs(y), edges)[0]
    seen = counts >= _FEWEST
    middle = (0.5 * (edges[1:] + edges[:-1]))[seen]
    density = counts[seen] / (2 * len(y) * np.diff(edges)[seen])
    noise = 1 / np.sqrt(counts[seen])
    for axis, less in ((axes[0, 0], False), (axes[0, 1], True)):
        base = np.log(fitted.density(middle)) if less else 0.0
        axis.errorbar(
            middle, np.log(density) - base, noise, fmt=".", color="0.5", label="H=1, n=1024"
        )
        for k, h in enumerate(heads):
            curve = np.array([row[f"law_{h}"] for row in rows])
            label = f"law, H={h}"
            axis.plot(grid, curve - gaussian if less else curve, color=f"C{k}", label=label)
        axis.plot(grid, gaussian - (gaussian if less else 0), "k--", label="fitted Gaussian")
        axis.set_xlabel("$|y|$")
    axes[0, 0].set_ylabel("log density")
    axes[0, 1].set_ylabel("log density − log Gaussian")
    axes[0, 1].set_ylim(-0.4, 4.5)
    axes[0, 0].legend(frameon=False, fontsize=8)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    return [
        f"{heads} head{'s' if heads != '1' else ''}: networks are {one['ks']:.4f} from the law and "
        f"{one['ks_gaussian']:.4f} from the Gaussian of infinitely many heads (Kolmogorov "
        f"distances); the law itself is {one['law_ks_from_gaussian']:.4f} from that Gaussian, with "
        f"excess kurtosis {one['law_kurtosis']:.3f} ± {one['law_kurtosis_error']:.3f}."
        for heads, one in result.items()
        if isinstance(one, Mapping)
    ]


def conclude_single_head(result: Result) -> list[str]:
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


_CAPTION = f"{setting.DENSITIES} Blue, dashed: the Gaussian of infinitely many heads."
STUDIES = (
    Study(
        "heads",
        "One head and 256 heads",
        "At width 256: against the law with as many heads, and against the infinite-head Gaussian.",
        run_heads,
        {"heads": _CAPTION},
        conclude,
    ),
    Study(
        "low-rank",
        "Narrow heads in a wide network",
        "Heads of width 64 in networks of width 64H, H = 1, 4, 16, against the law.",
        run_low_rank,
        {"low_rank": f"{_CAPTION} Heads keep a width of 64 while the network grows."},
        conclude,
    ),
    Study(
        "single-head",
        "A single head stays non-Gaussian",
        "Log density against the fitted Gaussian, at infinite width and at width 1024.",
        run_single_head,
        {
            "single_head": "Left: log density of one output of networks with one head and of the "
            "laws, beside the Gaussian of the same variance. Right: what is left when the "
            "Gaussian's log density is subtracted."
        },
        conclude_single_head,
    ),
)
