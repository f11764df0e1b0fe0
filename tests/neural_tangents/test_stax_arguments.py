"""Every argument of neural-tangents: here too, and none of them accepted and ignored.

`signatures.json` is written by make_signatures.py, in neural-tangents' own environment. An argument
that changes nothing stands in docs/neural-tangents.md, below "without effect on numbers".
"""

import inspect
import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from make_signatures import FILE, described, returned

import widelimit.neural_tangents as nt
from widelimit.errors import WidelimitError
from widelimit.neural_tangents import stax

_THEIRS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
_PAGE = Path(__file__).parents[2] / "docs" / "neural-tangents.md"

_ABSENT = {"stax.MaskedArray"}
"""Outputs are arrays, zero at padding; the page says so."""


def _found(name: str) -> Any:
    value: Any = nt
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_every_function_takes_what_it_takes_there():
    ours = {name: described(name, _found(name)) for name in _names()}
    ours |= {name: described(name, value) for name, value in returned(nt).items()}
    # What the library knows beyond `is_gaussian` goes along at the end.
    ours["Kernel"] = ours["Kernel"][:-1]
    # Among its keywords there.
    apply_fn = ours["stax.Dense.apply_fn"]
    ours["stax.Dense.apply_fn"] = [row for row in apply_fn if row[0] not in ("rng", "pattern")]
    assert ours == {name: value for name, value in _THEIRS.items() if name not in _ABSENT}


def _names() -> list[str]:
    return [name for name in _THEIRS if name not in _ABSENT and name not in returned(nt)]


# --- what an argument changes ---------------------------------------------------------------------

_CHANGED: dict[str, Any] = {
    **dict.fromkeys(("W_std", "W_key_std", "W_value_std", "W_query_std", "W_out_std"), 1.7),
    **dict.fromkeys(("out_dim", "out_chan", "n_chan_out", "n_chan_key", "n_chan_val"), 3),
    **{"b_std": 0.4, "W_pos_emb_std": 0.6, "n_heads": 3, "n_chan_pos_emb": 3, "n": 2, "num": 3},
    **{"parameterization": "standard", "s": (2, 1), "batch_axis": 1, "channel_axis": 1},
    **{"filter_shape": (3,), "window_shape": (3,), "strides": (2,), "padding": "CIRCULAR"},
    **{"dimension_numbers": ("NCH", "OIH", "NCH"), "normalize_edges": True, "batch_axis_out": 1},
    **{"linear_scaling": False, "attention_mechanism": "IDENTITY", "pos_emb_type": "CONCAT"},
    **{"pos_emb_p_norm": 1, "pos_emb_decay_fn": lambda d: 1 / (1 + d), "val_pos_emb": True},
    **{"axis": (1, 2), "eps": 0.5, "rate": 0.9, "mode": "test", "idx": stax.Slice[:, 1:3]},
    **{"a": 0.6, "b": -0.7, "c": 0.3, "alpha": 0.3, "degree": 2, "coef": [0.5, 0.2, 0.4]},
    **{"gamma": 0.4, "shift": -0.5, "do_clip": True, "do_stabilize": True, "approximate": True},
    **{"fn": jnp.sin, "nngp_fn": lambda k, q1, q2: k**2, "d_nngp_fn": lambda k, q1, q2: 3 * k},
    **{"df": jnp.cos, "deg": 30, "shape": (-1, 8, -1), "method": "nearest", "antialias": False},
    **{"precision": jax.lax.Precision.DEFAULT, "lhs": 3.0, "rhs": 3.0, "to_dense": jnp.sqrt},
    **{"aggregate_axis": 2, "implementation": "SPARSE", "FanInConcat.axis": 1},
    "DotGeneral.dimension_numbers": (((2,), (0,)), ((), ())),
}
_BASE: dict[str, dict[str, Any]] = {
    "Dense": {"out_dim": 2},
    **{name: {"out_chan": 2, "filter_shape": (2,)} for name in ("Conv", "ConvLocal")},
    "ConvTranspose": {"out_chan": 2, "filter_shape": (2,)},
    "AvgPool": {"window_shape": (2,), "padding": "SAME"},
    "SumPool": {"window_shape": (2,)},
    "GlobalSelfAttention": {
        **{"n_chan_out": 2, "n_chan_key": 2, "n_chan_val": 2, "n_heads": 2},
        **{"pos_emb_type": "SUM", "pos_emb_decay_fn": lambda d: jnp.exp(-d)},
    },
    "Dropout": {"rate": 0.5},
    "Index": {"idx": stax.Slice[:, :2]},
    "ImageResize": {"shape": (-1, 3, -1), "method": "linear"},
    "DotGeneral": {"rhs": jnp.ones(5) / 2, "dimension_numbers": (((1,), (0,)), ((), ()))},
    **{"ABRelu": {"a": 0.2, "b": 1.0}, "LeakyRelu": {"alpha": 0.1}, "Hermite": {"degree": 1}},
    **{"Monomial": {"degree": 1}, "RectifiedMonomial": {"degree": 1}, "FanOut": {"num": 2}},
    "Polynomial": {"coef": [0.3, 0.5]},
    "Elementwise": {
        **{"fn": jnp.cos, "nngp_fn": lambda k, q1, q2: k},
        "d_nngp_fn": lambda k, q1, q2: 1 + 0 * k,
    },
    "ElementwiseNumerical": {"fn": jnp.tanh, "deg": 20},
    "repeat": {"layer": stax.Dense(2), "n": 1},
}
_NOT_LAYERS = {
    "serial",
    "parallel",
    "layer",
    "requires",
    "supports_masking",
    "unmask_fn",
    "Diagonal",
}
_NOT_ALONE = {"FanOut", "FanInConcat"}
_WITHOUT_EFFECT = {"do_stabilize", "precision", "deg", "df"}


