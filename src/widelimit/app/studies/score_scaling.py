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
ROOT, PLAIN, TIED = "1/√n", "1/n", "1/n, Q = K"
SCALINGS = {ROOT: Scaling.SQRT, PLAIN: Scaling.UNTIED, TIED: Scaling.LINEAR}
"""The published pair, and the tied 1/n attention whose scores tend to κ_11 = 1."""


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `scores.csv` (histograms), `scores.json` and `scores.png` into `out`."""
    scale = setting.simulation_size(size)
    result: dict[str, Any] = {"width": WIDTH, "runs": scale.runs}
    rows, samples = [], {}
    for name, scaling in tracked(list(SCALINGS.items()), progress):
        done = simulate(
            Attention(WIDTH, heads=1, scaling=scaling),
            GaussianInputs(positions=setting.TOKENS),
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
    kurtosis, error = setting.sample_kurtosis(samples[ROOT])
    ks = scipy.stats.kstest(samples[ROOT], unit.cdf)
    result[ROOT] |= {
        "kurtosis": kurtosis,
        "kurtosis_error": error,
        "ks_from_limit": ks.statistic,
        "ks_p_value": ks.pvalue,
    }
    publish(out, "scores", result, rows, _plot(samples))
    return result


def _plot(samples: dict[str, np.ndarray]) -> Any:
    figure, axes = canvas(2)
    style = {"bins": 100, "density": True}
    grid = np.linspace(-4.5, 4.5, 301)
    random, constant = axes[0]
    random.hist(samples[ROOT], **style, color="0.82", label=f"n={WIDTH}")
    normal = ScaleMixture(np.ones(1)).density(grid)
    random.plot(grid, normal, color="C3", label=r"limit $N(0, \kappa_{11}^2)$")
    random.set(title="$QK^T/\\sqrt{n}$: stays random", ylabel="density")
    for name, color, label, limit in (
        (PLAIN, "C0", "independent Q, K", 0),
        (TIED, "C1", "Q = K", 1),
    ):
        constant.hist(samples[name], **style, color=color, alpha=0.5, label=label)
        constant.axvline(limit, color=color, lw=1)
    constant.set_title("$QK^T/n$: tends to a constant (lines)")
    for axis in axes[0]:
        axis.set_xlabel("score $G_{11}$")
        axis.legend(frameon=False)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    root, plain, tied = (result[name] for name in (ROOT, PLAIN, TIED))
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
