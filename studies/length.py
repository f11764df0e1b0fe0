"""Longer sequences: the width study of the finite-head paper with 2 to 32 tokens."""

from pathlib import Path
from typing import Any

import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.heads_and_widths import HEADS, WIDTHS
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.layers.attention.layer import Attention
from widelimit.progress import Callback

LENGTHS = (2, 4, 8, 16, 32)


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
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


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    said = []
    for tokens, one in result["lengths"].items():
        gaps = [w["kl_density"] - w["kl_density_floor"] for w in one["widths"].values()]
        said.append(
            f"{tokens} tokens: the limit has excess kurtosis {one['kurtosis']:.3f} ± "
            f"{one['kurtosis_error']:.3f}; the divergence of networks from it falls from "
            f"{gaps[0]:.1e} at width {min(one['widths'], key=int)} to {gaps[-1]:.1e} at width "
            f"{max(one['widths'], key=int)}."
        )
    return said


STUDY = Study(
    "length",
    "Longer sequences",
    "The width study with sequences of 2 to 32 tokens.",
    run,
    {
        "length": "Left: divergence of networks from the law by width, for sequences of several "
        "lengths. Right: how non-Gaussian the limit is, by length."
    },
    conclude,
)
