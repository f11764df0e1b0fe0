"""Where plots draw: on axes that are given, or on those of a new figure."""

from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import MissingExtraError, ShapeError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def pyplot() -> Any:
    """matplotlib's pyplot, or the error that names the extra which brings it."""
    try:
        from matplotlib import pyplot
    except ImportError as missing:
        raise MissingExtraError("matplotlib", "plots") from missing
    return pyplot


def one_axes(ax: "Axes | None", size: tuple[float, float]) -> "Axes":
    """The given axes, or new ones of this size in inches."""
    if ax is not None:
        return ax
    return pyplot().figure(figsize=size, layout="constrained").add_subplot()


def several_axes(axes: Any, count: int, size: tuple[float, float]) -> np.ndarray:
    """The given axes, `count` of them, or new ones beside each other, each of this size."""
    if axes is None:
        figure = pyplot().figure(figsize=(count * size[0], size[1]), layout="constrained")
        return figure.subplots(1, count, squeeze=False)[0]
    given = np.asarray(axes, dtype=object).ravel()
    if len(given) != count:
        raise ShapeError(
            f"The plot has {count} panels, and not as many axes.",
            got=f"{len(given)} axes",
            remedy=f"pass axes=pyplot.subplots(1, {count})[1], or leave it out",
        )
    return given
