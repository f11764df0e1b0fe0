"""Infinitely wide networks as scikit-learn estimators: fit, predict, score, pipelines, grid search.

Arrays (N, features) are checked as scikit-learn does and computed in their own precision. Lists of
sequences of different lengths, arrays with positions (N, positions…, channels) and, for networks
that start with `Embedding`, lists of token ids are taken as they are.
"""

from typing import Any, Literal, Self, overload

import numpy as np

from ..engine.inputs import Data
from ..errors import MissingExtraError, NetworkError, NumericalError, OptionError
from ..inference import (
    GP,
    Cholesky,
    Classifier,
    Engine,
    KernelKind,
    NetworkKernels,
    Solver,
    centred_one_hot,
    hyperparameters,
    tune,
    with_hyperparameters,
)
from ..inference.checks import Values
from ..inference.conventions import NOISE
from ..inference.network_kernels import require_gaussian
from ..inference.noise import Noise
from ..layers.activations import Relu
from ..layers.base import Layer
from ..layers.compose import Serial
from ..layers.dense import Dense
from ..options import choice

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import (
        _check_y,
        check_is_fitted,
        check_random_state,
        validate_data,
    )
except ImportError as missing:
    raise MissingExtraError("scikit-learn", "sklearn") from missing

_PREFIX = "network__"
_PRECISIONS = (np.float64, np.float32)


def default_network() -> Layer:
    """What an estimator without a network uses: two hidden ReLU layers with biases."""
    hidden = Dense(512, w_std=2**0.5, b_std=0.3), Relu()
    return Serial(*hidden, *hidden, Dense(1, w_std=1.0, b_std=0.3))


def _switch(name: str, value: Any) -> bool:
    """True or False; a word such as "no" would count as True."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(
            f"{name}= is True or False.", got=f"{name}={value!r}", remedy="give one of the two"
        )
    return bool(value)


def is_sequences(x: Any, net: Layer) -> bool:
    """Whether `x` has positions, so that scikit-learn's checks for matrices do not apply."""
    if net.takes_tokens():
        return True
    if isinstance(x, list | tuple):
        return len(x) > 0 and np.ndim(x[0]) >= 2
    return len(getattr(x, "shape", ())) >= 3


