"""torch models, lifted through `torch.export`; skipped where torch is not installed."""

import re

import jax.numpy as jnp
import numpy as np
import pytest
from same import require_same

import widelimit as wl
from widelimit.errors import WidelimitError
from widelimit.layers.compose import map_layers
from widelimit.lift import LiftWarning

torch = pytest.importorskip("torch", reason="torch is no dependency: pip install torch")
import torch_models  # noqa: E402

nn, F = torch.nn, torch.nn.functional
WIDTH = 64
THIRD, HALF = 3**-0.5, 0.5
RNG = np.random.default_rng(0)
pytestmark = pytest.mark.filterwarnings("default")  # torch warns of itself


def encoder_layer(**options):
    torch.manual_seed(0)
    given = {"batch_first": True, "activation": "gelu"} | options
    return nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, **given).eval()


def block(norm: str) -> tuple[wl.Layer, ...]:
    """The same in layers: weights of attention by Xavier on (3n, n), the rest by Kaiming."""
    attention = wl.Attention(
        WIDTH,
        heads=4,
        qk_std=HALF,
        ov_std=HALF**0.5 * THIRD,
        key_width=WIDTH // 4,
        value_width=WIDTH // 4,
    )
    made = wl.TransformerBlock(WIDTH, attention=attention, norm=norm, hidden=2 * WIDTH, w_std=THIRD)
    return map_layers(
        lambda one: wl.LayerNorm(eps=1e-5) if isinstance(one, wl.LayerNorm) else one, made
    ).parts


@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("batch_first", [True, False])
def test_a_transformer_encoder_layer_is_the_builders(norm, batch_first):
    inner = encoder_layer(norm_first=norm == "pre", batch_first=batch_first)
    model = nn.Sequential(nn.Linear(3, WIDTH), inner if batch_first else Turned(inner))
    found = wl.lift(model, np.zeros((2, 5, 3), np.float32))
    first = wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3)
    require_same(found, wl.Serial(first, *block(norm)))


class Turned(nn.Module):
    """A module that takes the batch second."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


LLAMA = (
    wl.Embedding(WIDTH, vocabulary=40),
    wl.Residual(
        wl.Serial(
            wl.RMSNorm(eps=1e-6),
            wl.Attention(
                WIDTH, heads=4, qk_std=1 / 3, ov_std=1 / 3, pattern=wl.Causal(),
                positions=wl.Rotary(pairs=8), key_width=16, value_width=16, kv_heads=2,
            ),
        )
    ),
    wl.Residual(
        wl.Serial(
            wl.RMSNorm(eps=1e-6),
            wl.Product(
                wl.Serial(wl.Dense(2 * WIDTH, w_std=THIRD), wl.Silu()),
                wl.Serial(wl.Dense(2 * WIDTH, w_std=THIRD)),
            ),
            wl.Dense(WIDTH, w_std=THIRD),
        )
    ),
    wl.RMSNorm(eps=1e-6),
    wl.Select(-1),
    wl.Dense(5, w_std=THIRD),
)  # fmt: skip


def test_norms_gates_rotations_and_grouped_heads_by_hand_are_recognised():
    torch.manual_seed(0)
    found = wl.lift(torch_models.LlamaLike(WIDTH), np.zeros((1, 6), int))
    require_same(found, wl.Serial(*LLAMA))


@pytest.mark.parametrize("flash", [True, False])
def test_a_gpt_is_its_configuration(flash):
    """As nanoGPT or minGPT write it: fused weights, masks in buffers, r/√(2·depth) at the end."""
    torch.manual_seed(0)
    net = wl.lift(torch_models.GPT(WIDTH, flash=flash).eval(), np.zeros((1, 6), int))
    config = {
        "model_type": "gpt2", "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "vocab_size": 40,
        "n_positions": 16, "initializer_range": 0.2,
    }  # fmt: skip
    expected = wl.layers.from_config(config, outputs=40)
    ids = RNG.integers(0, 40, (2, 6))
    found, wanted = (n.kernel(ids, samples=32, ntk=False).nngp for n in (net, expected))
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_attention_by_einsum_and_a_norm_by_hand():
    torch.manual_seed(0)
    net = wl.lift(torch_models.EinsumBlock(WIDTH), np.zeros((1, 6, 3), np.float32))
    attention = wl.Attention(
        WIDTH, heads=4, qk_std=1 / 3, ov_std=1 / 3, key_width=16, value_width=16
    )
    expected = wl.Serial(
        wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3),
        wl.Residual(wl.Serial(wl.LayerNorm(eps=1e-5), attention)),
        wl.MeanPool(),
        wl.Dense(4, w_std=THIRD),
    )
    require_same(net, expected)


@pytest.mark.slow
def test_a_transformer_encoder_layer_approaches_the_lifted_law():
    """Second moments of torch's own layer, at random weights, against the lifted kernel."""
    x = np.random.default_rng(0).standard_normal((2, 4, WIDTH)).astype(np.float32)
    net = wl.lift(encoder_layer(), x)
    expected = net.kernel(x, samples=512, ntk=False).nngp
    draws, count = 400, 0
    total = np.zeros((draws, *expected.shape))
    for number in range(draws):
        torch.manual_seed(number)
        model = nn.TransformerEncoderLayer(
            WIDTH, 4, 2 * WIDTH, batch_first=True, activation="gelu"
        ).eval()
        with torch.no_grad():
            y = model(torch.as_tensor(x)).double().numpy()
        total[number] = np.einsum("iac,jbc->ijab", y, y) / WIDTH
        count += 1
    mean, error = total.mean(axis=0), total.std(axis=0, ddof=1) / np.sqrt(count)
    assert error.max() < 0.01
    # The width is finite: corrections of order 1/n beside the statistical error.
    assert (np.abs(mean - expected) < 4.5 * error + 2.0 / WIDTH).all()
    assert (np.abs(mean - 1.1 * expected) > 4.5 * error + 2.0 / WIDTH).any()


