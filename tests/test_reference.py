"""Every kernel case of the reference numbers: 1e-12 relative in float64, 1e-5 in float32.

The networks are written in tests/reference/README.md as the expressions that made the numbers; here
each name in such an expression stands for the layer of ours that means the same.
"""

import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from reference.load import load

import widelimit as wl

_README = Path(__file__).parent / "reference" / "README.md"
_ROW = re.compile(r"^\| `(\w+)` \| [^|]* \| `(serial\(.*\))` \|", re.MULTILINE)


def _expressions() -> dict[str, str]:
    return dict(_ROW.findall(_README.read_text(encoding="utf-8")))


class _FanOut:
    """Marks that the next two entries of `serial` are branches and how they are merged."""


def _serial(*layers: Any) -> wl.Serial:
    found = []
    waiting = list(layers)
    while waiting:
        layer = waiting.pop(0)
        if isinstance(layer, _FanOut):
            branches, merge = waiting.pop(0), waiting.pop(0)
            layer = merge(*branches)
        found.append(layer)
    return wl.Serial(*found)


def _weights(w_std=1.0, b_std=None, parameterization="ntk"):
    return {
        "w_std": w_std,
        "b_std": 0.0 if b_std is None else b_std,
        "parameterization": wl.layers.Parameterization(parameterization),
    }


def _convolution(layer):
    def make(width, window, padding="VALID", strides=1, **given):
        given = {name.lower(): value for name, value in given.items()}
        return layer(width, window, stride=strides, padding=padding.lower(), **_weights(**given))

    return make


_SCORES = {
    "SOFTMAX": wl.Softmax(),
    "IDENTITY": wl.IdentityMap(),
    "RELU": wl.ElementwiseMap(wl.Relu()),
    "ABS": wl.ElementwiseMap(wl.layers.Abs()),
}


def _attention(
    mechanism,
    linear_scaling=True,
    b_std=0.3,
    pos_emb_type=None,
    val_pos_emb=False,
    W_pos_emb_std=1.0,
    pos_emb_p_norm=2,
    pos_emb_decay_fn=None,
    n_chan_pos_emb=None,
):
    positions = None
    if pos_emb_type is not None:
        decay = pos_emb_decay_fn or (lambda d: (d == 0).astype(d.dtype))
        positions = wl.Decay(
            strength=W_pos_emb_std,
            profile=lambda d: decay(d**pos_emb_p_norm),
            norm=pos_emb_p_norm,
            combine=wl.layers.Combine(pos_emb_type.lower()),
            channels=n_chan_pos_emb,
            on_values=val_pos_emb,
        )
    return wl.Attention(
        8,
        scaling=wl.Scaling.LINEAR if linear_scaling else wl.Scaling.SQRT,
        score_map=_SCORES[mechanism],
        qk_std=0.9,
        ov_std=1.2,
        b_std=0.0 if b_std is None else b_std,
        positions=positions,
    )


class _Slice:
    def __getitem__(self, index):
        return index[1] if len(index) == 2 else index[1:]


_NAMES: dict[str, Any] = {
    "serial": _serial,
    "Dense": lambda width, batch_axis=0, **given: wl.Dense(
        width, **_weights(**{name.lower(): value for name, value in given.items()})
    ),
    "Conv": _convolution(wl.Conv),
    "ConvTranspose": _convolution(wl.layers.ConvTranspose),
    "Aggregate": lambda aggregate_axis=None: wl.layers.Aggregate(),
    "ConvLocal": _convolution(wl.layers.ConvLocal),
    "Relu": wl.Relu,
    "LeakyRelu": lambda alpha: wl.LeakyRelu(alpha),
    "ABRelu": lambda a, b: wl.layers.ABRelu(a, b),
    "Abs": wl.layers.Abs,
    "Sign": wl.layers.Sign,
    "Gelu": wl.Gelu,
    "Erf": lambda a=1.0, b=1.0, c=0.0: wl.Erf(scale=a, rate=b, shift=c),
    "Sigmoid_like": lambda: wl.Erf(scale=0.5, rate=1 / 2.4020563531719796, shift=0.5),
    "Sin": lambda a=1.0, b=1.0, c=0.0: wl.layers.Sin(scale=a, rate=b, phase=c),
    "Cos": lambda a=1.0, b=1.0, c=0.0: wl.layers.Cos(scale=a, rate=b, phase=c),
    "Exp": lambda a=1.0, b=1.0: wl.layers.Exp(scale=a, rate=b),
    "Gaussian": lambda a=1.0, b=-1.0: wl.layers.Gaussian(scale=a, rate=-b),
    "Monomial": lambda degree: wl.layers.Monomial(degree),
    "Polynomial": lambda coef: wl.layers.Polynomial(coef),
    "Hermite": lambda degree: wl.layers.Hermite(degree),
    "LayerNorm": lambda axis=-1: wl.LayerNorm(
        eps=1e-12, axes=[one - 1 for one in axis[:-1]] if isinstance(axis, tuple) else ()
    ),
    "Dropout": lambda rate: wl.Dropout(1 - rate),
    "ImageResize": lambda shape, **how: wl.layers.Resize(shape[1:-1], **how),
    "DotGeneral": lambda lhs, dimension_numbers: wl.layers.Contract(lhs, "ai,ij->aj"),
    "weights": lambda *shape: np.cos(np.arange(float(np.prod(shape)))).reshape(shape),
    "GlobalAvgPool": lambda batch_axis=0: wl.MeanPool(),
    "GlobalSumPool": wl.SumPool,
    "AvgPool": lambda window, strides: wl.MeanPool(window, stride=strides),
    "SumPool": lambda window, strides: wl.SumPool(window, stride=strides),
    "Flatten": wl.Flatten,
    "Index": wl.Select,
    "Slice": _Slice(),
    "residual": lambda *branch: wl.Residual(_serial(*branch)),
    "weighted_residual": lambda alpha, *branch: wl.Residual(_serial(*branch), alpha),
    "FanOut": lambda count: _FanOut(),
    "parallel": lambda *branches: branches,
    "FanInSum": lambda: wl.Sum,
    "FanInProd": lambda: wl.Product,
    "FanInConcat": lambda: wl.Concat,
    "Identity": wl.Serial,
    "attention": _attention,
    "rational": lambda d: 1 / (1 + d**2),
    "hyperbolic": lambda d: 1 / (1 + d),
    "exponential": lambda d: jnp.exp(-d / 2),
}


