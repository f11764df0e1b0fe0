"""Networks as Gaussian processes: `GP(net).fit(x, y).predict(x_test)`."""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from ..engine.inputs import Data, Inputs
from ..errors import NetworkError, NumericalError, OptionError
from ..layers.base import Layer, with_fields
from ..layers.compose import Serial
from ..layers.conv import Convolution
from ..layers.dense import Dense, Parameterization
from ..layers.streams import AddStreams
from ..options import RandomKey, choice, whole
from ..printing import counted, written
from . import checks
from .checks import Values
from .conventions import NOISE
from .gp import GPPosterior, KernelKind, LeaveOneOut, Prediction
from .mixture import FittedMixture, MixtureGP
from .network_kernels import (
    Engine,
    NetworkKernels,
    chosen,
    finite_heads,
    require_gaussian,
    require_layer,
)
from .noise import LeaveOneOutNoise, Noise, NoiseTrial, best_trial, noise_trials, settled
from .solve import Factor, Jitter
from .solvers import Cholesky, Posterior, Solver


@dataclass(frozen=True, eq=False)
class GP:
    """An infinitely wide network as the prior of a Gaussian process with zero mean.

    `kind` chooses the kernel (see `KernelKind`). `noise` is the variance of the noise in the
    targets: one number (0.1, the default, suits targets of variance 1), one per training example,
    `Relative(share)` of the mean prior variance, or `LeaveOneOutNoise()` to have it chosen.
    `jitter` bounds what may be added to the diagonal where the kernel cannot be factorised;
    `engine` says how kernels are computed, `solver` how the process is conditioned on data:
    `inference.Cholesky()`, `Nystrom(…)` and others.
    """

    net: Layer
    _: KW_ONLY
    kind: KernelKind = KernelKind.NNGP
    noise: Noise = NOISE
    jitter: Jitter | None = None
    engine: Engine = field(default_factory=Engine)
    solver: Solver = field(default_factory=Cholesky)

    def __post_init__(self):
        require_layer(self.net)
        if not isinstance(self.solver, Solver):
            raise NumericalError(
                f"{type(self.solver).__name__} is no solver.",
                got=f"{self.solver!r}",
                remedy="pass one of Cholesky, BlockedCholesky, ConjugateGradients, Nystrom, or "
                "leave it out",
            )
        object.__setattr__(self, "kind", choice(KernelKind, self.kind, "kind"))

    def __repr__(self) -> str:
        return written(self)

    def fit(self, x: Data, y: Values, mask: Any = None) -> "FittedGP | FittedMixture":
        """Condition on targets (N,) or (N, outputs) at examples x, by an exact float64 solve.

        With finitely many heads at 1/√d the network is a mixture of processes, not one process:
        the NNGP posterior is then that of `MixtureGP` with its default method.
        """
        checks.require_values(self.net, self.noise, x, y, mask)
        if finite_heads(self.net) and self.kind is KernelKind.NNGP:
            return self._mixture().fit(x, y, mask)
        require_gaussian(self.net)
        return self.condition(NetworkKernels.make(self.net, x, mask, engine=self.engine), y)

    def _mixture(self) -> "MixtureGP":
        names = ("replicates", "tolerance", "rank", "store", "client")
        given = {name: getattr(self.engine, name) for name in names} | {"jitter": self.jitter}
        given["solver"] = None if isinstance(self.solver, Cholesky) else self.solver
        if unused := [name for name, value in given.items() if value is not None]:
            raise NetworkError(
                "With finitely many heads at 1/√d the posterior is a mixture of processes, each "
                "conditioned in memory on scores that are drawn for it.",
                got=", ".join(f"{name}=" for name in unused),
                remedy="leave these out (see MixtureGP for the options of a mixture), or use "
                "heads=INFINITE or scaling=Scaling.LINEAR",
            )
        model = MixtureGP(self.net, noise=self.noise, key=self.engine.key)
        samples = self.engine.samples
        return model if samples is None else replace(model, samples=samples)

    def condition(
        self,
        data: NetworkKernels,
        y: Values,
        *,
        labels: np.ndarray | None = None,
        counts: np.ndarray | None = None,
    ) -> "FittedGP":
        """Condition on targets at examples that were read before: always one Gaussian process.

        `labels`, column numbers of one-hot targets, let a noise that is chosen serve probabilities.
        An example that `counts` c times has the noise variance σ²/c.
        """
        checks.targets(y, len(data))  # before the expensive part
        if isinstance(self.noise, LeaveOneOutNoise):
            return self._chosen(self.noise, data, y, labels, counts)
        noise = settled(self.noise, lambda: data.diagonal(data.inputs, self.kind))
        noise = noise if counts is None else np.asarray(noise) / counts
        marks, posterior = self.solver.condition(
            data, y, kind=self.kind, noise=noise, jitter=self.jitter
        )
        return self.fitted(marks, posterior, noise)

    def _chosen(
        self,
        how: LeaveOneOutNoise,
        data: NetworkKernels,
        y: Values,
        labels: np.ndarray | None,
        counts: np.ndarray | None,
    ) -> "FittedGP":
        """Condition with the noise and the amplitude that leave-one-out prefers."""
        rows = np.sort(np.random.default_rng(0).permutation(len(data))[: how.examples])
        all_of_them, whole = len(rows) == len(data), None
        if isinstance(self.solver, Cholesky) and (all_of_them or self.engine.store):
            whole = np.asarray(chosen(data.train(ntk=self.with_ntk), self.kind))
            kernel = whole if all_of_them else whole[np.ix_(rows, rows)]
        else:
            some = data.inputs if all_of_them else data.inputs[rows]
            kernel = np.asarray(chosen(data.corner(some, ntk=self.with_ntk), self.kind))
        scalable = _scalable(self.net)
        groups, labels, weights = (
            None if part is None else part[rows] for part in (data.groups, labels, counts)
        )
        options = {"groups": groups, "labels": labels, "counts": weights}
        amplitude = None if scalable else 1.0
        trials = noise_trials(kernel, np.asarray(y)[rows], amplitude=amplitude, **options)
        noise, amplitude, _ = best_trial(trials)
        noise = noise * amplitude / (1.0 if counts is None else counts)
        net = amplify(self.net, amplitude) if scalable else self.net
        gp, data = replace(self, net=net, noise=noise), replace(data, net=net)
        if whole is None:
            return replace(gp.condition(data, y), trials=trials)
        options = {"noise": noise, "jitter": self.jitter, "groups": data.groups}
        scaled = whole * np.asarray(amplitude, whole.dtype)
        posterior = GPPosterior.condition(scaled, y, **options)
        return replace(gp.fitted(data, posterior, noise), trials=trials)

    @property
    def with_ntk(self) -> bool:
        """Whether the tangent kernel is needed."""
        return self.kind is KernelKind.NTK

    def fitted(self, data: NetworkKernels, posterior: Posterior, noise: Values) -> "FittedGP":
        """The fitted model around a posterior; `noise` is the variance that was used."""
        gp = replace(self, engine=self.engine.without_store(), noise=noise)
        return FittedGP(gp, replace(data, engine=data.engine.without_store()), posterior)


