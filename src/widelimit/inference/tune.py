"""Fit hyperparameters to data: gradient ascent on the evidence, or on another criterion.

The gradient takes three steps: the criterion's gradient in the kernel matrix, worked out in
float64 (`objectives`); the vector-Jacobian product of the network's kernel with it; the chain
rule into coordinates without bounds (`leaves.Range`). Heads of sampled networks are drawn once
and kept, so the criterion is a smooth function.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.optimize import minimize

from ..compilation import compiled
from ..engine.inputs import Data, Inputs
from ..engine.phases import precision
from ..engine.sampling import Sampler
from ..errors import NetworkError, NumericalError, OptionError
from ..figures import several_axes
from ..layers.base import Layer
from ..options import RandomKey, generator, not_negative, positive, whole
from ..printing import counted
from ..progress import Callback, Progress
from . import checks
from .checks import Values
from .gp import GPPosterior, KernelKind
from .leaves import Hyperparameter, hyperparameters, replaced
from .network_kernels import NetworkKernels, chosen, require_gaussian
from .noise import settled
from .objectives import LogEvidence, Objective
from .process import GP, FittedGP
from .solve import JitterWarning
from .solvers import Nystrom

NOISE_NAME = "noise"
"""The name of the noise among the tuned numbers: a factor on all noise variances."""


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """One run of an optimiser: the criterion and the tuned numbers at every evaluation."""

    values: Float[np.ndarray, " steps"]
    numbers: dict[str, np.ndarray]
    """Name to (steps, …) values; the noise as its mean variance."""
    stopped: str
    """Why it ended."""

    def __repr__(self) -> str:
        first, best = self.values[0], self.values.max()
        return (
            f"Run({counted(len(self.values), 'step')}, {first:.4g} to {best:.4g}, {self.stopped})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Tuned:
    """The result of `tune`: the best model found, fitted, and how it was found."""

    fitted: FittedGP
    objective: Objective
    runs: tuple[Run, ...]

    def __repr__(self) -> str:
        runs = counted(len(self.runs), "run")
        return f"Tuned({self.objective!r} {self.best:.4g} in {runs}, {self.fitted!r})"

    @property
    def gp(self) -> GP:
        """The model with its tuned network and noise."""
        return self.fitted.gp

    @property
    def best(self) -> float:
        """The largest value of the criterion."""
        return max(float(run.values.max()) for run in self.runs)

    def plot(self, axes: Any = None) -> np.ndarray:
        """The criterion of every run over its steps, and the tuned numbers of the best run.

        Two panels, on given axes or new ones, which are returned.
        """
        axes = several_axes(axes, 2, (4.5, 3.6))
        left, right = axes
        best = max(self.runs, key=lambda run: run.values.max())
        for index, run in enumerate(self.runs):
            color, order = ("tab:blue", 3) if run is best else ("0.7", 2)
            left.plot(run.values, label=f"run {index + 1}", color=color, zorder=order)
        left.set(xlabel="step", ylabel=type(self.objective).__name__, title=f"best {self.best:.4g}")
        for name, path in best.numbers.items():
            right.plot(path.reshape(len(path), -1), label=name)
        right.set(xlabel="step", ylabel="value", title="best run")
        if all((path > 0).all() for path in best.numbers.values()):
            right.set_yscale("log")
        right.legend(frameon=False, fontsize="small")
        return axes


def tune(
    gp: GP,
    x: Data,
    y: Values,
    mask: Any = None,
    *,
    objective: Objective | None = None,
    select: Callable[[Hyperparameter], bool] | None = None,
    noise: bool = True,
    steps: int = 200,
    restarts: int = 0,
    spread: float = 0.5,
    tolerance: float = 1e-4,
    key: RandomKey = 0,
    progress: bool | Callback | None = None,
) -> Tuned:
    """Fit a network's scales and the noise to data: maximise a criterion by gradient ascent.

    `objective` is the criterion: `LogEvidence()` by default, or `LeaveOneOutDensity()` and others.
    `select` says which hyperparameters move: by default all scales of the model (standard
    deviations, rates, residual weights); `lambda h: True` adds the constants of activations. Those
    that are absent (a bias of standard deviation 0) stay so. `noise` moves the noise variances by
    one factor. SciPy's L-BFGS-B climbs until a step gains less than `tolerance` of the criterion,
    in `steps` evaluations at most. `restarts` further runs start from coordinates perturbed with
    standard deviation `spread`, drawn from `key`.
    """
    whole("steps", steps)
    whole("restarts", restarts, least=0)
    positive("spread", spread)
    not_negative("tolerance", tolerance)
    _check_parts(gp, objective, select)
    require_gaussian(gp.net)
    data = NetworkKernels.make(gp.net, x, mask, engine=gp.engine)
    columns, vector = checks.targets(y, len(data))
    gp = replace(gp, noise=settled(gp.noise, lambda: data.diagonal(data.inputs, gp.kind)))
    wanted = select or (lambda h: h.scale)
    free = tuple(h for h in hyperparameters(gp.net) if not h.absent and wanted(h))
    noisy = noise and bool(np.any(np.asarray(gp.noise) > 0))
    if not free and not noisy:
        raise NetworkError(
            "Tuning needs at least one number that may move.",
            got="no hyperparameter selected, and no noise",
            remedy="select some of " + ", ".join(h.name for h in hyperparameters(gp.net)),
        )
    targets = columns[:, 0] if vector else columns
    criterion = Criterion(gp, data, targets, objective or LogEvidence(), free, noisy)
    rng = generator(key)
    bar = Progress.make(progress, "tune")
    plan = list(range(restarts + 1))
    runs, ends = [], []
    for index in bar.track(plan) if bar else plan:
        start = criterion.start()
        if index:
            start = start + spread * rng.standard_normal(start.shape)
        run, end = _climb(criterion, start, steps, tolerance)
        runs.append(run)
        ends.append(end)
    usable = [i for i in plan if len(runs[i].values)]
    if not usable:
        raise NumericalError(
            "Tuning needs a start at which the model can be fitted.",
            got=runs[0].stopped,
            remedy="start from more noise or other hyperparameters",
        )
    best = max(usable, key=lambda i: runs[i].values.max())
    model = criterion.model(ends[best])
    fitted = model.condition(data.with_net(model.net), targets)
    return Tuned(fitted, criterion.objective, tuple(runs[i] for i in usable))


def _check_parts(gp: Any, objective: Any, select: Any) -> None:
    """Refuse what is not a model, a criterion or a choice."""
    for name, value, fits, kind in (
        ("gp", gp, isinstance(gp, GP), "a model GP(net)"),
        ("objective", objective, isinstance(objective, Objective | None), "such as LogEvidence()"),
        ("select", select, select is None or callable(select), "a function of hyperparameters"),
    ):
        if not fits:
            raise OptionError(
                f"{name}= is {kind}.",
                got=f"{name}={value!r}",
                remedy="see the documentation of tune for what it takes",
            )
    if isinstance(gp.solver, Nystrom):
        raise NetworkError(
            "Tuning maximises a criterion of the exact process, which landmarks only approximate.",
            got=f"solver={gp.solver!r}",
            remedy="tune GP(net) on fewer examples, then fit GP(tuned.gp.net, "
            "noise=tuned.gp.noise, solver=Nystrom(...)) to all",
        )


@dataclass(frozen=True, eq=False)
class Criterion:
    """An objective as a function of free coordinates u, with its gradient."""

    gp: GP
    data: NetworkKernels
    targets: np.ndarray
    objective: Objective
    free: tuple[Hyperparameter, ...]
    noisy: bool

    def start(self) -> Float[np.ndarray, " size"]:
        """The coordinates of the model as it is."""
        parts = [h.range.free(h.value).reshape(-1) for h in self.free]
        return np.concatenate([*parts, np.zeros(int(self.noisy))])

    def numbers(self, u: Float[np.ndarray, " size"]) -> dict[str, np.ndarray]:
        """The tuned numbers at coordinates u."""
        values = {h.name: h.range.bounded(part) for h, part in self._parts(u)}
        if self.noisy:
            values[NOISE_NAME] = np.mean(np.asarray(self.gp.noise)) * np.exp(u[-1])
        return values

    def model(self, u: Float[np.ndarray, " size"]) -> GP:
        """The model at coordinates u."""
        values = [h.range.bounded(part) for h, part in self._parts(u)]
        net = replaced(self.gp.net, [h.name for h in self.free], values)
        noise = np.asarray(self.gp.noise) * np.exp(u[-1]) if self.noisy else self.gp.noise
        return replace(self.gp, net=net, noise=noise)

    def posterior(self, u: Float[np.ndarray, " size"]) -> GPPosterior:
        """The fitted process at coordinates u."""
        model = self.model(u)
        # A store holds one kernel, and that is the one of the model which tuning ends with.
        data = replace(self.data, engine=self.data.engine.without_store())
        kernels = data.with_net(model.net).train(ntk=model.kind is KernelKind.NTK)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)  # the final fit says it again
            noise = np.asarray(model.noise)
            return GPPosterior.condition(
                chosen(kernels, model.kind),
                self.targets,
                noise=noise,
                jitter=model.jitter,
                groups=self.data.groups,
            )

    def __call__(self, u: Float[np.ndarray, " size"]) -> tuple[float, Float[np.ndarray, " size"]]:
        """The criterion and its gradient in u."""
        posterior = self.posterior(u)
        cotangent = self.objective.gradient(posterior)
        slopes = self._pulled(self.data.with_net(self.model(u).net), cotangent)
        if self.noisy:
            slopes.append(np.array([np.diagonal(cotangent) @ posterior.noise]))
        return self.objective.value(posterior), np.concatenate(slopes)

    def _pulled(self, data: NetworkKernels, cotangent: np.ndarray) -> list[np.ndarray]:
        """The gradient in the coordinates of every hyperparameter."""
        if not self.free:
            return []
        names = tuple(h.name for h in self.free)
        values = {h.name: h.value for h in hyperparameters(data.net)}
        with precision(data.engine.dtype):
            gradients = _pull(
                [jnp.asarray(values[name], data.engine.dtype) for name in names],
                data.net,
                data.inputs,
                data.sampler,
                jnp.asarray(cotangent, data.engine.dtype),
                names=names,
                kind=self.gp.kind,
                memory=data.engine.memory,
            )
        return [
            (np.asarray(g, np.float64) * h.range.slope(values[h.name])).reshape(-1)
            for g, h in zip(gradients, self.free, strict=True)
        ]

    def _parts(self, u: Float[np.ndarray, " size"]) -> list[tuple[Hyperparameter, np.ndarray]]:
        """The coordinates of every hyperparameter, in its shape."""
        ends = np.cumsum([h.value.size for h in self.free])
        pieces = np.split(u, ends)[: len(self.free)]
        return [(h, p.reshape(h.value.shape)) for h, p in zip(self.free, pieces, strict=True)]


@compiled
def _pull(
    values: list[Array],
    net: Layer,
    inputs: Inputs,
    sampler: Sampler | None,
    cotangent: Float[Array, "n n"],
    *,
    names: tuple[str, ...],
    kind: KernelKind,
    memory: int,
) -> list[Array]:
    """Gradient of `Σ G_ij k(x_i, x_j)` in the named hyperparameters."""

    def kernel(moved: list[Array]) -> Array:
        moved_net = replaced(net, names, moved)
        kernels = moved_net.kernel(
            inputs, sampler=sampler, ntk=kind is KernelKind.NTK, memory=memory
        )
        return chosen(kernels, kind)

    return jax.vjp(kernel, values)[1](cotangent)[0]


class _EnoughError(Exception):
    """All evaluations are spent, which SciPy counts between line searches only."""


def _climb(
    criterion: Criterion, start: Float[np.ndarray, " size"], steps: int, tolerance: float
) -> tuple[Run, Float[np.ndarray, " size"]]:
    """L-BFGS-B from a start; returns what was evaluated and the best coordinates."""
    path, values, stopped = [], [], "no further improvement"

    def descent(u: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) == steps:
            raise _EnoughError
        value, slope = criterion(u)
        path.append(np.array(u))
        values.append(value)
        return -value, -slope

    try:
        options = {"maxfun": steps + 1, "maxiter": steps + 1, "ftol": tolerance}
        minimize(descent, start, jac=True, method="L-BFGS-B", options=options)
    except _EnoughError:
        stopped = f"after {steps} steps"
    except NumericalError as error:
        stopped = str(error)
    numbers = [criterion.numbers(point) for point in path]
    table = {name: np.stack([n[name] for n in numbers]) for name in (numbers[0] if numbers else ())}
    end = path[int(np.argmax(values))] if path else start
    return Run(np.asarray(values), table, stopped), end
