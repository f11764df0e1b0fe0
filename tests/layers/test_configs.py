"""Configurations with Hugging Face's field names: the networks they are, and what is refused."""

import equinox as eqx
import numpy as np
import pytest

import widelimit as wl
from widelimit.errors import OptionError, ShapeError
from widelimit.layers import ClassToken, PositionTable, from_config

VIT = {
    "model_type": "vit", "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 32, "image_size": 8, "patch_size": 4, "num_channels": 3,
    "initializer_range": 0.1, "hidden_dropout_prob": 0.0,
}  # fmt: skip
BERT = {
    "model_type": "bert", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 24, "vocab_size": 30, "max_position_embeddings": 9,
    "initializer_range": 0.2,
}  # fmt: skip
GPT2 = {
    "model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 30,
    "n_positions": 9, "initializer_range": 0.2, "transformers_version": "4.0",
}  # fmt: skip


def test_vision_transformers():
    norm = wl.LayerNorm(eps=1e-12)
    root = 0.1 * 16**0.5
    attention = wl.Attention(
        16, heads=4, qk_std=root**2, ov_std=root**2, key_width=4, value_width=4
    )
    mlp = wl.Serial(wl.Dense(32, w_std=root), wl.Gelu(), wl.Dense(16, w_std=0.1 * 32**0.5))
    block = [wl.Residual(wl.Serial(norm, branch)) for branch in (attention, mlp)]
    expected = wl.Serial(
        wl.Conv(16, 4, stride=4, padding="valid", w_std=0.1 * 48**0.5),
        ClassToken(std=0.1),
        PositionTable(std=0.1, most=5),
        *block,
        *block,
        norm,
        wl.Select(0),
        wl.Dense(3, w_std=root),
    )
    net = from_config(VIT, outputs=3)
    assert eqx.tree_equal(net, expected, rtol=1e-12), f"{net}\n{expected}"


@pytest.mark.slow
@pytest.mark.parametrize("config", [VIT, BERT, GPT2], ids=lambda config: config["model_type"])
def test_kernels_are_those_of_finite_networks(config):
    """Widths and heads n and 2n, extrapolated: what both corrections of O(1/n) leave behind."""
    rng = np.random.default_rng(0)
    images = config is VIT
    x = rng.standard_normal((2, 8, 8, 3)) if images else rng.integers(0, 30, (2, 4))
    x = x.astype(np.float32) if images else x
    net = from_config({**config, "initializer_range": 0.2}, outputs=64)
    limit = wl.with_heads(net, wl.INFINITE).kernel(x, samples=1024, ntk=False)

    def at(scale):
        sized = wl.with_width(wl.with_heads(net, 8 * scale), 8 * scale, outputs=64)
        return wl.monte_carlo_kernel(sized, x, draws=5000, key=scale, ntk=False)

    narrow, wide = at(1), at(2)
    found = 2 * wide.nngp - narrow.nngp
    error = np.sqrt(4 * wide.nngp_error**2 + narrow.nngp_error**2 + limit.nngp_error**2)
    scale = np.abs(limit.nngp).max()
    z = np.abs(found - limit.nngp) / error
    assert error.max() < 0.01 * scale
    assert z.max() < 4.5
    assert (np.abs(found - 1.05 * limit.nngp) / error).max() > 4.5


def test_bert_and_gpt2():
    gpt = from_config(GPT2)
    first, second = gpt.parts[2].parts[1].parts[1], gpt.parts[3].parts[1].parts[1].parts
    assert isinstance(first, wl.Attention)
    assert isinstance(first.pattern, wl.Causal)
    # Last weights of a branch are drawn with r/√(2·layers).
    assert float(first.ov_std) == pytest.approx(0.04 * 16 / 2)
    assert float(second[2].weights.w_std) == pytest.approx(0.2 * 64**0.5 / 2)
    bert = from_config(BERT)
    assert float(bert.parts[1].common_std) == pytest.approx(0.2)  # all tokens have type 0


def test_defaults_are_those_of_the_published_models():
    net = from_config({"model_type": "gpt2"})
    assert len(net.parts) == 2 + 24 + 3
    assert net.parts[0].vocabulary == 50257


