"""Plots that pages share. Each draws on axes that it is given; nothing here touches a screen."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import MissingExtraError
from ...printing import counted

BLUE, RED, GREY, GREEN = "#24527a", "#c0392b", "#8a97a5", "#1e7a55"
_MOST_PIXELS = 400  # rows of a heat map; more cannot be seen
_MOST_NAMES = 12  # of classes, before they are on top of each other


def canvas(columns: int = 1, *, rows: int = 1, width: float = 4.6, height: float = 3.6) -> Any:
    """A figure and its axes, (rows, columns) of them, in the style of the pages."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    except ImportError:
        raise MissingExtraError("matplotlib", "plots") from None
    figure = Figure((width * columns, height * rows), layout=ConstrainedLayoutEngine(w_pad=0.12))
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, axes


def plot_kernel(
    axis: Any, kernel: np.ndarray, groups: np.ndarray | None, names: Sequence[Any] = ()
) -> None:
    """Correlations `K_ij/√(K_ii K_jj)` as a heat map; examples sorted by class or by target."""
    size = len(kernel)
    order = np.arange(size) if groups is None else np.argsort(groups, kind="stable")
    chosen = order[np.linspace(0, size - 1, min(size, _MOST_PIXELS)).astype(int)]
    part = np.asarray(kernel[np.ix_(chosen, chosen)], np.float64)
    scale = np.sqrt(np.maximum(np.diagonal(part), np.finfo(float).tiny))
    part = part / scale[:, None] / scale[None, :]
    apart = part[~np.eye(len(part), dtype=bool)] if len(part) > 1 else part.ravel()
    low, high = np.quantile(apart, [0.02, 0.995])
    picture = axis.imshow(part, cmap="magma", vmin=low, vmax=high, interpolation="nearest")
    axis.figure.colorbar(picture, ax=axis, shrink=0.85, label="correlation")
    axis.set_title("kernel between examples")
    axis.set_xticks([])
    axis.set_yticks([])
    if groups is not None and 0 < len(names) <= _MOST_NAMES:
        edges = np.searchsorted(groups[chosen], np.arange(len(names) + 1))
        seen = np.flatnonzero(np.diff(edges))
        middles = (edges[seen] + edges[seen + 1] - 1) / 2
        axis.set_yticks(middles, [_clipped(str(names[i])) for i in seen.tolist()], fontsize=8)
        axis.tick_params("y", length=0)
        for edge in edges[seen[1:]] - 0.5:
            axis.axhline(edge, color="white", lw=0.6)
            axis.axvline(edge, color="white", lw=0.6)


def verbatim(text: str) -> str:
    """Text as it is: a `$` starts no formula, and halves of characters are written out."""
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else " " for c in whole).replace("$", r"\$")


def _clipped(name: str) -> str:
    return verbatim(name if len(name) <= 14 else name[:13] + "…")


def plot_spectrum(axis: Any, eigenvalues: np.ndarray, noise: float | None) -> None:
    """Eigenvalues of the training kernel, largest first, and the noise they compete with."""
    top = float(eigenvalues[0])
    shown = np.maximum(eigenvalues, 1e-9 * top)
    axis.loglog(np.arange(1, len(shown) + 1), shown, color=BLUE, lw=2)
    axis.xaxis.set_minor_formatter("")  # a few eigenvalues would have names on top of each other
    if noise is not None:
        axis.axhline(noise, color=RED, ls="--", lw=1.2)
        above = counted(int(np.sum(eigenvalues > noise)), "direction")
        axis.annotate(
            f"noise: {above} above", (1, noise), (3, 4), textcoords="offset points", color=RED,
            fontsize=8,
        )  # fmt: skip
    axis.set(title="eigenvalues of the kernel", xlabel="index", ylabel="eigenvalue")


def plot_noise(axis: Any, trials: Sequence[tuple[float, float]], chosen: float) -> None:
    """The leave-one-out score for every noise variance that was tried."""
    noises, values = zip(*trials, strict=True)
    axis.semilogx(noises, values, "o-", color=BLUE, lw=1.5, ms=4)
    axis.axvline(chosen, color=RED, ls="--", lw=1.2, label=f"chosen: {chosen:.2g}")
    low, high = min(values), max(values)
    axis.set_ylim(max(low, high - 3 * abs(high)) - 0.02 * (high - low + 1e-9), None)
    axis.set(title="choice of the noise", xlabel="noise variance", ylabel="leave-one-out log score")
    axis.legend(frameon=False, fontsize=8)


