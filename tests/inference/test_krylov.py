"""Block conjugate gradients solve what a factorisation solves, also where columns coincide."""

import numpy as np
import pytest

from widelimit.inference.krylov import block_gradients, log_determinant

RNG = np.random.default_rng(0)
SIZE = 120
ROTATION = np.linalg.qr(RNG.normal(size=(SIZE, SIZE)))[0]
MATRIX = ROTATION @ np.diag(1 + np.logspace(5, -5, SIZE)) @ ROTATION.T


def solved(right, *, root_inverse=lambda block: block, tolerance=1e-9, most=500):
    sizes = np.maximum(np.linalg.norm(right, axis=0), 1e-300)
    told = []
    found = block_gradients(
        lambda block: MATRIX @ block,
        root_inverse,
        right,
        np.zeros_like(right),
        error=lambda _, residual: float((np.linalg.norm(residual, axis=0) / sizes).max()),
        tolerance=tolerance,
        most=most,
        progress=lambda *parts: told.append(parts),
    )
    return found, told


@pytest.mark.parametrize(
    "right",
    [
        pytest.param(RNG.normal(size=(SIZE, 1)), id="one"),
        pytest.param(RNG.normal(size=(SIZE, 30)), id="many"),
        pytest.param(RNG.normal(size=(SIZE, 300)), id="more than rows"),
        pytest.param(np.tile(RNG.normal(size=(SIZE, 1)), (1, 4)), id="equal"),
        pytest.param(np.c_[RNG.normal(size=(SIZE, 2)), np.zeros((SIZE, 2))], id="zeros"),
        pytest.param(np.c_[ROTATION[:, :2] * 1e9, RNG.normal(size=(SIZE, 1))], id="solved early"),
    ],
)
def test_right_hand_sides_of_every_kind(right):
    found, _ = solved(right)
    assert found.error <= 1e-9
    np.testing.assert_allclose(found.residual, right - MATRIX @ found.found, atol=1e-7)
    wanted = np.linalg.solve(MATRIX, right)
    scale = np.abs(wanted).max(axis=0)
    assert (np.abs(found.found - wanted).max(axis=0) <= 1e-6 * scale).all()


def test_columns_share_what_they_find():
    right = RNG.normal(size=(SIZE, 30))
    together = solved(right)[0].iterations
    alone = max(solved(right[:, [k]])[0].iterations for k in range(3))
    assert 3 * together < alone


def test_a_preconditioner_saves_iterations():
    right = RNG.normal(size=(SIZE, 2))
    values, vectors = np.linalg.eigh(MATRIX)
    shrink = np.where(values > 100, values, 1.0) ** -0.5
    helped, told = solved(
        right, root_inverse=lambda b: vectors @ (shrink[:, None] * (vectors.T @ b))
    )
    assert helped.error <= 1e-9
    assert 2 * helped.iterations < solved(right)[0].iterations
    assert [one[0] for one in told] == list(range(1, helped.iterations + 1))


def test_rounding_is_the_end():
    """A tolerance that no arithmetic reaches ends with what was reached, not in a loop."""
    found, _ = solved(RNG.normal(size=(SIZE, 3)), tolerance=1e-30)
    assert 1e-30 < found.error < 1e-9
    assert found.iterations < 500
    assert solved(RNG.normal(size=(SIZE, 3)), most=2)[0].iterations == 2


@pytest.mark.parametrize("seed", range(4))
def test_determinants_by_stochastic_lanczos(seed):
    """Exact for the identity, and within its error where the spectrum is wide."""
    rng = np.random.default_rng(seed)
    value, error = log_determinant(lambda v: 2.0 * v, 50, rng)
    assert value == pytest.approx(50 * np.log(2.0), rel=1e-12)
    assert error < 1e-10
    values = np.exp(rng.normal(size=SIZE))
    matrix = ROTATION @ np.diag(values) @ ROTATION.T
    value, error = log_determinant(lambda v: matrix @ v, SIZE, rng, probes=64)
    assert 0 < error < 4
    assert abs(value - np.log(values).sum()) < 4 * error
