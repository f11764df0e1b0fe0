"""Classification by regression on centred one-hot targets, with calibrated probabilities.

`Classifier(GP(net)).fit(x, labels).predict_proba(x_test)`.

A class becomes the target vector `e_c − 1/C`. The process predicts, per example, a mean `m` (one
entry per class) and a variance `v` they share; with `z = m/√v` the probabilities are

    p = softmax(β z),

where the one number β (an inverse temperature) is fitted to the leave-one-out predictions of the
training set, which come in closed form. Dividing by `√v` makes predictions far from the training
data less certain. On held-out wine, breast cancer and digits (both kernels, two noise levels) its
log score was about 2 % better on average, though not on every data set, than dividing by nothing or
by `v`, than the exact probability that a class has the largest value, and than two-parameter
versions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..engine.inputs import Data
from ..errors import NumericalError, ShapeError
from ..printing import counted, written
from .calibration import Reliability, Temperature, reliability
from .network_kernels import NetworkKernels, require_gaussian
from .process import GP, FittedGP


def centred_one_hot(labels: Any) -> tuple[Float[np.ndarray, "n classes"], np.ndarray]:
    """Targets `e_c − 1/C` (n, C) and the sorted class labels their columns stand for."""
    values = np.asarray(labels)
    if values.ndim != 1 or len(values) == 0:
        raise ShapeError(
            "Class labels must be a non-empty vector, one label per example.",
            got=f"shape {values.shape}",
            remedy="pass integers or strings, not one-hot rows",
        )
    each = np.asarray(labels, dtype=object) if values.dtype.kind in "OSU" else ()
    missing = values.dtype.kind == "f" and not np.isfinite(values).all()
    if missing or any(label is None or label != label for label in each):
        raise NumericalError(
            "Class labels must be known.",
            got="None, NaN or infinity among the labels",
            remedy="remove the examples without a label",
        )
    kinds = {str if isinstance(label, str | bytes) else type(label) for label in each}
    try:
        if str in kinds and len(kinds) > 1:  # NumPy writes numbers among strings as strings
            raise TypeError
        classes, index = np.unique(values, return_inverse=True)
    except TypeError as error:
        raise NumericalError(
            "Class labels are of one kind, which can be sorted.",
            got=f"labels of type {', '.join(sorted(kind.__name__ for kind in kinds))}",
            remedy="write all of them as integers, or all as strings",
        ) from error
    if len(classes) < 2:
        raise NumericalError(
            "Classification needs at least two classes.",
            got=f"one class, {classes[0]!r}",
            remedy="pass training labels of every class",
        )
    return np.eye(len(classes))[index] - 1.0 / len(classes), classes


@dataclass(frozen=True, eq=False)
class Classifier:
    """Classification by regression on centred one-hot labels, with calibrated probabilities.

    `gp` is the process that predicts a value per class: its network, kernel and noise. The
    probabilities are a softmax of the predicted means in units of their standard deviations, with
    a temperature fitted to the leave-one-out predictions (see `Temperature`).
    """

    gp: GP

    def __post_init__(self):
        if not isinstance(self.gp, GP) or np.size(np.asarray(self.gp.noise)) > 1:
            raise NumericalError(
                "A classifier is built around a process with one noise variance.",
                got=f"{type(self.gp).__name__}",
                remedy="pass Classifier(GP(net, noise=0.01))",
            )

    def __repr__(self) -> str:
        return written(self)

    def fit(self, x: Data, labels: Any, mask: Any = None) -> "FittedClassifier":
        """Fit to labels (N,): integers, strings, anything that can be sorted."""
        targets, classes = centred_one_hot(labels)
        require_gaussian(self.gp.net)
        data = NetworkKernels.make(self.gp.net, x, mask, engine=self.gp.engine)
        columns = np.searchsorted(classes, np.asarray(labels))
        fitted = self.gp.condition(data, targets, labels=columns)
        return FittedClassifier(fitted, Temperature.of(fitted.posterior, columns), classes)


@dataclass(frozen=True, eq=False, repr=False)
class FittedClassifier:
    """A classifier that has seen data; made by `Classifier.fit`. `classes` are sorted."""

    process: FittedGP
    temperature: Temperature
    classes: np.ndarray

    def __repr__(self) -> str:
        classes = counted(len(self.classes), "class", "classes")
        return f"FittedClassifier({classes}, {self.process.facts}, {self.process.gp.net!r})"

    def predict_proba(self, x: Data, mask: Any = None) -> Float[np.ndarray, "m classes"]:
        """Probabilities of the classes, in the order of `classes`."""
        prediction = self.process.predict(x, mask)
        noise = float(np.asarray(self.process.gp.noise).reshape(()))
        return self.temperature.probabilities(prediction.mean, prediction.variance + noise)

    def predict(self, x: Data, mask: Any = None) -> np.ndarray:
        """The most probable class of each example."""
        return self.classes[np.argmax(self.process.mean(x, mask), axis=1)]

    def reliability(
        self, x: Data, labels: Any, mask: Any = None, *, groups: int = 15
    ) -> Reliability:
        """How well the probabilities are calibrated on held-out examples; `.plot()` draws it."""
        known = np.asarray(labels)
        if not np.isin(known, self.classes).all():
            raise ShapeError(
                "Held-out labels are classes the classifier has seen.",
                got=f"{np.setdiff1d(known, self.classes)[:3]}",
                remedy="train with examples of every class, or leave these examples out",
            )
        columns = np.searchsorted(self.classes, known)
        return reliability(self.predict_proba(x, mask), columns, groups=groups)
