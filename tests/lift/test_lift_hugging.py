"""Hugging Face's models from small random configurations: lifted, from_config, and themselves."""

import numpy as np
import pytest
from same import flat

import widelimit as wl

torch = pytest.importorskip("torch", reason="torch is no dependency: pip install torch")
transformers = pytest.importorskip("transformers", reason="pip install transformers")
transformers.logging.set_verbosity_error()
# torch and transformers warn of themselves, and lift of rows of zeros for padding.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES = {"num_hidden_layers": 3, "num_attention_heads": 4, "initializer_range": 0.2}
WORDS = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
IDS = np.random.default_rng(0).integers(3, 40, (2, 6))
IMAGES = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)


def sized(width):
    return {"hidden_size": width, "intermediate_size": 2 * width} | SIZES


CONFIGS = {
    "bert": lambda width: transformers.BertConfig(**sized(width), **WORDS),
    "distilbert": lambda width: transformers.DistilBertConfig(
        dim=width, hidden_dim=2 * width, n_layers=3, n_heads=4, vocab_size=40,
        max_position_embeddings=16, initializer_range=0.2,
    ),
    "gpt2": lambda width: transformers.GPT2Config(
        n_embd=width, n_layer=3, n_head=4, n_positions=16, initializer_range=0.2,
        tie_word_embeddings=False, **WORDS,
    ),
    "llama": lambda width: transformers.LlamaConfig(
        num_key_value_heads=2, **sized(width), **WORDS
    ),
    "vit": lambda width: transformers.ViTConfig(image_size=8, patch_size=4, **sized(width)),
}  # fmt: skip
MODELS = {
    "bert": "BertForSequenceClassification",
    "distilbert": "DistilBertForSequenceClassification",
    "gpt2": "GPT2LMHeadModel",
    "llama": "LlamaForCausalLM",
    "vit": "ViTForImageClassification",
}


class Logits(torch.nn.Module):
    """The logits of a model; of language models at the last position."""

    def __init__(self, inner, *, last):
        super().__init__()
        self.inner, self.last = inner, last

    def forward(self, x):
        found = self.inner(x).logits
        return found[:, -1] if self.last else found


def model(name, width, seed=0):
    torch.manual_seed(seed)
    made = getattr(transformers, MODELS[name])(CONFIGS[name](width)).eval()
    return Logits(made, last=name in ("gpt2", "llama"))


def networks(name, width):
    """The lifted model and its configuration, whose tables have as many rows as inputs need."""
    x = IMAGES if name == "vit" else IDS
    outputs = 40 if name in ("gpt2", "llama") else 2
    config = wl.layers.from_config(CONFIGS[name](width), outputs=outputs)
    *rest, before, last = (endless(layer) for layer in config.layers)
    # Language models read all positions out, and the last one is taken of that.
    ends = (last, before) if name in ("gpt2", "llama") else (before, last)
    first = (wl.layers.Rearrange((1, 2, 0)),) if name == "vit" else ()
    return wl.lift(model(name, width), x), wl.Serial(*first, *rest, *ends)


def endless(layer):
    """Tables of positions without a last row, and windows with an extent for each axis."""
    if isinstance(layer, wl.layers.PositionTable):
        return wl.layers.PositionTable(std=layer.std, common_std=layer.common_std)
    if isinstance(layer, wl.Conv):
        weights = layer.weights.w_std
        return wl.Conv(layer.width, (4, 4), stride=(4, 4), padding="valid", w_std=weights)
    return layer


@pytest.mark.parametrize("name", MODELS)
def test_a_lifted_model_is_its_configuration(name):
    lifted, config = networks(name, 64)
    # Six digits of every number: eps and bases of rotations are found in single precision.
    assert repr(flat(lifted)) == repr(flat(config))


def test_the_first_of_several_outputs_is_lifted():
    net = wl.lift(transformers.BertModel(CONFIGS["bert"](64)).eval(), IDS)
    assert [type(part).__name__ for part in net.parts][-1] == "LayerNorm"


class Placed(torch.nn.Module):
    """RoBERTa, which counts positions of tokens that are not padding, or is told them."""

    def __init__(self, *, told):
        super().__init__()
        config = transformers.RobertaConfig(**sized(64), **WORDS | {"max_position_embeddings": 16})
        self.inner, self.told = transformers.RobertaModel(config).eval(), told

    def forward(self, ids):
        given = {"position_ids": torch.arange(1, ids.shape[1] + 1)[None]} if self.told else {}
        return self.inner(ids, **given)[0]


def test_positions_that_are_counted_are_refused_and_those_that_are_told_are_read():
    with pytest.raises(wl.errors.WidelimitError, match="position_ids"):
        wl.lift(Placed(told=False), IDS)
    net = wl.lift(Placed(told=True), IDS)
    assert [type(part).__name__ for part in net.parts][:2] == ["Embedding", "PositionTable"]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models_approach_their_lifted_law(name):
    """Second moments of logits over random weights, at two widths: the wider is closer."""
    x = IMAGES if name == "vit" else IDS
    gaps = []
    for width in (32, 128):
        lifted = networks(name, width)[0].kernel(x, samples=256, ntk=False)
        with torch.no_grad():
            drawn = np.array(
                [
                    (lambda y: y @ y.T / y.shape[1])(
                        model(name, width, seed)(torch.as_tensor(x)).double().numpy()
                    )
                    for seed in range(400)
                ]
            )
        error = drawn.std(axis=0, ddof=1) / np.sqrt(len(drawn))
        gap = np.abs(drawn.mean(axis=0) - lifted.nngp)
        gaps.append((gap / np.abs(lifted.nngp).max()).max())
        # Corrections of order 1/n beside the statistical error.
        bound = 4.5 * np.sqrt(error**2 + lifted.nngp_error**2)
        assert (gap < bound + 4.0 / width * np.abs(lifted.nngp).max()).all()
    assert (np.abs(drawn.mean(axis=0) - 1.3 * lifted.nngp) > bound).any()
