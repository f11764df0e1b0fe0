"""Finite networks against the law with as many heads: by width, by heads, and narrow heads.

Networks approach the law as their width grows, and the Gaussian only as their heads do. ReLU inputs
break a precondition of the theorem (the input map is unbounded) and follow the law all the same.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...laws.marginal import Marginal, ScaleMixture
from ...laws.simulation_inputs import relu
from ...layers.attention.layer import Attention
from ...printing import counted
from ...progress import Callback
from ..drawing.plots import canvas
from . import finite_heads as setting
from .study import Result, Size, Study, publish, tracked

HEADS, WIDTHS = 2, (16, 64, 256, 1024)


def run(
    name: str,
    layers: Sequence[Attention],
    size: Size,
    out: Path,
    progress: Callback | None = None,
    *,
    unbounded: bool = False,
) -> dict[str, Any]:
    """Networks of every layer over several seeds; `unbounded` inputs are ReLU's, twice as many."""
    scale = setting.simulation_size(size)
    covariance, input_map = setting.identity_covariance(), None
    if unbounded:
        covariance, input_map = setting.relu_covariance(), relu
        scale = scale._replace(runs=2 * scale.runs)
    counts = sorted({int(layer.heads) for layer in layers})
    limits = {heads: setting.limit_law(heads, covariance, scale.draws) for heads in counts}
    # The mean over heads does not depend on their number: E[K_p] is the infinite-head kernel.
    variance = float(limits[counts[0]].variance)
    gaussian = ScaleMixture(np.array([variance]))
    rows, samples = [], {}
    steps = [(layer, seed) for layer in layers for seed in range(scale.seeds)]
    for layer, seed in tracked(steps, progress):
        y, variances = setting.networks(layer, runs=scale.runs, seed=seed, input_map=input_map)
        samples.setdefault((layer.heads, layer.width), y)
        found = setting.compared(y, variances, limits[int(layer.heads)], gaussian, seed=seed)
        rows.append({"heads": layer.heads, "width": layer.width, "seed": seed, **found})
    result: dict[str, Any] = {
        "runs": scale.runs,
        "seeds": scale.seeds,
        "gaussian_variance": variance,
    }
    for layer in layers:
        here = [r for r in rows if (r["heads"], r["width"]) == (layer.heads, layer.width)]
        label = layer.width if len(counts) == 1 else layer.heads
        result[str(label)] = (
            {"heads": layer.heads, "width": layer.width}
            | law_numbers(limits[int(layer.heads)], variance)
            | setting.averaged(here, tuple(here[0])[3:])
        )
    publish(out, name, result, rows, _plot(layers, samples, limits, gaussian, result))
    return result


def law_numbers(limit: Marginal, variance: float) -> dict[str, float]:
    """How far the law itself is from the Gaussian: `sup |F_law − F_Gaussian|`, divergence."""
    kurtosis, gaussian = limit.kurtosis(), ScaleMixture(np.array([variance]))
    y = np.linspace(-6, 6, 4001) * math.sqrt(variance)
    return {
        "law_kurtosis": float(kurtosis.value),
        "law_kurtosis_error": float(kurtosis.error),
        "law_ks_from_gaussian": float(np.abs(limit.mixture.cdf(y) - gaussian.cdf(y)).max()),
        "law_kl_from_gaussian": setting.gaussian_kl(limit),
    }


def _plot(
    layers: Sequence[Attention],
    samples: Mapping[Any, np.ndarray],
    limits: Mapping[int, Marginal],
    gaussian: ScaleMixture,
    result: Result,
) -> Any:
    """Histograms, of many widths the first and the last; then what estimators say by width."""
    by_width = len(limits) == 1
    shown = [layers[0], layers[-1]] if by_width else layers
    figure, axes = canvas(len(shown) + by_width)
    axes[0, 0].set_ylabel("density")
    for axis, layer in zip(axes[0], shown, strict=False):
        y, limit = samples[layer.heads, layer.width], limits[int(layer.heads)]
        # As far as the farthest network lies, with room for the legend.
        span = max(5 * float(limit.variance) ** 0.5, 1.02 * float(np.abs(y).max()))
        grid, edges = np.linspace(-span, span, 401), np.linspace(-span, span, 81)
        label = f"networks, H={layer.heads}, n={layer.width}"
        axis.hist(y, bins=edges, density=True, color="0.82", label=label)
        axis.plot(grid, limit.mixture.density(grid), color="C3", lw=1.6, label="limit law")
        axis.plot(grid, gaussian.density(grid), "--", color="C0", label="infinitely many heads")
        single = 1 / (len(y) * (edges[1] - edges[0]))  # the density of one network in a bin
        axis.set(yscale="log", ylim=(0.4 * single, 40), xlabel="$y_{1,1}$")
        axis.legend(frameon=False, fontsize=8, loc="upper right")
    if by_width:
        _plot_estimators(axes[0, -1], {n: result[str(n)] for n in (one.width for one in layers)})
    return figure


