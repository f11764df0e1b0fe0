"""Networks print as a person would write them, and as tables and diagrams."""

import jax
import jax.numpy as jnp
import pytest

import widelimit as wl

WRITTEN = [
    "Dense(64)",
    "Dense(8, w_std=1.5, b_std=0.1, parameterization='standard')",
    "Conv(8, 3, stride=2, padding='valid')",
    "Relu()",
    "LeakyRelu(0.1)",
    "ABRelu(0.5, 2)",
    "Tanh()",
    "Sin(rate=2)",
    "Polynomial([1, 2])",
    "Residual(Dense(8), weight=0.3)",
    "Sum(Dense(3), Dense(3))",
    "Serial(Dense(3), Relu())",
    "Repeat(Serial(Dense(3), Relu()), 3)",
    "MeanPool(2)",
    "Select(-1)",
    "Select((1, 2))",
    "AttentionPool(8, heads=2)",
    "Embedding(8, vocabulary=100)",
    "Decay(0.5, profile='exponential')",
]


@pytest.mark.parametrize("text", WRITTEN)
def test_what_is_printed_makes_the_layer_again(text):
    assert repr(eval(text, vars(wl.layers).copy())) == text


def test_attention_says_what_readers_ask_first():
    net = wl.Serial(wl.Dense(64), wl.Attention(64, scaling="linear", positions=wl.Decay(0.5)))
    assert repr(net) == "Serial(Dense(64), Attention(64, heads=∞, 1/d, softmax, Decay(0.5)))"
    other = wl.Attention(heads=4, score_map=wl.ElementwiseMap(wl.Relu()), qk_std=2.0)
    assert repr(other) == "Attention(heads=4, 1/√d, relu, qk_std=2)"
    assert repr(wl.Elementwise(jnp.sin)) == "Elementwise(sin)"


def test_traced_hyperparameters_print():
    found = []
    jax.jit(lambda s: found.append(repr(wl.Dense(4, w_std=s))) or s)(1.0)
    assert found == ["Dense(4, w_std=traced)"]


def test_summary_counts_what_init_draws():
    net = wl.Serial(
        wl.Conv(6, 3, b_std=0.1), wl.Relu(), wl.Residual(wl.Attention(6, heads=2)), wl.MeanPool()
    )
    summary = net.summary((5, 3))
    drawn = sum(leaf.size for leaf in jax.tree.leaves(net.init(0, (5, 3))))
    assert summary.parameters == drawn
    assert [row.shape for row in summary.rows] == [(5, 6)] * 4 + [(6,)]
    assert f"{drawn:,}" in str(summary)
    assert "5 × 3" in str(summary)


def test_infinitely_many_heads_have_infinitely_many_parameters():
    assert str(wl.Attention(6).summary((5, 3))).endswith("∞")


def test_notebooks_show_the_diagram():
    net = wl.Serial(wl.Dense(4), wl.Relu(), wl.Dense(1))
    assert net._repr_html_().startswith('<div class="network"')
    page = net.summary((3,))._repr_html_()
    assert '<div class="network"' in page
    assert "<table>" in page
