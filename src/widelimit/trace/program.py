"""`trace`: an ordinary model's constructor, read as a program with an infinite-width limit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..compilation import jitted
from ..errors import NetworkError, NumericalError, OptionError, ShapeError, WidelimitError
from ..laws.law import JointLaw
from ..laws.marginal import average
from ..options import RandomKey, as_key, choice, listed, whole
from ..programs.biases import Biases, apart
from ..programs.extents import Wide
from ..programs.front import Outputs, ProgramLaw, TensorProgram
from ..programs.integration import Method, Rule, estimated
from ..programs.interpreter import Machine
from ..programs.listing import listing
from ..programs.preconditions import (
    Facts,
    Finding,
    Precondition,
    PreconditionReport,
    Severity,
    judge,
)
from ..programs.refusals import NOWHERE, RefusedError
from ..programs.scalars import DotGroup, WideScalar
from ..programs.steps import FlatProgram
from ..programs.thresholds import SAME_MEAN
from ..programs.vectors import WideVector
from ..statistics import Estimate
from .alignment import align, said, trace_at
from .audit import Audit, audited
from .check import facts_of
from .tangent import INTEGRATION, TangentKernel, tangent_kernel

if TYPE_CHECKING:
    from jax.typing import ArrayLike

WIDTHS = (64, 96, 160)
_CHUNK = 256
_BLOCK = 512


def trace(
    make: Callable[[int, Any], Any],
    x: ArrayLike,
    *,
    widths: Sequence[int] = WIDTHS,
    key: RandomKey = 0,
    biases: Biases | str = Biases.LIMIT,
    width: int | None = None,
) -> Traced:
    """Read the program of a model and derive what it becomes at infinite width.

    `make(width, key)` builds a model that maps ONE example: an Equinox module, a Flax NNX module,
    or a function. `x` is a batch of examples. The model is traced at three `widths`: axes that grow
    with them are width axes, numbers that change with them are powers of the width, and parameters
    are what the initialiser draws from `key`.

    `width` is the one that the model is used at. `biases="own"` keeps biases that vanish as the
    width grows (of variance 1/(3n), say) at the size they have there; biases of outputs that are
    not Gaussian count with their variance. `check()` compares the limit with the model at `width`.
    """
    kind = choice(Biases, biases, "biases")
    if width is None and kind is Biases.OWN:
        raise OptionError(
            "biases='own' was given without the width of the model.",
            got="width=None",
            remedy="say at which width the model is used: trace(make, x, biases='own', width=64)",
        )
    return Traced(make, x, widths=widths, key=key, biases=kind, width=width)


class Traced(TensorProgram):
    """A model's program on given inputs; made by `trace`."""

    def __init__(
        self,
        make: Callable[[int, Any], Any],
        x: ArrayLike,
        *,
        widths: Sequence[int],
        key: Any,
        biases: Biases = Biases.LIMIT,
        width: int | None = None,
    ):
        _require_no_torch(make)
        if not callable(make):
            raise OptionError(
                "make= cannot be called.",
                got=f"make={make!r}",
                remedy="pass a function make(width, key) that builds the model",
            )
        self.make, self.name = make, getattr(make, "__name__", type(make).__name__)
        self.x = np.asarray(x)
        if self.x.dtype.kind not in "biuf":
            raise ShapeError(
                "x= does not hold real numbers.",
                got=f"{type(x).__name__} of dtype {self.x.dtype}",
                remedy="pass real numbers or token ids; complex channels as two real ones",
            )
        if self.x.ndim == 0 or self.x.size == 0:
            raise ShapeError(
                "x= holds no batch of examples.",
                got=f"an array of shape {self.x.shape}",
                remedy="pass x of shape (examples, …), e.g. x[None] for one example",
            )
        found = {whole("widths", width, least=2) for width in listed("widths", widths)}
        if len(found) != 3:
            raise ShapeError(
                "widths= are not three different widths.",
                got=f"widths={tuple(widths)}",
                remedy="give three, such as (64, 96, 160), that heads and groups divide",
            )
        self.widths, self.biases = tuple(sorted(found)), biases
        self.width = None if width is None else whole("width", width)
        self.key = as_key(key)

    def model(self, width: int, key: Any) -> Callable[[Any], Any]:
        """The model at one width, mapped over examples."""

        def one(example: Any) -> Any:
            # Made where it is called: Flax forbids state (counters of draws) to cross a `vmap`.
            made = self.make(width, key)
            _require_no_torch(made)
            if not callable(made):
                raise NetworkError(
                    "make(width, key) returned something that cannot be called.",
                    got=type(made).__name__,
                    remedy="return a function of one example, or a module with __call__",
                )
            return made(example)

        return jax.vmap(one)

    @cached_property
    def program(self) -> FlatProgram:
        """The steps, aligned over three widths."""
        jaxprs = []
        for width in self.widths:
            try:
                run = lambda key, x, width=width: self.model(width, key)(x)  # noqa: E731
                jaxprs.append(trace_at(run, self.key, self.x))
            except jax.errors.JAXTypeError as error:
                raise RefusedError(
                    "make(width, key) can be traced: it draws with jax.random and does not look at "
                    "values.",
                    place=NOWHERE,
                    got=str(error).splitlines()[0],
                    remedy="draw parameters from the key with jax.random, and use jnp.where or lax "
                    "for choices",
                ) from error
            except WidelimitError:
                raise
            except Exception as error:  # whatever the model's code raises
                raise NetworkError(
                    "make(width, key) returned a model that does not run on one example.",
                    got=f"{said(error)}, for an example of shape {self.x.shape[1:]}",
                    remedy="pass x of shape (examples, …) such that make(width, key)(x[0]) runs",
                ) from error
        program = align(jaxprs, self.widths)
        if len(program.outputs) != 1:
            raise RefusedError(
                "A model returns one array.",
                place=NOWHERE,
                got=f"{len(program.outputs)} arrays",
                remedy="wrap the model in a function that returns the array of interest",
            )
        return program

    def run(self, draws: int, rule: Rule) -> tuple[Machine, Any]:
        """Interpret the program once; returns the machine and its output."""
        own = self.width if self.biases is Biases.OWN else None
        machine = Machine(self.program, draws=draws, rule=rule, width=own)
        return machine, machine.run(self.key, self.x)[0]

    @cached_property
    def first_run(self) -> tuple[Machine, Any]:
        """One interpretation, kept: what listing and checks look at."""
        return self.run(16, INTEGRATION.seeded(jax.random.fold_in(self.key, 0)))

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Examples, then the axes of one output."""
        return tuple(int(extent) for extent in self.program.outputs[0].shape)  # pyright: ignore

    @property
    def _places(self) -> tuple[int, ...]:
        """Examples and the finite axes of one output."""
        return tuple(e for e in self.program.outputs[0].shape if not isinstance(e, Wide))

    # ---- readings ---------------------------------------------------------------------------

    def limit(self, *, draws: int = 2048, key: RandomKey | None = None) -> TracedLaw:
        """The law of the outputs as the width grows without bound.

        Gaussian with a covariance, or Gaussian given `draws` drawn values of the random scalars.
        Raises `NetworkError` where there is no limit, and warns of preconditions of the limit
        theorem that are violated; `check()` lists them.
        """
        whole("draws", draws)
        key = jax.random.fold_in(self.key, 1) if key is None else as_key(key)
        kernels, mean, error, machine = self.kernels(draws, key)
        judge(facts_of(machine, self.name)).enforce()
        return TracedLaw(self, kernels, mean, key=key, error=error)

    def kernels(
        self, draws: int, key: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, Machine]:
        """Kernels (draws or 1, n, n) and mean; an error, where one kernel is not random."""
        means: list[np.ndarray] = []

        def read(count: int, rule: Rule) -> tuple[np.ndarray, Machine]:
            machine, output = self.run(count, rule)
            with np.errstate(all="ignore"):
                kernel, mean = _conditional(machine, output)
            if rule.widening == 1:  # coarse grids are for errors
                means.append(mean)
            return kernel, machine

        rule = INTEGRATION.seeded(key)
        first, machine = read(min(_CHUNK, draws), rule.replicate(0))
        if len(first) > 1 or (draws == 1 and machine.drawn):
            starts = range(len(first), draws, _CHUNK)
            rest = [read(min(_CHUNK, draws - i), rule.replicate(i))[0] for i in starts]
            found, error = np.concatenate([first, *rest]), None
        else:
            known = (first[0], machine.integrator.worst)

            def reading(other: Rule) -> tuple[np.ndarray, Method]:
                return known if other is rule else (read(1, other)[0][0], known[1])

            estimate = estimated(rule, reading)
            found, error = estimate.value[None], estimate.error
        mean = np.concatenate(means)
        if not (np.isfinite(mean).all() and np.isfinite(found).all()):
            raise NumericalError(
                "The law of the outputs overflows.",
                got="a covariance that is infinite or no number",
                remedy="draw smaller weights, or check where functions of activations are defined",
            )
        if np.ptp(mean, axis=0).max(initial=0.0) > SAME_MEAN * np.abs(mean).max(initial=0.0):
            raise RefusedError(
                "Outputs are Gaussian given the scalars, with a mean that is not random.",
                place=self.program.steps[-1].place,
                got="outputs whose mean is random",
                remedy="end the model in weights of a centred law, without a random bias of "
                "order one that is not Gaussian",
            )
        return found, mean[0].reshape(self._places), error, machine

    def ntk(self, *, draws: int = 256, key: RandomKey | None = None) -> TangentKernel:
        """The tangent kernel at initialisation, where gradient independence holds.

        With random scalars it is random: one kernel for each of `draws` draws.
        """
        whole("draws", draws)
        key = jax.random.fold_in(self.key, 3) if key is None else as_key(key)
        return tangent_kernel(self, draws, key)

    def facts(self) -> Facts:
        """What the limit theorem asks about."""
        return facts_of(self.first_run[0], self.name)

    def check(self, *, compare: bool = True) -> PreconditionReport:
        """The preconditions of the limit theorem, each violated one by name and source line.

        With the model's own `width`, `compare` it with the limit there: 512 models are drawn.
        """
        report = super().check()
        if not compare or self.width is None:
            return report
        table = self.compare((self.width,), 512)
        there, limit = table.widths[0], np.diagonal(table.second)
        line = apart(*(np.diagonal(a) / limit for a in (there.second, there.second_error)))
        finding = Finding(
            Precondition.WIDE,
            Severity.WARNING,
            f"outputs at width {self.width}",
            f"There {line}.",
            f"keep biases at their own size: trace(…, biases='own', width={self.width})",
        )
        return report if line is None else replace(report, findings=(*report.findings, finding))

    def audit(self) -> Audit:
        """The power of n of every parameter, activation and score, with its source line."""
        return audited(self)

    def outputs_at(self, width: int, draws: int, key: Any) -> np.ndarray:
        """Outputs of random models of one width, (draws, outputs)."""
        x = jnp.asarray(self.x)
        run = jitted(jax.vmap(lambda k: self.model(width, k)(x)))
        keys = jax.random.split(key, draws)
        block = max(1, min(_BLOCK, draws, (1 << 26) // (width * width)))
        parts = [np.asarray(run(keys[i : i + block])) for i in range(0, draws, block)]
        # One channel of outputs that have a width axis.
        flat = np.concatenate(parts).astype(np.float64).reshape(draws, math.prod(self._places), -1)
        return flat[:, :, 0]

    def __repr__(self) -> str:
        return f"Traced({self.name}, inputs of shape {self.x.shape})"

    def __str__(self) -> str:
        return listing(*self.first_run, self.name)


class TracedLaw(JointLaw, ProgramLaw):
    """Joint law of a traced model's outputs on its inputs; made by `trace(...).limit()`.

    It answers as the law of a network does: densities, moments, kurtosis, quantiles, samples.
    Coordinates are `(example, *output index)`. `mean` is the outputs' mean; the law is that of
    deviations from it.
    """

    def __init__(
        self,
        traced: Traced,
        kernels: np.ndarray,
        mean: np.ndarray,
        *,
        key: Any,
        error: np.ndarray | None = None,
    ):
        """`kernels` (draws, n, n): one for each draw of the scalars or, where nothing is random,
        one with its `error`."""
        self.traced, self.name = traced, traced.name
        self._kernels, self.mean, self._error = kernels, mean, error
        super().__init__(np.ones(mean.shape, bool), key, len(kernels))

    def __repr__(self) -> str:
        kind = f"{len(self.kernels)} draws of the scalars" if self.random else "Gaussian"
        return f"TracedLaw(outputs of shape {self.shape}, {kind})"

    @property
    def random(self) -> bool:
        """Whether the outputs are Gaussian only given random scalars."""
        return self._error is None

    def covariance(self) -> Estimate:
        """The covariance of the outputs, (N, N, positions…, positions'…)."""
        found = self.flat_covariance()
        return Estimate(self._unflatten(found.value), self._unflatten(found.error))

    def flat_covariance(self) -> Estimate:
        """The covariance with all coordinates in one row, (n, n)."""
        found = average(self._kernels)
        return found if self._error is None else Estimate(found.value, self._error)

    def gaussian(self) -> TracedLaw:
        """The Gaussian law of the same covariance."""
        kernel = self.kernels.mean(axis=0, keepdims=True)
        none = np.zeros(kernel.shape[1:])
        return TracedLaw(self.traced, kernel, self.mean, key=self.key, error=none)

    def outputs(self) -> Outputs:
        marginals = tuple(self.at(*place) for place in np.ndindex(self.shape))
        return Outputs(self.mean.ravel(), self.flat_covariance(), marginals)

    def machine(self) -> Machine:
        return self.traced.first_run[0]

    def _draw_kernels(self) -> np.ndarray:
        return self._kernels

    def _redraw(self, draws: int, key: Any) -> Iterator[np.ndarray]:
        yield self.traced.kernels(draws, key)[0]


def _require_no_torch(model: Any) -> None:
    """Refuse torch modules, and classes of them."""
    kind = model if isinstance(model, type) else type(model)
    if any(base.__module__.startswith("torch.") for base in kind.__mro__):
        raise NetworkError(
            "trace reads JAX code, and was given a torch module.",
            got=kind.__name__,
            remedy="use lift: widelimit.lift(module, x) reads torch modules",
        )


def _conditional(machine: Machine, output: Any) -> tuple[np.ndarray, np.ndarray]:
    """Covariances (draws or 1, n, n) and means of an output."""
    if output.is_zero or output.power != 0:
        grows = not output.is_zero and output.power > 0
        vanishes = "is zero" if output.is_zero else f"vanishes as n^{output.power}"
        raise NetworkError(
            "The output stays of order one as the width grows.",
            got=f"an output that {f'grows as n^{output.power}' if grows else vanishes}",
            remedy="rescale the last layer; audit() shows where the "
            + ("growth begins" if grows else "power is lost"),
        )
    if isinstance(output, WideVector):  # one channel: all have the same law
        if output.form is None or not output.is_linear or output.layout.cells > 1:
            raise NetworkError(
                "Outputs are Gaussian given the scalars when the model ends in weights.",
                got="a nonlinear function of Gaussians, or several kinds of channels",
                remedy="end the model in a readout",
            )
        each, scale = np.arange(output.size)[None], np.asarray(output.scale)
        kernel = output.form.covariance(output.form, each, each)[:, 0]
        return kernel * scale[:, :, None] * scale[:, None], output.constant
    if not isinstance(output, WideScalar) or not output.pending:
        raise NetworkError(
            "Outputs are Gaussian given the scalars when the model ends in weights.",
            got="outputs that are fixed, or functions of other outputs (such as softmax)",
            remedy="trace the model up to its last linear layer (logits)",
        )
    _require_gaussian(machine, output)
    size = int(np.prod(output.shape, dtype=int))
    total: Any = np.zeros((1, size, size))
    for group, weights in output.pending:
        for other, theirs in output.pending:
            cross = group.cross(other)
            if cross is not None:
                total = total + weights @ cross @ np.swapaxes(theirs, 1, 2)
    mean = np.asarray(output.base, float).reshape(-1, size)
    mean = np.broadcast_to(mean, (max(len(mean), 1), size))
    return np.asarray(total), mean


def _require_gaussian(machine: Machine, output: WideScalar) -> None:
    """Raise where a sum is not centred, or where scalars of the same weights were drawn.

    Given those, outputs would have another mean and covariance.
    """
    drawn = [group for group in (*machine.dots, *machine.finite.values()) if group.is_drawn]
    for group, _ in output.pending:
        if isinstance(group, DotGroup):
            group.require_centred()
        for other in drawn:
            cross = group.cross(other)
            if cross is not None and cross.any():
                raise RefusedError(
                    "Outputs are Gaussian given the scalars, with a mean that is not random.",
                    place=machine.program.steps[-1].place,
                    got="weights that make the outputs and a random scalar inside the network too",
                    remedy="give the readout weights of its own",
                )
