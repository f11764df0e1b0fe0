"""Networks without attention."""

import numpy as np
from cases import KernelCase
from described import Described, residual, stax
from inputs import (
    GRAPHS,
    IMAGES,
    IMAGES_OF_PIXELS,
    IMAGES_OF_ROWS,
    MASKED_GRAPHS,
    MASKED_IMAGES,
    MASKED_SEQUENCES,
    NEARLY_IDENTICAL,
    ODD_IMAGES,
    SEQUENCES,
    SMALL_IMAGES,
    VECTORS,
)


def _fcn(activation: Described, hidden: int, w_std: float = 1.4, b_std: float = 0.3) -> Described:
    layers = [stax.Dense(8, W_std=w_std, b_std=b_std), activation] * hidden
    return stax.serial(*layers, stax.Dense(1, W_std=1.2, b_std=0.1))


def _conv(window: tuple[int, ...] = (3, 3), padding: str = "SAME", **options: object) -> Described:
    return stax.Conv(8, window, padding=padding, W_std=1.4, b_std=0.3, **options)


def _readout() -> Described:
    return stax.Dense(1, W_std=1.2, b_std=0.1)


def _cnn(readout: Described, window: tuple[int, ...] = (3, 3), **options: object) -> Described:
    conv = _conv(window, **options)
    return stax.serial(conv, stax.Relu(), conv, stax.Relu(), readout, _readout())


def _transposed(window: tuple[int, ...], padding: str, strides: tuple[int, ...]) -> Described:
    return stax.ConvTranspose(8, window, strides=strides, padding=padding, W_std=1.4, b_std=0.3)


def _cnn_of(layer: str, readout: Described, **options: object) -> Described:
    given = {"padding": "SAME", "W_std": 1.4, "b_std": 0.3} | options
    conv = getattr(stax, layer)(8, (2,), **given)
    return stax.serial(conv, stax.Relu(), conv, stax.Relu(), readout, _readout())


def _cnn_with(*layers: Described) -> Described:
    first = [_conv()] if len(layers) > 1 else [_conv(), stax.Relu()]
    return stax.serial(*first, *layers, _conv(), stax.Relu(), stax.GlobalAvgPool(), _readout())


def _dense() -> Described:
    return stax.Dense(8, W_std=1.4, b_std=0.3)


def _graph(readout: Described, **options: object) -> Described:
    layers = [_dense(), stax.Aggregate(**options), stax.Relu()] * 2
    return stax.serial(*layers, readout, _readout())


def _normalised_hermite(degree: int) -> Described:
    dense = stax.Dense(8, W_std=1.4, b_std=0.3)
    return stax.serial(dense, stax.LayerNorm(), stax.Hermite(degree), _readout())


def _layer_norm_stack() -> Described:
    block = [stax.Dense(8, W_std=1.4, b_std=0.3), stax.LayerNorm(), stax.Relu()]
    return stax.serial(*block, *block, _readout())


def _layer_norm_cnn() -> Described:
    block = [_conv(), stax.LayerNorm(axis=-1), stax.Relu()]
    return stax.serial(*block, *block, stax.GlobalAvgPool(), _readout())


def _standard(*layers: Described) -> Described:
    last = stax.Dense(1, W_std=1.2, b_std=0.1, parameterization="standard")
    return stax.serial(*layers, last)


def _standard_dense(width: int, b_std: float | None) -> Described:
    return stax.Dense(width, W_std=1.4, b_std=b_std, parameterization="standard")


def _resnet(readout: Described, *blocks: Described) -> Described:
    return stax.serial(_conv(), *blocks, stax.Relu(), readout, _readout())


def _branches(join: Described, *branches: Described) -> Described:
    stem = [stax.Dense(8, W_std=1.4, b_std=0.3), stax.Relu()]
    fan_out = stax.FanOut(len(branches))
    return stax.serial(*stem, fan_out, stax.parallel(*branches), join, _readout())


def _gate(activation: Described) -> Described:
    return stax.serial(stax.Dense(8, W_std=1.1, b_std=0.2), activation)


_INNER = stax.Conv(8, (3, 3), padding="SAME", W_std=1.1, b_std=0.2)
_BLOCK = residual(_INNER, stax.Relu(), _INNER)
_PREACTIVATION_BLOCK = residual(stax.Relu(), _INNER, stax.Relu(), _INNER)
_LINEAR = stax.Dense(8, W_std=0.9, b_std=0.4)
_PART = Described("Slice[:, 1::2, ::-1]", (slice(None), slice(1, None, 2), slice(None, None, -1)))
_WEIGHTS = Described("weights(3, 4)", np.cos(np.arange(12.0)).reshape(3, 4))
_LAST = Described("Slice[:, -1]", (slice(None), -1))