@dataclass(frozen=True, eq=False, repr=False)
class FittedGP:
    """A Gaussian process that has seen data; made by `GP.fit`.

    Its methods take examples; `posterior` works on kernel matrices. `data` holds the examples whose
    kernels with test examples are needed: the training examples, or landmarks.
    """

    gp: GP
    data: NetworkKernels
    posterior: Posterior
    trials: tuple[NoiseTrial, ...] = ()
    """How the noise was chosen, if it was."""

    def __repr__(self) -> str:
        return f"FittedGP({self.facts}, {self.gp.net!r})"

    @property
    def facts(self) -> str:
        """Examples, kernel and noise, in a few words."""
        noise = np.asarray(self.gp.noise)
        noise = "per example" if noise.size > 1 else f"{noise.item():.3g}"
        return f"{counted(len(self), 'example')}, {self.gp.kind.value}, noise {noise}"

    def __len__(self) -> int:
        return len(self.posterior)

    def predict(self, x: Data, mask: Any = None) -> Prediction:
        """Mean and standard deviation of the function: `mean, std = fitted.predict(x)`.

        The noise is not included; `Prediction.interval(level, noise=...)` adds it. Memory is
        bounded for any number of examples.
        """
        other = self.data.read(x, mask)
        prior = self.data.diagonal(other, self.gp.kind)
        parts = [
            self.posterior.predict(self._cross(part), prior[span])
            for span, part in self.data.blocks(other)
        ]
        return Prediction.joined(parts)

    def mean(self, x: Data, mask: Any = None) -> Float[np.ndarray, " *points"]:
        """The mean alone, which is cheaper."""
        blocks = self.data.blocks(self.data.read(x, mask))
        return np.concatenate([self.posterior.mean(self._cross(part)) for _, part in blocks])

    def covariance(self, x: Data, mask: Any = None) -> Float[np.ndarray, "m m"]:
        """Joint covariance of the function at all examples (shared by the outputs)."""
        return self.posterior.covariance(*self._joint(x, mask))

    def sample(
        self, x: Data, mask: Any = None, *, draws: int = 1, key: RandomKey = 0
    ) -> Float[np.ndarray, " draws *points"]:
        """Functions drawn from the posterior, jointly at all examples."""
        whole("draws", draws)  # before the expensive part
        return self.posterior.sample(*self._joint(x, mask), draws=draws, key=key)

    @property
    def log_evidence(self) -> float:
        """`log p(y)` under the prior and the noise."""
        return self.posterior.log_evidence

    @property
    def leave_one_out(self) -> LeaveOneOut:
        """Each training target predicted from the others, in closed form."""
        return self.posterior.leave_one_out

    @property
    def jitter(self) -> float:
        """What had to be added to the diagonal of the kernel, 0.0 if nothing."""
        return self.posterior.jitter

    def extend(
        self, x: Data, y: Values, mask: Any = None, *, noise: Values | None = None
    ) -> "FittedGP":
        """Fitted again with more data, with the noise and the heads as they are.

        `noise` is that of the new targets; by default the model's own, if it is one number.
        """
        known, other = self.posterior, self.data.read(x, mask)
        if not isinstance(known, GPPosterior) or not isinstance(known.factor, Factor):
            raise OptionError(
                f"A model with solver={self.gp.solver!r} is fitted to all its data at once.",
                got="more data for a fitted one",
                remedy="fit again with the old and the new data (a stored kernel is extended, not "
                "computed anew), or solve with Cholesky()",
            )
        fitted: Any = self.gp.noise  # numbers, whatever chose them
        if noise is None and np.size(fitted) > 1:
            raise NumericalError(
                "New targets need a noise variance of their own where each target has one.",
                got="a model with one noise variance per example, and none for the new ones",
                remedy="pass noise=... to extend",
            )
        old = checks.variances(fitted, "The noise", len(known))
        new = old[:1] if noise is None else noise
        each = np.concatenate([old, checks.variances(new, "The noise", other.size)])
        gp = replace(self.gp, noise=each[0] if (each == each[0]).all() else each)
        columns, _ = checks.targets(y, other.size)
        targets = np.concatenate([known.targets, columns])
        data = self.data.extended(other)
        fitted = gp.condition(data, targets[:, 0] if known.vector_targets else targets)
        return replace(fitted, trials=self.trials)

    def _cross(self, other: Inputs) -> np.ndarray:
        return chosen(self.data.cross(other, ntk=self.gp.with_ntk), self.gp.kind)

    def _joint(self, x: Data, mask: Any) -> tuple[np.ndarray, np.ndarray]:
        other, gp = self.data.read(x, mask), self.gp
        return self._cross(other), chosen(self.data.corner(other, ntk=gp.with_ntk), gp.kind)


