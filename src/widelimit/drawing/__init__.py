"""Pictures that several pages share: networks as diagrams, kernels, scores, laws."""

from widelimit.drawing.diagram import network_svg
from widelimit.drawing.plots import (
    canvas,
    plot_confusion,
    plot_coverage,
    plot_curve,
    plot_kernel,
    plot_law,
    plot_noise,
    plot_predictions,
    plot_spectrum,
)

__all__ = [
    "canvas",
    "network_svg",
    "plot_confusion",
    "plot_coverage",
    "plot_curve",
    "plot_kernel",
    "plot_law",
    "plot_noise",
    "plot_predictions",
    "plot_spectrum",
]
