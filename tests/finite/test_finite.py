"""Every layer and a dozen compositions against wide finite networks, NNGP and tangent kernel."""

from typing import Any

import jax
import numpy as np
import pytest
from agreement import assert_agrees, assert_close, assert_differs, estimated
from networks import ACTIVATIONS, ATTENTION, COMPOSITIONS, NETWORKS, Kind, dense, ragged, readout

import widelimit as wl
from widelimit.state import Kernels

# Rules one by one run with the slow tests; "every_rule" has most of them, on padded sequences.
FAST = {"standard_parameterization"}
# Widths 16 and 64: as near to the limit as 24 and 48, with a third of the draws. Not for the slow
# ones: kernels that do not vary between draws, as those of signs, are rounded more at width 64.
FAR = {"width": 16, "ratio": 4}


def _inputs(name: str, size: int = 2) -> Any:
    case = NETWORKS[name]
    x = case.inputs(size)
    return x if case.kind is Kind.TOKENS else jax.tree.map(lambda a: a.astype(np.float32), x)


@pytest.mark.parametrize(
    "name",
    [
        n if n in FAST else pytest.param(n, marks=pytest.mark.slow)
        for n in NETWORKS
        if n not in ATTENTION
    ],
)
def test_limit_of_wide_networks(name):
    # A product of channels has a heavy tail: it takes more draws.
    rounds = {"gate": 30, "product_of_three": 80}.get(name, 10)
    sizes = FAR if name in FAST else {}
    if name == "sign":
        # Θ(x, x) is the same in every draw: a sum of equal terms, one for each weight, of which
        # some processors round thousands by 2e-5 in single precision.
        sizes = {"outputs": 8}
    assert_agrees(NETWORKS[name].net, _inputs(name), rounds=rounds, **sizes)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("every_rule", {"outputs": 16, "draws": 1000, "rounds": 20, **FAR}),
        pytest.param("conv_same", {"outputs": 32}, marks=pytest.mark.slow),
        pytest.param("text_cnn", {"outputs": 32}, marks=pytest.mark.slow),
    ],
    ids=["every_rule", "conv_same", "text_cnn"],
)
def test_limit_of_wide_networks_on_padded_sequences(name, options):
    """Finite networks see padding too: biases and φ(0) ≠ 0 must not revive it."""
    case = NETWORKS[name]
    x = [one if case.kind is Kind.TOKENS else one.astype(np.float32) for one in ragged(case, 2)]
    assert_agrees(case.net, x, **options)


WRONG = {
    "σ of the first layer": wl.Serial(wl.Dense(8, w_std=1.2, b_std=0.3), wl.Relu(), readout()),
    "bias of the first layer": wl.Serial(wl.Dense(8, w_std=1.3), wl.Relu(), readout()),
    "slope of the activation": wl.Serial(dense(), wl.LeakyRelu(0.15), readout()),
    "parameterisation": wl.Serial(
        dense(),
        wl.Relu(),
        wl.Dense(1, w_std=1.2, b_std=0.1, parameterization=wl.layers.Parameterization.STANDARD),
    ),
}


def test_the_right_rules_agree_and_wrong_ones_are_noticed():
    """The last one has one more term κ in Θ alone, as if a layer's weights counted twice."""
    net, x = ACTIVATIONS["relu"].net, _inputs("relu")
    found, right = estimated(net, x, **FAR), net.kernel(x)
    assert_close(found)
    for wrong in WRONG.values():
        assert_differs(found, right, wrong.kernel(x))
    assert_differs(found, right, Kernels(right.nngp, right.ntk + 0.1 * right.nngp))


def test_the_list_is_complete():
    assert len(COMPOSITIONS) >= 12
    assert set(NETWORKS) >= FAST
