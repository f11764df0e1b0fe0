"""The limit theorem's preconditions, tested on a program and named when they fail.

The theorem covers programs whose scalars are dot products `n^{-1/2} (W¹x¹)ᵀ(W²x²)`; see
`Precondition` for what it asks.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from enum import Enum

from ..errors import NetworkError


class PreconditionWarning(UserWarning):
    """A precondition of the limit theorem fails, though the formulas may still hold."""


class Severity(Enum):
    """What a violated precondition means for the limit."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Precondition(Enum):
    """What the theorem asks of a program."""

    BOUNDED_INPUT = "the input map of every score is bounded"
    SCORE_MATRIX_ONLY = "score matrices are used for nothing but scores"
    TWO_MATRICES = "the two matrices inside one dot product differ"
    MATMUL_SIDES = "each side of a dot product is a MatMul vector W @ x"
    PSEUDO_LIPSCHITZ = "every nonlinearity is pseudo-Lipschitz"
    NO_MATMUL_AFTER_SCALARS = "no MatMul after a vector that uses scalars"


@dataclass(frozen=True)
class Finding:
    """One violated precondition: where, why it matters, what to do."""

    precondition: Precondition
    severity: Severity
    where: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"[{self.severity.value}] {self.where}: not so that {self.precondition.value}. "
            f"{self.reason} Remedy: {self.remedy}"
        )


@dataclass(frozen=True)
class PreconditionReport:
    """The result of `Program.check()`."""

    program: str
    findings: tuple[Finding, ...]

    def of(self, severity: Severity) -> tuple[Finding, ...]:
        """The findings of one severity."""
        return tuple(f for f in self.findings if f.severity is severity)

    @property
    def ok(self) -> bool:
        """Whether the limit may be taken (warnings and notes allowed)."""
        return not self.of(Severity.ERROR)

    @property
    def covered(self) -> bool:
        """Whether the theorem covers the program as it stands: nothing was found."""
        return not self.findings

    def enforce(self) -> None:
        """Raise the first error, naming every violated precondition; warn about the rest."""
        errors = self.of(Severity.ERROR)
        if errors:
            named = "; ".join(dict.fromkeys(f.precondition.value for f in errors))
            raise NetworkError(
                f"The limit theorem requires: {named}.",
                got="; ".join(f"{f.where} ({f.reason.rstrip('.')})" for f in errors),
                remedy="; ".join(dict.fromkeys(f.remedy for f in errors)),
            )
        for finding in self.of(Severity.WARNING):
            warnings.warn(str(finding), PreconditionWarning, stacklevel=4)

    def __str__(self) -> str:
        if self.covered:
            return f"{self.program}: all preconditions of the limit theorem hold"
        return "\n".join([f"{self.program}:", *(f"  {f}" for f in self.findings)])
