"""Block coordinate descent: a system solved a few rows of the kernel at a time.

For `(K + I) Z = B`, a step takes the rows of one block b of examples and solves exactly for these
and for landmarks s, with all others as they are:

    T = s ∪ b,   D = (K_TT + I)⁻¹ R_T,   Z_T ← Z_T + D,   R ← R − (K + I)_{:,T} D

The residual R of all examples is known after every step. Rows of landmarks are those of a low-rank
part of the kernel, `K_{s,:} = F_s Fᵀ`, and stay in memory: the directions in which the kernel is
large are dealt with in every step, and the blocks, in random order, with the rest. With 152
landmarks for 1,500 images it came to 5·10⁻¹² in 40 sweeps over the kernel, where conjugate
gradients of single columns behind the same landmarks came to 10⁻⁵; without landmarks it came to
2·10⁻² in 60 sweeps, and with the accelerated steps of ASkotch (Rathore et al., 2024) to 2·10⁻⁴.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int
from scipy.linalg import cho_factor, cho_solve

from .krylov import Solved, improved

Rows = Callable[[np.ndarray], np.ndarray]  # numbers of examples to their rows of the kernel


def block_descent(
    product: Callable[[np.ndarray], np.ndarray],
    rows: Rows,
    blocks: Sequence[np.ndarray],
    low_rank: Float[np.ndarray, "n m"],
    landmarks: Int[np.ndarray, " m"],
    right: Float[np.ndarray, "n columns"],
    start: Float[np.ndarray, "n columns"],
    *,
    error: Callable[[np.ndarray, np.ndarray], float],
    tolerance: float,
    most: int,
    rng: np.random.Generator,
    progress: Callable[[int, float, np.ndarray], None],
) -> Solved:
    """Sweeps over all blocks, at most `most`, until the error is at most the tolerance.

    `blocks` and landmarks together are all examples. `progress(step, error, Z)` is called after
    every step.
    """
    lower, most_steps = low_rank[landmarks], most * len(blocks)

    def sweeps(
        found: np.ndarray, residual: np.ndarray, now: float, count: int
    ) -> tuple[np.ndarray, int]:
        while now > tolerance and count < most_steps:
            for index in rng.permutation(len(blocks)):
                mine = blocks[index]
                kernel = rows(mine)
                beside = kernel[:, landmarks]
                matrix = np.block([[lower @ lower.T, beside.T], [beside, kernel[:, mine]]])
                matrix[np.diag_indices(len(matrix))] += 1.0
                both = np.concatenate([landmarks, mine])
                step = cho_solve(cho_factor(matrix, lower=True), residual[both])
                found[both] += step
                residual[both] -= step
                residual -= low_rank @ (lower.T @ step[: len(landmarks)])
                residual -= kernel.T @ step[len(landmarks) :]
                count += 1
                now = error(found, residual)
                progress(count, now, found)
                if now <= tolerance:
                    break
        return found, count

    return improved(product, right, np.array(start), error, tolerance, most_steps, sweeps)
