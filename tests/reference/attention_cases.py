"""Networks with `GlobalSelfAttention`, and the combinations that neural-tangents refuses."""

import jax.numpy as jnp
from cases import KernelCase
from described import Described, call_text, residual, stax, weighted_residual
from inputs import (
    IMAGES,
    MASKED_IMAGES,
    MASKED_SEQUENCES,
    SEQUENCES,
    SMALL_IMAGES,
)

DEFAULTS = {
    "linear_scaling": True,
    "W_key_std": 1.2,
    "W_query_std": 0.75,
    "W_value_std": 1.5,
    "W_out_std": 0.8,
    "b_std": 0.3,
}


def rational(d):
    return 1 / (1 + d**2)


def hyperbolic(d):
    return 1 / (1 + d)


def exponential(d):
    return jnp.exp(-0.5 * d)


def _attention(mechanism: str, **options: object) -> Described:
    layer = stax.GlobalSelfAttention(
        8, 8, 8, 4, attention_mechanism=mechanism, **(DEFAULTS | options)
    )
    return Described(call_text("attention", mechanism, **options), layer.value)


def _encoded(mechanism: str, kind: str, on_values: bool, **options: object) -> Described:
    return _attention(
        mechanism, pos_emb_type=kind, val_pos_emb=on_values, W_pos_emb_std=0.7, **options
    )


def _dense(w_std: float = 1.4, b_std: float = 0.2) -> Described:
    return stax.Dense(8, W_std=w_std, b_std=b_std)


def _conv(*window: int) -> Described:
    return stax.Conv(8, window, padding="SAME", W_std=1.4, b_std=0.3)


def _pooled(*layers: Described) -> Described:
    return stax.serial(*layers, stax.GlobalAvgPool(), stax.Dense(1, W_std=1.2, b_std=0.1))


def _around(attention: Described) -> Described:
    return _pooled(_dense(), stax.Relu(), attention)


def _pre_norm(attention: Described) -> Described:
    mlp = [stax.LayerNorm(), _dense(1.4, 0.2), stax.Relu(), _dense(1.1, 0.1)]
    blocks = [residual(stax.LayerNorm(), attention), residual(*mlp)]
    return _pooled(_dense(), *blocks, stax.LayerNorm())


def _post_norm(attention: Described) -> Described:
    mlp = [_dense(1.4, 0.2), stax.Gelu(), _dense(1.1, 0.1)]
    blocks = [residual(attention), stax.LayerNorm(), residual(*mlp), stax.LayerNorm()]
    return _pooled(_dense(), *blocks)


_SOFTMAX = _attention("SOFTMAX")
_SQRT = _attention("IDENTITY", linear_scaling=False)
_DECAY = {"pos_emb_p_norm": 1, "pos_emb_decay_fn": rational}
_SMOOTH = {"pos_emb_p_norm": 2, "pos_emb_decay_fn": exponential}
_FIRST = Described("Slice[:, 0]", (slice(None), 0))


def _sqrt(kind: str, on_values: bool, **options: object) -> Described:
    return _encoded("IDENTITY", kind, on_values, linear_scaling=False, **options)