class _NetworkEstimator(BaseEstimator):
    """What regressors and classifiers share: reading inputs, building the process, parameters."""

    network: Layer | None
    noise: Noise
    samples: int | None
    solver: Solver | None
    store: Any
    random_state: Any

    def _network(self) -> Layer:
        if self.network is None:
            return default_network()
        if not isinstance(self.network, Layer):
            raise NetworkError(
                "An estimator is built around a network.",
                got=f"network={self.network!r}",
                remedy="pass a layer such as Serial(...), or None for the default network",
            )
        return self.network

    def _process(self, x: Any, kind: KernelKind) -> GP:
        wide = not hasattr(x, "dtype") or x.dtype != np.float32
        engine = Engine(
            dtype=np.float64 if wide else np.float32,
            samples=self.samples,
            key=self._key(),
            store=self.store,
        )
        solver = Cholesky() if self.solver is None else self.solver
        return GP(self._network(), kind=kind, noise=self.noise, engine=engine, solver=solver)

    def _key(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _read(self, x: Any) -> Any:
        """Inputs; matrices go through scikit-learn's own checks."""
        check_is_fitted(self)
        if is_sequences(x, self._network()):
            return x
        return validate_data(self, x, reset=False, dtype=_PRECISIONS)

    def _read_pairs(self, x: Any, y: Any, **options: Any) -> Any:
        """Inputs and targets to fit to."""
        if y is None:
            raise NumericalError(
                f"{type(self).__name__} requires y to be passed, but the target y is None.",
                got="y=None",
                remedy="pass the training targets",
            )
        if is_sequences(x, self._network()):
            return x, _check_y(y, estimator=self, **options)
        return validate_data(self, x, y, dtype=_PRECISIONS, **options)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Parameters; with `deep` also `network__…`, the hyperparameters of the network."""
        params = super().get_params(deep=False)
        if deep and isinstance(self.network, Layer):
            for found in hyperparameters(self.network):
                if not found.absent:
                    value = found.value
                    params[_PREFIX + found.name] = float(value) if value.ndim == 0 else value
        return params

    def set_params(self, **params: Any) -> Self:
        """Set parameters, also `**{"network__0.w_std": 1.5}`."""
        inner = {k: v for k, v in params.items() if k.startswith(_PREFIX)}
        super().set_params(**{k: v for k, v in params.items() if k not in inner})
        if inner:
            values = {name.removeprefix(_PREFIX): value for name, value in inner.items()}
            self.network = with_hyperparameters(self._network(), values)
        return self


class _NetworkRegressor(RegressorMixin, _NetworkEstimator):
    """Regression with one of the two kernels."""

    _kind: KernelKind

    def __init__(
        self,
        network: Layer | None = None,
        *,
        noise: Noise = NOISE,
        normalize_y: bool = True,
        tune: bool = False,
        samples: int | None = None,
        solver: Solver | None = None,
        store: Any = None,
        random_state: Any = 0,
    ):
        """`noise`: variance, in units of the targets' variance if `normalize_y` centres and scales
        them. `tune`: fit noise and the network's scales by evidence. `samples`: heads to draw for
        networks with sampled attention, with `random_state`. `solver`: how the process is
        conditioned, None is `Cholesky()`. `store`: where the training kernel is kept on disk.
        """
        self.network = network
        self.noise = noise
        self.normalize_y = normalize_y
        self.tune = tune
        self.samples = samples
        self.solver = solver
        self.store = store
        self.random_state = random_state

    def fit(self, X: Data, y: Values) -> Self:
        """Condition on targets (N,) or (N, outputs)."""
        X, y = self._read_pairs(X, y, multi_output=True, y_numeric=True)
        y = np.asarray(y, np.float64)
        self.y_mean_, self.y_scale_ = np.zeros(y.shape[1:]), np.ones(y.shape[1:])
        if _switch("normalize_y", self.normalize_y):
            self.y_mean_, spread = y.mean(axis=0), y.std(axis=0)
            # Equal targets whose mean is rounded have a spread, too.
            varies = spread > 10 * np.finfo(float).eps * np.abs(self.y_mean_)
            self.y_scale_ = np.where(varies, spread, 1.0)
        scaled = (y - self.y_mean_) / self.y_scale_
        process = self._process(X, self._kind)
        if _switch("tune", self.tune):
            self.model_ = tune(process, X, scaled).fitted
        else:
            require_gaussian(process.net)
            data = NetworkKernels.make(process.net, X, engine=process.engine)
            self.model_ = process.condition(data, scaled)
        self.network_ = self.model_.gp.net
        return self

    @overload
    def predict(
        self, X: Data, return_std: Literal[False] = False, return_cov: Literal[False] = False
    ) -> np.ndarray: ...

    @overload
    def predict(
        self, X: Data, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def predict(
        self, X: Data, return_std: bool = False, return_cov: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Means; with `return_std` or `return_cov` also the function's spread (without noise)."""
        if return_std and return_cov:
            raise NumericalError(
                "One measure of spread is returned at a time.",
                got="return_std=True and return_cov=True",
                remedy="ask for the covariance; its diagonal holds the variances",
            )
        X = self._read(X)
        if return_std:
            mean, std = self.model_.predict(X)
            return self._rescaled(mean), np.multiply.outer(std, self.y_scale_)
        mean = self._rescaled(self.model_.mean(X))
        if not return_cov:
            return mean
        return mean, np.multiply.outer(self.model_.covariance(X), self.y_scale_**2)

    def _rescaled(self, mean: np.ndarray) -> np.ndarray:
        return mean * self.y_scale_ + self.y_mean_

    @property
    def log_marginal_likelihood_(self) -> float:
        """Log evidence of the (normalised) targets."""
        check_is_fitted(self)
        return self.model_.log_evidence

    def __sklearn_tags__(self) -> Any:
        """Several outputs are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² of the predicted means."""
        return float(super().score(X, y, sample_weight))


class NNGPRegressor(_NetworkRegressor):
    """Regression by the Bayesian posterior of an infinitely wide network.

    Without a `network`, two hidden ReLU layers with biases. Options are explained in `__init__`.
    """

    _kind = KernelKind.NNGP


class NTKRegressor(_NetworkRegressor):
    """Regression by an infinitely wide network, trained to the end (NTK kernel regression).

    Options are those of `NNGPRegressor`.
    """

    _kind = KernelKind.NTK


class InfiniteNetworkClassifier(ClassifierMixin, _NetworkEstimator):
    """Classification by regression on centred one-hot targets, with calibrated probabilities.

    Without a `network`, two hidden ReLU layers with biases.
    """

    def __init__(
        self,
        network: Layer | None = None,
        *,
        kind: KernelKind | str = "nngp",
        noise: Noise = NOISE,
        tune: bool = False,
        samples: int | None = None,
        solver: Solver | None = None,
        store: Any = None,
        random_state: Any = 0,
    ):
        """`kind`: a `KernelKind` or its value, "nngp" or "ntk". `noise`: variance of the one-hot
        targets. The others are as in `NNGPRegressor`.
        """
        self.network = network
        self.kind = kind
        self.noise = noise
        self.tune = tune
        self.samples = samples
        self.solver = solver
        self.store = store
        self.random_state = random_state

    def fit(self, X: Data, y: Any) -> Self:
        """Fit to labels (N,)."""
        X, y = self._read_pairs(X, y)
        check_classification_targets(y)
        process = self._process(X, choice(KernelKind, self.kind, "kind"))
        if _switch("tune", self.tune):
            process = tune(process, X, centred_one_hot(y)[0]).gp
        self.model_ = Classifier(process).fit(X, y)
        self.classes_ = self.model_.classes
        self.network_ = process.net
        return self

    def predict(self, X: Data) -> np.ndarray:
        """The most probable class."""
        X = self._read(X)
        return self.model_.predict(X)

    def predict_proba(self, X: Data) -> np.ndarray:
        """Calibrated probabilities, in the order of `classes_`."""
        X = self._read(X)
        return self.model_.predict_proba(X)
