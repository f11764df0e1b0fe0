"""Square roots of covariances, and Gaussians given others: what every sampler of scalars needs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from ..errors import NumericalError

ROUNDING = 1e-9  # of the largest eigenvalue: what rounding may do to the smallest


def psd_root(
    covariance: Float[np.ndarray, "*draws n n"],
    *,
    tolerance: float = ROUNDING,
    scale: Float[np.ndarray, "*draws"] | None = None,
) -> Float[np.ndarray, "*draws n n"]:
    """`F` with `F Fᵀ = covariance`, singular ones included.

    Eigenvalues down to `−tolerance·scale` become zero, lower ones are refused; `scale` is the
    largest eigenvalue where none is given.
    """
    values, vectors = np.linalg.eigh(covariance)
    lowest = np.min(values, axis=-1, initial=0.0)
    top = np.max(np.abs(values), axis=-1, initial=0.0) if scale is None else scale
    if not np.all(np.isfinite(values)) or np.any(lowest < -tolerance * top):
        raise NumericalError(
            "A covariance in the limit must be finite and positive semi-definite.",
            got=f"lowest eigenvalue {np.min(lowest):.3g} against {np.max(top):.3g}",
            remedy="sharpen the integration (smaller step, more points), or check the functions "
            "for NaN and overflow",
        )
    return vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]


def conditioned(
    own: Float[np.ndarray, "*#draws n n"],
    cross: Float[np.ndarray, "*#draws n m"],
    before: Float[np.ndarray, "*#draws m m"],
    values: Float[np.ndarray, "*#draws m"],
) -> tuple[Float[np.ndarray, "*draws n"], Float[np.ndarray, "*#draws n n"]]:
    """Mean and covariance of centred Gaussians given `values` of others.

    `K_nm K_mm⁺ v` and `K_nn − K_nm K_mm⁺ K_mn`, for n new and m known ones.
    """
    gain = cross @ np.linalg.pinv(before, rcond=1e-10, hermitian=True)
    mean = (gain @ values[..., None])[..., 0]
    return mean, own - gain @ np.swapaxes(cross, -1, -2)
