"""Inputs that would have become other numbers without a word are refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import as_inputs
from widelimit.errors import NumericalError, ShapeError
from widelimit.inference import GPPosterior

ROWS = np.random.default_rng(0).normal(size=(4, 3))
NET = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))


@pytest.mark.parametrize("ids", [[[0, 2**31]], [[0, 2**40]], np.array([[1, 2**63]], np.uint64)])
def test_tokens_do_not_wrap(ids):
    with pytest.raises(ShapeError, match="32 bits"):
        as_inputs(np.array(ids), tokens=True)


def test_padding_of_tokens_may_hold_anything():
    ids = np.array([[3, 2**40], [1, 2]])
    found = as_inputs(ids, np.array([[True, False], [True, True]]), tokens=True)
    np.testing.assert_array_equal(found.x, [[3, 0], [1, 2]])
    assert found.x.dtype == np.int32


def test_masked_arrays_are_refused_where_entries_would_be_lost():
    hidden = np.ma.masked_array(ROWS, mask=ROWS > 1)
    assert np.ma.is_masked(hidden)
    with pytest.raises(ShapeError, match="masked"):
        NET.kernel(hidden)
    with pytest.raises(ShapeError, match="masked"):
        as_inputs([hidden[:2], hidden[:, :]])
    with pytest.raises(ShapeError, match="masked"):
        GPPosterior.condition(np.eye(4), np.ma.masked_array(ROWS[:, 0], [1, 0, 0, 0]), noise=0.1)
    whole = np.ma.masked_array(ROWS, mask=False)
    np.testing.assert_array_equal(NET.kernel(whole).nngp, NET.kernel(ROWS).nngp)


@pytest.mark.parametrize("dtype", ["m8[s]", "M8[s]", "c16", "S3", "U3"])
def test_other_dtypes_are_not_cast(dtype):
    with pytest.raises(ShapeError, match="numbers"):
        NET.kernel(np.ones((2, 3)).astype("i8").astype(dtype))


def test_times_are_no_targets():
    with pytest.raises(NumericalError, match="real numbers"):
        GPPosterior.condition(np.eye(2), np.array([1, 2], "m8[s]"), noise=0.1)


def test_traced_complex_inputs_are_refused():
    with pytest.raises(ShapeError, match="real"):
        jax.jit(lambda x: NET.kernel(x).nngp)(jnp.ones((2, 3), jnp.complex64))


def test_numbers_too_large_for_single_precision_are_refused():
    with pytest.raises(NumericalError, match="finite"):
        NET.kernel(np.full((2, 3), 1e200), dtype=np.float32)


@pytest.mark.parametrize(
    "out",
    [
        (np.zeros((4, 4), int), np.zeros((4, 4))),
        (np.zeros((4, 4)), np.zeros((4, 4), np.float16)),
        (np.zeros((4, 4)), None),
        (jnp.zeros((4, 4)), jnp.zeros((4, 4))),
        (np.broadcast_to(np.zeros(4), (4, 4)), np.zeros((4, 4))),
        ([[0.0] * 4] * 4, np.zeros((4, 4))),
        np.zeros((2, 4, 4)),
    ],
)
def test_results_are_written_only_to_arrays_that_hold_them(out):
    with pytest.raises(wl.WidelimitError):
        NET.kernel_into(out, ROWS)
