"""Networks as classifiers: `Classifier(net).fit(x, labels).predict_proba(x_test)`."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from ..engine.inputs import Data
from ..errors import NumericalError, ShapeError
from .calibration import Binning, Reliability, reliability
from .classify import Temperature, centred_one_hot
from .network_kernels import NetworkKernels, require_gaussian
from .process import GP, FittedGP


@dataclass(frozen=True, eq=False)
class Classifier:
    """Classification by regression on centred one-hot labels, with calibrated probabilities.

    `gp` is the process that predicts a value per class: its network, kernel and noise. The
    probabilities are a softmax of the predicted means in units of their standard deviations, with
    a temperature fitted to the leave-one-out predictions (see `classify`).
    """

    gp: GP

    def __post_init__(self):
        if not isinstance(self.gp, GP) or np.size(np.asarray(self.gp.noise)) > 1:
            raise NumericalError(
                "A classifier is built around a process with one noise variance.",
                got=f"{type(self.gp).__name__}",
                remedy="pass Classifier(GP(net, noise=0.01))",
            )

    def fit(self, x: Data, labels: Any, mask: Any = None) -> "FittedClassifier":
        """Fit to labels (N,): integers, strings, anything that can be sorted."""
        targets, classes = centred_one_hot(labels)
        require_gaussian(self.gp.net)
        data = NetworkKernels.make(self.gp.net, x, mask, engine=self.gp.engine)
        fitted = self.gp.condition(data, targets)
        columns = np.searchsorted(classes, np.asarray(labels))
        rows = fitted.posterior.calibration_rows
        left_out = fitted.posterior.left_out_at(rows)
        temperature = Temperature.fit(left_out, columns if rows is None else columns[rows])
        return FittedClassifier(fitted, temperature, classes)


@dataclass(frozen=True, eq=False)
class FittedClassifier:
    """A classifier that has seen data; made by `Classifier.fit`. `classes` are sorted."""

    process: FittedGP
    temperature: Temperature
    classes: np.ndarray = field(repr=False)

    def predict_proba(self, x: Data, mask: Any = None) -> Float[np.ndarray, "m classes"]:
        """Probabilities of the classes, in the order of `classes`."""
        prediction = self.process.predict(x, mask)
        noise = float(np.asarray(self.process.gp.noise).reshape(()))
        return self.temperature.probabilities(prediction.mean, prediction.variance + noise)

    def predict(self, x: Data, mask: Any = None) -> np.ndarray:
        """The most probable class of each example."""
        return self.classes[np.argmax(self.process.mean(x, mask), axis=1)]

    def reliability(
        self,
        x: Data,
        labels: Any,
        mask: Any = None,
        *,
        groups: int = 15,
        binning: Binning = Binning.EQUAL_WIDTH,
    ) -> Reliability:
        """Whether the probabilities mean what they say on held-out examples; has a picture."""
        known = np.asarray(labels)
        if not np.isin(known, self.classes).all():
            raise ShapeError(
                "Held-out labels are classes the classifier has seen.",
                got=f"{np.setdiff1d(known, self.classes)[:3]}",
                remedy="train with examples of every class, or leave these examples out",
            )
        columns = np.searchsorted(self.classes, known)
        return reliability(self.predict_proba(x, mask), columns, groups=groups, binning=binning)