def _arguments() -> list[tuple[str, str]]:
    """Every argument of every layer."""
    return [
        (name.removeprefix("stax."), argument)
        for name, arguments in _THEIRS.items()
        if name.startswith("stax.") and isinstance(arguments, list) and name not in _ABSENT
        if name.count(".") == 1 and name.removeprefix("stax.") not in _NOT_LAYERS
        for argument, _, _ in arguments
        if argument != "layer"
    ]


def _seen(name: str, options: dict[str, Any]) -> Any:
    """All that a user sees of a layer: kernels, parameters and outputs, or an error."""
    x = np.random.default_rng(0).normal(size=(5, 5, 5)).astype(np.float32)
    first = name in ("ImageResize", "Index", "Conv", "ConvLocal", "ConvTranspose")
    around = {}
    if name == "Aggregate":
        edges = np.arange(30).reshape(5, 3, 2) % 5
        dense = np.arange(125.0).reshape(5, 5, 5)
        around["pattern"] = edges if "implementation" in options else dense
    try:
        made = getattr(stax, name)(**options)
        if name in _NOT_ALONE:
            fork = made if name == "FanOut" else stax.FanOut(2)
            both = stax.parallel(stax.Dense(2), stax.Dense(2, 1.4))
            made = stax.serial(fork, both, made if name != "FanOut" else stax.FanInSum())
        # Nonlinearities stand after Dense, so the axes of examples and channels are those of both.
        axes = {key: options[key] for key in ("batch_axis", "channel_axis") if key in options}
        before = [] if first else [stax.Dense(2, 1.3, 0.2, **axes)]
        init_fn, apply_fn, kernel_fn = stax.serial(*before, made)
        found = kernel_fn(x, None, ("nngp", "ntk"), **around)
        shape, params = init_fn(jax.random.PRNGKey(0), x.shape)
        weights = jax.tree.map(lambda leaf: jnp.ones_like(leaf) / 3, params)
        rng = {"rng": jax.random.PRNGKey(1)} if name == "Dropout" else {}
        seen = [*found, shape, *jax.tree.leaves(params)]
        known = name != "ExpNormalized"  # by its kernel alone
        return [*seen, apply_fn(weights, x, **around, **rng)] if known else seen
    except WidelimitError as error:
        return str(error)


@pytest.mark.parametrize(("name", "argument"), _arguments())
@pytest.mark.filterwarnings("ignore:.*summed by quadrature", "ignore:.*not accurate")
def test_arguments_of_layers_change_something_or_are_refused(name, argument):
    base = _BASE.get(name, {})
    if argument == "linear_scaling":  # of other maps it draws heads
        base = {**base, "attention_mechanism": "IDENTITY"}
    value = _CHANGED.get(f"{name}.{argument}", _CHANGED.get(argument))
    found = _seen(name, base)
    assert not isinstance(found, str)
    assert _same(found, _seen(name, {**base, argument: value})) == (argument in _WITHOUT_EFFECT)


