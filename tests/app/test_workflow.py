"""From files to posteriors, piece by piece: against closed forms and independent computations."""

import dataclasses
from contextlib import contextmanager

import jax
import numpy as np
import pandas as pd
import pytest
from command_line import write_flowers
from sklearn.model_selection import cross_val_predict

import widelimit as wl
from widelimit.app.workflow import (
    Kind,
    NetworkName,
    Reading,
    Settings,
    Task,
    blocks,
    pages,
    read_source,
    run,
    scores,
)
from widelimit.app.workflow.attention import mean_attention, received
from widelimit.app.workflow.columns import assign
from widelimit.app.workflow.kinds import Listener
from widelimit.data import DataError
from widelimit.engine.inputs import as_inputs
from widelimit.inference import Engine, KernelKind, NetworkKernels, hyperparameters
from widelimit.inference.process import amplify
from widelimit.layers.compose import is_sampled
from widelimit.scale import KernelStore, manifest
from widelimit.sklearn import InfiniteNetworkClassifier
from widelimit.sklearn.networks import candidates

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(11, 3))
NET = wl.Serial(wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(1, w_std=1.5))
SENTENCES = RNG.normal(size=(3, 5, 4)).astype(np.float32)
MASK = np.arange(5)[None, :] < np.array([5, 3, 1])[:, None]


def networks(kind):
    """Every network for a kind of data, by name."""
    for name in NetworkName:
        try:
            yield next(iter(candidates(kind, name, channels=8).values())).net
        except wl.WidelimitError:
            continue


# --- columns --------------------------------------------------------------------------------------


def test_columns_are_told_apart(tmp_path):
    """The longest texts are the text; few words are categories; many are names, left out."""
    data = pd.DataFrame(
        {
            "review": ["a film that I liked", "a film I did not like", "so bad it is good"] * 4,
            "label": [1, 0, 1] * 4,
            "stars": [5, 1, 3] * 4,
        }
    )
    roles = assign(data, tmp_path, Task.CLASSIFY, Reading())
    assert (roles.text, roles.label, roles.features) == ("review", "label", ("stars",))
    assert assign(data, tmp_path, Task.CLASSIFY, Reading(features=("stars",))).text is None
    data = pd.DataFrame(
        {
            "width": range(12),
            "colour": ["red", "blue"] * 6,
            "id": [f"n{i}" for i in range(12)],
            "species": ["iris", "rose"] * 6,
            "split": ["train", "test"] * 6,
        }
    )
    roles = assign(data, tmp_path, Task.CLASSIFY, Reading())
    assert (roles.features, list(roles.left_out)) == (("width", "colour"), ["id"])
    assert (roles.label, roles.split) == ("species", "split")


def test_a_given_test_part_is_used(tmp_path):
    path = write_flowers(tmp_path / "f.csv", count=30)
    lines = path.read_text().splitlines()
    parts = ["split", *(["test" if i % 3 == 0 else "train" for i in range(30)])]
    path.write_text("\n".join(f"{a},{b}" for a, b in zip(lines, parts, strict=True)) + "\n")
    settings = Settings(network=NetworkName.LINEAR, folds=0)
    result = run(path, Task.CLASSIFY, settings=settings)
    assert sorted(int(n.split()[1]) for n in result.test.names) == list(range(1, 31, 3))
    settings = Settings(network=NetworkName.LINEAR, folds=0, max_test=4)
    few = run(path, Task.CLASSIFY, settings=settings)
    assert sorted(few.test.y) == ["iris", "iris", "rose", "rose"]  # in their proportions


def test_folds_are_those_of_refitting(tmp_path):
    """Cross-validation in closed form, against scikit-learn's with the same noise and network."""
    path = write_flowers(tmp_path / "f.csv", count=60)
    how = Reading(label="species", features=("size", "noise"))
    result = run(path, Task.CLASSIFY, how=how, settings=Settings(folds=3))
    model = result.model.estimator
    fixed = InfiniteNetworkClassifier(model.network_, noise=model.noise_, standardise=False)
    x = result.model.examples(result.train).x
    again = cross_val_predict(fixed, x, result.train.y, cv=3)
    assert result.folds is not None
    assert abs(np.mean(again == result.train.y) - result.folds.value) < 0.1


