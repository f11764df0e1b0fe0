"""Transformers from Hugging Face style configurations: ViT, BERT and GPT-2 shapes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import duals
from ..errors import OptionError
from ..options import whole
from .activations import Activation, Gelu, Relu, Silu, Tanh
from .attention.layer import Attention
from .attention.scores import Causal, Pattern
from .base import Layer
from .branches import Residual
from .compose import Serial
from .conv import Conv
from .dense import Dense, Embedding
from .norm import LayerNorm
from .pool import Select
from .tokens import ClassToken, PositionTable

# Words about training, files and tokenisers: none changes the function at initialisation. Dropout
# is that of evaluation, where nothing is dropped.
_BESIDE = {
    "_name_or_path", "architectures", "attention_probs_dropout_prob", "attn_pdrop", "bos_token_id",
    "classifier_dropout", "dtype", "embd_pdrop", "encoder_stride", "eos_token_id",
    "gradient_checkpointing", "hidden_dropout_prob", "label2id", "model_type", "pad_token_id",
    "pooler_act", "pooler_output_size", "problem_type", "reorder_and_upcast_attn", "resid_pdrop",
    "return_dict", "summary_activation", "summary_first_dropout", "summary_proj_to_labels",
    "summary_type", "summary_use_proj", "task_specific_params", "torch_dtype",
    "transformers_version", "use_cache",
}  # fmt: skip

_ACTIVATIONS: dict[str, Callable[[], Activation]] = {
    "gelu": Gelu,
    "gelu_new": lambda: Activation(duals.tanh_gelu()),
    "gelu_pytorch_tanh": lambda: Activation(duals.tanh_gelu()),
    "relu": Relu,
    "silu": Silu,
    "swish": Silu,
    "tanh": Tanh,
}


@dataclass(frozen=True)
class _Fields:
    """What a configuration of one type may say: defaults, and what only one value is known of."""

    defaults: dict[str, Any]
    fixed: dict[str, Any]


_SIZES = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
_KNOWN = {
    "vit": _Fields(
        _SIZES | {"image_size": 224, "patch_size": 16, "num_channels": 3},
        {"qkv_bias": (True, False)},
    ),
    "bert": _Fields(
        _SIZES | {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
        {
            "position_embedding_type": ("absolute",),
            "is_decoder": (False,),
            "add_cross_attention": (False,),
        },
    ),
    "gpt2": _Fields(
        {
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "n_inner": None,
            "activation_function": "gelu_new",
            "layer_norm_epsilon": 1e-5,
            "initializer_range": 0.02,
        },
        {
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
    ),
}


def from_config(config: Mapping[str, Any], *, outputs: int | None = None) -> Serial:
    """The network that a configuration with Hugging Face's field names describes.

    `config["model_type"]` is "vit", "bert" or "gpt2"; fields that are missing have that library's
    defaults. `outputs` of a classifier: by default as many as the configuration has labels, or 1.

    All weights are N(0, r²) with `r = initializer_range`, whatever the width: at the width given, a
    layer on n inputs has `σ_w = r·√n` (0.55 for 768), embeddings and positions r; biases are zero.
    So the network is the limit of widening each layer *with its σ kept*, not with r kept. The last
    weights of a GPT-2 branch have r/√(2·layers). Dropout is that of evaluation. ViT and BERT read
    out the first position (BERT through a tanh layer), GPT-2 the last.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise OptionError(
            f"model_type is one of {', '.join(map(repr, _KNOWN))}.",
            got=f"model_type={kind!r}",
            remedy="name the type, or write the network with TransformerEncoder",
        )
    values = _checked(config, _KNOWN[kind], kind)
    labels = _labels(config, outputs)
    make = {"vit": _vit, "bert": _bert, "gpt2": _gpt2}[kind]
    return make(values, labels)


@dataclass(frozen=True)
class _Shape:
    """Sizes and scales that all three have."""

    width: int
    depth: int
    heads: int
    hidden: int
    activation: Callable[[], Activation]
    eps: float
    spread: float

    def std(self, fan_in: int) -> float:
        """σ_w = r·√fan_in."""
        return self.spread * float(np.sqrt(fan_in))

    def branches(self, pattern: Pattern | None, last: float) -> tuple[Layer, Layer]:
        """Attention and an MLP; `last` multiplies their last weights."""
        each = self.width // self.heads
        square = self.std(self.width) ** 2
        attention = Attention(
            self.width,
            heads=self.heads,
            qk_std=square,
            ov_std=square * last,
            pattern=pattern,
            key_width=each,
            value_width=each,
        )
        mlp = Serial(
            Dense(self.hidden, w_std=self.std(self.width)),
            self.activation(),
            Dense(self.width, w_std=self.std(self.hidden) * last),
        )
        return attention, mlp

    def norm(self) -> LayerNorm:
        """LayerNorm with this ε."""
        return LayerNorm(eps=self.eps)

    def pre_norm(self, pattern: Pattern | None = None, last: float = 1.0) -> list[Layer]:
        """Blocks `x + g(norm(x))`, and a last normalisation."""
        found: list[Layer] = []
        for _ in range(self.depth):
            found += [
                Residual(Serial(self.norm(), branch)) for branch in self.branches(pattern, last)
            ]
        return [*found, self.norm()]

    def post_norm(self) -> list[Layer]:
        """Blocks `norm(x + g(x))`."""
        found: list[Layer] = []
        for _ in range(self.depth):
            for branch in self.branches(None, 1.0):
                found += [Residual(branch), self.norm()]
        return found


