"""Nearly identical inputs are found, all of them, and no others."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import Inputs, as_inputs
from widelimit.engine.precision import close_pairs, sketch_inputs

RNG = np.random.default_rng(3)


def _found(one: Inputs, two: Inputs | None = None) -> set[tuple[int, int]]:
    """All close pairs, asked for in two tiles."""
    streams = sketch_inputs(one, two)
    ones, twos = np.arange(one.size), np.arange((two or one).size)
    half = len(ones) // 2
    parts = [
        np.add(close_pairs(streams, part, twos), [begin, 0])
        for begin, part in ((0, ones[:half]), (half, ones[half:]))
    ]
    return {(int(i), int(j)) for i, j in np.concatenate(parts)}


def _expected(x: np.ndarray, y: np.ndarray) -> set[tuple[int, int]]:
    """From all angles, in double precision."""
    u, v = (a.reshape(len(a), -1).astype(float) for a in (x, y))
    u, v = (a / np.linalg.norm(a, axis=1, keepdims=True) for a in (u, v))
    return {(int(i), int(j)) for i, j in np.argwhere(1 - u @ v.T < 1e-5)}


@pytest.mark.parametrize("common", [0.0, 30.0, 1000.0], ids=["apart", "near", "nearly equal"])
def test_pairs_of_images_are_those_with_small_angles(common):
    """A large common part makes few directions a poor judge, and in the end everything close."""
    x = RNG.normal(size=(60, 6, 6, 3)) + common
    x[7] = x[3] * 2.5  # parallel
    x[11] = x[5] + 1e-3 * RNG.normal(size=x[5].shape)  # 1 − cosine about 5e-7
    x[12] = x[6] + (1 + common) * 1e-2 * RNG.normal(size=x[6].shape)  # 5e-5: too far
    x = x.astype(np.float32)
    expected = _expected(x, x)
    assert {(3, 7), (7, 3), (5, 11), (0, 0)} <= expected
    assert (6, 12) not in expected
    assert ((0, 1) in expected) == (common == 1000)
    assert _found(Inputs(x, None, False)) == expected


def test_one_batch_against_another():
    x, y = RNG.normal(size=(2, 30, 9)).astype(np.float32)
    y[4] = x[20]
    assert _found(Inputs(x, None, False), Inputs(y, None, False)) == {(20, 4)}
    # The same number in another batch is another example.
    assert (4, 4) not in _found(Inputs(x, None, False), Inputs(y, None, False))


def test_sequences_are_compared_up_to_their_ends():
    """Padded to 12 in one batch and to 8 in the other."""
    x, y = np.zeros((6, 12, 4), np.float32), np.zeros((5, 8, 4), np.float32)
    x[:, :6], y[:, :6] = RNG.normal(size=(6, 6, 4)), RNG.normal(size=(5, 6, 4))
    y[2] = x[3, :8]
    x[4, :8], x[4, 8:] = y[1], 1.0  # goes on where the other has ended
    assert _found(Inputs(x, None, False), Inputs(y, None, False)) == {(3, 2)}


def test_images_of_different_sizes_are_never_close():
    x = np.ones((2, 4, 4, 1), np.float32)
    y = np.ones((2, 2, 8, 1), np.float32)
    assert _found(Inputs(x, None, False), Inputs(y, None, False)) == set()


def test_several_streams_are_close_together():
    x = RNG.normal(size=(2, 10, 3)).astype(np.float32)
    first, second = x[0].copy(), x[1].copy()
    first[8], first[9], second[9] = first[1], first[2], second[2]
    same = {(i, i) for i in range(10)}
    found = _found(Inputs((first, second), None, False))
    assert found == same | {(2, 9), (9, 2)}  # 1 and 8 differ in the second stream


def test_tokens_are_close_where_they_are_equal():
    texts = [[1, 2, 3], [1, 2, 3], [1, 2], [1, 2, 0], [3, 2, 1]]
    batch = as_inputs(texts, tokens=True)
    assert _found(batch) == {(i, i) for i in range(5)} | {(0, 1), (1, 0)}
    longer = as_inputs([[1, 2], [9, 9, 9, 9, 9]], tokens=True)
    assert _found(batch, longer) == {(2, 0)}


def test_zeros_are_no_direction():
    x = np.zeros((3, 5), np.float32)
    x[2] = 1
    assert _found(Inputs(x, None, False), Inputs(x.copy(), None, False)) == {(2, 2)}


def test_close_pairs_have_double_precision_in_the_kernel():
    """A pair of inputs at an angle of 1e-4, where float32 alone is wrong in the fourth digit."""
    x = RNG.normal(size=(4, 12)).astype(np.float32)
    aside = RNG.normal(size=12)
    aside -= x[0] * (aside @ x[0]) / (x[0] @ x[0])
    x[1] = x[0] + 1e-4 * aside * np.linalg.norm(x[0]) / np.linalg.norm(aside)
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(8), wl.Relu(), wl.Dense(1))
    single, double = net.kernel(x), net.kernel(x.astype(float))
    np.testing.assert_allclose(single.ntk, double.ntk, rtol=2e-6)
