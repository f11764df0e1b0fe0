"""Conjugate gradients for many right-hand sides, over a kernel read in tiles.

With noise variances `Λ`, `(K + Λ) x = b` is scaled to `(Λ^-½ K Λ^-½ + I) z = Λ^-½ b`, and
preconditioned by `F Fᵀ + I`, where `F Fᵀ` is a low-rank part of the scaled kernel by randomly
pivoted Cholesky (`pivots`). Every iteration reads the kernel once for all right-hand sides
(`krylov`).
"""

import hashlib
import logging
import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from ..data.files import writing
from ..errors import NumericalError
from ..options import RandomKey, generator, positive, whole
from . import checks
from .checks import Values
from .conventions import LEFT_OUT
from .krylov import Solved, block_gradients, log_determinant
from .pivots import pivoted
from .solve import Inverse
from .solvers import ExactSolver, refuse_jitter

log = logging.getLogger("widelimit.scale")


@dataclass(frozen=True, kw_only=True, repr=False)
class ConjugateGradients(ExactSolver):
    """Iterations over the kernel, for one right-hand side per output and per test example.

    They stop at a relative residual of `tolerance`, and for variances where what is subtracted from
    the prior is known to that relative error. `rank` columns make the preconditioner (None: 4√N of
    them). `keep` is a file for the last iterate, from which a run that was stopped goes on.
    `progress(iteration, error)` is called after every iteration, of which the logger
    `widelimit.scale` keeps a record.
    """

    tolerance: float = 1e-10
    most_iterations: int = 1000
    rank: int | None = None
    keep: str | os.PathLike[str] | None = None
    key: RandomKey = 0
    progress: Callable[[int, float], None] | None = None

    def __post_init__(self):
        positive("tolerance", self.tolerance)
        whole("most_iterations", self.most_iterations)
        if self.rank is not None:
            whole("rank", self.rank)

    def check(self, noise, jitter):
        refuse_jitter(jitter, "ConjugateGradients", "and noise is needed anyway")
        checks.positive_noise(noise, len(noise), "Conjugate gradients")

    def factor(self, kernel, noise, jitter, client):
        diagonal = np.asarray(kernel.diagonal(), np.float64)
        unit = checks.rounding_unit(np.asarray(kernel[:1]))
        root = np.sqrt(noise)

        def columns(chosen: np.ndarray) -> np.ndarray:
            return np.asarray(kernel[:, chosen], np.float64) / root[:, None] / root[chosen]

        def corner(chosen: np.ndarray) -> np.ndarray:
            block = np.asarray(checks.pairs(kernel, chosen, chosen), np.float64)
            return block / root[chosen, None] / root[chosen]

        rank = self.rank or max(16, 4 * int(np.sqrt(len(noise))))
        rng = generator(self.key)
        found = pivoted(diagonal / noise, columns, corner, rank, rng=rng, unit=unit)
        return Iterative(kernel, noise, found.factor, self, unit, float(diagonal.mean()))