CASES = {
    # Score maps at 1/d, and the identity at 1/√d.
    "attention_softmax": KernelCase(SEQUENCES, _around(_SOFTMAX)),
    "attention_identity": KernelCase(SEQUENCES, _around(_attention("IDENTITY"))),
    "attention_relu": KernelCase(SEQUENCES, _pooled(_dense(), _attention("RELU"))),
    "attention_abs": KernelCase(SEQUENCES, _pooled(_dense(), _attention("ABS"))),
    "attention_sqrt_identity": KernelCase(SEQUENCES, _around(_SQRT)),
    "attention_softmax_no_bias": KernelCase(SEQUENCES, _around(_attention("SOFTMAX", b_std=None))),
    "attention_softmax_raw": KernelCase(SEQUENCES, _pooled(_SOFTMAX), "on the raw input"),
    "attention_sqrt_identity_raw": KernelCase(SEQUENCES, _pooled(_SQRT), "on the raw input"),
    "attention_softmax_2d": KernelCase(IMAGES, _around(_SOFTMAX)),
    # Positional encodings: added or concatenated, on the scores alone or also on the values.
    "attention_softmax_sum": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "SUM", False, **_DECAY))
    ),
    "attention_softmax_sum_values": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "SUM", True, **_SMOOTH))
    ),
    "attention_softmax_concat": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "CONCAT", False, **_SMOOTH)), "shares 8 : 8"
    ),
    "attention_softmax_concat_values": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "CONCAT", True, **_DECAY)), "shares 8 : 8"
    ),
    "attention_softmax_concat_share": KernelCase(
        SEQUENCES,
        _around(_encoded("SOFTMAX", "CONCAT", True, n_chan_pos_emb=3, **_DECAY)),
        "shares 8 : 3",
    ),
    "attention_softmax_concat_raw": KernelCase(
        SEQUENCES,
        _pooled(_encoded("SOFTMAX", "CONCAT", True, n_chan_pos_emb=2, **_DECAY)),
        "on the raw input, shares 4 : 2",
    ),
    "attention_softmax_sum_one_hot": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "SUM", True)), "no decay: R is the identity"
    ),
    "attention_softmax_sum_raw": KernelCase(
        SEQUENCES, _pooled(_encoded("SOFTMAX", "SUM", True, **_SMOOTH)), "on the raw input"
    ),
    "attention_identity_sum": KernelCase(
        SEQUENCES, _around(_encoded("IDENTITY", "SUM", False, **_SMOOTH))
    ),
    "attention_relu_sum_values": KernelCase(
        SEQUENCES, _pooled(_dense(), _encoded("RELU", "SUM", True, **_DECAY))
    ),
    "attention_abs_concat": KernelCase(
        SEQUENCES, _pooled(_dense(), _encoded("ABS", "CONCAT", False, **_DECAY)), "shares 8 : 8"
    ),
    "attention_sqrt_identity_sum": KernelCase(SEQUENCES, _around(_sqrt("SUM", False, **_DECAY))),
    "attention_sqrt_identity_sum_values": KernelCase(
        SEQUENCES, _around(_sqrt("SUM", True, **_SMOOTH))
    ),
    "attention_sqrt_identity_concat": KernelCase(
        SEQUENCES, _around(_sqrt("CONCAT", False, **_SMOOTH)), "shares 8 : 8"
    ),
    "attention_sqrt_identity_concat_values": KernelCase(
        SEQUENCES,
        _around(_sqrt("CONCAT", True, n_chan_pos_emb=3, **_DECAY)),
        "shares 8 : 3",
    ),
    "attention_sqrt_identity_sum_raw": KernelCase(
        SEQUENCES, _pooled(_sqrt("SUM", False, **_SMOOTH)), "on the raw input"
    ),
    "attention_softmax_sum_2d": KernelCase(
        IMAGES, _around(_encoded("SOFTMAX", "SUM", False, **_SMOOTH))
    ),
    "attention_softmax_concat_values_2d": KernelCase(
        IMAGES,
        _around(_encoded("SOFTMAX", "CONCAT", True, pos_emb_p_norm=2, pos_emb_decay_fn=hyperbolic)),
        "shares 8 : 8",
    ),
    "attention_identity_sum_values_2d": KernelCase(
        IMAGES,
        _around(_encoded("IDENTITY", "SUM", True, pos_emb_p_norm=1, pos_emb_decay_fn=exponential)),
    ),
    "attention_sqrt_identity_sum_2d": KernelCase(
        IMAGES,
        _around(_sqrt("SUM", False, pos_emb_p_norm=1, pos_emb_decay_fn=exponential)),
    ),
    "attention_sqrt_identity_concat_values_2d": KernelCase(
        IMAGES, _around(_sqrt("CONCAT", True, **_SMOOTH)), "shares 8 : 8"
    ),
    # Among other layers.
    "attention_softmax_relu_pool": KernelCase(
        SEQUENCES, _pooled(_SOFTMAX, stax.Relu(), _dense(), stax.Relu())
    ),
    "attention_sqrt_identity_relu_pool": KernelCase(
        SEQUENCES, _pooled(_SQRT, stax.Relu(), _dense(), stax.Relu())
    ),
    "attention_softmax_flatten": KernelCase(
        SEQUENCES, stax.serial(_SOFTMAX, stax.Relu(), stax.Flatten(), _dense())
    ),
    "attention_softmax_index": KernelCase(
        SEQUENCES, stax.serial(_dense(), _SOFTMAX, stax.Index(_FIRST), _dense())
    ),
    "attention_softmax_convs": KernelCase(
        SEQUENCES, _pooled(_conv(3), stax.Relu(), _SOFTMAX, _conv(3), stax.Relu())
    ),
    "attention_softmax_convs_2d": KernelCase(
        IMAGES,
        _pooled(
            _conv(3, 3),
            stax.Relu(),
            _encoded("SOFTMAX", "SUM", False, **_SMOOTH),
            _conv(3, 3),
            stax.Relu(),
        ),
    ),
    "attention_softmax_twice": KernelCase(
        SEQUENCES, _pooled(_SOFTMAX, _encoded("SOFTMAX", "SUM", True, **_DECAY))
    ),
    "attention_sqrt_identity_twice": KernelCase(SEQUENCES, _pooled(_SQRT, _SQRT)),
    "attention_softmax_residual": KernelCase(
        SEQUENCES, _pooled(_dense(), residual(_SOFTMAX), stax.Relu())
    ),
    "attention_softmax_weighted_residual": KernelCase(
        SEQUENCES, _pooled(_dense(), weighted_residual(0.3, _SOFTMAX), stax.Relu())
    ),
    "attention_softmax_pre_norm": KernelCase(SEQUENCES, _pre_norm(_SOFTMAX)),
    "attention_softmax_post_norm": KernelCase(SEQUENCES, _post_norm(_SOFTMAX)),
    "attention_sqrt_identity_pre_norm": KernelCase(SEQUENCES, _pre_norm(_SQRT)),
    "attention_sqrt_identity_post_norm": KernelCase(
        SEQUENCES, _post_norm(_sqrt("SUM", False, **_DECAY))
    ),
    # Outputs that keep their positions.
    "attention_softmax_positions": KernelCase(SEQUENCES, stax.serial(_dense(), _SOFTMAX)),
    "attention_sqrt_identity_positions": KernelCase(
        SEQUENCES, stax.serial(_dense(), _sqrt("SUM", False, **_DECAY))
    ),
    "attention_softmax_positions_2d": KernelCase(
        SMALL_IMAGES,
        stax.serial(_conv(1, 3), _encoded("SOFTMAX", "SUM", True, **_SMOOTH)),
        "the two directions differ in length",
    ),
    # Padded examples.
    "masked_attention_softmax": KernelCase(MASKED_SEQUENCES, _around(_SOFTMAX)),
    "masked_attention_softmax_raw": KernelCase(
        MASKED_SEQUENCES, _pooled(_SOFTMAX), "on the raw input"
    ),
    "masked_attention_identity": KernelCase(MASKED_SEQUENCES, _around(_attention("IDENTITY"))),
    "masked_attention_relu": KernelCase(MASKED_SEQUENCES, _pooled(_dense(), _attention("RELU"))),
    "masked_attention_sqrt_identity": KernelCase(MASKED_SEQUENCES, _around(_SQRT)),
    "masked_attention_softmax_sum": KernelCase(
        MASKED_SEQUENCES, _around(_encoded("SOFTMAX", "SUM", False, **_DECAY))
    ),
    "masked_attention_softmax_concat_values": KernelCase(
        MASKED_SEQUENCES,
        _around(_encoded("SOFTMAX", "CONCAT", True, **_SMOOTH)),
        "shares 8 : 8",
    ),
    "masked_attention_sqrt_identity_sum": KernelCase(
        MASKED_SEQUENCES, _around(_sqrt("SUM", False, **_DECAY))
    ),
    "masked_attention_convs": KernelCase(
        MASKED_SEQUENCES, _pooled(_conv(3), stax.Relu(), _SOFTMAX, _conv(3), stax.Relu())
    ),
    "masked_attention_softmax_2d": KernelCase(
        MASKED_IMAGES,
        _pooled(_conv(3, 3), stax.Relu(), _encoded("SOFTMAX", "SUM", False, **_SMOOTH)),
    ),
    "masked_attention_pre_norm": KernelCase(MASKED_SEQUENCES, _pre_norm(_SOFTMAX)),
    "masked_attention_positions": KernelCase(
        MASKED_SEQUENCES,
        stax.serial(_dense(), _SOFTMAX),
        "rows and columns of padded positions are zero",
    ),
}

