"""torch models of known parts, lifted through `torch.fx`; skipped where torch is not installed."""

import numpy as np
import pytest
from same import require_same

import widelimit as wl
from widelimit.engine.walk import map_layers
from widelimit.errors import WidelimitError
from widelimit.lift import LiftWarning

torch = pytest.importorskip("torch")
nn = torch.nn
WIDTH = 64
THIRD, HALF = 3**-0.5, 0.5


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
def test_a_transformer_encoder_layer_is_the_builders(norm):
    model = nn.Sequential(nn.Linear(3, WIDTH), encoder_layer(norm_first=norm == "pre"))
    found = wl.lift(model, np.zeros((2, 5, 3), np.float32))
    first = wl.Dense(WIDTH, w_std=THIRD, b_std=1 / 3)
    require_same(found, wl.Serial(first, *block(norm)))


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


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(11, WIDTH)
        self.encoder = nn.TransformerEncoder(encoder_layer(), 2, enable_nested_tensor=False)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.encoder(self.tokens(ids))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(torch.relu(self.norm(x.mean(dim=1))))


def test_residuals_means_and_functions_between_modules():
    torch.manual_seed(1)
    with pytest.warns(LiftWarning, match="copies"):
        net = wl.lift(Reader().eval(), np.zeros((2, 5), int))
    names = [type(part).__name__ for part in net.parts]
    assert names == [
        "Embedding", *["Residual", "LayerNorm"] * 4, "Residual", "MeanPool", "LayerNorm",
        "Activation", "Dense",
    ]  # fmt: skip


def test_a_convolutional_network():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, WIDTH, 3, padding=1), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4 * WIDTH, 1)
    )
    found = wl.lift(model, np.zeros((1, 2, 4, 4), np.float32))
    expected = wl.Serial(
        wl.Conv(WIDTH, (3, 3), stride=(1, 1), w_std=THIRD, b_std=(3 * 18) ** -0.5),
        wl.MeanPool((2, 2), stride=(2, 2)),
        wl.Flatten(),
        wl.Dense(1, w_std=THIRD),
    )
    require_same(found, expected)


def test_an_mlp_warns_of_its_first_law():
    model = nn.Sequential(nn.Linear(3, WIDTH), nn.GELU(approximate="tanh"), nn.Linear(WIDTH, 1))
    with pytest.warns(LiftWarning):
        net = wl.lift(model, np.zeros((1, 3), np.float32))
    assert len(net.parts) == 3


REFUSED = {
    "batch second": (
        lambda: encoder_layer(batch_first=False),
        (2, 5, WIDTH),
        "batch_first",
    ),
    "batch norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), (2, 3), "BatchNorm"),
    "recurrent": (lambda: nn.LSTM(3, 4), (2, 5, 3), "LSTM"),
    "training": (lambda: encoder_layer().train(), (2, 5, WIDTH), "eval"),
    "trained": (
        lambda: nn.Linear(WIDTH, WIDTH).apply(lambda m: nn.init.normal_(m.weight)),
        (1, WIDTH),
        "measured",
    ),
    "over examples": (lambda: Averaged(), (2, 3), "positions"),
}


class Averaged(nn.Module):
    def forward(self, x):
        return x.mean(dim=0)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_known_is_refused_by_name(name):
    make, shape, word = REFUSED[name]
    with pytest.raises(WidelimitError, match=word):
        wl.lift(make(), np.zeros(shape, np.float32))