def _same(one: Any, two: Any) -> bool:
    if isinstance(one, str) or isinstance(two, str) or len(one) != len(two):
        return one is two
    return all(
        np.shape(a) == np.shape(b) and np.array_equal(a, b) for a, b in zip(one, two, strict=True)
    )


def _kernels(x1: Any, x2: Any = None, get: Any = ("nngp", "ntk"), **options: Any) -> Any:
    layers = [stax.Conv(2, (2,), b_std=0.3), stax.Erf()]
    return stax.serial(*layers)[2](x1, x2, get, **options)


def _ensemble(x: Any, y: Any, calls: dict[str, Any], **options: Any) -> Any:
    predict = nt.predict.gradient_descent_mse_ensemble(_pooled, x, y, **options)
    return predict(**{"t": 2.0, "x_test": x[:2], "get": "ntk"} | calls)


def _pooled(x1: Any, x2: Any = None, get: Any = None, **options: Any) -> Any:
    layers = [stax.Conv(2, (2,), b_std=0.3), stax.Erf(), stax.GlobalAvgPool(), stax.Dense(1)]
    return stax.serial(*layers)[2](x1, x2, get, **options)


def _f(params: Any, x: Any, scale: float = 1.0) -> Any:
    return scale * jnp.tanh(x[:, :, 0] @ params)[..., None] * jnp.ones(3)