REFUSED = {
    f"1/√d with {mechanism}": KernelCase(
        SEQUENCES, _pooled(_attention(mechanism, linear_scaling=False))
    )
    for mechanism in ("SOFTMAX", "RELU", "ABS")
} | {
    "added encodings with another number of channels": KernelCase(
        SEQUENCES, _around(_encoded("SOFTMAX", "SUM", False, n_chan_pos_emb=3, **_DECAY))
    ),
    "encodings on a raw padded input": KernelCase(
        MASKED_SEQUENCES, _pooled(_encoded("SOFTMAX", "SUM", False, **_DECAY))
    ),
    "pooling of a raw padded input": KernelCase(MASKED_SEQUENCES, _pooled()),
    "LayerNorm after an activation": KernelCase(
        SEQUENCES, _pooled(_dense(), stax.Relu(), stax.LayerNorm())
    ),
    "LayerNorm of the raw input": KernelCase(SEQUENCES, _pooled(stax.LayerNorm(), _dense())),
    "a residual around a bare activation": KernelCase(
        SEQUENCES, _pooled(_dense(), residual(stax.Relu()))
    ),
    "a residual around a branch of the raw input": KernelCase(
        SEQUENCES, _pooled(residual(_SOFTMAX, stax.Dense(4)))
    ),
    "an activation of the raw input": KernelCase(SEQUENCES, _pooled(stax.Relu())),
}
