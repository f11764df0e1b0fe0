"""Options of layers: an enum or its name, whole numbers, finite scalars; the rest is refused."""

import jax.numpy as jnp
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import OptionError

ENUMS = {
    "parameterization": (
        lambda value: wl.Dense(8, parameterization=value).weights.parameterization,
        wl.layers.Parameterization,
    ),
    "conv_parameterization": (
        lambda value: wl.Conv(8, 3, parameterization=value).weights.parameterization,
        wl.layers.Parameterization,
    ),
    "padding": (lambda value: wl.Conv(8, 3, padding=value).padding, wl.layers.Padding),
    "scaling": (lambda value: wl.Attention(8, scaling=value).scaling, wl.Scaling),
    "combine": (lambda value: wl.Decay(strength=0.5, combine=value).combine, wl.layers.Combine),
    "profile": (lambda value: wl.Decay(profile=value).profile.kind, wl.layers.Profile),
}


@pytest.mark.parametrize("name", sorted(ENUMS))
def test_an_enum_may_be_given_by_its_name(name):
    make, kind = ENUMS[name]
    for member in kind:
        assert make(member) is member
        assert make(member.value) is member
        assert make(member.name) is member
    with pytest.raises(OptionError, match=rf"{next(iter(kind)).value}.*foo"):
        make("foo")
    with pytest.raises(OptionError):
        make(3)


def test_the_name_of_a_parameterization_is_obeyed():
    """As a plain string it was neither of the two, and weights came out unscaled."""
    x = np.ones((1, 4))
    for kind in wl.layers.Parameterization:
        named, meant = (wl.Dense(8, w_std=1.5, parameterization=p) for p in (kind.value, kind))
        params = meant.init(0, (4,))
        np.testing.assert_array_equal(named.apply(params, x), meant.apply(params, x))
        np.testing.assert_array_equal(named.kernel(x).ntk, meant.kernel(x).ntk)


@pytest.mark.parametrize("value", [None, [1.0, 2.0], float("nan"), np.inf, "1.5", True, object()])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: wl.Dense(8, w_std=v),
        lambda v: wl.Conv(8, 3, w_std=v),
        lambda v: wl.Embedding(8, vocabulary=3, std=v),
        lambda v: wl.LayerNorm(eps=v),
        lambda v: wl.Attention(8, qk_std=v),
        lambda v: wl.AttentionPool(8, ov_std=v),
        lambda v: wl.Decay(v),
        lambda v: wl.Alibi(v),
    ],
)
def test_a_hyperparameter_is_one_finite_number(make, value):
    with pytest.raises(OptionError, match=r"=.* is not a finite real number"):
        make(value)


def test_hyperparameters_may_be_arrays_of_no_dimension():
    for value in (2, 2.0, np.float32(2), np.asarray(2.0), jnp.asarray(2.0), jnp.asarray(2)):
        assert float(wl.Dense(8, w_std=value).weights.w_std) == 2.0
    assert not wl.Dense(8, b_std=None).weights.biased
    with pytest.raises(OptionError, match="b_std"):
        wl.Dense(8, b_std=[0.0, 1.0])


@pytest.mark.parametrize("value", [0, -1, 1.0, True, "8"])
@pytest.mark.parametrize(
    "make",
    [
        lambda v: wl.Dense(v),
        lambda v: wl.Conv(v, 3),
        lambda v: wl.Conv(8, v),
        lambda v: wl.Conv(8, (3, v)),
        lambda v: wl.Conv(8, 3, stride=v),
        lambda v: wl.MeanPool(v),
        lambda v: wl.Embedding(8, vocabulary=v),
        lambda v: wl.Attention(v),
        lambda v: wl.Attention(8, key_width=v),
        lambda v: wl.Decay(channels=v),
        lambda v: wl.Rotary(pairs=v),
    ],
)
def test_counts_are_positive_integers(make, value):
    with pytest.raises(OptionError, match="positive integer"):
        make(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wl.Select(0.5),
        lambda: wl.Select(True),
        lambda: wl.Dropout("0.5"),
        lambda: wl.Dropout(1.0),
        lambda: wl.Residual(wl.Dense(8), 1.5),
        lambda: wl.Local(-1),
        lambda: wl.Repeat(wl.Dense(8), 1.5),
        lambda: wl.TransformerBlock(8, norm="before"),
        lambda: wl.TextEncoder(width=8, depth=1, outputs=1, pooling="max"),
    ],
)
def test_other_options_are_checked(make):
    with pytest.raises(OptionError):
        make()
