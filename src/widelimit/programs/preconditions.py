"""The limit theorem's preconditions, judged on the facts of a program and named when they fail.

The theorem covers programs whose scalars are dot products `n^{-1/2} (W¹x¹)ᵀ(W²x²)`; see
`Precondition` for what it asks. Errors are violations after which there is no limit, or another one
than the engine derives. Warnings are violations after which the law is derived as ever, and seen to
hold, but not covered by the proof. Notes are steps beyond the theorem's end.
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from ..errors import NetworkError


class Growth(Enum):
    """How fast a function may grow; the theorem wants the first."""

    PSEUDO_LIPSCHITZ = "pseudo-Lipschitz"
    CONTROLLED = "controlled: at most exp(C|x|^(2-ε)), but not pseudo-Lipschitz"
    UNCONTROLLED = "uncontrolled: Gaussian expectations may diverge"


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
    WIDE = "the width is so large that the limit is near"


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
            warnings.warn(str(finding), PreconditionWarning, stacklevel=3)

    def __str__(self) -> str:
        if self.covered:
            return f"{self.program}: all preconditions of the limit theorem hold"
        return "\n".join([f"{self.program}:", *(f"  {f}" for f in self.findings)])


@dataclass(frozen=True)
class ScoreSide:
    """One of the two vectors of a dot product.

    `matrix` is what tells the weights behind a vector `W @ x` from others, None for other vectors;
    `source` names x, and `bounded` says whether x is. `entries` are those of the weights that the
    vector is made of; none stand for all.
    """

    label: str
    matrix: Hashable | None
    source: str = ""
    bounded: bool = True
    entries: frozenset[Hashable] = frozenset()


@dataclass(frozen=True)
class Score:
    """A dot product that other lines read; the engine may know that its mean is zero."""

    label: str
    where: str
    sides: tuple[ScoreSide, ScoreSide]
    centred: bool = False


@dataclass(frozen=True)
class Facts:
    """What the theorem asks about, read off a program."""

    name: str
    scores: tuple[Score, ...]
    reused: tuple[tuple[str, tuple[str, ...]], ...]
    """Weights that make a score, and where else they are used."""
    growths: tuple[tuple[str, Growth, tuple[str, ...]], ...]
    """Functions of activations and scalars, how they grow, and where they stand."""
    late: tuple[str, ...]
    """MatMuls of vectors that use scalars."""


def judge(facts: Facts) -> PreconditionReport:
    """Every precondition the program violates, errors first."""
    unique = {(f.precondition, f.where): f for f in _findings(facts)}.values()
    order = list(Severity)
    return PreconditionReport(
        facts.name, tuple(sorted(unique, key=lambda f: order.index(f.severity)))
    )


def names(labels: Iterable[str]) -> str:
    """The first labels, and how many more there are."""
    shown = list(dict.fromkeys(labels))
    return ", ".join(shown[:4]) + (f" and {len(shown) - 4} more" if len(shown) > 4 else "")


def _findings(facts: Facts) -> Iterator[Finding]:
    for score in facts.scores:
        left, right = score.sides
        bare = [side for side in score.sides if side.matrix is None]
        if bare:
            alone = "the other side alone makes n^(-1/2) gᵀg'"
            centred = alone if len(bare) == 1 else "its symmetry makes the sum"
            holds = len(bare) == 1 or score.centred
            yield Finding(
                Precondition.MATMUL_SIDES,
                Severity.WARNING if holds else Severity.ERROR,
                f"{bare[0].label} in {score.where}",
                f"The proof is for two vectors W @ x; here {centred} centred, and the same law is "
                "seen to hold."
                if holds
                else "Otherwise n^(-1/2) gᵀg' need not be centred and may grow like √n.",
                "multiply both sides by fresh matrices first",
            )
        elif left.matrix == right.matrix and (left.entries & right.entries or not left.entries):
            yield Finding(
                Precondition.TWO_MATRICES,
                Severity.ERROR,
                f"{left.matrix} on both sides of {score.where}",
                "The scalar's mean then grows like √n.",
                "use two independent matrices",
            )
    for where, places in facts.reused:
        yield Finding(
            Precondition.SCORE_MATRIX_ONLY,
            Severity.WARNING,
            f"{where} and also {names(places)}",
            "The proof needs scores to be independent of the vectors; single coordinates and "
            "scores are independent in the limit.",
            "use a separate matrix outside the scores",
        )
    for function, growth, places in facts.growths:
        if growth is not Growth.PSEUDO_LIPSCHITZ:
            yield Finding(
                Precondition.PSEUDO_LIPSCHITZ,
                Severity.ERROR if growth is Growth.UNCONTROLLED else Severity.WARNING,
                f"{function} in {names(places)}",
                f"It is {growth.value}.",
                "replace the function by one of polynomial growth, or declare growth= if a probe "
                "is mistaken",
            )
    fed = [
        (side.source, score.label)
        for score in facts.scores
        for side in score.sides
        if side.matrix is not None and not side.bounded
    ]
    if fed:
        yield Finding(
            Precondition.BOUNDED_INPUT,
            Severity.WARNING,
            f"{names(source for source, _ in fed)} feeding {names(score for _, score in fed)}",
            "The proof uses the bound; unbounded maps such as ReLU are seen to obey the same law.",
            "clip the input, for instance to ±100, or accept the law as empirical",
        )
    if facts.late:
        yield Finding(
            Precondition.NO_MATMUL_AFTER_SCALARS,
            Severity.NOTE,
            names(facts.late),
            "The theorem ends there; the limit continues by the conditional recursion (Gaussian "
            "given all earlier scalars), an extension of the theorem.",
            "none needed; compare with finite widths where it matters",
        )