def amplify(net: Layer, amplitude: float) -> Layer:
    """The network with `amplitude` times the kernels: its last, linear layer is scaled."""
    if isinstance(net, Serial) and net.layers:
        return Serial(*net.layers[:-1], amplify(net.layers[-1], amplitude))
    if isinstance(net, AddStreams):
        return AddStreams(net.shares * amplitude)
    standard = False
    if isinstance(net, Dense | Convolution):
        weights, factor = net.weights, amplitude**0.5
        # Θ = fan_in κ + 1 + σ_w² Θ' there, of which only the last part has σ_w in it.
        standard = weights.parameterization is Parameterization.STANDARD
        if not standard:
            stds = {"w_std": weights.w_std * factor, "b_std": weights.b_std * factor}
            return with_fields(net, weights=with_fields(weights, **stds))
    end = "weights in the standard parameterisation" if standard else type(net).__name__
    raise NetworkError(
        "Kernels are scaled by the network's last weights, in the NTK parameterisation.",
        got=f"a network that ends in {end}",
        remedy="end the network in Dense(width, parameterization=Parameterization.NTK)",
    )


def _scalable(net: Layer) -> bool:
    """Whether the network's last weights can take an amplitude."""
    try:
        amplify(net, 1.0)
    except NetworkError:
        return False
    return True