def plot_curve(axis: Any, parts: Sequence[tuple[int, np.ndarray]], name: str) -> None:
    """Scores of left-out examples by the number of training examples, mean and deviation."""
    from sklearn.model_selection import LearningCurveDisplay

    if not parts:
        note = "too few examples for a learning curve"
        axis.text(0.5, 0.5, note, ha="center", va="center", transform=axis.transAxes, color=GREY)
        axis.set_axis_off()
        return
    sizes = np.array([size for size, _ in parts])
    fewest = min(len(values) for _, values in parts)
    values = np.array([values[:fewest] for _, values in parts])
    shown = LearningCurveDisplay(
        train_sizes=sizes, train_scores=values, test_scores=values, score_name=name
    )
    shown.plot(ax=axis, score_type="test", line_kw={"color": BLUE, "marker": "o"})
    axis.set(title="learning curve", xlabel="training examples", xscale="log")
    axis.set_xticks(sizes, [f"{size:,}" for size in sizes], rotation=30)
    axis.minorticks_off()
    if axis.get_legend() is not None:
        axis.get_legend().remove()


def plot_calibration(axis: Any, right: np.ndarray, confidence: np.ndarray, groups: int) -> None:
    """How often groups of predictions are right, against the probability they were given."""
    from sklearn.calibration import CalibrationDisplay

    CalibrationDisplay.from_predictions(
        right, confidence, n_bins=groups, strategy="quantile", ax=axis, color=BLUE
    )
    axis.set(title="calibration", xlabel="probability of the predicted class", ylabel="share right")
    axis.legend(["perfectly calibrated", "test examples"], frameon=False, fontsize=8)


def plot_confusion(axis: Any, truth: np.ndarray, guess: np.ndarray, names: Sequence[Any]) -> None:
    """Rows: true classes; columns: predicted ones; numbers of test examples."""
    from sklearn.metrics import ConfusionMatrixDisplay

    few = len(names) <= _MOST_NAMES
    found = ConfusionMatrixDisplay.from_predictions(
        truth,
        guess,
        labels=names,
        display_labels=[_clipped(str(name)) for name in names],
        ax=axis,
        cmap="Blues",
        colorbar=False,
        include_values=few,
        xticks_rotation="vertical" if len(names) > 3 else "horizontal",
    )
    found.ax_.set(title="confusion matrix", xlabel="predicted", ylabel="true")


def plot_predictions(axis: Any, truth: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """Predictions with 90 % intervals against the truth."""
    axis.errorbar(
        truth, mean, yerr=1.645 * std, fmt="o", ms=3.5, color=BLUE, ecolor="#b9cbdc", elinewidth=1
    )
    ends = [min(truth.min(), mean.min()), max(truth.max(), mean.max())]
    axis.plot(ends, ends, color=GREY, ls="--", lw=1)
    axis.set(title="test predictions, 90 % intervals", xlabel="true", ylabel="predicted")


def plot_coverage(axis: Any, levels: np.ndarray, shares: np.ndarray) -> None:
    """How often intervals of each level hold the truth."""
    axis.plot([0, 1], [0, 1], color=GREY, ls="--", lw=1, label="perfect")
    axis.plot(levels, shares, "o-", color=BLUE, lw=2, ms=4, label="test examples")
    axis.set(
        title="calibration of the intervals",
        xlabel="level of the interval",
        ylabel="share of targets inside",
        xlim=(0, 1),
        ylim=(0, 1.02),
    )
    axis.set_aspect("equal")
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def plot_law(
    axis: Any,
    grid: np.ndarray,
    densities: dict[str, np.ndarray],
    *,
    draws: dict[str, np.ndarray] | None = None,
    logarithmic: bool = False,
) -> None:
    """Densities of one output in standard deviations, beside the Gaussian and histograms."""
    colours = (RED, BLUE, GREEN, "#7d5ba6", "#a05a00")
    step = 0.25
    edges = np.arange(grid[0], grid[-1] + step, step)
    for colour, (name, density) in zip(itertools.cycle(colours), densities.items()):
        axis.plot(grid, density, color=colour, lw=2, label=name)
        if draws is not None and name in draws:
            counts, _ = np.histogram(draws[name], edges)
            height = counts / (len(draws[name]) * step)
            shown = counts > 0
            axis.plot(
                ((edges[:-1] + edges[1:]) / 2)[shown], height[shown], ".", color=colour, ms=5,
                alpha=0.75,
            )  # fmt: skip
    normal = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    axis.plot(grid, normal, color=GREY, ls="--", lw=1.5, label="Gaussian")
    axis.set(xlabel="output, in standard deviations", ylabel="density", xlim=(grid[0], grid[-1]))
    axis.set_title("law of one output")
    if logarithmic:
        axis.set(yscale="log", ylim=(1e-5, 2), title="tails (logarithmic)")
    axis.legend(frameon=False, fontsize=8)