CASES = {
    # Fully connected.
    "fcn_relu": KernelCase(VECTORS, _fcn(stax.Relu(), 3)),
    "fcn_relu_deep": KernelCase(VECTORS, _fcn(stax.Relu(), 20, w_std=1.5, b_std=0.1)),
    "fcn_relu_nearly_identical": KernelCase(NEARLY_IDENTICAL, _fcn(stax.Relu(), 5)),
    "fcn_erf": KernelCase(VECTORS, _fcn(stax.Erf(), 5)),
    "fcn_erf_scaled": KernelCase(VECTORS, _fcn(stax.Erf(a=1.3, b=0.7, c=0.0), 2)),
    "fcn_gelu": KernelCase(VECTORS, _fcn(stax.Gelu(), 3), "exact GELU, not the tanh approximation"),
    "fcn_leaky_relu": KernelCase(VECTORS, _fcn(stax.LeakyRelu(alpha=0.3), 3)),
    "fcn_abrelu": KernelCase(VECTORS, _fcn(stax.ABRelu(a=-0.4, b=1.2), 3)),
    "fcn_abs": KernelCase(VECTORS, _fcn(stax.Abs(), 2)),
    "fcn_sign": KernelCase(VECTORS, _fcn(stax.Sign(), 2)),
    "fcn_sin": KernelCase(VECTORS, _fcn(stax.Sin(), 3)),
    "fcn_sin_shifted": KernelCase(VECTORS, _fcn(stax.Sin(a=1.2, b=0.8, c=0.5), 2)),
    "fcn_cos": KernelCase(VECTORS, _fcn(stax.Cos(), 2)),
    "fcn_exp": KernelCase(VECTORS, _fcn(stax.Exp(a=0.8, b=0.3), 2, w_std=0.8)),
    "fcn_gaussian": KernelCase(VECTORS, _fcn(stax.Gaussian(), 2)),
    "fcn_gaussian_scaled": KernelCase(VECTORS, _fcn(stax.Gaussian(a=1.5, b=-0.4), 2)),
    "fcn_monomial_2": KernelCase(VECTORS, _fcn(stax.Monomial(degree=2), 1)),
    "fcn_monomial_3": KernelCase(VECTORS, _fcn(stax.Monomial(degree=3), 2, w_std=0.7)),
    "fcn_polynomial": KernelCase(
        VECTORS, _fcn(stax.Polynomial(coef=[0.5, 1.0, -0.3, 0.2]), 2, w_std=0.8)
    ),
    "fcn_hermite_2": KernelCase(VECTORS, _normalised_hermite(2)),
    "fcn_hermite_3": KernelCase(VECTORS, _normalised_hermite(3)),
    "fcn_sigmoid_like": KernelCase(VECTORS, _fcn(stax.Sigmoid_like(), 3)),
    "fcn_standard": KernelCase(
        VECTORS,
        _standard(
            *[_standard_dense(6, 0.3), stax.Relu()],
            *[_standard_dense(7, 0.3), stax.Relu()],
            *[_standard_dense(5, None), stax.Relu()],
        ),
        "the widths 6, 7, 5 matter; the third layer has no bias",
    ),
    "fcn_dropout": KernelCase(
        VECTORS,
        stax.serial(
            *[stax.Dense(8, W_std=1.4, b_std=0.3), stax.Relu(), stax.Dropout(rate=0.7)],
            *[stax.Dense(8, W_std=1.4, b_std=0.3), stax.Relu(), _readout()],
        ),
        "`rate` is the probability to keep; masks differ between all examples of x1 and x2",
    ),
    "fcn_layer_norm": KernelCase(VECTORS, _layer_norm_stack()),
    "branches_product": KernelCase(
        VECTORS, _branches(stax.FanInProd(), _gate(stax.Gelu()), _LINEAR)
    ),
    "branches_sum": KernelCase(
        VECTORS, _branches(stax.FanInSum(), stax.serial(_gate(stax.Relu()), _LINEAR), _LINEAR)
    ),
    "branches_concat": KernelCase(
        VECTORS,
        _branches(stax.FanInConcat(), _gate(stax.Relu()), stax.Dense(4, W_std=0.9, b_std=0.4)),
        "channel shares 8 : 4",
    ),
    # Convolutions.
    "cnn_flatten": KernelCase(IMAGES, _cnn(stax.Flatten())),
    "cnn_pool": KernelCase(IMAGES, _cnn(stax.GlobalAvgPool())),
    "cnn_sum_pool": KernelCase(IMAGES, _cnn(stax.GlobalSumPool())),
    "cnn_valid": KernelCase(ODD_IMAGES, _cnn(stax.GlobalAvgPool(), padding="VALID")),
    "cnn_circular": KernelCase(IMAGES, _cnn(stax.GlobalAvgPool(), padding="CIRCULAR")),
    "cnn_stride": KernelCase(
        ODD_IMAGES,
        _cnn(stax.GlobalAvgPool(), strides=(2, 2)),
        "side 5, window 3: left padding 1 at both layers (5 → 3 → 2)",
    ),
    "cnn_valid_stride": KernelCase(
        ODD_IMAGES,
        stax.serial(
            *[_conv((2, 3), "VALID", strides=(1, 2)), stax.Relu()],
            *[stax.GlobalAvgPool(), _readout()],
        ),
        "different windows and strides along rows and columns",
    ),
    "cnn_even_window": KernelCase(
        SEQUENCES, _cnn(stax.GlobalAvgPool(), (2,)), "left padding 0, right padding 1"
    ),
    "cnn_avg_pool": KernelCase(
        IMAGES,
        stax.serial(
            *[_conv(), stax.Relu(), stax.AvgPool((2, 2), strides=(2, 2))],
            *[_conv((2, 2)), stax.Relu(), stax.Flatten(), _readout()],
        ),
    ),
    "cnn_window_sum_pool": KernelCase(
        IMAGES,
        stax.serial(
            *[_conv(), stax.Relu(), stax.SumPool((2, 2), strides=(2, 2))],
            *[stax.Flatten(), _readout()],
        ),
    ),
    "cnn_standard": KernelCase(
        IMAGES,
        _standard(
            *[_conv(parameterization="standard"), stax.Relu()],
            *[_conv(parameterization="standard"), stax.Relu(), stax.GlobalAvgPool()],
        ),
        "the width 8 and the windows matter",
    ),
    "cnn_layer_norm": KernelCase(IMAGES, _layer_norm_cnn()),
    "resnet_pool": KernelCase(IMAGES, _resnet(stax.GlobalAvgPool(), _BLOCK)),
    "resnet_preactivation_pool": KernelCase(
        IMAGES, _resnet(stax.GlobalAvgPool(), _PREACTIVATION_BLOCK, _PREACTIVATION_BLOCK)
    ),
    "resnet_preactivation_flatten": KernelCase(
        IMAGES, _resnet(stax.Flatten(), _PREACTIVATION_BLOCK, _PREACTIVATION_BLOCK)
    ),
    "cnn_index": KernelCase(SEQUENCES, _cnn(stax.Index(_LAST), (3,)), "the last position"),
    # Transposed and locally connected convolutions.
    **{
        f"cnn_transpose_{name}": KernelCase(
            IMAGES, stax.serial(_conv((2, 3)), stax.Relu(), _transposed(window, padding, strides))
        )
        for name, window, padding, strides in (
            ("same", (3, 2), "SAME", (2, 1)),
            ("valid", (2, 4), "VALID", (3, 2)),
            ("circular", (4, 3), "CIRCULAR", (2, 1)),
        )
    },
    "cnn_transpose_standard": KernelCase(
        SEQUENCES, _cnn_of("ConvTranspose", stax.GlobalAvgPool(), parameterization="standard")
    ),
    "cnn_local": KernelCase(SEQUENCES, _cnn_of("ConvLocal", stax.Flatten())),
    "cnn_local_pool": KernelCase(SEQUENCES, _cnn_of("ConvLocal", stax.GlobalAvgPool())),
    "cnn_local_valid": KernelCase(
        SEQUENCES, _cnn_of("ConvLocal", stax.GlobalAvgPool(), padding="VALID", strides=(2,))
    ),
    "cnn_local_standard": KernelCase(
        SEQUENCES, _cnn_of("ConvLocal", stax.Flatten(), parameterization="standard")
    ),
    # Fixed linear maps over positions, and normalisation over positions and channels.
    "cnn_resize": KernelCase(IMAGES, _cnn_with(stax.ImageResize((-1, 7, 7, -1), method="linear"))),
    "cnn_resize_alias": KernelCase(
        IMAGES, _cnn_with(stax.ImageResize((-1, 3, 3, -1), method="linear", antialias=False))
    ),
    "cnn_resize_nearest": KernelCase(
        IMAGES, _cnn_with(stax.ImageResize((-1, 7, 7, -1), method="nearest"))
    ),
    "cnn_slice": KernelCase(IMAGES, _cnn_with(stax.Index(_PART))),
    "cnn_contracted": KernelCase(
        IMAGES,
        stax.serial(
            *[_conv(), stax.Relu()],
            stax.DotGeneral(lhs=_WEIGHTS, dimension_numbers=(((1,), (1,)), ((), ()))),
            stax.Dense(8, W_std=1.4, b_std=0.3, batch_axis=1),
            *[stax.Relu(), stax.GlobalAvgPool(batch_axis=1), _readout()],
        ),
        "examples are the second axis after DotGeneral",
    ),
    "cnn_normalised": KernelCase(IMAGES, _cnn_with(stax.LayerNorm(axis=(1, 2, 3)), stax.Relu())),
    "cnn_normalised_rows": KernelCase(IMAGES, _cnn_with(stax.LayerNorm(axis=(1, 3)), stax.Relu())),
    # Graphs.
    "graph_pool": KernelCase(GRAPHS, _graph(stax.GlobalAvgPool())),
    "graph_flatten": KernelCase(GRAPHS, _graph(stax.Flatten())),
    "graph_positions": KernelCase(
        GRAPHS, stax.serial(_dense(), stax.Erf(), stax.Aggregate(), _dense())
    ),
    "graph_residual": KernelCase(
        GRAPHS,
        stax.serial(
            _dense(),
            residual(stax.Relu(), stax.Aggregate(), _dense()),
            stax.Relu(),
            stax.GlobalSumPool(),
            _readout(),
        ),
    ),
    "graph_pixels": KernelCase(
        IMAGES_OF_PIXELS, _graph(stax.GlobalAvgPool(), aggregate_axis=(1, 2))
    ),
    "graph_rows": KernelCase(IMAGES_OF_ROWS, _graph(stax.GlobalAvgPool(), aggregate_axis=1)),
    "masked_graph_pool": KernelCase(MASKED_GRAPHS, _graph(stax.GlobalAvgPool())),
    "masked_graph_sum_pool": KernelCase(MASKED_GRAPHS, _graph(stax.GlobalSumPool())),
    # Outputs that keep their positions.
    "dense_positions": KernelCase(SEQUENCES, _fcn(stax.Relu(), 2)),
    "cnn_positions": KernelCase(SEQUENCES, stax.serial(_conv((3,)), stax.Erf(), _conv((3,)))),
    "cnn_positions_2d": KernelCase(
        SMALL_IMAGES, stax.serial(_conv((1, 3)), stax.Relu(), _conv((2, 2)))
    ),
    # Padded examples.
    "masked_cnn_pool": KernelCase(MASKED_SEQUENCES, _cnn(stax.GlobalAvgPool(), (3,))),
    "masked_cnn_sum_pool": KernelCase(MASKED_SEQUENCES, _cnn(stax.GlobalSumPool(), (3,))),
    "masked_cnn_stride": KernelCase(
        MASKED_SEQUENCES,
        stax.serial(
            *[_conv((3,), strides=(2,)), stax.Relu(), _conv((3,)), stax.Relu()],
            *[stax.GlobalAvgPool(), _readout()],
        ),
        "padded length 5: left padding 1; position j is real after the stride if 2j was before",
    ),
    "masked_cnn_cos": KernelCase(
        MASKED_SEQUENCES,
        stax.serial(
            *[_conv((3,)), stax.Cos(), _conv((3,)), stax.Gaussian()],
            *[stax.GlobalAvgPool(), _readout()],
        ),
        "activations that are not zero at zero",
    ),
    "masked_cnn_positions": KernelCase(
        MASKED_SEQUENCES,
        stax.serial(_conv((3,)), stax.Relu(), _conv((3,))),
        "rows and columns of padded positions are zero",
    ),
    "masked_cnn_pool_2d": KernelCase(MASKED_IMAGES, _cnn(stax.GlobalAvgPool())),
    "masked_layer_norm": KernelCase(
        MASKED_SEQUENCES,
        stax.serial(_conv((3,)), stax.LayerNorm(), stax.Relu(), stax.GlobalAvgPool(), _readout()),
    ),
}
