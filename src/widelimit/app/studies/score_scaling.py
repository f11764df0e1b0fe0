"""Scores under both scalings: random at 1/√n, constant at 1/n."""

from pathlib import Path
from typing import Any

import numpy as np
import scipy

from ...laws.marginal import ScaleMixture
from ...laws.simulation import simulate
from ...laws.simulation_inputs import GaussianInputs
from ...layers.attention.layer import Attention
from ...layers.attention.scores import Scaling
from ...progress import Callback
from ..drawing.plots import canvas
from . import finite_heads as setting
from .study import Result, Size, Study, publish, tracked

WIDTH = 256


def layers() -> dict[str, Attention]:
    """The published pair, and the tied 1/d attention whose scores tend to κ_11 = 1."""
    scalings = {"1/√n": Scaling.SQRT, "1/n": Scaling.UNTIED, "1/n, Q = K": Scaling.LINEAR}
    return {name: Attention(WIDTH, heads=1, scaling=each) for name, each in scalings.items()}


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `scores.csv` (histograms), `scores.json` and `scores.png` into `out`."""
    scale = setting.simulation_size(size)
    inputs = GaussianInputs(positions=setting.TOKENS)
    result: dict[str, Any] = {"width": WIDTH, "runs": scale.runs}
    rows, samples = [], {}
    for name, layer in tracked(list(layers().items()), progress):
        done = simulate(
            layer,
            inputs,
            draws=scale.runs,
            positions=[0],
            scores=True,
            progress=False,
        )
        assert done.scores is not None
        score = samples[name] = done.scores[:, 0, 0, 0]
        result[name] = {"mean": float(score.mean()), "std": float(score.std())}
        counts, edges = np.histogram(score, bins=100)
        rows += [
            {"scaling": name, "from": low, "to": high, "count": int(count)}
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    unit = ScaleMixture(np.ones(1))
    kurtosis, error = setting.sample_kurtosis(samples["1/√n"])
    ks = scipy.stats.kstest(samples["1/√n"], unit.cdf)
    result["1/√n"] |= {
        "kurtosis": kurtosis,
        "kurtosis_error": error,
        "ks_from_limit": ks.statistic,
        "ks_p_value": ks.pvalue,
    }
    figure, axes = canvas(2)
    grid = np.linspace(-4.5, 4.5, 301)
    axes[0, 0].hist(samples["1/√n"], bins=100, density=True, color="0.82", label=f"n={WIDTH}")
    axes[0, 0].plot(grid, unit.density(grid), color="C3", label=r"limit $N(0, \kappa_{11}^2)$")
    axes[0, 0].set_title("$QK^T/\\sqrt{n}$: stays random")
    for name, color, limit in (("1/n", "C0", 0.0), ("1/n, Q = K", "C1", 1.0)):
        label = "independent Q, K" if name == "1/n" else "Q = K"
        axes[0, 1].hist(samples[name], bins=100, density=True, color=color, alpha=0.5, label=label)
        axes[0, 1].axvline(limit, color=color, lw=1)
    axes[0, 1].set_title("$QK^T/n$: tends to a constant (lines)")
    for axis in axes[0]:
        axis.set_xlabel("score $G_{11}$")
        axis.legend(frameon=False)
    axes[0, 0].set_ylabel("density")
    publish(out, "scores", result, rows, figure)
    return result


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    root, plain, tied = (result[name] for name in ("1/√n", "1/n", "1/n, Q = K"))
    return [
        f"Divided by √n a score keeps a standard deviation of {root['std']:.3f} at width "
        f"{result['width']} (limit 1).",
        f"Divided by n it becomes a number: {plain['mean']:.3f} ± {plain['std']:.3f} with separate "
        f"queries and keys (limit 0), {tied['mean']:.3f} ± {tied['std']:.3f} with shared ones "
        "(limit 1).",
    ]


STUDY = Study(
    "scores",
    "Scores under both scalings",
    "One attention score at width 256: random at 1/√n, constant at 1/n.",
    run,
    {
        "scores": "One attention score over random networks. Left: divided by √n, with its "
        "Gaussian limit. Right: divided by n, with its constant limits as lines."
    },
    conclude,
)
