"""What has no meaning is refused with the library's own errors, not computed."""

import equinox as eqx
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import NetworkError, ShapeError
from widelimit.inference.process import amplify

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "net",
    [
        wl.Serial(wl.Flatten(), wl.Dense(1)),
        wl.Serial(wl.Conv(8, 3), wl.Relu(), wl.Flatten(), wl.Dense(1)),
        wl.Serial(wl.Dense(8), wl.Attention(8, scaling="linear"), wl.Flatten()),
        wl.Serial(wl.Dense(8), wl.Attention(8, score_map=wl.IdentityMap()), wl.Flatten()),
    ],
    ids=["alone", "conv", "linear attention", "attention"],
)
def test_flatten_refuses_two_lengths(net):
    short, long = RNG.standard_normal((2, 3, 4)), RNG.standard_normal((2, 5, 4))
    for x1, x2 in ((short, long), (long, short)):
        with pytest.raises(
            ShapeError, match=r"Flatten met .*: it gives every position its own weights"
        ):
            net.kernel(x1, x2)
    with pytest.raises(
        ShapeError, match=r"Flatten met .*: it gives every position its own weights"
    ):
        net.kernel([*short, *long])


def test_flatten_refuses_two_lengths_of_tokens():
    net = wl.Serial(wl.Embedding(8, vocabulary=4), wl.Flatten())
    with pytest.raises(ShapeError, match="Flatten"):
        net.kernel(np.zeros((1, 3), int), np.zeros((1, 5), int))


class Lifted(wl.Layer):
    """`y = x + height`, without a word about the mean."""

    height: float = eqx.field(static=True)

    def outline(self, before):
        return before.to(gaussian=False)

    def cross(self, pair, memo1, memo2):
        pair = pair.compute()
        return pair.to(pair.nngp + self.height**2, pair.ntk)


class Told(Lifted):
    """The same, for zero-mean inputs, with its mean."""

    def mean(self, example, memo):
        return self.height * example.ones(example.variance().dtype)


def test_a_mean_that_nobody_said_is_not_zero():
    x = RNG.standard_normal((3, 4))
    plain = wl.Serial(wl.Dense(8, w_std=1.3), wl.LayerNorm(eps=0.0), wl.Dense(1))
    told = wl.Serial(wl.Dense(8, w_std=1.3), Told(2.0), wl.LayerNorm(eps=0.0), wl.Dense(1))
    # A constant added to all channels changes nothing after normalisation.
    np.testing.assert_allclose(told.kernel(x).nngp, plain.kernel(x).nngp, rtol=1e-12)
    unsaid = wl.Serial(wl.Dense(8), Lifted(2.0), wl.LayerNorm(), wl.Dense(1))
    with pytest.raises(NetworkError, match=r"LayerNorm needs the mean.*define mean"):
        unsaid.kernel(x)
    carried = wl.Serial(
        wl.Dense(8), wl.Residual(wl.Serial(Lifted(2.0), wl.Dense(8))), wl.LayerNorm()
    )
    carried.kernel(x)  # fresh weights have mean zero, whatever they stand on
    branch = wl.Serial(wl.Concat(wl.Dense(8), Lifted(2.0)), wl.Dropout(0.1), wl.LayerNorm())
    with pytest.raises(NetworkError, match="mean"):
        branch.kernel(x)


def test_a_mean_is_asked_for_only_where_it_is_needed():
    x = RNG.standard_normal((3, 4))
    kernel = wl.Serial(wl.Dense(8), Lifted(2.0), wl.Dense(1)).kernel(x).nngp
    np.testing.assert_allclose(kernel, x @ x.T / 4 + 4.0, rtol=1e-12)


def test_tangent_kernels_in_the_standard_parameterisation_have_no_amplitude():
    """Gradients by such weights do not depend on how large the weights are."""
    standard = wl.layers.Parameterization.STANDARD
    for last in (
        wl.Dense(1, parameterization=standard),
        wl.Conv(1, 1, parameterization=standard),
    ):
        with pytest.raises(NetworkError, match="in the NTK parameterisation"):
            amplify(wl.Serial(wl.Dense(8), wl.Relu(), last), 2.0)
    net = wl.Serial(wl.Dense(8, parameterization=standard), wl.Relu(), wl.Dense(1, b_std=0.4))
    x = RNG.standard_normal((2, 3))
    np.testing.assert_allclose(amplify(net, 2.5).kernel(x).ntk, 2.5 * net.kernel(x).ntk, rtol=1e-12)
