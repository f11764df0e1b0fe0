"""Infinitely wide networks as scikit-learn estimators: fit, predict, score, pipelines, grid search.

Without options they do what `widelimit classify` and `regress` do: the network that suits the data,
columns and channels with mean 0 and deviation 1, noise and amplitude by leave-one-out. What X may
be is in `widelimit.sklearn.inputs`.
"""

from dataclasses import replace
from typing import Any, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    _check_y,
    check_is_fitted,
    check_random_state,
    validate_data,
)

from ..data import stratified_order
from ..engine.inputs import Data, read_inputs
from ..errors import NetworkError, NumericalError, OptionError, ShapeError
from ..inference import (
    GP,
    Cholesky,
    Engine,
    FittedGP,
    KernelKind,
    LeaveOneOutNoise,
    NetworkKernels,
    Prediction,
    Solver,
    Temperature,
    centred_one_hot,
    hyperparameters,
    noise_trials,
    with_hyperparameters,
)
from ..inference.checks import Values
from ..inference.network_kernels import chosen, require_gaussian
from ..inference.noise import Noise, best_trial
from ..layers.base import Layer
from ..layers.compose import streams_of, takes_tokens
from ..options import choice
from .inputs import Examples, Scaler, arranged, is_table
from .networks import Kind, candidates

COMPARED = 500
"""Training examples by which networks are compared where several suit the data."""

_PREFIX = "network__"
_PRECISIONS = (np.float64, np.float32)


