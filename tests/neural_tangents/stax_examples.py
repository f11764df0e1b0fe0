"""neural-tangents' own examples, rewritten from what they do, on data small enough for a test.

`EXAMPLES` maps names to functions of `neural_tangents` or `widelimit.neural_tangents`. Finite
networks get the same weights in both libraries: entries in the order of the leaves.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import tree_map

EXAMPLES: dict[str, Callable[[Any], Any]] = {}


def _example(function: Any) -> Any:
    EXAMPLES[function.__name__[1:]] = function
    return function


def weights(params: Any, seed: int = 0) -> Any:
    """Parameters of this form with standard normal entries, the same in both libraries."""
    rng = np.random.default_rng(seed)
    return tree_map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.size).reshape(leaf.shape)), params
    )


def _data(shape: tuple[int, ...], train: int = 10, test: int = 4, classes: int = 3) -> Any:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(train + test, *shape))
    labels = np.eye(classes)[rng.integers(0, classes, train + test)] - 1 / classes
    return x[:train], labels[:train], x[train:], labels[train:]


@_example
def _infinite_fcn(nt):
    x_train, y_train, x_test, _ = _data((48,))
    stax = nt.stax
    _, _, kernel_fn = stax.serial(stax.Dense(1, 2.0, 0.05), stax.Relu(), stax.Dense(1, 2.0, 0.05))
    kernel_fn = nt.batch(kernel_fn, device_count=0, batch_size=0)
    predict_fn = nt.predict.gradient_descent_mse_ensemble(
        kernel_fn, x_train, y_train, diag_reg=1e-3
    )
    nngp, ntk = predict_fn(x_test=x_test)
    return nngp, ntk


@_example
def _convolutional(nt):
    x_train, y_train, x_test, _ = _data((5, 5, 3))
    stax = nt.stax
    _, _, kernel_fn = stax.serial(
        stax.Conv(16, (3, 3), W_std=1.5, b_std=0.1),
        stax.Relu(),
        stax.Conv(16, (2, 2), strides=(2, 2), W_std=1.5, padding="SAME"),
        stax.Relu(),
        stax.Flatten(),
        stax.Dense(3),
    )
    get = ("nngp", "ntk")
    train, cross, test = (
        kernel_fn(*pair, get) for pair in ((x_train, None), (x_test, x_train), (x_test, None))
    )
    predict = nt.predict.gp_inference(train, y_train, diag_reg=1e-4)
    return predict(get, cross, test)


def _imdb_kernel_fn(nt: Any) -> Any:
    stax = nt.stax
    _, _, kernel_fn = stax.serial(
        stax.Conv(out_chan=1, filter_shape=(3,), strides=(1,), padding="VALID"),
        stax.Relu(),
        stax.GlobalSelfAttention(
            n_chan_out=1,
            n_chan_key=1,
            n_chan_val=1,
            pos_emb_type="SUM",
            W_pos_emb_std=1.0,
            pos_emb_decay_fn=lambda d: 1 / (1 + d**2),
            n_heads=1,
        ),
        stax.Relu(),
        stax.GlobalAvgPool(),
        stax.Dense(out_dim=1),
    )
    return kernel_fn


@_example
def _imdb(nt):
    """Texts of one length."""
    x_train, y_train, x_test, _ = _data((9, 5), classes=2)
    predict = nt.predict.gradient_descent_mse_ensemble(
        nt.batch(_imdb_kernel_fn(nt), device_count=0, batch_size=2), x_train, y_train, diag_reg=1e-6
    )
    return predict(x_test=x_test, get=("nngp", "ntk"))


LENGTHS = (9, 4, 6, 3, 9, 7)


@_example
def _imdb_without_padding(nt):
    """The kernel of texts of several lengths: in neural-tangents one pair at a time.

    Its padded texts have other kernels with windows that are VALID; here they are these.
    """
    texts = [text[:length] for text, length in zip(_data((9, 5))[0], LENGTHS, strict=False)]
    kernel_fn = _imdb_kernel_fn(nt)
    if hasattr(kernel_fn, "parts"):
        padded = np.full((len(texts), 9, 5), 100.0)
        for row, text in zip(padded, texts, strict=True):
            row[: len(text)] = text
        return kernel_fn(padded, None, ("nngp", "ntk"), mask_constant=100.0)._asdict()
    pairs = [[kernel_fn(a[None], b[None], ("nngp", "ntk")) for b in texts] for a in texts]
    return {
        name: np.array([[getattr(pair, name)[0, 0] for pair in row] for row in pairs])
        for name in ("nngp", "ntk")
    }


def _finite(nt: Any, shape: tuple[int, ...]) -> Any:
    stax = nt.stax
    init_fn, f, _ = stax.serial(
        stax.Dense(32, 1.5, 0.05), stax.Erf(), stax.Dense(16, 1.5, 0.05), stax.Relu(), stax.Dense(2)
    )
    _, params = init_fn(jax.random.PRNGKey(0), (-1, *shape))
    return f, weights(params)


@_example
def _function_space(nt):
    """A finite network in function space: its empirical kernel, and three ways to train."""
    x_train, y_train, x_test, _ = _data((6,), classes=2)
    f, params = _finite(nt, (6,))
    ntk = nt.batch(nt.empirical_ntk_fn(f, vmap_axes=0), batch_size=2, device_count=0)
    train, cross = ntk(x_train, None, params), ntk(x_test, x_train, params)
    rate = 0.5 * nt.predict.max_learning_rate(train, y_train.size)
    start = f(params, x_train), f(params, x_test)
    predict = nt.predict.gradient_descent_mse(train, y_train, rate)

    def loss(fx, y):
        return 0.5 * jnp.mean((fx - y) ** 2)

    flow = nt.predict.gradient_descent(loss, train, y_train, rate)
    heavy = nt.predict.gradient_descent(loss, train, y_train, rate, momentum=0.9)
    times = jnp.array([0.0, 1.0, 10.0])
    return rate, start, *(fit(times, *start, cross) for fit in (predict, flow, heavy))


@_example
def _empirical_ntk(nt):
    x_train, _, x_test, _ = _data((6,))
    f, params = _finite(nt, (6,))
    kernel_fn = nt.empirical_kernel_fn(f, trace_axes=(), vmap_axes=0)
    return kernel_fn(x_test, x_train, ("nngp", "ntk"), params)


@_example
def _weight_space(nt):
    """A network and its linearisation, trained for some steps from the same weights."""
    x_train, y_train, x_test, _ = _data((6,), classes=2)
    f, params = _finite(nt, (6,))
    linear = nt.linearize(f, params)

    def train(model):
        slope = jax.jit(jax.grad(lambda p: 0.5 * jnp.mean((model(p, x_train) - y_train) ** 2)))
        moved = params
        for _ in range(5):
            moved = tree_map(lambda p, g: p - 0.3 * g, moved, slope(moved))
        return model(moved, x_test)

    return (
        train(f),
        train(linear),
        nt.taylor_expand(f, params, 2)(tree_map(lambda p: 1.01 * p, params), x_test),
    )


@_example
def _myrtle(nt):
    """Myrtle5 on images of 16 pixels: pooling twice as often as they can be halved but once."""
    stax = nt.stax
    width, std = 1, np.sqrt(2.0)
    conv = functools.partial(stax.Conv, W_std=std, b_std=0.0, padding="SAME")
    layers = [conv(width, (3, 3)), stax.Relu()] * 2
    for _ in range(2):
        layers += [stax.AvgPool((2, 2), strides=(2, 2)), conv(width, (3, 3)), stax.Relu()]
    layers += [stax.AvgPool((2, 2), strides=(2, 2))] * 2
    layers += [stax.Flatten(), stax.Dense(10, std, 0.0)]
    _, _, kernel_fn = stax.serial(*layers)
    x, _, other, _ = _data((16, 16, 3), train=2, test=2)
    kernel_fn = nt.batch(kernel_fn, batch_size=2, device_count=0)
    return kernel_fn(x, None, ("nngp", "ntk")), kernel_fn(other, x, "ntk")


@_example
def _elementwise(nt):
    """erf from its expectation alone, by quadrature, and as the layer of that name."""
    stax = nt.stax

    def nngp_fn(cov12, var1, var2):
        prod = (1 + 2 * var1) * (1 + 2 * var2)
        return jnp.arcsin(2 * cov12 / jnp.sqrt(prod)) * 2 / jnp.pi

    x, _, other, _ = _data((5,))
    found = []
    for layer in (
        stax.Elementwise(jax.scipy.special.erf, nngp_fn),
        stax.ElementwiseNumerical(jax.scipy.special.erf, deg=120),
        stax.Erf(),
    ):
        kernel_fn = stax.serial(stax.Dense(1, 0.5, 0.1), layer, stax.Dense(1))[2]
        found.append(kernel_fn(x, other, ("nngp", "ntk")))
    return found


@_example
def _finite_networks(nt):
    """Outputs of finite networks of several kinds, with the same weights."""
    stax = nt.stax
    conv = functools.partial(stax.Conv, padding="SAME", W_std=1.2, b_std=0.3)
    block = stax.serial(
        stax.FanOut(2),
        stax.parallel(stax.serial(stax.Relu(), conv(4, (3, 3))), stax.Identity()),
        stax.FanInSum(),
    )
    shape, standard = (2, 5, 4, 3), {"parameterization": "standard"}
    found = []
    for layer in (
        stax.serial(conv(4, (3, 3)), block, stax.LayerNorm(), stax.GlobalAvgPool(), stax.Dense(2)),
        stax.serial(
            conv(4, (2, 3)), stax.Gelu(), stax.AvgPool((2, 2)), stax.Flatten(), stax.Dense(3)
        ),
        stax.serial(
            stax.Flatten(),
            stax.Dense(4, 1.1, 0.2, **standard),
            stax.Sin(),
            stax.Dense(2, **standard),
        ),
        stax.serial(stax.Conv(4, (2, 2), strides=(2, 1), padding="CIRCULAR"), stax.Rbf(0.5)),
        stax.serial(
            stax.Conv(4, (3, 3)), stax.Sigmoid_like(), stax.GlobalSumPool(), stax.Gaussian()
        ),
        stax.serial(
            stax.Dense(3, **standard, s=(1, 2)), stax.Relu(), stax.Dense(2, **standard, s=(2, 1))
        ),
        stax.serial(
            stax.Dense(4), stax.Gelu(approximate=True), stax.SumPool((2, 3), padding="SAME")
        ),
        stax.serial(stax.Dense(4), stax.RectifiedMonomial(2), stax.Index(stax.Slice[:, 1, 2])),
        stax.serial(stax.Dense(4), stax.Dropout(0.5, mode="test"), stax.DotGeneral(rhs=3.0)),
    ):
        init_fn, apply_fn, _ = layer
        out, params = init_fn(jax.random.PRNGKey(0), shape)
        y = apply_fn(weights(params), np.random.default_rng(3).normal(size=shape))
        assert y.shape == out
        found.append(y)
    return found
