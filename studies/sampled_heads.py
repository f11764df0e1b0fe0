"""How many heads must be sampled: error of the infinite-head softmax kernel by sample count.

Standard softmax attention at 1/√d has no closed form; its kernels are averages over sampled heads.
Independent samplers of growing size are compared with a long run, and with the errors they report.
"""

from pathlib import Path
from typing import Any

import jax
import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.data import load_sample_texts
from widelimit.layers.attention.layer import Attention
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.dense import Dense
from widelimit.layers.pool import MeanPool
from widelimit.progress import Callback

_REPLICATES = 8


def network() -> Layer:
    """Attention on word vectors, then the average over words."""
    return Serial(Attention(64, qk_std=4.0), MeanPool(), Dense(1))


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `sampled_heads.json` and `sampled_heads.png` into `out`."""
    counts, repeats, long = {
        "small": ([2, 4, 8, 16, 32, 64, 128], 6, 4096),
        "large": ([2, 4, 8, 16, 32, 64, 128, 256, 512], 16, 65536),
    }[Size(size).at_most_large]
    texts = load_sample_texts(length=10)
    assert texts.mask_train is not None
    x, mask = texts.x_train[:4], texts.mask_train[:4]
    net = network()
    key = jax.random.key(0)
    truth = net.kernel(x, mask=mask, samples=long // _REPLICATES, key=key)
    rows = []
    for count in tracked(counts, progress):
        gaps: dict[str, list[float]] = {"nngp": [], "ntk": []}
        reported: dict[str, list[float]] = {"nngp": [], "ntk": []}
        for repeat in range(repeats):
            subkey = jax.random.fold_in(key, 1000 * count + repeat)
            found = net.kernel(x, mask=mask, samples=count, key=subkey)
            for name in gaps:
                value, exact = getattr(found, name), getattr(truth, name)
                scale = np.abs(exact).max()
                gaps[name].append(float(np.mean((value - exact) ** 2)) / scale**2)
                reported[name].append(
                    float(np.mean(getattr(found, f"{name}_error") ** 2)) / scale**2
                )
        row: dict[str, float] = {"heads": count * _REPLICATES}
        for name in gaps:
            row[f"{name}_error"] = float(np.sqrt(np.mean(gaps[name])))
            row[f"{name}_reported"] = float(np.sqrt(np.mean(reported[name])))
        rows.append(row)
    heads = np.array([row["heads"] for row in rows])
    slopes = {
        name: float(np.polyfit(np.log(heads), np.log([row[f"{name}_error"] for row in rows]), 1)[0])
        for name in ("nngp", "ntk")
    }
    result = {"rows": rows, "slopes": slopes}
    publish(out, "sampled_heads", result, figure=_plot(heads, rows, slopes))
    return result


def _plot(heads: np.ndarray, rows: list[dict[str, float]], slopes: dict[str, float]) -> Any:
    figure, axes = canvas(width=5.5, height=4)
    axis = axes[0, 0]
    for name, colour in (("nngp", "#24527a"), ("ntk", "#c0392b")):
        errors = np.array([row[f"{name}_error"] for row in rows])
        reported = np.array([row[f"{name}_reported"] for row in rows])
        label = f"{name.upper()}: observed, slope {slopes[name]:.2f}"
        axis.loglog(heads, errors, "o-", color=colour, label=label)
        axis.loglog(heads, reported, "--", color=colour, lw=1, label=f"{name.upper()}: reported")
    axis.set(xlabel="sampled heads", ylabel="relative error", title="Infinite-head softmax, 1/√d")
    axis.legend(fontsize=8)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    last = result["rows"][-1]
    return [
        f"Errors fall as heads to the power {result['slopes']['nngp']:.2f} (NNGP) and "
        f"{result['slopes']['ntk']:.2f} (NTK); chance alone gives −0.5.",
        f"With {last['heads']:,} heads the NNGP kernel is {last['nngp_error']:.2%} off and says "
        f"{last['nngp_reported']:.2%}; the NTK {last['ntk_error']:.2%} and says "
        f"{last['ntk_reported']:.2%}.",
    ]


STUDY = Study(
    "sampled-heads",
    "How many heads to sample",
    "Error of the infinite-head softmax kernel by the number of sampled heads.",
    run,
    {
        "sampled_heads": "Relative error of the sampled kernel by the number of heads: as "
        "observed against a long run (solid), and as the kernel itself "
        "reports it (dashed).",
    },
    conclude,
)
