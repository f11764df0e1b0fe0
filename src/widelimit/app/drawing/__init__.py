"""Pictures that several pages share: networks as diagrams, kernels, scores, laws."""

from .diagram import diagram
from .plots import (
    canvas,
    plot_calibration,
    plot_confusion,
    plot_coverage,
    plot_curve,
    plot_kernel,
    plot_law,
    plot_noise,
    plot_predictions,
    plot_spectrum,
    verbatim,
)

__all__ = [
    "canvas",
    "diagram",
    "plot_calibration",
    "plot_confusion",
    "plot_coverage",
    "plot_curve",
    "plot_kernel",
    "plot_law",
    "plot_noise",
    "plot_predictions",
    "plot_spectrum",
    "verbatim",
]
