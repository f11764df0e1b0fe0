"""A linear model with known weights' covariance: its kernels, and everything else by hand.

`f(x) = φ(x)·θ` with `θ₀ ~ N(0, S)` has NTK `ΦΦᵀ` and initial covariance `ΦSΦᵀ` exactly.
"""

from types import SimpleNamespace

import numpy as np


def linear_problem(train=12, test=5, features=20, outputs=2, seed=0):
    rng = np.random.default_rng(seed)
    phi = rng.normal(size=(train + test, features)) / np.sqrt(features)
    prior = np.diag(rng.uniform(0.3, 2.0, size=features))
    ntk, nngp = phi @ phi.T, phi @ prior @ phi.T
    return SimpleNamespace(
        phi=phi[:train],
        phi_test=phi[train:],
        prior=prior,
        ntk=ntk[:train, :train],
        ntk_cross=ntk[train:, :train],
        nngp=nngp[:train, :train],
        nngp_cross=nngp[train:, :train],
        nngp_test=nngp[train:, train:],
        y=rng.normal(size=(train, outputs)),
        y_test=rng.normal(size=(test, outputs)),
        rng=rng,
    )