def _plot_estimators(axis: Any, found: Mapping[Any, Mapping[str, float]]) -> None:
    widths, known = list(found), list(found.values())
    estimators = {
        "kl_kernel_density": "kernel density, as published",
        "kl_histogram": "histogram, 100 bins",
        "kl_density": "densities, floor subtracted",
    }
    for number, (key, label) in enumerate(estimators.items()):
        values, floor = (np.array([one[k] for one in known]) for k in (key, f"{key}_floor"))
        values = values - floor if key == "kl_density" else values
        axis.loglog(widths, values, "o-", color=f"C{number}", label=label)
        axis.loglog(widths, floor, ":", color=f"C{number}", label="its floor")
    axis.set(xlabel="width $n$", ylabel="KL(networks ‖ limit)")
    axis.set_xticks(widths, [str(width) for width in widths])
    axis.set_xticks([], minor=True)
    axis.legend(frameon=False, fontsize=7)


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    cases = [one for one in result.values() if isinstance(one, Mapping)]
    laws = {one["heads"]: one for one in cases}
    said = [
        f"The law of {counted(heads, 'head')} is {one['law_ks_from_gaussian']:.4f} from the "
        "Gaussian of infinitely many (Kolmogorov distance), with excess kurtosis "
        f"{one['law_kurtosis']:.3f} ± {one['law_kurtosis_error']:.3f}."
        for heads, one in laws.items()
    ]
    return said + [
        f"Networks of {counted(one['heads'], 'head')} and width {one['width']:,} are "
        f"{one['ks']:.4f} from their law and {one['ks_gaussian']:.4f} from the Gaussian; by "
        "divergence, beyond what chance gives, they are "
        f"{max(one['kl_density'] - one['kl_density_floor'], 0.0):.1e} from their law."
        for one in cases
    ]


def _study(
    name: str,
    title: str,
    description: str,
    caption: str,
    layers: Sequence[Attention],
    **options: Any,
) -> Study:
    file = name.replace("-", "_")
    captions = {file: f"{_CAPTION} {caption}"}
    return Study(
        name, title, description, partial(run, file, layers, **options), captions, conclude
    )


_CAPTION = (
    "Histograms (grey) of one output over random networks, the limit law (red), and the Gaussian "
    "of infinitely many heads (blue, dashed), logarithmic."
)
_BY_WIDTH = (
    "Right: the Kullback-Leibler divergence of networks from the law by width, by three "
    "estimators; dotted lines are what each shows by chance alone."
)
_BY_WIDTH_LAYERS = [Attention(width, heads=HEADS) for width in WIDTHS]
STUDIES = (
    _study(
        "width",
        "Networks approach the finite-head law",
        "Two heads, widths 16 to 1024: histograms of one output against the law, KL by width.",
        _BY_WIDTH,
        _BY_WIDTH_LAYERS,
    ),
    _study(
        "relu",
        "ReLU inputs",
        "The width study with unbounded inputs, which break a precondition of the theorem.",
        f"{_BY_WIDTH} Inputs are ReLU, unbounded.",
        _BY_WIDTH_LAYERS,
        unbounded=True,
    ),
    _study(
        "heads",
        "One head and 256 heads",
        "At width 256: against the law with as many heads, and against the infinite-head Gaussian.",
        "",
        [Attention(256, heads=heads) for heads in (1, 256)],
    ),
    _study(
        "low-rank",
        "Narrow heads in a wide network",
        "Heads of width 64 in networks of width 64H, H = 1, 4, 16, against the law.",
        "Heads keep a width of 64 while the network grows.",
        [Attention(64 * h, heads=h, key_width=64, value_width=64) for h in (1, 4, 16)],
    ),
)
