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
        ({"num_attention_heads": 3}, "Heads share"),
        ({"patch_size": 3}, "Patches tile"),
        ({"hidden_act": "mish"}, "hidden_act"),
        ({"initializer_range": -1.0}, "initializer_range"),
        ({"num_labels": 2, "id2label": {"0": "a", "1": "b", "2": "c"}}, "one number of outputs"),
        ({"hidden_size": 2.5}, "hidden_size"),
    ],
)
def test_unknown_and_contradictory_fields_are_refused(changes, word):
    with pytest.raises(OptionError, match=word):
        from_config(VIT | changes)


def test_what_bert_is_not():
    with pytest.raises(OptionError, match="position_embedding_type"):
        from_config(BERT | {"position_embedding_type": "relative_key"})
