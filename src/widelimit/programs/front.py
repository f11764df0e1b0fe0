"""What both front ends answer in one way: preconditions, a law that prints, finite widths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..errors import ShapeError, WidelimitError
from ..figures import one_axes
from ..laws.law import Law
from ..laws.marginal import Marginal, jackknife
from ..options import RandomKey, as_key, listed, whole
from ..statistics import Estimate
from .listing import laws_of_lines
from .preconditions import Facts, PreconditionReport, judge

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .interpreter import Machine

_GROUPS = 64


class TensorProgram(ABC):
    """A program, written by hand or traced."""

    name: str

    @abstractmethod
    def limit(self) -> ProgramLaw:
        """The law at infinite width; every front end lets `judge` enforce the preconditions."""

    @abstractmethod
    def facts(self) -> Facts:
        """What the limit theorem asks about."""

    @abstractmethod
    def outputs_at(self, width: int, draws: int, key: Any) -> np.ndarray:
        """One coordinate of every output of random programs of one width, (draws, outputs)."""

    def check(self) -> PreconditionReport:
        """The preconditions of the limit theorem: each violated one by name, and where."""
        return judge(self.facts())

    def compare(
        self, widths: Sequence[int] = (64, 256), draws: int = 4096, *, key: RandomKey = 1
    ) -> Comparison:
        """The program at finite `widths` beside its limit: second moments and kurtosis."""
        widths = tuple(whole("widths", width) for width in listed("widths", widths))
        if whole("draws", draws) < 2 * _GROUPS or not widths:
            raise ShapeError(
                f"A comparison needs at least {2 * _GROUPS} draws, at one width or more.",
                got=f"draws={draws}, widths={widths}",
                remedy="give draws=4096, widths=(64, 256)",
            )
        law = self.limit()
        limit = law.outputs()
        kurtoses = [marginal.kurtosis() for marginal in limit.marginals]
        tails = Estimate(*(np.array([getattr(k, a) for k in kurtoses]) for a in ("value", "error")))
        found = []
        for number, width in enumerate(widths):
            values = self.outputs_at(width, draws, jax.random.fold_in(as_key(key), number))
            found.append(AtWidth.of(width, values, limit, tails))
        return Comparison(law, limit, tails.value, tails.error, tuple(found))


class ProgramLaw(Law):
    """The law of a program's outputs; it prints with those of the lines that lead to them."""

    name: str

    @abstractmethod
    def outputs(self) -> Outputs:
        """Means, second moments, and the law of each output."""

    @abstractmethod
    def machine(self) -> Machine:
        """The program, run for a few draws of the scalars."""

    def __str__(self) -> str:
        try:
            found = [f"output {number}: {law}" for number, law in enumerate(self.outputs().rows())]
        except WidelimitError as error:
            found = [f"outputs: {error.rule}"]
        lines = laws_of_lines(self.machine())
        return "\n".join([f"limit law of {self.name}", *(f"  {row}" for row in (*lines, *found))])


@dataclass(frozen=True)
class AtWidth:
    """What `draws` random models of one width show; errors are standard errors."""

    width: int
    outputs: np.ndarray
    """(draws, coordinates)."""
    second: np.ndarray
    second_error: np.ndarray
    kurtosis: np.ndarray
    kurtosis_error: np.ndarray
    second_z: np.ndarray
    kurtosis_z: np.ndarray

    @classmethod
    def of(cls, width: int, values: np.ndarray, limit: Outputs, tails: Estimate) -> AtWidth:
        """Of outputs (draws, coordinates), beside the limit and the kurtosis of its outputs."""
        groups = len(values) // _GROUPS
        kept = (values - limit.mean)[: groups * _GROUPS].reshape(_GROUPS, groups, -1)
        products = np.einsum("gki,gkj->gij", kept, kept) / groups
        second = products.mean(axis=0)
        error = products.std(axis=0, ddof=1) / np.sqrt(_GROUPS)
        fourth, square = np.mean(kept**4, axis=1), np.mean(kept**2, axis=1)
        tail = jackknife(lambda f, s: f / s**2 - 3, fourth, square)
        z = (second - limit.second.value) / np.maximum(np.hypot(error, limit.second.error), 1e-300)
        tail_z = (tail.value - tails.value) / np.maximum(np.hypot(tail.error, tails.error), 1e-300)
        return cls(width, values, second, error, tail.value, tail.error, z, tail_z)


@dataclass(frozen=True)
class Outputs:
    """Outputs at infinite width: mean (coordinates,), second moments about it, the law of each."""

    mean: np.ndarray
    second: Estimate
    marginals: tuple[Marginal, ...]

    def rows(self) -> Iterator[str]:
        """The law of each in a few words."""
        errors = np.broadcast_to(self.second.error, self.second.value.shape)
        for k, (mean, marginal) in enumerate(zip(self.mean, self.marginals, strict=True)):
            variance = Estimate(self.second.value[k, k], errors[k, k])
            if len(marginal.variances) == 1:
                yield f"N({mean:.6g}, {variance})"
            else:
                law = f"variance {variance}, excess kurtosis {marginal.kurtosis()}"
                yield f"Gaussian given the scalars: mean {mean:.6g}, {law}"


@dataclass(frozen=True)
class Comparison:
    """Second moments (all pairs of outputs) and excess kurtosis (each output) by width."""

    law: Any
    """The law at infinite width."""
    limit: Outputs
    kurtosis: np.ndarray
    kurtosis_error: np.ndarray
    widths: tuple[AtWidth, ...]

    @property
    def second(self) -> np.ndarray:
        """Second moments of the limit, (coordinates, coordinates)."""
        return self.limit.second.value

    @property
    def second_error(self) -> np.ndarray:
        """Their errors."""
        return self.limit.second.error

    def __str__(self) -> str:
        rows = [f"{'width':>8} {'largest z':>10} {'relative error':>15} {'kurtosis':>9} {'z':>6}"]
        scale = np.abs(self.second).max()
        for one in self.widths:
            off = np.abs(one.second - self.second).max() / scale
            rows.append(
                f"{one.width:>8} {np.abs(one.second_z).max():>10.2f} {off:>15.4f} "
                f"{one.kurtosis[0]:>9.3f} {np.abs(one.kurtosis_z).max():>6.2f}"
            )
        rows.append(f"{'∞':>8} {'':>10} {'':>15} {self.kurtosis[0]:>9.3f}")
        return "\n".join(rows)

    def plot(self, ax: Axes | None = None) -> Axes:
        """The density of the first output at infinite width, and histograms at finite widths."""
        ax = one_axes(ax, (5.4, 3.8))
        deviation = float(np.sqrt(self.second[0, 0]))
        grid = np.linspace(-4.5, 4.5, 241) * deviation
        for one in self.widths:
            values = one.outputs[:, 0] - float(self.limit.mean[0])
            count, edges = np.histogram(values, bins=60, range=(grid[0], grid[-1]))
            share, middle = count / (len(values) * np.diff(edges)), (edges[1:] + edges[:-1]) / 2
            ax.plot(middle, share, ".", markersize=4, label=f"width {one.width}")
        density = self.limit.marginals[0].density(grid).value
        ax.plot(grid, density, color="black", linewidth=1.2, label="infinite width")
        ax.set_yscale("log")
        ax.set_ylim(bottom=1e-5 / deviation)
        ax.set_xlabel("first output")
        ax.set_ylabel("density")
        ax.legend(frameon=False)
        return ax
