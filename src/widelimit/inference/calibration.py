"""Calibrated probabilities: a temperature, reliability, expected calibration error, a picture."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import root_scalar
from scipy.special import softmax

from ..errors import NumericalError
from ..figures import one_axes
from ..options import whole
from ..printing import counted
from ..statistics import wilson_interval
from . import checks
from .checks import Values
from .gp import LeaveOneOut

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .solvers import Posterior


_PSEUDO_EXAMPLES = 0.5


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """Probabilities `softmax(β m/√v)`; build with `Temperature.fit`.

    `variance_floor` is the smallest leave-one-out variance: no prediction is taken to be surer
    than the surest one that β was fitted to.
    """

    inverse: float
    variance_floor: float

    @classmethod
    def fit(
        cls,
        predictions: LeaveOneOut,
        labels: Values,
        *,
        counts: Float[np.ndarray, " n"] | None = None,
    ) -> "Temperature":
        """β that maximises the leave-one-out log score, a convex problem in one variable.

        `labels` are column numbers of the targets, and `counts` how often each counts. Half a
        pseudo-example with an evenly spread label keeps β finite when every left-out example is
        classified correctly. β = 0 (all classes equally likely) when the leave-one-out predictions
        carry no information.
        """
        mean = checks.matrix(predictions.mean, "The leave-one-out means")
        rows, classes = mean.shape
        columns = checks.class_columns(labels, rows, classes)
        score = mean / np.sqrt(predictions.variance)[:, None]
        each = np.ones(rows) if counts is None else counts
        wanted = np.full((rows, classes), _PSEUDO_EXAMPLES / classes / each.sum())
        wanted[np.arange(rows), columns] += 1.0
        wanted /= wanted.sum(axis=1, keepdims=True)

        def slope(inverse: float) -> float:
            """Derivative of the negative log score in β; it increases with β."""
            return float(each @ np.sum((softmax(inverse * score, axis=1) - wanted) * score, axis=1))

        floor = float(np.min(predictions.variance))
        spread = float(np.max(score.max(axis=1) - score.min(axis=1)))
        if spread == 0.0 or slope(0.0) >= 0.0:
            return cls(inverse=0.0, variance_floor=floor)
        upper = 1.0 / spread
        while slope(upper) < 0.0:
            upper *= 2.0
        root = root_scalar(slope, bracket=(0.0, upper), method="brentq").root
        return cls(inverse=float(root), variance_floor=floor)

    @classmethod
    def of(
        cls,
        posterior: "Posterior",
        labels: Int[np.ndarray, " n"],
        *,
        counts: Float[np.ndarray, " n"] | None = None,
        noise: float = 0.0,
    ) -> "Temperature":
        """From the training examples of a posterior whose left-out predictions are affordable.

        An example that `counts` c times has `noise`/c there, and `noise` when it is observed anew.
        """
        rows = posterior.calibration_rows
        left_out = posterior.left_out_at(rows)
        if counts is not None:
            counts = counts[rows]
            more = noise - noise / counts
            left_out = left_out._replace(variance=left_out.variance + more)
        return cls.fit(left_out, labels[rows], counts=counts)

    def probabilities(self, mean: Values, variance: Values) -> Float[np.ndarray, "m classes"]:
        """Class probabilities from means (m, classes) and variances (m,) *including noise*."""
        values = checks.matrix(mean, "The predicted means").astype(np.float64)
        spread = checks.variances(variance, "The predicted variances", len(values))
        spread = np.maximum(spread, self.variance_floor)
        return softmax(self.inverse * values / np.sqrt(spread)[:, None], axis=1)


@dataclass(frozen=True, eq=False, repr=False)
class Reliability:
    """Predictions grouped by confidence, the probability of the most likely class.

    All arrays have one entry per non-empty group; `confidence` and `accuracy` are group means.
    """

    lower: Float[np.ndarray, " groups"]
    upper: Float[np.ndarray, " groups"]
    count: Int[np.ndarray, " groups"]
    confidence: Float[np.ndarray, " groups"]
    accuracy: Float[np.ndarray, " groups"]

    def __repr__(self) -> str:
        return (
            f"Reliability({self.count.sum():,} predictions in {counted(len(self.count), 'group')}, "
            f"expected calibration error {self.expected_error:.3f})"
        )

    @property
    def expected_error(self) -> float:
        """Expected calibration error `Σ_g (n_g/n) |accuracy_g − confidence_g|`."""
        gap = np.abs(self.accuracy - self.confidence)
        return float(np.sum(self.count * gap) / self.count.sum())

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Accuracy against confidence, with 90 % intervals and the share of each group."""
        ax = one_axes(ax, (4.5, 4.5))
        share = self.count / self.count.sum()
        ax.bar(
            self.lower,
            share,
            width=self.upper - self.lower,
            align="edge",
            color="0.88",
            edgecolor="white",
            label="share of predictions",
        )
        ax.plot([0, 1], [0, 1], color="0.45", linestyle="--", linewidth=1, label="perfect")
        low, high = wilson_interval(self.accuracy * self.count, self.count, level=0.9)
        ax.errorbar(
            self.confidence,
            self.accuracy,
            yerr=np.maximum([self.accuracy - low, high - self.accuracy], 0.0),
            fmt="o",
            markersize=4.5,
            capsize=2,
            color="tab:blue",
            label="accuracy, 90 % interval",
        )
        ax.set(
            xlim=(0, 1),
            ylim=(0, 1.02),
            xlabel="confidence of the predicted class",
            ylabel="fraction that is correct",
            title=f"expected calibration error {self.expected_error:.3f}",
        )
        ax.set_aspect("equal")
        ax.legend(loc="upper left", frameon=False)
        return ax


def reliability(probabilities: Values, labels: Values, *, groups: int = 15) -> Reliability:
    """Group predictions (n, classes) by confidence and compare with the true column numbers."""
    table = checks.matrix(probabilities, "The probabilities").astype(np.float64)
    if table.min() < 0 or not np.allclose(table.sum(axis=1), 1.0, atol=1e-4):
        raise NumericalError(
            "Each row of the probabilities must be a distribution over the classes.",
            got=f"row sums from {table.sum(axis=1).min():.3g} to {table.sum(axis=1).max():.3g}",
            remedy="pass the output of predict_proba or Temperature.probabilities",
        )
    whole("groups", groups)
    truth = checks.class_columns(labels, *table.shape)
    confidence = np.minimum(table.max(axis=1), 1.0)  # rounding may be above
    edges = np.linspace(0.0, 1.0, groups + 1)
    correct = (table.argmax(axis=1) == truth).astype(np.float64)
    count, *sums = (
        np.histogram(confidence, edges, weights=part)[0] for part in (None, confidence, correct)
    )
    used = count > 0
    means = (part[used] / count[used] for part in sums)
    return Reliability(edges[:-1][used], edges[1:][used], count[used], *means)