# --- kernels in blocks ----------------------------------------------------------------------------


class Stops(Listener):
    """Is told of progress, and presses Ctrl-C at the third block."""

    def __init__(self):
        self.said, self.calls = [], 0

    def say(self, text):
        self.said.append(text)

    def bar(self, label):
        @contextmanager
        def inner():
            def advance(done, total):
                self.calls += 1
                assert 0 < done <= total
                if self.calls == 3:
                    raise KeyboardInterrupt

            yield advance

        return inner()


def test_an_interrupted_kernel_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "_SMALLEST", 4)
    data = NetworkKernels.make(NET, ROWS, engine=Engine(dtype=np.float64))
    inputs = as_inputs(ROWS, dtype=np.float64)
    exact = NET.kernel(ROWS)
    kinds, store = (KernelKind.NNGP, KernelKind.NTK), tmp_path / "kernel"
    with pytest.raises(KeyboardInterrupt):
        blocks.compute(data, inputs, kinds, store=store, listener=Stops())
    kept = len(KernelStore(store).list_tiles())
    assert kept >= 3  # those that were waiting for the disk too
    listener = Stops()
    listener.calls = 3
    arrays = blocks.compute(data, inputs, kinds, store=store, listener=listener)
    assert "earlier run" in listener.said[0]
    tiles = len(KernelStore(store).manifest.tiles)
    assert tiles > kept
    assert listener.calls == 3 + tiles - kept  # only what was missing is computed
    np.testing.assert_allclose(np.asarray(arrays[KernelKind.NNGP]), exact.nngp, rtol=1e-12)
    np.testing.assert_allclose(np.asarray(arrays[KernelKind.NTK]), exact.ntk, rtol=1e-12)
    # Another network, or other examples, are another kernel: nothing is taken over.
    other = dataclasses.replace(data, net=amplify(NET, 2.0))
    again = blocks.compute(other, inputs, kinds, store=store)
    np.testing.assert_allclose(np.asarray(again[KernelKind.NTK]), 2 * exact.ntk, rtol=1e-12)


SHAPES = {Kind.TABLE: (3,), Kind.TEXT: (5, 4), Kind.IMAGE: (4, 4, 3)}


@pytest.mark.parametrize("kind", SHAPES)
def test_every_network_has_kernels(kind):
    """Its layers fit each other and the kind of data; nothing is computed."""
    x = jax.ShapeDtypeStruct((2, *SHAPES[kind]), np.float32)
    plain = [net for net in networks(kind) if not is_sampled(net)]
    for net in plain:
        assert jax.eval_shape(lambda x, net=net: net.kernel(x).ntk, x).shape == (2, 2)
    assert len(plain) >= 2


@pytest.mark.parametrize("kind", SHAPES)
def test_every_network_is_amplified_by_its_last_layer(kind):
    """All networks end in a linear layer, so that an amplitude is a number in the description."""
    for net in networks(kind):
        before, after = (hyperparameters(n) for n in (net, amplify(net, 4.0)))
        changed = [
            b.name for a, b in zip(before, after, strict=True) if not np.all(a.value == b.value)
        ]
        assert changed
        assert all("w_std" in name or "b_std" in name for name in changed)


def test_intervals_of_an_accuracy():
    """Wilson's interval: `(p + z²/2n ± z√(p(1−p)/n + z²/4n²))/(1 + z²/n)`."""
    found = scores.accuracy(np.array([True] * 70 + [False] * 30))
    z, n, p = 1.959964, 100, 0.7
    centre, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    np.testing.assert_allclose(
        [found.low, found.high],
        np.array([centre - half, centre + half]) / (1 + z**2 / n),
        rtol=1e-6,
    )


# --- attention ------------------------------------------------------------------------------------