@dataclass(frozen=True, eq=False)
class Iterative(Inverse):
    """`A = K + noise` behind products with `K`: what a factorisation answers, by iterations.

    The determinant is an estimate, with a standard error.
    """

    kernel: Any = field(repr=False)
    noise: Float[np.ndarray, " n"] = field(repr=False)
    low_rank: Float[np.ndarray, "n m"] = field(repr=False)
    solver: ConjugateGradients
    unit: float
    scale: float
    jitter: float = 0.0

    def __len__(self) -> int:
        return len(self.noise)

    @cached_property
    def _spectrum(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of `FᵀF`."""
        return np.linalg.eigh(self.low_rank.T @ self.low_rank)

    def _root_inverse(self, right: np.ndarray) -> np.ndarray:
        """`(F Fᵀ + I)^-½ right`."""
        values, vectors = self._spectrum
        values = np.maximum(values, np.finfo(float).tiny)
        shrink = np.expm1(-0.5 * np.log1p(values)) / values
        inside = vectors.T @ (self.low_rank.T @ right)
        return right + self.low_rank @ (vectors @ (shrink[:, None] * inside))

    def _product(self, right: np.ndarray) -> np.ndarray:
        root = np.sqrt(self.noise)[:, None]
        return multiplied(self.kernel, right / root) / root + right

    def _run(
        self,
        scaled: np.ndarray,
        error: Callable[[np.ndarray, np.ndarray], float],
        place: str | os.PathLike[str] | None = None,
    ) -> Solved:
        """Iterate on the scaled system until the error is below the tolerance."""

        def progress(iteration: int, reached: float, found: np.ndarray) -> None:
            log.info("conjugate gradients: step %d, error %.1e", iteration, reached)
            if self.solver.progress is not None:
                self.solver.progress(iteration, reached)
            keep(found)

        def keep(found: np.ndarray) -> None:
            if place is not None:
                with writing(place) as file:
                    np.savez(file, mark=np.array(_mark(scaled)), found=found)

        start = _kept(place, scaled)
        solved = block_gradients(
            self._product,
            self._root_inverse,
            scaled,
            self._root_inverse(self._root_inverse(scaled)) if start is None else start,
            error=error,
            tolerance=self.solver.tolerance,
            most=self.solver.most_iterations,
            progress=progress,
        )
        keep(solved.found)
        if solved.error > self.solver.tolerance:
            raise NumericalError(
                f"Conjugate gradients came to a relative error of {solved.error:.1e}, not "
                f"{self.solver.tolerance:g}.",
                got=f"{solved.iterations} iterations",
                remedy="raise rank= (a better preconditioner) or most_iterations=; where rounding "
                "allows no more, raise tolerance= or the noise",
            )
        return solved

    def weights(self, targets: np.ndarray) -> Float[np.ndarray, "n columns"]:
        """The one solve that is long enough to be interrupted: its iterates are kept."""
        return self.solve(targets, self.solver.keep)

    def solve(
        self, right: Values, keep: str | os.PathLike[str] | None = None
    ) -> Float[np.ndarray, "n columns"]:
        """`A⁻¹ right` to the tolerance: the residual relative to each column."""
        root = np.sqrt(self.noise)[:, None]
        given = np.asarray(right, np.float64)
        scaled = given.reshape(len(given), -1) / root
        size = np.maximum(np.linalg.norm(scaled, axis=0), np.finfo(float).tiny)

        def error(_: np.ndarray, residual: np.ndarray) -> float:
            return float((np.linalg.norm(residual, axis=0) / size).max())

        return (self._run(scaled, error, keep).found / root).reshape(given.shape)

    def _quadratic(self, right: Values) -> tuple[np.ndarray, Solved]:
        """The scaled right-hand sides `b`, and `z ≈ A⁻¹ b` good enough for `bᵀ A⁻¹ b`.

        With the residual `r = b − A z`, `bᵀ A⁻¹ b = bᵀz + zᵀr + rᵀ A⁻¹ r`, and the last term is at
        most `‖r‖²`, because the scaled `A` is at least the identity. So the tolerance bounds the
        relative error of every such form with half the digits of a solve.
        """
        scaled = np.asarray(right, np.float64) / np.sqrt(self.noise)[:, None]

        def error(found: np.ndarray, residual: np.ndarray) -> float:
            left = np.einsum("nk,nk->k", residual, residual)
            form = np.einsum("nk,nk->k", found, scaled + residual)
            # Zero columns have nothing to explain; a form below zero is not yet one.
            ratio = np.divide(left, form, out=np.full(len(left), np.inf), where=form > 0)
            return float(np.where(left == 0, 0.0, ratio).max(initial=0.0))

        return scaled, self._run(scaled, error)

    def explained(self, right: Values) -> Float[np.ndarray, " columns"]:
        scaled, solved = self._quadratic(right)
        return np.einsum("nk,nk->k", solved.found, scaled + solved.residual)

    def gram(self, right: Values) -> Float[np.ndarray, "columns columns"]:
        scaled, solved = self._quadratic(right)
        found = solved.found.T @ (scaled + solved.residual)
        return (found + found.T) / 2

    @property
    def calibration_rows(self) -> np.ndarray:
        """Some that stand for all, where each costs a right-hand side."""
        size = len(self)
        return np.sort(np.random.default_rng(0).choice(size, min(LEFT_OUT, size), replace=False))

    @cached_property
    def _log_determinant(self) -> tuple[float, float]:
        """`log det A = log det Λ + log det(F Fᵀ + I) + log det(M^-½ Ã M^-½)`, and its error."""
        rest, error = log_determinant(
            lambda v: self._root_inverse(self._product(self._root_inverse(v))),
            len(self),
            np.random.default_rng(0),
        )
        known = float(np.log(self.noise).sum() + np.log1p(np.maximum(self._spectrum[0], 0)).sum())
        return known + rest, error

    @cached_property
    def log_determinant(self) -> float:
        """`log det A`, an estimate by stochastic Lanczos quadrature."""
        return self._log_determinant[0]

    @property
    def log_determinant_error(self) -> float:
        """Its standard error."""
        return self._log_determinant[1]


def multiplied(kernel: Any, right: np.ndarray) -> np.ndarray:
    """`kernel @ right` in float64; an array in memory is widened a few rows at a time."""
    if not isinstance(kernel, np.ndarray):
        return kernel @ right
    result = np.empty((len(kernel), *right.shape[1:]))
    for begin in range(0, len(kernel), checks.ROWS_PER_BLOCK):
        rows = slice(begin, begin + checks.ROWS_PER_BLOCK)
        result[rows] = kernel[rows].astype(np.float64) @ right
    return result


def _mark(wanted: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(wanted).data).hexdigest()


def _kept(place: str | os.PathLike[str] | None, wanted: np.ndarray) -> np.ndarray | None:
    """The last iterate of a run that stopped, if it was for this right-hand side."""
    # Nothing is there, or another file, or a damaged one: begin anew.
    with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        if place is not None:
            with np.load(place, allow_pickle=False) as file:
                return file["found"] if str(file["mark"]) == _mark(wanted) else None
    return None
