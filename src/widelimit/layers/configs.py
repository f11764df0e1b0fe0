"""Transformers from Hugging Face's configurations: ViT, BERT, DistilBERT, GPT-2 and Llama."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatch
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
_WITHOUT_EFFECT = (
    "*_penalty", "*_token_id", "*attn_implementation", "*dropout*", "*dtype", "*pdrop",
    "*no_repeat_ngram_size", "*suppress_tokens", "_name_or_path", "architectures", "bad_words_ids",
    "chunk_size_feed_forward", "do_sample", "early_stopping", "encoder_stride", "finetuning_task",
    "gradient_checkpointing", "id2label", "label2id", "max_length", "min_length", "model_type",
    "num_beam*", "num_labels", "num_return_sequences", "output_*", "pooler_*", "prefix",
    "pretraining_tp", "problem_type", "remove_invalid_values", "reorder_and_upcast_attn",
    "return_dict*", "summary_*", "task_specific_params", "temperature", "tf_legacy_loss", "tie_*",
    "tokenizer_class", "top_?", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache",
)  # fmt: skip
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
    name = config.get("model_type")
    if not isinstance(name, str) or name not in _KINDS:
        raise _refusal(f"model_type is none of {', '.join(map(repr, _KINDS))}", model_type=name)
    kind = _KINDS[name]
    parts = _Parts(kind.read(config))
    return Serial(*kind.layers(parts), parts.dense(_labels(config, outputs)))


def _refusal(rule: str, **fields: Any) -> OptionError:
    """What to raise where fields break a rule."""
    return OptionError(
        f"{rule}.",
        got=", ".join(f"{name}={value!r}" for name, value in fields.items()),
        remedy="change them, or write the network with TransformerEncoder or Attention",
    )


class _Parts:
    """Layers of the sizes and scales that a configuration says."""

    def __init__(self, values: dict[str, Any]):
        self.values = values
        self.width, self.heads = self.size("hidden_size"), self.size(_HEADS)
        self.depth = self.size("num_hidden_layers", most=_MOST_BLOCKS)
        said = values["intermediate_size"] is not None
        self.hidden = self.size("intermediate_size") if said else 4 * self.width
        if self.width % self.heads:
            raise self.refusal("Heads do not share the channels equally", "hidden_size", _HEADS)
        if values["hidden_act"] not in _ACTIVATIONS:
            raise self.refusal(f"hidden_act is none of {', '.join(_ACTIVATIONS)}", "hidden_act")
        for name in ("initializer_range", "layer_norm_eps"):
            if not isinstance(values[name], int | float) or not 0 < values[name] < np.inf:
                raise self.refusal(f"{name} is not a positive number", name)
        self.activation = _ACTIVATIONS[values["hidden_act"]]
        self.norm, self.spread = (
            LayerNorm(eps=values["layer_norm_eps"]),
            values["initializer_range"],
        )

    def size(self, name: str, least: int = 1, most: int | None = None) -> int:
        """A field that is a whole number."""
        return whole(name, self.values[name], least=least, most=most)

    def refusal(self, rule: str, *names: str) -> OptionError:
        return _refusal(rule, **{name: self.values[name] for name in names})

    def std(self, fan_in: int) -> float:
        """σ_w = r·√fan_in."""
        return self.spread * float(np.sqrt(fan_in))

    def dense(self, width: int) -> Dense:
        """Weights on the channels of the model."""
        return Dense(width, w_std=self.std(self.width))

    def down(self, scale: float = 1.0) -> Dense:
        """Weights on the channels inside an MLP."""
        return Dense(self.width, w_std=self.std(self.hidden) * scale)

    def places(self, most: int, common: float = 0.0) -> PositionTable:
        """Rows of the table of positions."""
        return PositionTable(std=self.spread, common_std=common, most=most)

    def tokens(self) -> Embedding:
        """Rows of the table of words."""
        return Embedding(self.width, vocabulary=self.size("vocab_size"), std=self.spread)

    def branches(self, pattern: Pattern | None = None, last: float = 1.0) -> list[Layer]:
        """Attention and an MLP of every block; `last` multiplies their last weights."""
        each, square = self.width // self.heads, self.std(self.width) ** 2
        attention = Attention(
            self.width,
            heads=self.heads,
            qk_std=square,
            ov_std=square * last,
            pattern=pattern,
            key_width=each,
            value_width=each,
        )
        mlp = Serial(self.dense(self.hidden), self.activation(), self.down(last))
        return [attention, mlp] * self.depth

    def pre_norm(self, pattern: Pattern | None = None, last: float = 1.0) -> list[Layer]:
        """Blocks `x + g(norm(x))`, and a last normalisation."""
        branches = self.branches(pattern, last)
        return [*(Residual(Serial(self.norm, branch)) for branch in branches), self.norm]


def _vit(parts: _Parts) -> list[Layer]:
    image, patch = parts.size("image_size"), parts.size("patch_size")
    if image % patch:
        raise parts.refusal("Patches do not tile the image", "image_size", "patch_size")
    w_std = parts.std(patch**2 * parts.size("num_channels"))
    return [
        Conv(parts.width, patch, stride=patch, padding="valid", w_std=w_std),
        ClassToken(std=parts.spread),
        parts.places(1 + (image // patch) ** 2),
        *parts.pre_norm(),
        Select(0),
    ]


def _bert(parts: _Parts, readout: Layer) -> list[Layer]:
    """A normalisation, and blocks `norm(x + g(x))`; the first position through one more layer."""
    typed = "type_vocab_size" in parts.values and parts.size("type_vocab_size", least=0)
    places = parts.places(parts.size(_POSITIONS), parts.spread if typed else 0.0)
    blocks = [layer for branch in parts.branches() for layer in (Residual(branch), parts.norm)]
    last = [Select(0), parts.dense(parts.width), readout]
    return [parts.tokens(), places, parts.norm, *blocks, *last]


def _gpt2(parts: _Parts) -> list[Layer]:
    blocks = parts.pre_norm(Causal(), last=float(1 / np.sqrt(2 * parts.depth)))
    return [parts.tokens(), parts.places(parts.size(_POSITIONS)), *blocks, Select(-1)]


def _llama(parts: _Parts) -> list[Layer]:
    """Blocks `x + g(RMSNorm(x))`: rotary attention with grouped keys, and gated branches."""
    given, heads = parts.values, parts.heads
    each = parts.width // heads if given["head_dim"] is None else parts.size("head_dim")
    groups = heads if given[_GROUPS] is None else parts.size(_GROUPS)
    if heads % groups:
        raise parts.refusal("Heads that share keys do not make equal groups", _HEADS, _GROUPS)
    within, norm = parts.std(parts.width), RMSNorm(eps=parts.values["layer_norm_eps"])
    attention = Attention(
        parts.width,
        heads=heads,
        qk_std=within**2,
        ov_std=within * parts.std(heads * each),
        positions=Rotary(_rotary_base(given), pairs=each // 2),
        pattern=Causal(),
        key_width=each,
        value_width=each,
        kv_heads=None if groups == heads else groups,
    )
    wide = parts.dense(parts.hidden)
    gated = Product(Serial(wide, parts.activation()), Serial(wide))
    block = [Residual(Serial(norm, attention)), Residual(Serial(norm, gated, parts.down()))]
    return [parts.tokens(), *block * parts.depth, norm, Select(-1)]


def _rotary_base(values: dict[str, Any]) -> float:
    """The base of the frequencies; other kinds of rotations are refused by their name."""
    said = values["rope_parameters"] or {}
    given = said if isinstance(said, Mapping) else {"rope_parameters": said}
    plain = {"rope_theta": values["rope_theta"], "rope_type": "default"}
    plain |= {"partial_rotary_factor": 1.0, "factor": 1.0}
    odd = any(k != "rope_theta" and plain.get(k) != v for k, v in given.items())
    base = given.get("rope_theta", plain["rope_theta"])
    if odd or not isinstance(base, int | float) or not 0 < base < np.inf:
        raise _refusal(
            "rope_parameters describe another rotation than that of all pairs by base^(-k/pairs)",
            rope_parameters=said,
            rope_theta=base,
        )
    return float(base)


@dataclass(frozen=True)
class _Kind:
    """One type: its layers, its sizes with defaults, what it calls them, what it cannot be."""

    layers: Callable[[_Parts], list[Layer]]
    sizes: dict[str, Any]
    names: dict[str, str] = field(default_factory=dict)
    fixed: dict[str, tuple[Any, ...]] = field(default_factory=dict)

    def read(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """The sizes by our names; fields that are not known are refused."""
        names = {name: self.names.get(name, name) for name in self.sizes}
        fixed = _ALONE | self.fixed
        others = sorted(map(str, {*config} - {*names.values(), *fixed}))
        unknown = [name for name in others if not any(fnmatch(name, w) for w in _WITHOUT_EFFECT)]
        if unknown:
            raise OptionError(
                f"A configuration of type {config['model_type']!r} says what no such network is "
                "known to have.",
                got=f"{', '.join(unknown)}, beside {', '.join((*names.values(), *self.fixed))}",
                remedy="leave them out, or write the network with TransformerEncoder",
            )
        for name, allowed in fixed.items():
            if config.get(name, allowed[0]) not in allowed:
                rule = f"{name} is not {' or '.join(map(repr, allowed))}"
                raise _refusal(rule, **{name: config[name]})
        return {name: config.get(names[name], self.sizes[name]) for name in names}


_HEADS, _GROUPS = "num_attention_heads", "num_key_value_heads"
_POSITIONS = "max_position_embeddings"
_SIZES: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "initializer_range": 0.02,
}
_TEXT = _SIZES | {"vocab_size": 30522, "max_position_embeddings": 512}
_ALONE: dict[str, tuple[Any, ...]] = {  # in every type
    "is_decoder": (False,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "cross_attention_hidden_size": (None,),
    "pruned_heads": ({}, None),
}
_KINDS = {
    "vit": _Kind(
        _vit,
        _SIZES | {"image_size": 224, "patch_size": 16, "num_channels": 3},
        fixed={"qkv_bias": (True, False)},
    ),
    "bert": _Kind(
        lambda parts: _bert(parts, Tanh()),
        _TEXT | {"type_vocab_size": 2},
        fixed={"position_embedding_type": ("absolute",)},
    ),
    "distilbert": _Kind(
        lambda parts: _bert(parts, Relu()),
        _TEXT | {"num_hidden_layers": 6},
        names={
            "hidden_size": "dim",
            "num_hidden_layers": "n_layers",
            "num_attention_heads": "n_heads",
            "intermediate_size": "hidden_dim",
            "hidden_act": "activation",
        },
        fixed={"sinusoidal_pos_embds": (False,), "layer_norm_eps": (1e-12,)},
    ),
    "gpt2": _Kind(
        _gpt2,
        _TEXT
        | {"vocab_size": 50257, "max_position_embeddings": 1024, "intermediate_size": None}
        | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-5},
        names={
            "hidden_size": "n_embd",
            "num_hidden_layers": "n_layer",
            "num_attention_heads": "n_head",
            "intermediate_size": "n_inner",
            "hidden_act": "activation_function",
            "layer_norm_eps": "layer_norm_epsilon",
            "max_position_embeddings": "n_positions",
        },
        fixed={"scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,)},
    ),
    "llama": _Kind(
        _llama,
        _TEXT  # rotations have no last row: max_position_embeddings says nothing
        | {"vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32, _HEADS: 32}
        | {"intermediate_size": 11008, "hidden_act": "silu", "layer_norm_eps": 1e-6}
        | {_GROUPS: None, "head_dim": None, "rope_theta": 10_000.0, "rope_parameters": None},
        names={"layer_norm_eps": "rms_norm_eps"},
        fixed={
            "attention_bias": (False, True),
            "mlp_bias": (False, True),
            "rope_scaling": (None, {"rope_type": "default"}, {"type": "default"}),
        },
    ),
}


def _labels(config: Mapping[str, Any], outputs: int | None) -> int:
    """How many outputs there are: what is asked for, or what the configuration says."""
    if outputs is not None:
        return whole("outputs", outputs)
    labels = config.get("id2label")
    said = {config.get("num_labels"), None if labels is None else len(labels)} - {None}
    if len(said) > 1:
        rule = "The numbers of outputs disagree: a classifier has one number of outputs"
        raise _refusal(rule, num_labels=config["num_labels"], id2label=labels)
    return whole("outputs", next(iter(said), 1))
