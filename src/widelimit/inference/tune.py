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
from ..options import not_negative, whole
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
class Tuned:
    """The result of `tune`: the best model found, fitted, and every evaluation on the way."""

    fitted: FittedGP
    objective: Objective
    values: Float[np.ndarray, " steps"]
    """The criterion."""
    numbers: dict[str, np.ndarray]
    """The tuned numbers: name to (steps, …) values; the noise as its mean variance."""
    stopped: str
    """Why it ended."""

    def __repr__(self) -> str:
        steps = counted(len(self.values), "step")
        return f"Tuned({self.objective!r} {self.best:.4g} in {steps}, {self.fitted!r})"

    @property
    def gp(self) -> GP:
        """The model with its tuned network and noise."""
        return self.fitted.gp

    @property
    def best(self) -> float:
        """The largest value of the criterion."""
        return float(self.values.max())

    def plot(self, axes: Any = None) -> np.ndarray:
        """The criterion over the steps, and the tuned numbers.

        Two panels, on given axes or new ones, which are returned.
        """
        axes = several_axes(axes, 2, (4.5, 3.6))
        left, right = axes
        left.plot(self.values)
        left.set(xlabel="step", ylabel=type(self.objective).__name__, title=f"best {self.best:.4g}")
        for name, path in self.numbers.items():
            right.plot(path.reshape(len(path), -1), label=name)
        right.set(xlabel="step", ylabel="value")
        if all((path > 0).all() for path in self.numbers.values()):
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
    tolerance: float = 1e-4,
    progress: bool | Callback | None = None,
) -> Tuned:
    """Fit a network's scales and the noise to data: maximise a criterion by gradient ascent.

    `objective` is the criterion: `LogEvidence()` by default, or `LeaveOneOutDensity()` and others.
    `select` says which hyperparameters move: by default all scales of the model (standard
    deviations, rates, residual weights); `lambda h: True` adds the constants of activations. Those
    that are absent (a bias of standard deviation 0) stay so. `noise` moves the noise variances by
    one factor. SciPy's L-BFGS-B climbs until a step gains less than `tolerance` of the criterion,
    in `steps` evaluations at most, from the model as it is.
    """
    whole("steps", steps)
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
    bar = Progress.make(progress, "tune")
    path, values, stopped = _climb(criterion, steps, tolerance, bar)
    if not values:
        raise NumericalError(
            "Tuning needs a start at which the model can be fitted.",
            got=stopped,
            remedy="start from more noise or other hyperparameters",
        )
    model = criterion.model(path[int(np.argmax(values))])
    fitted = model.condition(replace(data, net=model.net), targets)
    numbers = [criterion.numbers(point) for point in path]
    table = {name: np.stack([n[name] for n in numbers]) for name in numbers[0]}
    return Tuned(fitted, criterion.objective, np.asarray(values), table, stopped)


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
        parts = np.split(u, np.cumsum([h.value.size for h in self.free]))
        values = {
            h.name: h.range.bounded(part.reshape(h.value.shape))
            for h, part in zip(self.free, parts, strict=False)  # the noise may be left
        }
        if self.noisy:
            values[NOISE_NAME] = np.mean(np.asarray(self.gp.noise)) * np.exp(u[-1])
        return values

    def model(self, u: Float[np.ndarray, " size"]) -> GP:
        """The model at coordinates u."""
        values, noise = self.numbers(u), self.gp.noise
        if self.noisy:
            del values[NOISE_NAME]
            noise = np.asarray(noise) * np.exp(u[-1])
        return replace(self.gp, net=replaced(self.gp.net, values, values.values()), noise=noise)

    def posterior(self, u: Float[np.ndarray, " size"]) -> GPPosterior:
        """The fitted process at coordinates u."""
        model = self.model(u)
        # A store holds one kernel, and that is the one of the model which tuning ends with.
        engine = self.data.engine.without_store()
        data = replace(self.data, net=model.net, engine=engine)
        kernels = data.train(ntk=model.kind is KernelKind.NTK)
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
        value, cotangent = self.objective(posterior)
        slopes, names = [], tuple(h.name for h in self.free)
        if names:
            data, numbers = replace(self.data, net=self.model(u).net), self.numbers(u)
            dtype = data.engine.dtype
            with precision(dtype):
                gradients = _pull(
                    [jnp.asarray(numbers[name], dtype) for name in names],
                    data.net,
                    data.inputs,
                    data.sampler,
                    jnp.asarray(cotangent, dtype),
                    names=names,
                    kind=self.gp.kind,
                    memory=data.engine.memory,
                )
            slopes += [
                (np.asarray(g, np.float64) * h.range.slope(numbers[h.name])).reshape(-1)
                for g, h in zip(gradients, self.free, strict=True)
            ]
        if self.noisy:
            slopes.append(np.array([np.diagonal(cotangent) @ posterior.noise]))
        return value, np.concatenate(slopes)


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
    criterion: Criterion, steps: int, tolerance: float, bar: Progress | None
) -> tuple[list[np.ndarray], list[float], str]:
    """L-BFGS-B from the model as it is: the coordinates, their values, and why it ended."""
    path, values = [], []
    ticks = bar.track(range(steps)) if bar else iter(())

    def descent(u: np.ndarray) -> tuple[float, np.ndarray]:
        if len(values) == steps:
            raise _EnoughError
        next(ticks, None)
        value, slope = criterion(u)
        path.append(np.array(u))
        values.append(value)
        return -value, -slope

    options = {"maxfun": steps + 1, "maxiter": steps + 1, "ftol": tolerance}
    try:
        minimize(descent, criterion.start(), jac=True, method="L-BFGS-B", options=options)
    except _EnoughError:
        return path, values, f"after {steps} steps"
    except NumericalError as error:
        return path, values, str(error)
    return path, values, "no further improvement"