# ---- images --------------------------------------------------------------------------------------


def test_a_convolutional_network_takes_channels_first():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, WIDTH, 3, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * WIDTH, 1)
    )
    found = wl.lift(model, np.zeros((1, 2, 4, 4), np.float32))
    expected = wl.Serial(
        wl.layers.Rearrange((1, 2, 0)),
        wl.Conv(WIDTH, (3, 3), stride=(1, 1), w_std=THIRD, b_std=(3 * 18) ** -0.5),
        wl.MeanPool((2, 2), stride=(2, 2)),
        wl.Flatten(),
        wl.Dense(1, w_std=THIRD),
    )
    require_same(found, expected)


def test_images_are_cut_into_patches():
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.weights = nn.LayerNorm(48), nn.Linear(48, WIDTH)

        def forward(self, x):
            x = x.unflatten(3, (2, 4)).unflatten(2, (2, 4)).permute(0, 2, 4, 3, 5, 1)
            return self.weights(self.norm(x.reshape(2, 4, 48))).mean(1)

    torch.manual_seed(0)
    net = wl.lift(Patches(), np.zeros((2, 3, 8, 8), np.float32))
    x = RNG.standard_normal((3, 3, 8, 8))
    rows = x.reshape(3, 3, 2, 4, 2, 4).transpose(0, 2, 4, 3, 5, 1).reshape(3, 4, 48)
    np.testing.assert_allclose(
        net.kernel(x).nngp, wl.Serial(*net.layers[1:]).kernel(rows).nngp, rtol=1e-6
    )


@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")
def test_batch_norm_in_evaluation_is_its_affine_map():
    torch.manual_seed(0)
    net = wl.lift(torch_models.Residual(WIDTH).eval(), np.zeros((1, 3, 8, 8), np.float32))
    scale = (1 + 1e-5) ** -0.5
    inner = net.parts[3].parts[1]
    assert float(inner.parts[0].weights.w_std) == pytest.approx(THIRD)
    first = inner.parts[1].dual.fn(jnp.ones(1))
    np.testing.assert_allclose(first, scale, rtol=1e-6)


# ---- options of operators, functions -------------------------------------------------------------


def test_an_mlp_warns_of_its_first_law():
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.GELU(approximate="tanh"), nn.Linear(WIDTH, 1))
    with pytest.warns(LiftWarning):
        net = wl.lift(model, np.zeros((1, 3), np.float32))
    assert len(net.parts) == 3


class Applied(nn.Module):
    """A function between weights."""

    def __init__(self, function, width=WIDTH):
        super().__init__()
        self.one, self.two = nn.Linear(WIDTH, width), nn.Linear(width, 1)
        self.function = function

    def forward(self, x):
        return self.two(self.function(self.one(x)))