def _vit(values: dict[str, Any], outputs: int) -> Serial:
    shape = _shape(values)
    image, patch, channels = (
        whole(name, values[name]) for name in ("image_size", "patch_size", "num_channels")
    )
    if image % patch:
        raise _contradiction("Patches tile the image.", values, "image_size", "patch_size")
    cut = Conv(
        shape.width,
        patch,
        stride=patch,
        padding="valid",
        w_std=shape.std(patch * patch * channels),
    )
    return Serial(
        cut,
        ClassToken(std=shape.spread),
        PositionTable(std=shape.spread, most=1 + (image // patch) ** 2),
        *shape.pre_norm(),
        Select(0),
        Dense(outputs, w_std=shape.std(shape.width)),
    )


def _bert(values: dict[str, Any], outputs: int) -> Serial:
    shape = _shape(values)
    types = whole("type_vocab_size", values["type_vocab_size"], least=0)
    vocabulary = whole("vocab_size", values["vocab_size"])
    most = whole("max_position_embeddings", values["max_position_embeddings"])
    common = shape.spread if types else 0.0
    return Serial(
        Embedding(shape.width, vocabulary=vocabulary, std=shape.spread),
        PositionTable(std=shape.spread, common_std=common, most=most),
        shape.norm(),
        *shape.post_norm(),
        Select(0),
        Dense(shape.width, w_std=shape.std(shape.width)),
        Tanh(),
        Dense(outputs, w_std=shape.std(shape.width)),
    )


def _gpt2(values: dict[str, Any], outputs: int) -> Serial:
    width = whole("n_embd", values["n_embd"])
    inner = values["n_inner"]
    common = {
        "hidden_size": width,
        "num_hidden_layers": values["n_layer"],
        "num_attention_heads": values["n_head"],
        "intermediate_size": 4 * width if inner is None else inner,
        "hidden_act": values["activation_function"],
        "layer_norm_eps": values["layer_norm_epsilon"],
        "initializer_range": values["initializer_range"],
    }
    shape = _shape(common)
    vocabulary = whole("vocab_size", values["vocab_size"])
    most = whole("n_positions", values["n_positions"])
    return Serial(
        Embedding(width, vocabulary=vocabulary, std=shape.spread),
        PositionTable(std=shape.spread, most=most),
        *shape.pre_norm(Causal(), last=float(1 / np.sqrt(2 * shape.depth))),
        Select(-1),
        Dense(outputs, w_std=shape.std(width)),
    )


def _shape(values: dict[str, Any]) -> _Shape:
    width, depth, heads, hidden = (
        whole(name, values[name])
        for name in (
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
        )
    )
    if width % heads:
        raise _contradiction(
            "Heads share the channels equally.", values, "hidden_size", "num_attention_heads"
        )
    name = values["hidden_act"]
    if name not in _ACTIVATIONS:
        raise OptionError(
            f"hidden_act is one of {', '.join(map(repr, _ACTIVATIONS))}.",
            got=f"hidden_act={name!r}",
            remedy="use one of these, or write the network with TransformerEncoder(activation=…)",
        )
    for field in ("initializer_range", "layer_norm_eps"):
        if not isinstance(values[field], int | float) or not 0 < values[field] < np.inf:
            raise OptionError(
                f"{field} is a positive number.",
                got=f"{field}={values[field]!r}",
                remedy="give a number above 0",
            )
    return _Shape(
        width,
        depth,
        heads,
        hidden,
        _ACTIVATIONS[name],
        float(values["layer_norm_eps"]),
        float(values["initializer_range"]),
    )


def _checked(config: Mapping[str, Any], fields: _Fields, kind: str) -> dict[str, Any]:
    """Fields with their defaults; unknown ones are refused."""
    labels = {"num_labels", "id2label"}
    unknown = sorted({*config} - {*fields.defaults} - {*fields.fixed} - _BESIDE - labels)
    if unknown:
        raise OptionError(
            f"A configuration of type {kind!r} has the fields "
            f"{', '.join((*fields.defaults, *fields.fixed))}.",
            got=f"{', '.join(unknown)} as well",
            remedy="leave them out, or write the network with TransformerEncoder",
        )
    for name, allowed in fields.fixed.items():
        if config.get(name, allowed[0]) not in allowed:
            raise OptionError(
                f"{name} is {' or '.join(map(repr, allowed))}.",
                got=f"{name}={config[name]!r}",
                remedy="write the network with TransformerEncoder or Attention",
            )
    return {name: config.get(name, default) for name, default in fields.defaults.items()}


def _labels(config: Mapping[str, Any], outputs: int | None) -> int:
    """How many outputs there are, by all that is said about them."""
    said = {
        "outputs": outputs,
        "num_labels": config.get("num_labels"),
        "id2label": None if config.get("id2label") is None else len(config["id2label"]),
    }
    given = {name: count for name, count in said.items() if count is not None}
    if len(set(given.values())) > 1:
        raise OptionError(
            "A classifier has one number of outputs.",
            got=", ".join(f"{name}: {count}" for name, count in given.items()),
            remedy="leave out all but one",
        )
    return whole("outputs", next(iter(given.values()), 1))


def _contradiction(rule: str, values: Mapping[str, Any], *names: str) -> OptionError:
    return OptionError(
        rule,
        got=", ".join(f"{name}={values[name]!r}" for name in names),
        remedy="let the second divide the first",
    )