def _network(expression: str) -> wl.Serial:
    return eval(expression, {"__builtins__": {}}, _NAMES)


def _compare(name, dtype, rtol):
    case = load(name)
    net = _network(_expressions()[name])
    x1, x2 = case.x1.astype(dtype), case.x2.astype(dtype)
    mask1, mask2 = case.mask1, case.mask2
    if hasattr(case, "pattern1"):
        net = wl.Serial(wl.layers.Graph(), net)
        x1, x2 = (x1, _edges(case.pattern1)), (x2, _edges(case.pattern2))
        mask1, mask2 = (mask1, None), (mask2, None)
    ours = net.kernel(x1, x2, mask=mask1, mask2=mask2, dtype=dtype)
    assert ours.nngp.dtype == ours.ntk.dtype == dtype
    np.testing.assert_allclose(ours.nngp, case.nngp, rtol=rtol, atol=rtol * _scale(case.nngp))
    np.testing.assert_allclose(ours.ntk, case.ntk, rtol=rtol, atol=rtol * _scale(case.ntk))


def _edges(pattern: np.ndarray) -> np.ndarray:
    """From rows for senders to rows for receivers, and an axis for the one kind of edges."""
    half = (pattern.ndim - 1) // 2
    axes = range(1, 1 + half)
    return pattern.transpose(0, *(a + half for a in axes), *axes)[..., None]


# One of each kind; the others run with the slow tests.
_FAST = {
    *("fcn_relu_deep", "fcn_erf_scaled", "fcn_gelu", "fcn_sign", "fcn_layer_norm", "fcn_standard"),
    *("cnn_resize", "cnn_slice", "cnn_contracted", "cnn_normalised_rows"),
    *("cnn_transpose_circular", "cnn_local", "graph_positions", "graph_rows", "masked_graph_pool"),
    *("cnn_flatten", "cnn_pool", "cnn_stride", "cnn_valid", "cnn_circular", "resnet_pool"),
    *("branches_product", "masked_cnn_pool", "masked_cnn_stride", "attention_softmax"),
    *("attention_abs", "attention_relu", "attention_identity_sum", "attention_softmax_concat"),
    *("attention_softmax_sum_values", "attention_softmax_2d", "attention_softmax_residual"),
    *("attention_sqrt_identity_concat_values", "attention_sqrt_identity_pre_norm"),
    *("masked_attention_softmax_sum", "masked_attention_sqrt_identity"),
}


@pytest.mark.parametrize(
    "name",
    [n if n in _FAST else pytest.param(n, marks=pytest.mark.slow) for n in sorted(_expressions())],
)
def test_kernel_matches_reference(name):
    # Of one minus the correlation of inputs 1e-5 apart six digits are left, on either side.
    _compare(name, np.float64, 1e-10 if name == "fcn_relu_nearly_identical" else 1e-12)


_SINGLE = (
    "fcn_relu",
    "fcn_relu_nearly_identical",
    "cnn_pool",
    "masked_cnn_pool",
    "attention_softmax_sum",
    "attention_softmax_pre_norm",
)


@pytest.mark.parametrize("name", _SINGLE)
def test_single_precision_matches_reference(name):
    _compare(name, np.float32, 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(set(_expressions()) - set(_SINGLE)))
def test_single_precision_matches_every_reference(name):
    _compare(name, np.float32, 1e-5)


def _scale(kernel: np.ndarray) -> float:
    return float(np.abs(kernel).max())


def test_every_reference_network_is_read():
    assert len(_expressions()) >= 110
    assert set(_expressions()) > _FAST