OPTIONS = {
    "floor": lambda h: torch.div(h, 2.0, rounding_mode="floor"),
    "leaky": lambda h: F.leaky_relu(h, negative_slope=0.3),
    "beta": lambda h: F.softplus(h, beta=2.0),
    "alpha": lambda h: torch.add(h, 1.0, alpha=0.25),
    "clamp": lambda h: torch.clamp(h, min=-0.5, max=0.7),
    "clamp from below": lambda h: torch.clamp(h, max=0.7),
    "elu": lambda h: F.elu(h, alpha=0.4),
    "hardtanh": lambda h: F.hardtanh(h, min_val=-2.0, max_val=0.1),
    "tanh gelu": lambda h: F.gelu(h, approximate="tanh"),
    "quick gelu": lambda h: h * torch.sigmoid(1.702 * h),
    "relu squared": lambda h: F.relu(h).pow(2),
    "rsub": lambda h: 1.0 - torch.rsub(h, 0.5, alpha=2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_operators_are_never_ignored(name):
    """The lifted function is the model's, option by option; or it is refused."""
    torch.manual_seed(0)
    function, refused = OPTIONS[name], []
    try:
        net = wl.lift(Applied(function), np.zeros((1, WIDTH), np.float32))
    except WidelimitError as error:
        refused.append(str(error))
    if name == "floor":
        assert "div with {'rounding_mode': 'floor'}" in refused[0]
        return
    h = np.linspace(-2.0, 2.0, 101)
    found = net.layers[1].dual.fn(jnp.asarray(h))
    np.testing.assert_allclose(found, function(torch.as_tensor(h)).numpy(), atol=1e-5)


MOVES = {
    "permute by keyword": lambda x: torch.permute(x, dims=(0, 2, 1)).permute(dims=(0, 2, 1)),
    "transpose by keyword": lambda x: torch.transpose(x, dim0=1, dim1=2).mT,
    "flatten and back": lambda x: x.flatten(start_dim=1).unflatten(dim=1, sizes=(5, WIDTH)),
    "chunks": lambda x: torch.cat(torch.chunk(x, 2, dim=-1)[::-1], dim=-1),
    "halves by split": lambda x: torch.cat(x.split([20, 44], dim=2), dim=2),
    "view by shape": lambda x: x.view(x.shape[0] * x.shape[1], -1).view(*x.shape),
    "squeeze": lambda x: x.unsqueeze(dim=2).squeeze(2),
    "stack": lambda x: torch.stack([x[..., ::2], x[..., 1::2]], dim=-1).flatten(2),
    "roll": lambda x: torch.roll(x, shifts=3, dims=-1),
    "index": lambda x: x[:, :, torch.arange(WIDTH - 1, -1, -1)],
    "to": lambda x: x.to(torch.float64).float().contiguous(),
}


@pytest.mark.parametrize("name", MOVES)
def test_entries_may_be_moved_in_any_way(name):
    class Moved(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 2)

        def forward(self, x):
            return self.two(MOVES[name](self.one(x)).mean(dim=1))

    torch.manual_seed(0)
    found = wl.lift(Moved(), np.zeros((2, 5, 3), np.float32))
    first = wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3)
    require_same(found, wl.Serial(first, wl.MeanPool(), wl.Dense(2, w_std=THIRD)))


# ---- laws ----------------------------------------------------------------------------------------

DRAWN = {
    "glorot": (nn.init.xavier_uniform_, 2 / (WIDTH + 96)),
    "glorot normal": (nn.init.xavier_normal_, 2 / (WIDTH + 96)),
    "he": (lambda w: nn.init.kaiming_normal_(w, nonlinearity="relu"), 2 / WIDTH),
    "lecun": (lambda w: nn.init.normal_(w, std=WIDTH**-0.5), 1 / WIDTH),
    "a number": (lambda w: nn.init.normal_(w, std=0.02), 0.02**2),
    "truncated": (lambda w: nn.init.trunc_normal_(w, std=0.02), 0.02**2),
}


@pytest.mark.filterwarnings("ignore::widelimit.lift.LiftWarning")
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("seed", range(3))
def test_laws_are_read_from_weights(name, seed):
    draw, variance = DRAWN[name]
    torch.manual_seed(seed)
    model = Applied(torch.relu, 96)
    draw(model.one.weight.data)
    nn.init.zeros_(model.one.bias)
    net = wl.lift(model, np.zeros((1, WIDTH), np.float32))
    assert float(net.layers[0].weights.w_std) == pytest.approx((variance * WIDTH) ** 0.5)


def test_weights_of_no_known_scale_are_measured():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 96, bias=False), nn.Linear(96, 1, bias=False))
    nn.init.normal_(model[0].weight, std=0.237)
    net = wl.lift(model, np.zeros((1, WIDTH), np.float32))
    measured = float((model[0].weight.detach() ** 2).mean()) ** 0.5
    assert float(net.layers[0].weights.w_std) == pytest.approx(measured * WIDTH**0.5, rel=1e-6)


