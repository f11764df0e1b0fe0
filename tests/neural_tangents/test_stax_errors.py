"""What is refused, in neural-tangents' words; and what the namespace leaves alone."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import widelimit.neural_tangents as nt
from widelimit.errors import WidelimitError
from widelimit.neural_tangents import stax

_X = np.ones((3, 5, 4))


def _of(layer, **options):
    return layer[2](_X, None, "ntk", **options)


@pytest.mark.parametrize(
    ("words", "call"),
    [
        ("W_std", lambda: stax.Dense(4, W_std=float("nan"))),
        ("W_std", lambda: stax.Dense(4, W_std="wide")),
        ("b_std", lambda: stax.Conv(4, (3,), b_std="small")),
        ("b_std", lambda: stax.Conv(4, (3,), b_std=[1, 2])),
        ("out_dim", lambda: stax.Dense(0)),
        ("out_chan", lambda: stax.Conv(-1, (3,))),
        ("filter_shape", lambda: stax.Conv(4, 3)),
        ("filter_shape", lambda: stax.Conv(4, ())),
        ("strides", lambda: stax.Conv(4, (3,), strides=(0,))),
        ("padding", lambda: stax.Conv(4, (3,), padding="REFLECT")),
        ("parameterization", lambda: stax.Dense(4, parameterization="mup")),
        ("s=", lambda: stax.Dense(4, s=(1, 2))),
        ("dimension_numbers", lambda: stax.Conv(4, (3,), dimension_numbers=("NCH", "OIH", "NHC"))),
        ("window_shape", lambda: stax.AvgPool(2)),
        ("window_shape", lambda: stax.SumPool((0,))),
        ("attention_mechanism", lambda: _attention(attention_mechanism="X")),
        ("pos_emb_type", lambda: _attention(pos_emb_type="ROTARY")),
        ("n_heads", lambda: stax.GlobalSelfAttention(1, 1, 1, 0)),
        ("n_chan_key", lambda: stax.GlobalSelfAttention(1, 0, 1, 1)),
        ("W_query_std", lambda: _attention(W_query_std=None)),
        ("W_pos_emb_std", lambda: _attention(W_pos_emb_std="a")),
        ("rate", lambda: stax.Dropout(0.0)),
        ("rate", lambda: stax.Dropout(1.5)),
        ("mode", lambda: stax.Dropout(0.5, mode="eval")),
        ("degree", lambda: stax.Hermite(-1)),
        ("degree", lambda: stax.RectifiedMonomial(1.5)),
        ("num", lambda: stax.FanOut(0)),
        ("n=", lambda: stax.repeat(stax.Relu(), -1)),
        ("triple", lambda: stax.serial(stax.Dense(3), stax.Relu)),
        ("Circular", lambda: _circular(np.where(np.arange(5) < 4, 0.5, 1.0)[:, None] * _X)),
        ("idx", lambda: _of(stax.Index(stax.Slice[:, :, 0]))),
        ("shape", lambda: _of(stax.ImageResize((-1, -1, -1), "linear"))),
        ("aggregate_axis", lambda: _of(stax.Aggregate(2), pattern=np.ones((3, 5, 5)))),
        ("batch_axis_out", lambda: stax.Flatten(batch_axis_out=1)),
        ("scores are random", lambda: _of_kernel(_attention(linear_scaling=False))),
        ("several inputs", lambda: _of_several(None)),
        ("rng", lambda: _empirical(rng=(jax.random.key(0), jax.random.key(1)))),
        ("lhs", lambda: stax.DotGeneral(lhs=1.0, rhs=2.0)),
        ("dimension_numbers", lambda: _dot((3, 5), ((1,), (0,)))),  # an axis of its own
        ("dimension_numbers", lambda: _of(_dot((4,), ((2,), (0,))))),  # channels
        ("join channels", lambda: _of(_concatenated(1))),
        ("several inputs", lambda: _beside((_X, _X), stax.FanInConcat())),
        ("several inputs", lambda: _beside((_X, _X), stax.FanInProd())),
        ("deg", lambda: stax.ElementwiseNumerical(jnp.tanh, deg=0)),
        ("get", lambda: stax.Dense(4)[2](_X, None, "nngpp")),
        ("get", lambda: stax.Dense(4)[2](_X, None, ("ntk", "ntk"))),
        ("get", lambda: stax.Dense(4)[2](_X, None, 3)),
        ("x1 and x2", lambda: stax.Dense(4)[2](_X, _X[0], "ntk")),
        ("tuple of 2 inputs", lambda: stax.parallel(stax.Dense(4), stax.Dense(4))[2](_X)),
        ("stax.parallel", lambda: _of(stax.serial(stax.FanOut(3), stax.parallel(stax.Relu())))),
        ("FanInSum", lambda: _of(stax.serial(stax.Dense(4), stax.FanInSum()))),
        ("stax.Dense does not take 2", lambda: _of(stax.serial(stax.FanOut(2), stax.Dense(4)))),
        ("merges several inputs", lambda: _forked_after_merge((_X, _X))),
        ("channel_axis", lambda: _of(stax.serial(stax.Dense(4), stax.Dense(4, channel_axis=1)))),
        ("one axis", lambda: _of(stax.Dense(4, batch_axis=2))),
        ("channel_axis", lambda: _of(stax.Dense(4, channel_axis=7))),
        ("pattern", lambda: _of(stax.Dense(4), pattern=(np.eye(5), np.eye(5)))),
        ("beside a Kernel", lambda: stax.Relu()[2](stax.Dense(4)[2](_X), _X)),
        ("diagonal_batch", lambda: stax.Relu()[2](stax.Dense(4)[2](_X), diagonal_batch=False)),
        ("mask_constant", lambda: stax.Relu()[2](stax.Dense(4)[2](_X), mask_constant=0.0)),
        ("vmap_axes", lambda: nt.empirical_ntk_fn(lambda p, x: p * x, vmap_axes=1)),
        ("vmap_axes", lambda: nt.empirical_ntk_fn(lambda p, x: p * x, vmap_axes=(0, 1, {}))),
        ("shift", lambda: _empirical(shift=(1.0, 2.0))),
        ("of your own", lambda: _own(stax.Dense(4, channel_axis=1))),
        ("batch_size", lambda: nt.batch(stax.Dense(4)[2], batch_size=-1)),
        ("n_samples", lambda: nt.monte_carlo_kernel_fn(*stax.Dense(4)[:2], jax.random.key(0), 0)),
        ("rng", lambda: _dropped()),
        ("Gaussian", lambda: _of(stax.Relu())),
        ("k_test_train", lambda: _predictor()(1.0, 0.0, 0.0)),
        ("t=None", lambda: _flow()(None)),
        ("trace_axes", lambda: _posterior(np.eye(3)[..., None])("ntk")),
        ("get", lambda: _posterior(np.eye(3))("ntkk")),
        ("get", lambda: nt.empirical_kernel_fn(lambda p, x: p * x)(_X, None, "cov1", 1.0)),
    ],
)
def test_errors_speak_in_the_names_of_neural_tangents(words, call):
    with pytest.raises(WidelimitError) as caught:
        call()
    assert words in str(caught.value)
    assert "w_std" not in str(caught.value)


def _attention(**options):
    return stax.GlobalSelfAttention(1, 1, 1, 1, **options)


def _circular(padded):
    kernel_fn = stax.Conv(4, (3,), padding="CIRCULAR")[2]
    return kernel_fn(padded, None, "ntk", mask_constant=1.0)


def _of_kernel(layer):
    return layer[2](stax.Dense(4)[2](_X), None, "ntk")


def _of_several(get):
    two = stax.parallel(stax.Dense(4), stax.Dense(4))
    return stax.serial(two, stax.FanInSum())[2]((_X, _X), None, get)


def _empirical(**options):
    return nt.empirical_ntk_fn(lambda p, x, **_: p * x)(_X, None, 1.0, **options)


def _own(first):
    own = (lambda rng, shape: (shape, ()), lambda params, x, **_: x, lambda kernel, **_: kernel)
    return stax.serial(first, own)[2](_X)


def _dot(shape, sums):
    return stax.DotGeneral(rhs=np.ones(shape), dimension_numbers=(sums, ((), ())))


def _concatenated(axis):
    two = stax.parallel(stax.Dense(4), stax.Dense(4))
    return stax.serial(stax.FanOut(2), two, stax.FanInConcat(axis), stax.Dense(4))


def _beside(x, merge):
    two = stax.parallel(stax.Dense(4), stax.Dense(4))
    return stax.serial(two, merge, stax.Dense(4))[2](x, None, "ntk")


def _forked_after_merge(x):
    two = stax.parallel(stax.Dense(4), stax.Dense(4))
    return stax.serial(two, stax.FanInSum(), stax.FanOut(2), two)[2](x, None, "ntk")


def _posterior(kernel):
    return nt.predict.gp_inference(kernel, np.ones((3, 1)))


def _dropped():
    init_fn, apply_fn, _ = stax.serial(stax.Dense(4), stax.Dropout(0.5))
    return apply_fn(init_fn(jax.random.key(0), _X.shape)[1], _X)


def _predictor():
    return nt.predict.gradient_descent_mse(np.eye(3), np.ones((3, 1)))


def _flow():
    return nt.predict.gradient_descent(lambda f, y: jnp.sum(f * y), np.eye(3), np.ones((3, 1)))


def test_the_library_does_not_import_the_namespace():
    code = "import sys, widelimit; sys.exit('widelimit.neural_tangents' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