def test_attention_at_one_over_d():
    """Weights are `softmax(qk·κ̃(x,x))` over real keys, here without positions."""
    net = wl.Serial(
        wl.Attention(4, scaling=wl.Scaling.LINEAR, qk_std=2.0), wl.MeanPool(), wl.Dense(1)
    )
    data = NetworkKernels.make(net, SENTENCES, MASK, engine=Engine())
    weights = mean_attention(data, SENTENCES, MASK)
    assert weights is not None
    scores_ = 2.0 * np.einsum("nac,nbc->nab", SENTENCES, SENTENCES) / 4
    expected = np.exp(scores_) * (MASK[:, :, None] & MASK[:, None, :])
    expected /= np.maximum(expected.sum(axis=-1, keepdims=True), 1e-30)
    np.testing.assert_allclose(weights, expected, atol=1e-5)
    share = received(weights, MASK)
    np.testing.assert_allclose(share.sum(axis=1), 1, rtol=1e-5)
    assert (share[~MASK] == 0).all()


def _looked(net: wl.Layer, x: np.ndarray, mask: np.ndarray | None = None, **engine) -> np.ndarray:
    weights = mean_attention(NetworkKernels.make(net, x, mask, engine=Engine(**engine)), x, mask)
    assert weights is not None
    return weights


@pytest.mark.parametrize(
    ("score_map", "mean"),
    [
        (wl.ElementwiseMap(wl.Relu()), 1 / np.sqrt(2 * np.pi)),
        (wl.IdentityMap(), np.sqrt(2 / np.pi)),
    ],
    ids=["relu", "identity"],
)
def test_attention_of_closed_forms_is_the_mean_size_of_its_weights(score_map, mean):
    """`E max(G, 0) = σ/√2π` and `E|G| = σ√(2/π)` with `σ² = qk² κ_aa κ_ii`, over real keys."""
    net = wl.Serial(wl.Attention(4, score_map=score_map, qk_std=2.0), wl.MeanPool(), wl.Dense(1))
    weights = _looked(net, SENTENCES, MASK)
    deviation = np.linalg.norm(SENTENCES, axis=-1) / np.sqrt(4)
    expected = 2.0 * mean * deviation[:, :, None] * deviation[:, None, :]
    expected *= MASK[:, :, None] & MASK[:, None, :]
    np.testing.assert_allclose(weights, expected, rtol=1e-3)
    np.testing.assert_allclose(received(weights, MASK).sum(axis=1), 1, rtol=1e-5)


def test_attention_of_sampled_heads_has_its_biases():
    """A steep bias leaves every query nothing but itself."""
    net = wl.Serial(wl.Attention(4, positions=wl.Alibi(80.0)), wl.MeanPool(), wl.Dense(1))
    weights = _looked(net, SENTENCES, MASK, samples=2, replicates=2)
    np.testing.assert_allclose(weights, np.eye(5) * MASK[:, :, None], atol=1e-5)


@pytest.mark.slow
def test_attention_of_sampled_heads_has_its_rotation():
    """Three equal tokens would get a third each; turned, the nearer ones do not."""
    x = np.full((1, 3, 4), 2.0)
    net = wl.Serial(wl.Attention(4, positions=wl.Rotary(10.0, pairs=1)), wl.MeanPool())
    weights = _looked(net, x, samples=1024, replicates=8)[0]
    rng, size = np.random.default_rng(0), 200_000
    normals = 4.0 * rng.normal(size=(2, size))  # rank one: κ = 4 everywhere
    angles = np.arange(3)[None, :] - np.arange(3)[:, None]
    scores = np.cos(angles) * normals[0][:, None, None] + np.sin(angles) * normals[1][:, None, None]
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    heads = powers / powers.sum(axis=-1, keepdims=True)
    error = heads.std(axis=0) * np.sqrt(1 / size + 1 / 8192)
    assert (np.abs(weights - heads.mean(axis=0)) / error).max() < 5
    assert (np.abs(1 / 3 - heads.mean(axis=0)) / error).max() > 10


def test_attention_over_other_positions_than_the_inputs_is_left_out():
    net = wl.Serial(
        wl.Conv(4, 2, padding="valid"),
        wl.Attention(4, scaling=wl.Scaling.LINEAR),
        wl.MeanPool(),
    )
    data = NetworkKernels.make(net, SENTENCES, engine=Engine())
    assert mean_attention(data, SENTENCES, None) is None


