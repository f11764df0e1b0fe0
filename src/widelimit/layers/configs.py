"""Transformers from Hugging Face's configurations: ViT, BERT, DistilBERT, GPT-2 and Llama."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import duals
from ..errors import OptionError
from ..options import whole
from .activations import Activation, Gelu, Relu, Silu, Tanh
from .attention.layer import Attention
from .attention.positional import Rotary
from .attention.scores import Causal, Pattern
from .base import Layer
from .branches import Product, Residual
from .compose import Serial
from .conv import Conv
from .dense import Dense, Embedding
from .norm import LayerNorm, RMSNorm
from .pool import Select
from .tokens import ClassToken, PositionTable

# Words about training, files, tokenisers, what is returned and how texts are generated: none
# changes the function at initialisation. Dropout is that of evaluation, where nothing is dropped.
_WITHOUT_EFFECT = {
    "_attn_implementation", "_name_or_path", "architectures", "attention_dropout",
    "attention_probs_dropout_prob", "attn_implementation", "attn_pdrop", "bad_words_ids",
    "begin_suppress_tokens", "bos_token_id", "chunk_size_feed_forward", "classifier_dropout",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "dropout", "dtype",
    "early_stopping", "embd_pdrop", "encoder_no_repeat_ngram_size", "encoder_stride",
    "eos_token_id", "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id",
    "forced_eos_token_id", "gradient_checkpointing", "hidden_dropout_prob", "label2id",
    "length_penalty", "max_length", "min_length", "model_type", "no_repeat_ngram_size",
    "num_beam_groups", "num_beams", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_scores", "pad_token_id", "pooler_act", "pooler_output_size",
    "prefix", "pretraining_tp", "problem_type", "qa_dropout", "remove_invalid_values",
    "reorder_and_upcast_attn", "repetition_penalty", "resid_pdrop", "return_dict",
    "return_dict_in_generate", "sep_token_id", "seq_classif_dropout", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj",
    "suppress_tokens", "task_specific_params", "temperature", "tf_legacy_loss",
    "tie_encoder_decoder", "tie_word_embeddings", "tokenizer_class", "top_k", "top_p",
    "torch_dtype", "torchscript", "transformers_version", "typical_p", "unk_token_id",
    "use_bfloat16", "use_cache",
}  # fmt: skip
# More blocks than any model has: what is longer is a slip of the pen, and would fill the memory.
_MOST_BLOCKS = 1000

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
_ALONE = {  # what only one kind of network is known of, in every type
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
}
_KNOWN = {
    "vit": _Fields(
        _SIZES | {"image_size": 224, "patch_size": 16, "num_channels": 3},
        {"qkv_bias": (True, False)},
    ),
    "bert": _Fields(
        _SIZES | {"vocab_size": 30522, "max_position_embeddings": 512, "type_vocab_size": 2},
        {"position_embedding_type": ("absolute",)},
    ),
    "distilbert": _Fields(
        {
            "vocab_size": 30522,
            "max_position_embeddings": 512,
            "dim": 768,
            "n_layers": 6,
            "n_heads": 12,
            "hidden_dim": 3072,
            "activation": "gelu",
            "initializer_range": 0.02,
        },
        {"sinusoidal_pos_embds": (False,)},
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
        {"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    ),
    "llama": _Fields(
        {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "intermediate_size": 11008,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-6,
            "initializer_range": 0.02,
            "rope_theta": 10_000.0,
            "rope_parameters": None,
            "max_position_embeddings": 2048,  # rotations have no last row
        },
        {
            "attention_bias": (False, True),
            "mlp_bias": (False, True),
            "rope_scaling": (None, {"rope_type": "default"}, {"type": "default"}),
        },
    ),
}


def from_config(config: Any, *, outputs: int | None = None) -> Serial:
    """The network that a configuration with Hugging Face's field names describes.

    `config`: a configuration, or what its `to_dict()` gives; `model_type` is "vit", "bert",
    "distilbert", "gpt2" or "llama". Fields that are missing have that library's defaults, those
    that do not change the function are passed over. `outputs` of a classifier: by default as many
    as the configuration has labels, or 1.

    All weights are N(0, r²) with `r = initializer_range`, whatever the width: at the width given, a
    layer on n inputs has `σ_w = r·√n` (0.55 for 768), embeddings and positions r; biases are zero.
    So the network is the limit of widening each layer *with its σ kept*, not with r kept. The last
    weights of a GPT-2 branch have r/√(2·layers). Dropout is that of evaluation. ViT, BERT and
    DistilBERT read out the first position (BERT through a tanh layer, DistilBERT through a ReLU
    layer), GPT-2 and Llama the last. Images have channels last.
    """
    config = config.to_dict() if hasattr(config, "to_dict") else config
    if not isinstance(config, Mapping):
        raise OptionError(
            f"{type(config).__name__} is no configuration.",
            got=repr(config)[:80],
            remedy="pass a configuration, or a dictionary of its fields",
        )
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _KNOWN:
        raise OptionError(
            f"model_type is one of {', '.join(map(repr, _KNOWN))}.",
            got=f"model_type={kind!r}",
            remedy="name the type, or write the network with TransformerEncoder",
        )
    values = _checked(config, _KNOWN[kind], kind)
    labels = _labels(config, outputs)
    makes = {"vit": _vit, "bert": _bert, "distilbert": _distilbert, "gpt2": _gpt2, "llama": _llama}
    return makes[kind](values, labels)


@dataclass(frozen=True)
class _Shape:
    """Sizes and scales that all types have."""

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


def _distilbert(values: dict[str, Any], outputs: int) -> Serial:
    shape = _shape(
        {
            "hidden_size": values["dim"],
            "num_hidden_layers": values["n_layers"],
            "num_attention_heads": values["n_heads"],
            "intermediate_size": values["hidden_dim"],
            "hidden_act": values["activation"],
            "layer_norm_eps": 1e-12,
            "initializer_range": values["initializer_range"],
        }
    )
    most = whole("max_position_embeddings", values["max_position_embeddings"])
    vocabulary = whole("vocab_size", values["vocab_size"])
    return Serial(
        Embedding(shape.width, vocabulary=vocabulary, std=shape.spread),
        PositionTable(std=shape.spread, most=most),
        shape.norm(),
        *shape.post_norm(),
        Select(0),
        Dense(shape.width, w_std=shape.std(shape.width)),
        Relu(),
        Dense(outputs, w_std=shape.std(shape.width)),
    )


def _llama(values: dict[str, Any], outputs: int) -> Serial:
    """Blocks `x + g(RMSNorm(x))`: rotary attention with grouped keys, and gated branches."""
    shape = _shape(values | {"layer_norm_eps": values["rms_norm_eps"]})
    each = values["head_dim"]
    each = shape.width // shape.heads if each is None else whole("head_dim", each)
    groups = values["num_key_value_heads"]
    groups = shape.heads if groups is None else whole("num_key_value_heads", groups)
    if shape.heads % groups:
        raise _contradiction(
            "The heads that share keys do not make equal groups.",
            values,
            "num_attention_heads",
            "num_key_value_heads",
        )
    within, inner = shape.std(shape.width), shape.std(shape.heads * each)
    attention = Attention(
        shape.width,
        heads=shape.heads,
        qk_std=within**2,
        ov_std=within * inner,
        positions=Rotary(_rotary_base(values), pairs=each // 2),
        pattern=Causal(),
        key_width=each,
        value_width=each,
        kv_heads=None if groups == shape.heads else groups,
    )
    wide = Dense(shape.hidden, w_std=within)
    gated = Product(Serial(wide, shape.activation()), Serial(wide))
    last = Dense(shape.width, w_std=shape.std(shape.hidden))
    norm = RMSNorm(eps=shape.eps)
    block = [Residual(Serial(norm, attention)), Residual(Serial(norm, gated, last))]
    vocabulary = whole("vocab_size", values["vocab_size"])
    return Serial(
        Embedding(shape.width, vocabulary=vocabulary, std=shape.spread),
        *block * shape.depth,
        norm,
        Select(-1),
        Dense(outputs, w_std=within),
    )


def _rotary_base(values: dict[str, Any]) -> float:
    """The base of the frequencies; other kinds of rotations are refused by their name."""
    said = values["rope_parameters"] or {}
    given = said if isinstance(said, Mapping) else {"rope_parameters": said}
    plain = {"rope_theta": values["rope_theta"], "rope_type": "default"}
    plain |= {"partial_rotary_factor": 1.0, "factor": 1.0}
    odd = [f"{k}={v!r}" for k, v in given.items() if k != "rope_theta" and plain.get(k) != v]
    base = given.get("rope_theta", plain["rope_theta"])
    if odd or not isinstance(base, int | float) or not 0 < base < np.inf:
        raise OptionError(
            "rope_parameters describe another rotation than that of all pairs by base^(-k/pairs).",
            got=", ".join(odd) or f"rope_theta={base!r}",
            remedy="leave them out, or write the network with Attention(positions=…)",
        )
    return float(base)


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
        whole(name, values[name], most=_MOST_BLOCKS if name == "num_hidden_layers" else None)
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
    fixed = _ALONE | fields.fixed
    unknown = sorted(map(str, {*config} - {*fields.defaults} - {*fixed} - _WITHOUT_EFFECT - labels))
    if unknown:
        raise OptionError(
            f"A configuration of type {kind!r} says what no such network is known to have.",
            got=f"{', '.join(unknown)}, beside {', '.join((*fields.defaults, *fields.fixed))}",
            remedy="leave them out, or write the network with TransformerEncoder",
        )
    for name, allowed in fixed.items():
        if config.get(name, allowed[0]) not in allowed:
            raise OptionError(
                f"{name} is {' or '.join(map(repr, allowed))}.",
                got=f"{name}={config[name]!r}",
                remedy="write the network with TransformerEncoder or Attention",
            )
    return {name: config.get(name, default) for name, default in fields.defaults.items()}


def _labels(config: Mapping[str, Any], outputs: int | None) -> int:
    """How many outputs there are: what is asked for, or what the configuration says."""
    if outputs is not None:
        return whole("outputs", outputs)
    said = {
        "num_labels": config.get("num_labels"),
        "id2label": None if config.get("id2label") is None else len(config["id2label"]),
    }
    given = {name: count for name, count in said.items() if count is not None}
    if len(set(given.values())) > 1:
        raise OptionError(
            "The numbers of outputs disagree: a classifier has one number of outputs.",
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