def test_longer_sequences_than_the_table_are_refused():
    with pytest.raises(ShapeError, match="9 rows"):
        from_config(BERT).kernel(np.zeros((1, 10), int), ntk=False)


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"model_type": "t5"}, "model_type"),
        ({"hidden_sise": 3}, "hidden_sise"),
        ({"num_attention_heads": 3}, "Heads do not share"),
        ({"patch_size": 3}, "Patches do not tile"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"initializer_range": -1.0}, "initializer_range"),
        ({"num_labels": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}, "one number of outputs"),
        ({"hidden_size": 2.5}, "hidden_size"),
        ({"num_hidden_layers": 10**9}, "at most 1,000"),
        ({"is_decoder": True}, "is_decoder"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ],
)
def test_unknown_and_contradictory_fields_are_refused(changes, word):
    with pytest.raises(OptionError, match=word):
        from_config(VIT | changes)


def test_what_bert_is_not():
    with pytest.raises(OptionError, match="position_embedding_type"):
        from_config(BERT | {"position_embedding_type": "relative_key"})


# What `to_dict()` of the library's configurations holds beside the sizes.
EVERYWHERE = {
    "transformers_version": "5.23.0", "architectures": None, "output_hidden_states": False,
    "return_dict": True, "dtype": None, "chunk_size_feed_forward": 0, "is_encoder_decoder": False,
    "id2label": {0: "LABEL_0", 1: "LABEL_1"}, "label2id": {"LABEL_0": 0, "LABEL_1": 1},
    "problem_type": None, "_name_or_path": "", "output_attentions": False, "use_cache": True,
    "tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None, "pad_token_id": 0,
}  # fmt: skip
# What its fourth version held as well.
BEFORE = {
    "bad_words_ids": None, "begin_suppress_tokens": None, "cross_attention_hidden_size": None,
    "decoder_start_token_id": None, "diversity_penalty": 0.0, "do_sample": False,
    "early_stopping": False, "finetuning_task": None, "length_penalty": 1.0, "max_length": 20,
    "num_beams": 1, "pruned_heads": {}, "tokenizer_class": None, "top_k": 50, "torchscript": False,
    "tf_legacy_loss": False, "torch_dtype": "float32", "use_bfloat16": False, "prefix": None,
}  # fmt: skip
DISTILBERT = {
    "model_type": "distilbert", "vocab_size": 30, "max_position_embeddings": 9,
    "sinusoidal_pos_embds": False, "n_layers": 2, "n_heads": 2, "dim": 16, "hidden_dim": 24,
    "dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu", "initializer_range": 0.2,
    "qa_dropout": 0.1, "seq_classif_dropout": 0.2,
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "vocab_size": 30, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "hidden_act": "silu", "max_position_embeddings": 2048, "initializer_range": 0.2,
    "rms_norm_eps": 1e-6, "pretraining_tp": 1, "attention_bias": False, "attention_dropout": 0.0,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "mlp_bias": False,
    "head_dim": 4,
}  # fmt: skip


@pytest.mark.parametrize("config", [VIT, BERT, GPT2, DISTILBERT, LLAMA])
@pytest.mark.parametrize("more", [{}, BEFORE])
def test_whole_configurations_are_taken_as_they_are(config, more):
    class Configuration:
        def to_dict(self):
            return config | EVERYWHERE | more

    net = from_config(Configuration())
    assert net.layers[-1].width == 2  # labels
    plain = from_config(config, outputs=2)
    assert eqx.tree_equal(net, plain)
    assert from_config(config | EVERYWHERE, outputs=5).layers[-1].width == 5


def test_distilbert_and_llama():
    found = [type(part).__name__ for part in from_config(DISTILBERT).parts]
    assert found[-4:] == ["Select", "Dense", "Activation", "Dense"]
    llama = from_config(LLAMA)
    attention = llama.parts[1].parts[1].parts[1]
    assert isinstance(attention, wl.Attention)
    assert attention.kv_heads == 2
    assert attention.positions.rotary.pairs == 2
    assert float(attention.qk_std) == pytest.approx(0.04 * 16)
    old = {k: v for k, v in LLAMA.items() if k != "rope_parameters"} | {"rope_theta": 500.0}
    assert float(from_config(old).parts[1].parts[1].parts[1].positions.rotary.base) == 500.0


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, "yarn"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"num_key_value_heads": 3}, "equal groups"),
        ({"sliding_window": 8}, "sliding_window"),
        ({"num_hidden_layers": 10**9}, "at most 1,000"),
    ],
)
def test_what_llama_is_not(changes, word):
    with pytest.raises(OptionError, match=word):
        from_config(LLAMA | changes)


@pytest.mark.parametrize("config", [None, 3, "bert", [("model_type", "bert")]])
def test_what_is_no_configuration(config):
    with pytest.raises(OptionError, match="no configuration"):
        from_config(config)