@pytest.mark.slow
def test_attention_of_sampled_heads_is_their_average():
    """For one real position all attention is there; over several it is spread, rows sum to one."""
    net = wl.Serial(wl.Attention(4), wl.MeanPool(), wl.Dense(1))
    data = NetworkKernels.make(net, SENTENCES, MASK, engine=Engine(samples=16, replicates=2))
    weights = mean_attention(data, SENTENCES, MASK)
    assert weights is not None
    np.testing.assert_allclose(weights.sum(axis=-1), MASK.astype(float), atol=1e-5)
    assert weights[2, 0, 0] == pytest.approx(1, abs=1e-5)
    plain = NetworkKernels.make(NET, ROWS, engine=Engine())
    assert mean_attention(plain, ROWS, None) is None


# --- numbers and columns that used to go wrong without a word ------------------------------------


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200, 1e305])
def test_targets_of_any_size_are_learned(tmp_path, unit):
    path = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 40))
    rows = "".join(f"{u},{v * unit},{(2 * u + v) * unit}\n" for u, v in zip(a, b, strict=True))
    path.write_text("a,b,target\n" + rows)
    result = run(path, Task.REGRESS, settings=Settings(network=NetworkName.LINEAR))
    assert result.score.value > 0.99
    assert np.isfinite(result.predicted.answers).all()
    assert np.isfinite(result.predicted.std).all()
    error = scores.root_mean_square(result.test.y, result.predicted.answers)
    assert 0 < error.value < 0.2 * unit


def test_a_mask_of_one_part_is_kept(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(30, 4, 3))
    mask = np.arange(4) < rng.integers(1, 5, size=(30, 1))
    held = {"y_train": np.arange(20) % 2, "y_test": np.arange(10) % 2}
    np.savez(tmp_path / "d.npz", x_train=x[:20], x_test=x[20:], mask_train=mask[:20], **held)
    source = read_source(tmp_path / "d.npz", Task.CLASSIFY)
    np.testing.assert_array_equal(source.mask, np.concatenate([mask[:20], mask[20:] | 1]))
    assert any("no mask_test" in note for note in source.notes)


def test_the_label_is_no_feature(tmp_path):
    path = write_flowers(tmp_path / "t.csv")
    for options in (
        {"label": "species", "features": ("size", "species")},
        {"label": "species", "text": "species"},
        {"label": "species", "split": "species"},
    ):
        with pytest.raises(DataError, match="two parts to play"):
            read_source(path, Task.CLASSIFY, Reading(**options))


def test_leaks_and_repeated_rows_are_said(tmp_path):
    path = tmp_path / "t.csv"
    rng = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{i % 2},{i % 2}" for i, (a, b) in enumerate(rng.normal(size=(30, 2)))]
    path.write_text("a,b,alive,label\n" + "\n".join([*rows, *rows[:4]]))
    result = run(path, Task.CLASSIFY, settings=Settings(network=NetworkName.LINEAR, folds=0))
    said = " | ".join(result.notes)
    assert "'alive' alone predicts 'label' perfectly" in said
    assert "4 of 34 rows repeat the inputs" in said
    page = pages.page(result).html()
    assert "alone predicts" in page
    assert "rows repeat" in page


@pytest.mark.parametrize("seed", range(3))
def test_weights_of_rows_are_repetitions(tmp_path, seed):
    """A row that counts k times is as good as k rows, also through the command line's pipeline."""
    rng = np.random.default_rng(seed)
    x, counts = rng.normal(size=(40, 2)), rng.integers(1, 3, size=40)
    y = np.where(x[:, 0] + 0.5 * rng.normal(size=40) > 0, "up", "down")
    rows = [f"{a},{b},{c},{label}" for (a, b), c, label in zip(x, counts, y, strict=True)]
    path = tmp_path / "t.csv"
    path.write_text("a,b,count,label\n" + "\n".join(rows))
    settings = Settings(network=NetworkName.FCN, noise=0.3)
    found = run(path, Task.CLASSIFY, how=Reading(weight="count"), settings=settings)
    train = found.train
    many = np.repeat(np.arange(len(train)), train.weights.astype(int))
    again = InfiniteNetworkClassifier("fcn", noise=0.3, standardise=False)
    again.fit(found.model.examples(train).x[many], train.y[many])
    mean = again._mean(found.examples.x, None)
    ours = found.process.mean(found.examples.x)
    np.testing.assert_allclose(ours, mean, atol=1e-6)