# ---- refusals, each with a remedy that is carried out --------------------------------------------


def trained(make=lambda: nn.Linear(WIDTH, WIDTH)):
    torch.manual_seed(0)
    layer = make()
    layer.weight.data += 0.1 * torch.outer(torch.randn(WIDTH), torch.randn(WIDTH))
    return layer


def untied():
    model = torch_models.GPT(WIDTH, tied=True).eval()
    w = model.lm_head.weight
    model.lm_head.weight = nn.Parameter(torch.randn_like(w) * w.std())
    return model


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean(dim=0)


class Branching(nn.Module):
    def forward(self, x):
        return x if x.sum() > 0 else -x


class Probabilities(nn.Module):
    def __init__(self, logits=False):
        super().__init__()
        self.weights, self.logits = nn.Linear(3, 4), logits

    def forward(self, x):
        y = self.weights(x)
        return y if self.logits else y.softmax(-1)


TOKENS, ROWS = np.zeros((2, 6), int), np.zeros((2, 5, WIDTH), np.float32)
IMAGES = np.zeros((2, 3, 8, 8), np.float32)
REFUSED = {
    "recurrent": (lambda: nn.LSTM(3, 4, batch_first=True), np.zeros((2, 5, 3)), "lstm", None),
    "dropout of weights": (
        lambda: encoder_layer().train(), ROWS, r"model.eval\(\)", lambda: encoder_layer(),
    ),
    "trained": (lambda: trained(), ROWS, "measured", {"deviations": "measured"}),
    "over examples": (Averaged, np.zeros((2, 3)), "examples", None),
    "batch norm in training": (
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
        np.zeros((2, 3)), r"model.eval\(\)",
        lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).eval(),
    ),
    "tied": (
        lambda: torch_models.GPT(WIDTH, tied=True).eval(), TOKENS, "lm_head.weight", untied,
    ),
    "max pooling": (
        lambda: torch_models.Residual(WIDTH, nn.MaxPool2d).eval(), IMAGES, "AvgPool",
        lambda: torch_models.Residual(WIDTH, nn.AvgPool2d).eval(),
    ),
    "probabilities": (
        Probabilities, np.zeros((2, 3)), "logits", lambda: Probabilities(logits=True),
    ),
    "sines": (
        lambda: torch_models.Positional(WIDTH), TOKENS, "Vectors of positions",
        lambda: torch_models.Positional(WIDTH, torch.randn(16, WIDTH)),
    ),
    "weights across positions": (
        lambda: torch_models.Mixer(WIDTH), np.zeros((2, 6, 3)), "64 channels", None,
    ),
    "a branch on numbers": (Branching, np.zeros((2, 3)), "numbers of x", None),
    "other channels": (lambda: nn.Linear(3, 4), np.zeros((2, 5)), r"shape \(2, 5\)", None),
    "tokens for numbers": (lambda: nn.Linear(3, 4), np.zeros((2, 3), int), "whole numbers", None),
    "text": (lambda: nn.Linear(3, 4), np.array([["a"]]), "no batch", None),
    "None": (lambda: nn.Linear(3, 4), None, "no batch", None),
    "no examples": (lambda: nn.Linear(3, 4), np.zeros((0, 3)), "no batch", None),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_in_one_sentence(name):
    make, x, word, better = REFUSED[name]
    torch.manual_seed(0)
    with pytest.raises(WidelimitError, match=word) as caught:
        wl.lift(make(), x)
    assert "\n" not in str(caught.value)
    if isinstance(better, dict):
        wl.lift(make(), x, **better)
    elif better is not None:
        wl.lift(better(), x)


def test_a_refusal_names_module_and_line():
    model = nn.Sequential(nn.Linear(3, 4), nn.Sequential(torch_models.Mixer(8)))
    with pytest.raises(WidelimitError) as caught:
        wl.lift(model[1], np.zeros((2, 6, 3), np.float32))
    assert re.search(r"module '0.tokens' \(Linear\), \w+\.py:\d+", str(caught.value))
