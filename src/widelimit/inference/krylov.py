"""Block conjugate gradients: many right-hand sides share one Krylov space.

For `A Z = B` with a symmetric positive definite `A` and a preconditioner `M ≈ A` that is given as
`M^-½`, the residuals of the scaled system are kept as `Q Ξ` with orthonormal `Q`, so that columns
which are nearly dependent, or are solved earlier than others, do no harm:

    T = A M^-½ S,   α = (Sᵀ M^-½ T)⁻¹,   Z ← Z + M^-½ S α Ξ
    Q' ζ = Q − M^-½ T α   (QR),   S ← Q' + S ζᵀ,   Ξ ← ζ Ξ

Each iteration takes one product of `A` with all columns. It finds what single columns would find
and more: directions of one serve all, so there are far fewer iterations.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy.linalg import LinAlgError, cho_factor, cho_solve, eigh_tridiagonal, qr

Block = Float[np.ndarray, "n columns"]
Operator = Callable[[np.ndarray], np.ndarray]
# A restart that does not gain this factor will not gain by another one: rounding is reached.
_GAIN = 0.5
# Updated residuals say nothing any more after so much progress; the true one does.
_PROGRESS = 1e-12


class Solved(NamedTuple):
    """An iterate, its residual `B − A Z` (computed, not updated), and how far it is."""

    found: Block
    residual: Block
    error: float
    iterations: int


def block_gradients(
    product: Operator,
    root_inverse: Operator,
    right: Block,
    start: Block,
    *,
    error: Callable[[np.ndarray, np.ndarray], float],
    tolerance: float,
    most: int,
    progress: Callable[[int, float, np.ndarray], None],
) -> Solved:
    """Iterate until `error(Z, B − A Z)` is at most the tolerance, with the true residual.

    What is returned may be further off, after `most` iterations or where rounding allows no more.
    `progress(iteration, error, Z)` is called after each iteration.
    """
    found, count, before = start, 0, np.inf
    while True:
        residual = right - product(found)
        now = error(found, residual)
        if now <= tolerance or count >= most or now > _GAIN * before:
            return Solved(found, residual, now, count)
        before, enough = now, max(tolerance, _PROGRESS * now)
        basis, left = _orthonormal(root_inverse(residual))
        steps = basis
        while count < most:
            ahead = root_inverse(steps)
            moved = product(ahead)
            inside = root_inverse(moved)
            try:
                curvature = cho_factor(steps.T @ inside, lower=True, check_finite=False)
            except LinAlgError:  # the space is exhausted: what is left is rounding
                break
            lengths = cho_solve(curvature, left)
            found = found + ahead @ lengths
            residual = residual - moved @ lengths
            count += 1
            reached = error(found, residual)
            progress(count, reached, found)
            if reached <= enough:
                break
            basis, turned = _orthonormal(basis - cho_solve(curvature, inside.T).T)
            steps = basis + steps @ turned.T
            left = turned @ left


def _orthonormal(block: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return qr(block, mode="economic", check_finite=False)  # pyright: ignore[reportReturnType]


def log_determinant(
    product: Operator, size: int, rng: np.random.Generator, *, probes: int = 16, steps: int = 32
) -> tuple[float, float]:
    """`log det A` by stochastic Lanczos quadrature, and its standard error.

    For random signs v, `E vᵀ log(A) v = tr log A`. Lanczos turns A into tridiagonal T with
    `vᵀ log(A) v ≈ n (log T)₁₁`, soon exact where A is close to the identity, as it is behind a
    preconditioner. Every step takes one product with all probes; vectors are kept orthogonal to
    all before them.
    """
    steps = min(steps, size)
    vectors = [rng.choice([-1.0, 1.0], (size, probes)) / np.sqrt(size)]
    diagonal, beside = [], []
    for _ in range(steps):
        new = product(vectors[-1])
        diagonal.append(np.einsum("np,np->p", vectors[-1], new))
        for _ in range(2):
            for one in vectors:
                new = new - one * np.einsum("np,np->p", one, new)
        left = np.linalg.norm(new, axis=0)
        left[left <= _PROGRESS * np.abs(diagonal[-1])] = 0.0  # the space is exhausted
        beside.append(left)
        vectors.append(np.divide(new, left, out=np.zeros_like(new), where=left > 0))
    found = []
    for a, b in zip(np.transpose(diagonal), np.transpose(beside), strict=True):
        last = int(np.argmin(b)) + 1 if not b.all() else steps
        values, inside = eigh_tridiagonal(a[:last], b[: last - 1])
        found.append(size * float(inside[0] ** 2 @ np.log(values)))
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(probes))
