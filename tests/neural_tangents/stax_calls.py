"""Calls of predictors, empirical kernels and what surrounds them, in either library.

`CALLS` maps a name to a function of `neural_tangents` or `widelimit.neural_tangents`, which returns
a tree of arrays. The numbers stand in tests/reference/neural_tangents.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

CALLS: dict[str, Callable[[Any], Any]] = {}


def _call(*options: Any, **named: Any) -> Callable[[Any], Any]:
    """Registers a function of `nt`, once for each row of options."""

    def keep(function: Any) -> Any:
        for given in options or ({},):
            words = ", ".join(f"{name}={_word(value)}" for name, value in given.items())
            CALLS[f"{function.__name__[1:]}({words})"] = functools.partial(function, **given)
        return function

    return keep


def _word(value: Any) -> str:
    return getattr(value, "__name__", None) or repr(value)


def _every(**choices: Any) -> list[dict[str, Any]]:
    """All combinations of options."""
    return [
        dict(zip(choices, chosen, strict=True)) for chosen in itertools.product(*choices.values())
    ]


# --- predictors -----------------------------------------------------------------------------------


def _problem(positions: bool = False) -> Any:
    rng = np.random.default_rng(5)
    x, x_test = rng.normal(size=(6, 4, 3)), rng.normal(size=(3, 4, 3))
    y = rng.normal(size=(6, 4, 2) if positions else (6, 2))
    return x, y, x_test


def _kernel_fn(nt: Any, positions: bool = False) -> Any:
    stax = nt.stax
    end = stax.Identity() if positions else stax.Flatten()
    return stax.serial(
        stax.Conv(8, (2,), padding="SAME", b_std=0.3), stax.Erf(), end, stax.Dense(2)
    )[2]


def _kernels(nt: Any, positions: bool = False) -> Any:
    x, y, x_test = _problem(positions)
    kernel_fn, get = _kernel_fn(nt, positions), ("nngp", "ntk")
    return (
        y,
        kernel_fn(x, None, get),
        kernel_fn(x_test, x, get),
        kernel_fn(x_test, None, get),
    )


@_call(
    *_every(
        get=(None, "nngp", "ntk", ("ntk", "nngp"), ("nngp",)),
        diag_reg=(0.0, 0.1),
        diag_reg_absolute_scale=(False, True),
    ),
    *_every(get=("ntkgp", ("ntkgp", "nngp", "ntk")), diag_reg=(1e-3,)),
)
def _gp_inference(nt, get, **options):
    y, train, test_train, test = _kernels(nt)
    predict = nt.predict.gp_inference(train, y, **options)
    return predict(get, test_train), predict(get, test_train, test), predict(get)


@_call(*_every(get=("nngp", ("nngp", "ntk")), trace_axes=((-1,), -1, ())))
def _gp_inference_of_positions(nt, get, trace_axes):
    y, train, test_train, test = _kernels(nt, positions=True)
    if trace_axes == ():
        wide = functools.partial(jax.tree_util.tree_map, _with_channels)
        train, test_train, test = wide(train), wide(test_train), wide(test)
    predict = nt.predict.gp_inference(train, y, diag_reg=1e-2, trace_axes=trace_axes)
    return predict(get, test_train), predict(get, test_train, test)


def _with_channels(kernel: Any) -> Any:
    """A kernel (N1, N2, a, b) of independent channels, with both channel axes."""
    return jnp.asarray(kernel)[..., None, None] * jnp.eye(2)


@_call(
    *_every(t=(None, 0.0, 3.0, (0.5, 2.0, 40.0)), learning_rate=(1.0, 0.3)),
    *_every(t=(5.0, None), diag_reg=(0.1,), diag_reg_absolute_scale=(False, True)),
    *_every(t=(5.0, ((1.0, 2.0), (3.0, 4.0)))),
)
def _gradient_descent_mse(nt, t, **options):
    y, train, test_train, _ = _kernels(nt)
    predict = nt.predict.gradient_descent_mse(train.ntk, y, **options)
    t = None if t is None else jnp.asarray(t)
    test = test_train.ntk
    return (
        predict(t),
        predict(t, 0.1 * y),
        predict(t, 0.0, 0.0, test),
        predict(t, 0.5 * y, 0.2 * jnp.ones((3, 2)), test),
        predict(t, fx_train_0=None, fx_test_0=0.3, k_test_train=test),
    )


@_call(*_every(t=(None, 2.0, (0.5, 2.0))))
def _gradient_descent_mse_of_positions(nt, t):
    y, train, test_train, _ = _kernels(nt, positions=True)
    predict = nt.predict.gradient_descent_mse(train.ntk, y, diag_reg=1e-3)
    t = None if t is None else jnp.asarray(t)
    return predict(t, 0.0, 0.0, test_train.ntk)


@_call(
    *_every(t=(None, 0.0, 3.0, (0.5, 20.0)), get=("nngp", "ntk", ("ntk", "nngp"))),
    *_every(t=(2.0,), get=(None,), learning_rate=(0.2,)),
    *_every(t=(None,), get=("nngp", "ntk"), diag_reg=(0.1,), diag_reg_absolute_scale=(False, True)),
    *_every(t=(3.0,), get=("ntk",), diag_reg=(0.1,), diag_reg_absolute_scale=(False, True)),
)
def _gradient_descent_mse_ensemble(nt, t, get, **options):
    x, y, x_test = _problem()
    predict = nt.predict.gradient_descent_mse_ensemble(_kernel_fn(nt), x, y, **options)
    t = None if t is None else jnp.asarray(t)
    return (
        predict(t, get=get),
        predict(t, x_test, get),
        predict(t, x_test, get, compute_cov=True),
        predict(t, None, get, compute_cov=True),
    )


def _mean_square(fx, y):
    return 0.5 * jnp.mean((fx - y) ** 2)


def _cross_entropy(fx, y):
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(fx) * jax.nn.softmax(y), axis=-1))


@_call(
    *_every(
        loss=(_mean_square, _cross_entropy),
        t=(0.0, 3.0, (0.5, 2.0)),
        momentum=(None, 0.0, 0.9),
        learning_rate=(1.0, 0.3),
    )
)
def _gradient_descent(nt, loss, t, **options):
    y, train, test_train, _ = _kernels(nt)
    predict = nt.predict.gradient_descent(loss, train.ntk, y, **options)
    t = jnp.asarray(t)
    start = nt.predict.ODEState(0.2 * y, jnp.full((3, 2), 0.1))
    state = predict(t, start, None, test_train.ntk)
    return (
        predict(t),
        predict(t, 0.1 * y, 0.0, test_train.ntk),
        state.fx_train,
        state.fx_test,
        state.qx_train,
        state.qx_test,
    )


@_call(
    *_every(y_train_size=(None, 12), momentum=(0.0, 0.9), eps=(1e-12, 0.1)),
)
def _max_learning_rate(nt, **options):
    _, train, _, _ = _kernels(nt)
    return nt.predict.max_learning_rate(train.ntk, **options)


@_call()
def _max_learning_rate_of_positions(nt):
    _, train, _, _ = _kernels(nt, positions=True)
    return nt.predict.max_learning_rate(train.ntk), nt.predict.max_learning_rate(train.ntk, 7)


# --- functions at given parameters ----------------------------------------------------------------


def _function(params, x, shift=0.0, **kwargs):
    """Outputs (N, 3, 2) of inputs (N, 4)."""
    first, second = params["first"], params["second"]
    hidden = jnp.tanh(x @ first["weights"] + first["bias"])
    return jnp.einsum("ni,iab->nab", hidden, second) + shift * jnp.sum(first["bias"]) ** 2


def _setting() -> Any:
    rng = np.random.default_rng(7)
    params = {
        "first": {"weights": rng.normal(size=(4, 5)), "bias": rng.normal(size=5)},
        "second": rng.normal(size=(5, 3, 2)),
    }
    params = jax.tree_util.tree_map(jnp.asarray, params)
    return params, jnp.asarray(rng.normal(size=(4, 4))), jnp.asarray(rng.normal(size=(3, 4)))


_AXES = [
    *({"trace_axes": axes} for axes in ((-1,), (), (1,), (1, 2), (-1, -2))),
    *({"trace_axes": (), "diagonal_axes": axes} for axes in ((1,), (2,), (1, 2), (-1,))),
    *({"trace_axes": (1,), "diagonal_axes": (2,)}, {"trace_axes": (2,), "diagonal_axes": (-2,)}),
]


@_call(*_AXES)
def _empirical_nngp_fn(nt, **axes):
    params, x1, x2 = _setting()
    nngp_fn = nt.empirical_nngp_fn(_function, **axes)
    return nngp_fn(x1, x2, params), nngp_fn(x1, None, params)


@_call(
    *_AXES,
    *_every(trace_axes=((), (1,)), implementation=(1, 2, 3), vmap_axes=(None, 0)),
)
def _empirical_ntk_fn(nt, **options):
    params, x1, x2 = _setting()
    ntk_fn = nt.empirical_ntk_fn(_function, **options)
    return ntk_fn(x1, x2, params), ntk_fn(x1, None, params)


@_call(
    *_every(get=("nngp", "ntk", ("ntk", "nngp"), None), trace_axes=((), (-1,))),
    {"get": ("nngp", "ntk"), "trace_axes": (1,), "diagonal_axes": (2,)},
)
def _empirical_kernel_fn(nt, get, **axes):
    params, x1, x2 = _setting()
    kernel_fn = nt.empirical_kernel_fn(_function, **axes)
    return kernel_fn(x1, x2, get, params), kernel_fn(x1, None, get, params, shift=0.3)


@_call()
def _empirical_ntk_fn_of_jitted(nt):
    params, x1, x2 = _setting()
    kernel_fn = jax.jit(
        nt.empirical_ntk_fn(_function, implementation=nt.NtkImplementation.NTK_VECTOR_PRODUCTS)
    )
    return kernel_fn(x1, x2, params), kernel_fn(x1, None, params)


@_call(*_every(implementation=(0, 1, 2, 3), vmap_axes=(None, 0)))
def _empirical_ntk_fn_inside_jit(nt, **options):
    params, x1, x2 = _setting()
    kernel_fn = jax.jit(nt.empirical_ntk_fn(_function, trace_axes=(1,), **options))
    return kernel_fn(x1, x2, params), kernel_fn(x1, None, params)


@_call(*_every(trace_axes=((), (-1,)), implementation=(1, 2)), {"jit": True})
def _empirical_ntk_fn_of_batches(nt, jit=False, **options):
    """Of a function whose outputs depend on all examples, as with batch normalisation."""

    def normalised(params, x):
        return _function(params, (x - jnp.mean(x, axis=0)) / jnp.std(x, axis=0))

    params, x1, x2 = _setting()
    kernel_fn = nt.empirical_ntk_fn(normalised, **options)
    kernel_fn = jax.jit(kernel_fn) if jit else kernel_fn
    return kernel_fn(x1, x2, params), kernel_fn(x1, None, params)


@_call()
def _empirical_ntk_fn_with_an_argument_for_each_example(nt):
    def scaled(params, x, scale):
        return scale[:, None, None] * _function(params, x)

    params, x1, x2 = _setting()
    one, two = jnp.arange(1.0, 5.0), jnp.arange(2.0, 5.0)
    kernel_fn = nt.empirical_ntk_fn(scaled, vmap_axes=(0, 0, {"scale": 0}))
    return kernel_fn(x1, x2, params, scale=(one, two)), kernel_fn(x1, None, params, scale=one)


@_call()
def _empirical_ntk_vp_fn(nt):
    params, x1, x2 = _setting()
    vector = jnp.arange(18.0).reshape(3, 3, 2) / 8
    other = jnp.arange(24.0).reshape(4, 3, 2) / 8
    return (
        nt.empirical_ntk_vp_fn(_function, x1, x2, params)(vector),
        nt.empirical_ntk_vp_fn(_function, x1, None, params)(other),
        nt.empirical_ntk_vp_fn(_function, x1, x2, params, shift=0.2)(vector),
    )


@_call({"x2": True}, {"x2": False})
def _monte_carlo_kernel_fn(nt, x2):
    """Of parameters that do not depend on the key: the numbers of one draw."""
    params, first, second = _setting()

    def init_fn(rng, input_shape):
        return (input_shape[0], 3, 2), params

    get, key = ("nngp", "ntk"), jax.random.PRNGKey(0)
    second = second if x2 else None
    one = nt.monte_carlo_kernel_fn(init_fn, _function, key, 2)(first, second, get)
    several = nt.monte_carlo_kernel_fn(init_fn, _function, key, {1, 3}, trace_axes=())
    return one, list(several(first, second, get))


@_call(*_every(degree=(0, 1, 2, 3)))
def _taylor_expand(nt, degree):
    params, x1, _ = _setting()
    moved = jax.tree_util.tree_map(lambda leaf: 1.1 * leaf + 0.05, params)
    expanded = nt.taylor_expand(_function, params, degree)
    return expanded(moved, x1), expanded(moved, x1, shift=0.3)


@_call()
def _linearize(nt):
    params, x1, _ = _setting()
    moved = jax.tree_util.tree_map(lambda leaf: 1.1 * leaf + 0.05, params)
    linear = nt.linearize(_function, params)
    loss = jax.grad(lambda p: jnp.mean(linear(p, x1) ** 2))
    return linear(moved, x1), linear(moved, x1, shift=0.3), loss(moved)


# --- kernel functions -----------------------------------------------------------------------------


def _fields(kernel: Any) -> dict[str, Any]:
    names = ("nngp", "ntk", "cov1", "cov2", "is_gaussian", "shape1", "shape2", "x1_is_x2")
    return {name: getattr(kernel, name) for name in names}


@_call(*_every(batch_size=(0, 2, 3), store_on_device=(True, False)))
def _batch(nt, **options):
    """Sizes divide both numbers of examples, as neural-tangents wants."""
    rng = np.random.default_rng(2)
    x1, x2 = rng.normal(size=(6, 4, 3)), rng.normal(size=(6, 4, 3))
    kernel_fn = nt.batch(_kernel_fn(nt), device_count=0, **options)
    return kernel_fn(x1, x2, "ntk"), kernel_fn(x1, None, ("nngp", "ntk"))


@_call()
def _batch_of_empirical(nt):
    params, x1, x2 = _setting()
    x2 = jnp.concatenate([x2, x2[:1]])
    kernel_fn = nt.batch(nt.empirical_kernel_fn(_function), batch_size=2, device_count=0)
    return kernel_fn(x1, x2, ("nngp", "ntk"), params)


@_call(*_every(x2=(True, False), diagonal_batch=(None, False)))
def _kernels_pass_on(nt, x2, diagonal_batch):
    stax = nt.stax
    rng = np.random.default_rng(3)
    x1, other = rng.normal(size=(3, 4, 4, 2)), rng.normal(size=(2, 4, 4, 2))
    first = stax.serial(stax.Conv(5, (2, 2), W_std=1.3, b_std=0.2), stax.Relu())[2]
    second = stax.serial(stax.Conv(5, (2, 2)), stax.Erf(), stax.AvgPool((2, 2), (2, 2)))[2]
    third = stax.serial(stax.Flatten(), stax.Dense(1))[2]
    kernel = first(x1, other if x2 else None, diagonal_batch=diagonal_batch, diagonal_spatial=False)
    middle = second(kernel)
    return _fields(middle), third(middle, None, "ntk"), _fields(third(middle))


@_call()
def _depth_by_repetition(nt):
    """A layer applied to its own kernel, as in scripts on depth."""
    stax = nt.stax
    layer = stax.serial(stax.Dense(1, 1.5, 0.1), stax.Erf())[2]
    kernel = layer(np.random.default_rng(4).normal(size=(4, 3)))
    found = []
    for _ in range(6):
        kernel = layer(kernel)
        found.append((kernel.nngp, kernel.ntk))
    return found


@_call()
def _kernel_from_changed_kernel(nt):
    stax = nt.stax
    x = np.random.default_rng(4).normal(size=(4, 3))
    kernel = stax.Dense(1, 1.5, 0.1)[2](x)
    changed = kernel.replace(nngp=2 * kernel.nngp, cov1=2 * kernel.cov1, ntk=0.5 * kernel.ntk)
    return _fields(stax.serial(stax.Relu(), stax.Dense(1))[2](changed))


@_call()
def _layers_of_a_user(nt):
    """`stax.layer` around functions that change a `Kernel`."""
    stax = nt.stax

    @stax.layer
    def Doubled(power=1):
        def init_fn(rng, input_shape):
            return input_shape, ()

        def apply_fn(params, inputs, **kwargs):
            return 2**power * inputs

        @stax.requires(diagonal_spatial=stax.Diagonal(input=stax.Bool.YES, output=stax.Bool.YES))
        def kernel_fn(k, **kwargs):
            square = 4**power
            cov2 = None if k.cov2 is None else square * k.cov2
            return k.replace(
                nngp=square * k.nngp, ntk=square * k.ntk, cov1=square * k.cov1, cov2=cov2
            )

        return init_fn, apply_fn, kernel_fn

    rng = np.random.default_rng(4)
    x1, x2 = rng.normal(size=(4, 3)), rng.normal(size=(2, 3))
    init_fn, apply_fn, kernel_fn = stax.serial(
        stax.Dense(6, 1.2, 0.1), Doubled(2), stax.Relu(), stax.Dense(3), Doubled(), stax.Dense(1)
    )
    shape, params = init_fn(jax.random.PRNGKey(0), x1.shape)
    assert apply_fn(params, x1).shape == shape == (4, 1)
    return kernel_fn(x1, x2, ("nngp", "ntk")), _fields(kernel_fn(x1))


@_call(*_every(pattern=("self", "identity"), aggregate_axis=(1, None)))
def _aggregate(nt, pattern, aggregate_axis):
    stax = nt.stax
    rng = np.random.default_rng(9)
    x1, x2 = rng.normal(size=(3, 5, 4)), rng.normal(size=(2, 5, 4))
    graphs = [rng.uniform(size=(len(x), 5, 5)).round(1) for x in (x1, x2)]
    if pattern == "identity":
        graphs = [np.broadcast_to(np.eye(5), graph.shape) for graph in graphs]
    kernel_fn = stax.serial(
        stax.Dense(6, 1.2, 0.1),
        stax.Relu(),
        stax.Aggregate(aggregate_axis, 0, -1),
        stax.Dense(5, 1.3),
        stax.Gelu(),
        stax.Aggregate(aggregate_axis),
        stax.GlobalAvgPool(),
        stax.Dense(1),
    )[2]
    g1, g2 = (jnp.asarray(graph) for graph in graphs)
    get = ("nngp", "ntk")
    return kernel_fn(x1, x2, get, pattern=(g1, g2)), kernel_fn(x1, None, get, pattern=(g1, g1))


@_call(*_every(alone=(False, True)))
def _aggregate_keeps_nodes(nt, alone):
    stax = nt.stax
    rng = np.random.default_rng(9)
    x1, x2 = rng.normal(size=(3, 5, 4)), rng.normal(size=(2, 5, 4))
    g1, g2 = (jnp.asarray(rng.uniform(size=(len(x), 5, 5)).round(1)) for x in (x1, x2))
    kernel_fn = stax.serial(stax.Dense(6, 1.2, 0.1), stax.Aggregate(), stax.Relu())[2]
    if alone:
        return kernel_fn(x1, None, ("nngp", "ntk"), pattern=(g1, g1))
    return kernel_fn(x1, x2, ("nngp", "ntk"), pattern=(g1, g2))
