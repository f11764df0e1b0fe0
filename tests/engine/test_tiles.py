"""How kernel calls are cut: sides, cells, filling; what is cut gives what is whole."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import Inputs
from widelimit.engine.phases import Realisation, cross_tile, encode_block
from widelimit.engine.tiles import TilePlan

RNG = np.random.default_rng(8)
ATTENTIVE = wl.Serial(
    wl.Conv(8, 3),
    wl.Relu(),
    wl.Attention(8, scaling=wl.Scaling.LINEAR),
    wl.MeanPool(),
    wl.Dense(1),
)


def _inputs(*shape: int) -> Inputs:
    return Inputs(RNG.normal(size=shape).astype(np.float32), None, False)


def _plan(*shape: int, memory: int = 2**30) -> TilePlan:
    return TilePlan.make(ATTENTIVE, [_inputs(*shape)], np.float32, memory)


@pytest.mark.parametrize("shape", [(500, 24, 3), (500, 100, 3), (30, 300, 3), (40, 8, 8, 3)])
def test_tiles_and_cells_are_powers_of_two_within_their_budgets(shape):
    plan = _plan(*shape)
    assert plan.cell is not None
    area = int(np.prod(shape[1:-1]))
    assert plan.tile & (plan.tile - 1) == 0 == plan.cell & (plan.cell - 1)
    assert plan.tile**2 * area**2 * 4 * 8 <= 2**25
    assert plan.cell == 1 or plan.cell * area**2 * 4 <= 2**19
    assert plan.nbytes >= plan.cell * area**2 * 4 * 8


def test_less_memory_makes_smaller_tiles():
    sides = [_plan(500, 100, 3, memory=2**bits).tile for bits in (30, 25, 23, 21)]
    assert sides == sorted(sides, reverse=True)
    assert sides[-1] < sides[0]


@pytest.mark.parametrize("size", [1, 3, 9, 17, 20, 33, 100])
def test_blocks_hold_few_copies(size):
    side = _plan(size, 300, 3).tile
    assert -(-size // side) * side <= 1.25 * size


def test_small_networks_take_one_tile():
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
    assert TilePlan.make(net, [_inputs(100, 5)], np.float32, 2**30).tile == 128


def test_where_two_lengths_meet_cells_have_the_size_between():
    short, long = TilePlan(64, 256, 1), TilePlan(4, 4, 1)
    assert short.cell_with(long) == long.cell_with(short) == 32
    assert short.cell_with(TilePlan(4, None, 1)) is None


@pytest.mark.parametrize("at_once", [1, 4, 5, 7, 12, 100])
def test_cells_give_what_the_whole_tile_gives(at_once):
    x, y = _inputs(6, 10, 3), _inputs(4, 10, 3)
    rows, columns = (
        encode_block(Realisation(ATTENTIVE), jnp.asarray(side.x), None, x.outline)
        for side in (x, y)
    )
    whole = cross_tile(Realisation(ATTENTIVE), rows, columns, x.outline, with_ntk=True)
    cells = cross_tile(
        Realisation(ATTENTIVE), rows, columns, x.outline, with_ntk=True, at_once=at_once
    )
    for one, other in zip(whole, cells, strict=True):
        assert one is not None
        assert other is not None
        assert other.shape == (6, 4)
        np.testing.assert_allclose(other, one, rtol=1e-5)


def test_a_broken_hyperparameter_breaks_the_kernel_and_nothing_else():
    """The fences between layers are loops that such a network enters, and must leave."""
    x = RNG.normal(size=(3, 5)).astype(np.float32)

    @jax.jit
    def nngp(w_std):
        net = wl.Serial(wl.Dense(8, w_std=w_std), wl.Relu(), wl.Dense(8), wl.Relu(), wl.Dense(1))
        return net.kernel(x).nngp

    assert np.isfinite(nngp(1.0)).all()
    assert np.isnan(nngp(np.nan)).all()


def test_gradients_pass_fences():
    """Through two layers and their fences, in double precision, against differences."""
    x, y = RNG.normal(size=(2, 3, 5))

    def loss(w_std):
        net = wl.Serial(wl.Dense(8, w_std=w_std), wl.Relu(), wl.Dense(8), wl.Relu(), wl.Dense(1))
        return net.kernel(x, y).ntk.sum()

    with jax.enable_x64(True):
        slope = float(jax.grad(loss)(jnp.asarray(1.3)))
    step = 1e-5
    expected = (loss(1.3 + step) - loss(1.3 - step)) / (2 * step)
    np.testing.assert_allclose(slope, expected, rtol=1e-6)