def _calls() -> dict[str, tuple[Any, dict[str, Any]]]:
    """Functions of the rest of the library as calls, and other values for all their arguments."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 5, 3)), rng.normal(size=(4, 2))
    x[0, -1] = 7.0  # padding, for those who say so
    k, cross = _pooled(x, None, ("nngp", "ntk")), _pooled(x[:2], x, ("nngp", "ntk"))
    square, params = np.diag([1.0, 2.0, 3.0, 4.0]), rng.normal(size=(5, 5))
    y3 = rng.normal(size=(4, 2, 3))
    common = {"diag_reg": 0.3, "diag_reg_absolute_scale": True, "trace_axes": ()}
    reg = {"diag_reg": 0.1}

    def loss(fx: Any, y: Any) -> Any:
        return jnp.mean((fx - y) ** 4)

    def gp(k_train_train=k, y_train=y, get="ntk", k_test_train=cross, k_test_test=None, **o):
        return nt.predict.gp_inference(k_train_train, y_train, **{**reg, **o})(
            get, k_test_train, k_test_test
        )

    def mse(k_train_train=k.ntk, y_train=y, calls: Any = (), **o):
        calls = {"t": 2.0, "fx_test_0": 0.0, "k_test_train": cross.ntk} | dict(calls)
        return nt.predict.gradient_descent_mse(k_train_train, y_train, **{**reg, **o})(**calls)

    def flow(loss=loss, k_train_train=k.ntk, y_train=y, calls: Any = (), **o):
        calls = {"t": 2.0, "fx_test_0": 0.0, "k_test_train": cross.ntk} | dict(calls)
        return nt.predict.gradient_descent(loss, k_train_train, y_train, **o)(**calls)

    def finite(kind: str, x2: Any = None, **o: Any):
        return getattr(nt, kind)(_f, **o)(x[..., :1], x2, params)

    def carlo(key=0, n_samples=1, **o: Any):
        init_fn, apply_fn, _ = stax.serial(stax.Conv(3, (2,)), stax.Erf(), stax.Dense(2))
        found = nt.monte_carlo_kernel_fn(init_fn, apply_fn, key, n_samples, **o)(x[:2], None, "ntk")
        return list(found) if np.ndim(n_samples) else found

    hints = {"vmap_axes": 1, "trace_axes": (1,), "diagonal_axes": (1,)}
    other_y = {"y_train": 2 * y, "learning_rate": 0.3, **common}
    return {
        "kernel_fn": (
            partial(_kernels, x),
            {
                **{"x2": x[:2], "get": "ntk", "pattern": square, "mask_constant": 7.0},
                "diagonal_spatial": True,
            },
        ),
        "kernel_fn(get=None)": (
            lambda **o: list(_kernels(x, None, None, **o).asdict().values()),
            {"diagonal_batch": False, "diagonal_spatial": True},
        ),
        "gp_inference": (
            gp,
            {
                **{"k_train_train": square, "y_train": 2 * y, **common, "get": "nngp"},
                **{"k_test_train": None, "k_test_test": _pooled(x[:2], None, ("nngp", "ntk"))},
            },
        ),
        "gradient_descent_mse": (
            mse,
            {
                **{"k_train_train": square, **other_y},
                "calls": [
                    *({"t": None}, {"fx_train_0": 0.2}, {"fx_test_0": 0.2}),
                    *({"k_test_train": None}, {"fx_test_0": None}),
                ],
            },
        ),
        "gradient_descent_mse_ensemble": (
            lambda x_train=x, y_train=y, calls=(), **o: _ensemble(
                x_train, y_train, dict(calls), **{**reg, **o}
            ),
            {
                **{"x_train": 2 * x, **other_y, "mask_constant": 7.0},
                "calls": [
                    *({"t": None}, {"x_test": None}, {"get": "nngp"}, {"compute_cov": True}),
                ],
            },
        ),
        "gradient_descent": (
            flow,
            {
                **{"loss": lambda fx, y: jnp.sum((fx - y) ** 2), "k_train_train": square},
                **{"y_train": 2 * y, "learning_rate": 0.3, "momentum": 0.5, "trace_axes": ()},
                "calls": [
                    *({"t": None}, {"fx_train_or_state_0": 0.2}, {"fx_test_0": 0.2}),
                    *({"k_test_train": None}, {"fx_test_0": None}),
                ],
            },
        ),
        "max_learning_rate": (
            lambda ntk_train_train=square, **o: nt.predict.max_learning_rate(ntk_train_train, **o),
            {"ntk_train_train": 2 * square, "y_train_size": 3, "momentum": 0.5, "eps": 0.1},
        ),
        "trace_axes of predictors": (
            lambda trace_axes=(-1,): mse(np.ones((4, 4, 2, 2)) + np.eye(4)[:, :, None, None], y3,
                                         {"fx_test_0": None}, trace_axes=trace_axes),
            {"trace_axes": (1,)},
        ),
        **{
            kind: (
                lambda kind=kind, **o: finite(kind, **o),
                {"x2": 2 * x[..., :1], **{n: v for n, v in hints.items() if n in _takes(kind)}},
            )
            for kind in ("empirical_nngp_fn", "empirical_ntk_fn")
        },
        "monte_carlo_kernel_fn": (
            carlo,
            {"key": 5, "n_samples": (1, 2), **hints},
        ),
        "batch": (
            lambda batch_size=0: nt.batch(_pooled, batch_size)(x, None, "ntk"),
            {"batch_size": -1},
        ),
        "taylor_expand": (
            lambda params=params, degree=1: nt.taylor_expand(_f, params, degree)(2 * params, x),
            {"params": 2 * params, "degree": 2},
        ),
    }  # fmt: skip


def _takes(name: str) -> list[str]:
    return [argument for argument, _, _ in _THEIRS[name]]


@pytest.mark.parametrize(
    "name",
    [
        *("kernel_fn", "kernel_fn(get=None)", "gp_inference", "gradient_descent_mse"),
        *("gradient_descent_mse_ensemble", "gradient_descent", "max_learning_rate"),
        *("trace_axes of predictors", "empirical_nngp_fn", "empirical_ntk_fn"),
        *("monte_carlo_kernel_fn", "batch", "taylor_expand"),
    ],
)
def test_arguments_of_calls_change_something_or_are_refused(name):
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        call, others = _calls()[name]
        base = jax.tree.leaves(call())
        for argument, values in others.items():
            for value in values if argument == "calls" else [values]:
                try:
                    changed = jax.tree.leaves(call(**{argument: value}))
                except WidelimitError:
                    continue
                assert not _same(base, changed), (argument, value)


def test_what_has_no_effect_stands_on_the_page():
    page = _PAGE.read_text(encoding="utf-8")
    sentence = page[page.index("without effect on numbers") :].split("\n\n")[0]
    hints = {"batch_size", "device_count", "store_on_device", "implementation"}
    for argument in _WITHOUT_EFFECT | hints | {"_j_rules", "_s_rules", "_fwd"}:
        assert f"`{argument}`" in sentence
    for name in _ABSENT:
        assert f"`{name}`" in page


def test_other_arguments_are_refused():
    for call in (stax.Relu, stax.Sin, stax.Dense, nt.batch):
        assert "wrong" not in inspect.signature(call).parameters
        with pytest.raises(TypeError):
            call(wrong=1)
