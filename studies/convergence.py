"""How fast kernels of finite networks approach the Gaussian-process kernel: in width and in heads.

One softmax layer at 1/√d on four correlated tokens, `H` heads, all widths n. The kernel of one
network is `yyᵀ/n` over its output channels; its distance from the kernel of infinitely many heads
has a part of order 1/H from the scores and one of order 1/n from channels and values. Neither makes
up for the other.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.laws import law_from_covariance
from widelimit.laws.simulation import simulate
from widelimit.laws.simulation_inputs import GivenGram
from widelimit.layers.attention.layer import Attention
from widelimit.progress import Callback

HEADS = (1, 2, 4, 8, 16, 32, 64)
WIDTHS = (8, 32, 128, 512)
QK_STD = 2.0
_DRAWS = {Size.SMALL: 200, Size.LARGE: 2000}


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `convergence.csv`, `convergence.json` and `convergence.png` into `out`."""
    draws = _DRAWS[size.at_most_large]
    covariance = 0.6 * np.eye(setting.TOKENS) + 0.4
    # The mean over scores does not depend on the number of heads.
    layer = Attention(heads=1, qk_std=QK_STD)
    limit = law_from_covariance(layer, covariance, draws=2**15).covariance().value[0, 0]
    rows = []
    for heads, width in tracked([(h, n) for h in HEADS for n in WIDTHS], progress):
        kernels = drawn_kernels(heads, width, covariance, draws)
        squares = np.square(kernels - limit).sum(axis=(1, 2)) / np.square(limit).sum()
        bias = np.linalg.norm(kernels.mean(axis=0) - limit) / np.linalg.norm(limit)
        rows.append(
            {
                "heads": heads,
                "width": width,
                "squared_error": float(squares.mean()),
                "squared_error_se": float(squares.std(ddof=1) / math.sqrt(draws)),
                "bias": float(bias),
            }
        )
    result = {"networks": draws, "qk_std": QK_STD, **fitted(rows)}
    publish(out, "convergence", result, rows, _plot(rows, result))
    return result


def drawn_kernels(heads: int, width: int, covariance: np.ndarray, draws: int) -> np.ndarray:
    """`yyᵀ/n` of networks with all widths n, exactly in law."""
    layer = Attention(width, heads=heads, qk_std=QK_STD)
    # In parts: every channel of every network is drawn.
    part = max(1, min(draws, (1 << 24) // (heads * width * setting.TOKENS)))
    kernels = []
    for number, begin in enumerate(range(0, draws, part)):
        found = simulate(
            layer,
            GivenGram(covariance),
            draws=min(part, draws - begin),
            key=heads * 10**6 + width * 10**3 + number,
            channels=width,
            progress=False,
        )
        kernels.append(found.outputs @ np.swapaxes(found.outputs, 1, 2) / width)
    return np.concatenate(kernels)


def fitted(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """`error² = a/H + b/n + c/(nH)` by weighted least squares, and slopes of its logarithm."""
    heads, widths, values, errors = (
        np.array([row[name] for row in rows], float)
        for name in ("heads", "width", "squared_error", "squared_error_se")
    )
    columns = np.stack([1 / heads, 1 / widths, 1 / (heads * widths)], axis=1)
    scale = 1 / errors
    found = np.linalg.lstsq(columns * scale[:, None], values * scale, rcond=None)[0]
    covariance = np.linalg.inv((columns * scale[:, None] ** 2).T @ columns)
    names = ("per_head", "per_width", "per_both")
    fit = {
        name: {"value": float(value), "error": float(math.sqrt(variance))}
        for name, value, variance in zip(names, found, np.diagonal(covariance), strict=True)
    }
    apart = np.abs(columns @ found - values) / errors
    wide, many = widths == WIDTHS[-1], heads == HEADS[-1]
    joint = widths == 8 * heads
    slopes = {
        "heads, at the largest width": _slope(heads[wide], values[wide]),
        "width, with the most heads": _slope(widths[many], values[many]),
        "both, width = 8 heads": _slope(heads[joint], values[joint]),
    }
    return {"fit": fit, "largest_z_of_fit": float(apart.max()), "slopes_of_error": slopes}


def _slope(x: np.ndarray, squared: np.ndarray) -> float:
    """The power of x by which the error, not its square, falls."""
    return float(np.polyfit(np.log(x), np.log(squared) / 2, 1)[0])


def _plot(rows: list[dict[str, Any]], result: dict[str, Any]) -> Any:
    figure, axes = canvas(2)
    fit = [result["fit"][name]["value"] for name in ("per_head", "per_width", "per_both")]

    def model(heads: np.ndarray, width: np.ndarray) -> np.ndarray:
        return np.sqrt(fit[0] / heads + fit[1] / width + fit[2] / (heads * width))

    grids = {"heads": np.geomspace(1, HEADS[-1], 60), "width": np.geomspace(8, WIDTHS[-1], 60)}
    for axis, name, other, values in (
        (axes[0, 0], "heads", "width", WIDTHS),
        (axes[0, 1], "width", "heads", HEADS[::2]),
    ):
        for number, value in enumerate(values):
            here = [row for row in rows if row[other] == value]
            found = np.sqrt([row["squared_error"] for row in here])
            letter = {"width": "n", "heads": "H"}[other]
            colour, label = f"C{number}", f"${letter}={value}$"
            axis.loglog([row[name] for row in here], found, "o", ms=4, color=colour, label=label)
            grid = grids[name]
            pair = (grid, np.full_like(grid, value))
            axis.loglog(grid, model(*(pair if name == "heads" else pair[::-1])), color=colour)
        axis.set_xlabel({"heads": "heads $H$", "width": "width $n$"}[name])
        axis.legend(frameon=False, fontsize=8)
    axes[0, 0].set_ylabel("relative error of one network's kernel")
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    fit, slopes = result["fit"], result["slopes_of_error"]
    parts = {name: f"{one['value']:.3g} ± {one['error']:.1g}" for name, one in fit.items()}
    return [
        f"The squared relative error of one network's kernel is ({parts['per_head']})/H + "
        f"({parts['per_width']})/n + ({parts['per_both']})/(nH); no point is more than "
        f"{result['largest_z_of_fit']:.1f} standard errors from that.",
        *(f"Error by {name}: power {slope:.2f}." for name, slope in slopes.items()),
    ]


STUDY = Study(
    "convergence",
    "Kernels by width and heads",
    "Distance of a finite network's kernel from the limit, in width and heads jointly.",
    run,
    {
        "convergence": "Relative distance of one network's kernel from that of infinitely "
        "many heads, by the number of heads (left) and by the width (right): "
        "drawn networks (dots), and the fitted sum of three rates (lines).",
    },
    conclude,
)