class _NetworkEstimator(BaseEstimator):
    """What the regressor and the classifier share: inputs, network, noise, weights."""

    _client: Any = None
    """Of `dask.distributed`, whose workers compute the training kernel into the store."""

    def __init__(
        self,
        network: Layer | str = "auto",
        *,
        kind: KernelKind | str = "nngp",
        depth: int | None = None,
        noise: Noise | None = None,
        standardise: bool = True,
        samples: int | None = None,
        solver: Solver | None = None,
        store: Any = None,
        random_state: Any = 0,
    ):
        """`network`: a layer, a name ("linear", "fcn", "cnn", "attention", …), or "auto" for what
        suits the data; a named one has `depth` hidden layers. `noise`: a variance in units of the
        targets' variance; None chooses it, and the amplitude, by leave-one-out. `standardise`:
        columns and channels get mean 0 and deviation 1. `samples`: heads to draw for networks with
        sampled attention, with `random_state`. `solver`: how the process is conditioned, None is
        `Cholesky()`. `store`: where the training kernel is kept on disk.
        """
        self.network = network
        self.kind = kind
        self.depth = depth
        self.noise = noise
        self.standardise = standardise
        self.samples = samples
        self.solver = solver
        self.store = store
        self.random_state = random_state

    # --- inputs -----------------------------------------------------------------------------------

    def _arranged(self, X: Any, mask: Any) -> Examples | None:
        """Inputs that are no table; None for those that are."""
        own = self.network if isinstance(self.network, Layer) else None
        streams = own is not None and streams_of(own) > 1 and isinstance(X, tuple)
        if own is not None and (streams or takes_tokens(own)):
            inputs = read_inputs(own, X, mask, name="X")
            return Examples(inputs.x, inputs.mask, None)
        if is_table(X):
            return None
        found = arranged(X, mask)
        if found.kind is None and own is None:
            raise ShapeError(
                f"No network '{self.network}' takes such examples.",
                got=f"X of shape {np.shape(X)}",
                remedy="pass rows (N, features), sequences (N, positions, channels) or images "
                "(N, height, width, channels), or a network of your own",
                option="network",
            )
        return found

    def _read(self, X: Any, mask: Any) -> Examples:
        """Inputs to predict for; matrices go through scikit-learn's own checks."""
        check_is_fitted(self)
        found = self._arranged(X, mask)
        if found is None:
            x = validate_data(self, X, reset=False, dtype=_PRECISIONS)
            found = Examples(x, None, Kind.TABLE)
        elif hasattr(self, "feature_names_in_") or hasattr(X, "columns"):
            validate_data(self, X, reset=False, skip_check_array=True)
        return self.scaler_(found)

    def _read_pairs(self, X: Any, y: Any, mask: Any, **options: Any) -> tuple[Examples, Any]:
        """Inputs and targets to fit to."""
        if y is None:
            raise NumericalError(
                f"{type(self).__name__} requires y to be passed, but the target y is None.",
                got="y=None",
                remedy="pass the training targets",
            )
        found = self._arranged(X, mask)
        if found is None:
            x, y = validate_data(self, X, y, dtype=_PRECISIONS, **options)
            return Examples(x, None, Kind.TABLE), y
        if hasattr(X, "columns"):
            validate_data(self, X, skip_check_array=True)
        return found, _check_y(y, estimator=self, **options)

    def _counted(
        self, examples: Examples, y: np.ndarray, sample_weight: Any
    ) -> tuple[Examples, np.ndarray, np.ndarray | None]:
        """Examples, targets and weights, without examples of weight 0."""
        if sample_weight is None:
            return examples, y, None
        if not np.asarray(sample_weight).any():
            raise NumericalError(
                "Every example has weight 0.",
                got="sample_weight of zeros",
                remedy="give some of them a positive weight",
                option="sample_weight",
            )
        weights = _check_sample_weight(
            sample_weight, np.empty((len(y), 1)), dtype=np.float64, ensure_non_negative=True
        )
        counts = weights > 0
        if counts.all():
            return examples, y, weights
        return examples.take(counts), y[counts], weights[counts]

    # --- the process ------------------------------------------------------------------------------

    def _condition(
        self, examples: Examples, targets: np.ndarray, labels: Any, weights: np.ndarray | None
    ) -> FittedGP:
        """Choose network and noise, and condition on the targets."""
        kind = choice(KernelKind, self.kind, "kind")
        if self.standardise not in (True, False):
            raise OptionError(
                "standardise= is neither True nor False.",
                got=f"standardise={self.standardise!r}",
                remedy="give one of the two",
            )
        self.scaler_ = Scaler.fit(examples, weights) if self.standardise else Scaler(None)
        examples = self.scaler_(examples)
        dtype = jax.tree.leaves(examples.x)[0].dtype
        engine = Engine(
            dtype=np.float32 if dtype == np.float32 else np.float64,
            samples=self.samples,
            key=self._key(),
        )
        net, self.summary_ = self._network(examples, targets, labels, engine, kind)
        require_gaussian(net)
        data = NetworkKernels.make(net, examples.x, examples.mask, engine=engine)
        data = replace(data, engine=replace(engine, store=self.store, client=self._client))
        process = GP(
            net,
            kind=kind,
            noise=LeaveOneOutNoise() if self.noise is None else self.noise,
            engine=data.engine,
            solver=Cholesky() if self.solver is None else self.solver,
        )
        fitted = process.condition(data, targets, labels=labels, counts=weights)
        noise = np.asarray(fitted.gp.noise, np.float64).reshape(-1)
        self.noise_ = float(noise[0] if weights is None else noise[0] * weights[0])
        self.process_, self.network_, self.trials_ = fitted, fitted.gp.net, fitted.trials
        return fitted

    def _network(
        self, examples: Examples, targets: np.ndarray, labels: Any, engine: Engine, kind: KernelKind
    ) -> tuple[Layer, str]:
        """The network, and what it is in one line: of several the one that predicts best."""
        if isinstance(self.network, Layer):
            if self.depth is not None:
                raise OptionError(
                    "depth= does not change a network of your own.",
                    got=f"depth={self.depth!r} beside a network",
                    remedy="leave depth away, or name a network such as 'fcn'",
                    option="depth",
                )
            return self.network, repr(self.network)
        if not isinstance(self.network, str) or examples.kind is None:
            raise NetworkError(
                f"{self.network!r} is no network.",
                got=f"network={self.network!r}",
                remedy="pass a layer such as Serial(...), a name such as 'fcn', or 'auto'",
                option="network",
            )
        channels = 1 if isinstance(examples.x, tuple) else examples.x.shape[-1]
        found = candidates(
            examples.kind, self.network, depth=self.depth, channels=channels, padded=examples.padded
        )
        if len(found) > 1:  # each at the noise that suits it, on examples that are left out
            order = stratified_order(targets[:, 0] if labels is None else labels)
            rows, scores = order[:COMPARED], {}
            some, classes = examples.take(rows), None if labels is None else labels[rows]
            for said, named in found.items():
                data = NetworkKernels.make(named.net, some.x, some.mask, engine=engine)
                kernel = np.asarray(chosen(data.train(ntk=kind is KernelKind.NTK), kind))
                trials = noise_trials(kernel, targets[rows], groups=data.groups, labels=classes)
                scores[said] = best_trial(trials).score
            found = {said: found[said] for said in [max(scores, key=lambda said: scores[said])]}
        ((said, best),) = found.items()
        return best.net, f"{best.name}: {best.summary}" + (f"; {said}" if said else "")

    def _key(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _observed(self, X: Any, mask: Any) -> Prediction:
        """Means and variances of new observations, noise included."""
        examples = self._read(X, mask)
        found = self.process_.predict(examples.x, examples.mask)
        return Prediction(found.mean, found.variance + self.noise_)

    def _mean(self, X: Any, mask: Any) -> np.ndarray:
        examples = self._read(X, mask)
        return self.process_.mean(examples.x, examples.mask)

    # --- parameters -------------------------------------------------------------------------------

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
        """Set parameters, also `**{"network__0.w_std": 1.5}` of a network of one's own."""
        inner = {k: v for k, v in params.items() if k.startswith(_PREFIX)}
        super().set_params(**{k: v for k, v in params.items() if k not in inner})
        if inner and isinstance(self.network, Layer):
            values = {name.removeprefix(_PREFIX): value for name, value in inner.items()}
            self.network = with_hyperparameters(self.network, values)
        elif inner:
            raise NetworkError(
                f"The network {self.network!r} has no parameters before it is built.",
                got=", ".join(inner),
                remedy="pass a layer such as Serial(...) first",
                option="network",
            )
        return self


class InfiniteNetworkRegressor(RegressorMixin, _NetworkEstimator):
    """Regression by an infinitely wide network, with uncertainty.

    `kind="nngp"` is the Bayesian posterior, "ntk" the network trained to the end. Fitted
    attributes: `process_` (a `FittedGP` of targets with mean 0 and deviation 1), `network_`,
    `summary_`, `noise_` (in units of the targets' variance), `trials_` (how it was chosen).
    """

    def fit(self, X: Data, y: Values, sample_weight: Any = None, mask: Any = None) -> Self:
        """Condition on targets (N,) or (N, outputs).

        An example of weight w has the noise variance σ²/w, as if it were there w times. `mask`
        marks real positions of padded sequences.
        """
        examples, y = self._read_pairs(X, y, mask, multi_output=True, y_numeric=True)
        examples, y, weights = self._counted(examples, np.asarray(y, np.float64), sample_weight)
        # In units of the largest: squares of very large and very small numbers do not fit.
        unit = np.maximum(np.abs(y).max(axis=0), np.finfo(float).tiny)
        middle = np.average(y / unit, axis=0, weights=weights)
        spread = np.sqrt(np.average((y / unit - middle) ** 2, axis=0, weights=weights))
        # Equal targets whose mean is rounded have a spread, too.
        varies = spread > 10 * np.finfo(float).eps * np.abs(middle)
        self.y_mean_, self.y_scale_ = middle * unit, np.where(varies, spread * unit, 1.0)
        targets = (y / unit - middle) / (self.y_scale_ / unit)
        self._condition(examples, targets.reshape(len(y), -1), None, weights)
        return self

    def predict(self, X: Data, return_std: bool = False, mask: Any = None) -> Any:
        """Means; with `return_std` also the standard deviation of a new observation."""
        if not return_std:
            return self._answers(self._mean(X, mask))
        mean, std = self._observed(X, mask)
        return self._answers(mean), np.multiply.outer(std, self.y_scale_)

    def _answers(self, mean: np.ndarray) -> np.ndarray:
        return mean.reshape(len(mean), *np.shape(self.y_mean_)) * self.y_scale_ + self.y_mean_

    def __sklearn_tags__(self) -> Any:
        """Several outputs are fine."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class InfiniteNetworkClassifier(ClassifierMixin, _NetworkEstimator):
    """Classification by regression on centred one-hot targets, with calibrated probabilities.

    Options and fitted attributes are those of `InfiniteNetworkRegressor`; `noise` is the variance
    of the one-hot targets, `temperature_` what makes probabilities of them.
    """

    def __init__(
        self,
        network: Layer | str = "auto",
        *,
        kind: KernelKind | str = "nngp",
        depth: int | None = None,
        noise: Noise | None = None,
        class_weight: dict[Any, float] | str | None = None,
        standardise: bool = True,
        samples: int | None = None,
        solver: Solver | None = None,
        store: Any = None,
        random_state: Any = 0,
    ):
        """`class_weight`: weights by class, or "balanced" for all classes alike. The others are
        as in `InfiniteNetworkRegressor`.
        """
        super().__init__(
            network,
            kind=kind,
            depth=depth,
            noise=noise,
            standardise=standardise,
            samples=samples,
            solver=solver,
            store=store,
            random_state=random_state,
        )
        self.class_weight = class_weight

    def fit(self, X: Data, y: Any, sample_weight: Any = None, mask: Any = None) -> Self:
        """Fit to labels (N,); `sample_weight` and `mask` as in `InfiniteNetworkRegressor.fit`."""
        examples, y = self._read_pairs(X, y, mask)
        check_classification_targets(y)
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            sample_weight = by_class if sample_weight is None else by_class * sample_weight
        examples, y, weights = self._counted(examples, y, sample_weight)
        targets, self.classes_ = centred_one_hot(y)
        labels = np.searchsorted(self.classes_, y)
        posterior = self._condition(examples, targets, labels, weights).posterior
        self.temperature_ = Temperature.of(posterior, labels, counts=weights, noise=self.noise_)
        return self

    def predict(self, X: Data, mask: Any = None) -> np.ndarray:
        """The most probable class."""
        return self._answers(self._mean(X, mask))

    def _answers(self, mean: np.ndarray) -> np.ndarray:
        return self.classes_[mean.argmax(axis=1)]

    def predict_proba(self, X: Data, mask: Any = None) -> np.ndarray:
        """Calibrated probabilities, in the order of `classes_`."""
        found = self._observed(X, mask)
        return self.temperature_.probabilities(found.mean, found.variance)
