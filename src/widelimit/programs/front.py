"""What both front ends answer in one way: preconditions, a law that prints, finite widths."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import WidelimitError
from ..laws.law import Law
from ..options import RandomKey
from .compare import Comparison, Outputs, compare
from .listing import laws_of_lines
from .preconditions import Facts, PreconditionReport, judge

if TYPE_CHECKING:
    from .interpreter import Machine


class TensorProgram(ABC):
    """A program, written by hand or traced."""

    name: str

    @abstractmethod
    def limit(self) -> ProgramLaw:
        """The law at infinite width."""

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
        law = self.limit()
        return compare(law, law.outputs(), self.outputs_at, widths, draws, key)


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
