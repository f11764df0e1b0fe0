"""A layer that the library does not know takes part in everything, by what it says of itself.

The list in `networks` has it too: kernels, tiles, padding, gradients and finite networks.
"""

import numpy as np
import pytest
from networks import NETWORKS, dense
from strangers import Affine, Sharpened, Waves

import widelimit as wl
from widelimit import persist, registry
from widelimit.app.drawing.diagram import diagram
from widelimit.engine import tiles
from widelimit.engine.inputs import Inputs
from widelimit.inference import GP, hyperparameters, tune, with_hyperparameters
from widelimit.inference.process import amplify

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4))
LAYERS = {"Affine": Affine(gain=1.3, shift=0.4), "RMSNorm": wl.RMSNorm(eps=0.1)}


def _net(name: str) -> wl.Serial:
    return wl.Serial(dense(), wl.Residual(wl.Serial(LAYERS[name], dense())), dense(1))


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_saved(name, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    registry.register("Affine", Affine)
    persist.save(_net(name), tmp_path / "net.wl")
    loaded = persist.load(tmp_path / "net.wl")
    np.testing.assert_array_equal(loaded.kernel(X).ntk, _net(name).kernel(X).ntk)


def test_its_hyperparameters_are_found_and_tuned():
    found = {h.name: h for h in hyperparameters(_net("Affine"))}
    gain, shift = found["1.1.0.gain"], found["1.1.0.shift"]
    assert (gain.scale, gain.range.value, float(gain.value)) == (True, "positive", 1.3)
    assert (shift.scale, shift.range.value) == (False, "any number")
    eps = {h.name: h for h in hyperparameters(_net("RMSNorm"))}["1.1.0.eps"]
    assert (eps.scale, eps.range.value) == (False, "positive")
    own = ["1.1.0.gain", "1.1.0.shift"]
    gp = GP(_net("Affine"), noise=0.1)
    tuned = tune(gp, X, X[:, 0], select=lambda h: h.name in own, steps=3, progress=False)
    moved = {h.name: float(h.value) for h in hyperparameters(tuned.gp.net)}
    assert moved["1.1.0.gain"] != 1.3
    assert moved["1.1.0.shift"] != 0.4
    assert moved["0.w_std"] == 1.3
    other = with_hyperparameters(_net("Affine"), {"1.1.0.gain": 2.0})
    assert float(other.layers[1].branches[1].layers[0].gain) == 2.0


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_drawn_and_made_wider(name):
    assert name in diagram(_net(name), (4,))
    wide = wl.with_width(_net(name), 32)
    assert type(wide.layers[1].branches[1].layers[0]).__name__ == name
    assert wide.init(0, (4,))[0][0].shape == (4, 32)


@pytest.mark.parametrize("name", ["Affine", pytest.param("RMSNorm", marks=pytest.mark.slow)])
def test_padding_is_cut_above_it(name, monkeypatch):
    monkeypatch.setattr(tiles, "_COMPILATION", 1e-6)
    net = wl.Serial(wl.Conv(8, 3), LAYERS[name], wl.MeanPool())
    mask = np.arange(24)[None] < np.array([4, 24, 5, 3])[:, None]
    x = RNG.standard_normal((4, 24, 3)) * mask[..., None]
    assert [g.length for g in tiles.groups(net, Inputs(x, mask, False))] == [8, 24]
    alone = net.kernel(x[:1, :4], x[2:3, :5])
    np.testing.assert_allclose(net.kernel(x, mask=mask).ntk[0, 2], alone.ntk[0, 0], rtol=1e-11)


def test_the_list_has_strangers():
    kinds = {"", "_map", "_scores", "_encoding"}
    assert {"rms_norm", *(f"stranger{kind}" for kind in kinds)} <= set(NETWORKS)


OPTIONS = {
    "score_map": (Sharpened(sharpness=1.5), "sharpness"),
    "positions": (Waves(period=6.0, strength=0.7), "period"),
}


@pytest.mark.optimised  # without, XLA's eager steps give NaN for gradients inside encodings
@pytest.mark.parametrize("option", OPTIONS)
def test_score_maps_and_encodings_are_saved_tuned_drawn_and_printed(option, tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))
    thing, own = OPTIONS[option]
    registry.register(type(thing).__name__, type(thing))
    attention = wl.Attention(8, scaling="linear", **{option: thing})
    net = wl.Serial(dense(), attention, wl.MeanPool(), dense(1))
    x = RNG.standard_normal((4, 5, 3))
    persist.save(net, tmp_path / "net.wl")
    np.testing.assert_array_equal(
        persist.load(tmp_path / "net.wl").kernel(x).ntk, net.kernel(x).ntk
    )
    assert type(thing).__name__ in repr(net)
    assert "Attention" in diagram(net, (5, 3))
    (found,) = [h for h in hyperparameters(net) if h.name.endswith(own)]
    gp = GP(net, noise=0.1)
    tuned = tune(gp, x, x[:, 0, 0], select=lambda h: h.name == found.name, steps=2, progress=False)
    (moved,) = [h for h in hyperparameters(tuned.gp.net) if h.name == found.name]
    assert float(moved.value) != float(found.value)


def test_a_layer_with_one_reading_refuses_the_other():
    class Halved(wl.Layer):
        def outline(self, before):
            return before

    net = wl.Serial(wl.Dense(4), Halved())
    with pytest.raises(wl.errors.NetworkError, match=r"Halved does not define cross\(\)"):
        net.kernel(X)
    with pytest.raises(wl.errors.NetworkError, match=r"Halved does not define forward\(\)"):
        net.apply(net.init(0, (4,)), X)
    with pytest.raises(wl.errors.NetworkError, match="end the network in Dense"):
        amplify(net, 2.0)


def test_a_layer_that_looks_without_saying_so_is_told():
    class Curious(Affine):
        def memo(self, example):
            return example.variance()

    with pytest.raises(wl.errors.NetworkError, match="need_own"):
        wl.Serial(wl.Dense(4), Curious()).kernel(X)


def test_rms_norm_is_its_formula():
    kappa = 1.3**2 * X @ X.T / 4 + 0.3**2
    root = np.sqrt(np.diag(kappa) + 0.1)
    k = wl.Serial(dense(), wl.RMSNorm(eps=0.1)).kernel(X)
    np.testing.assert_allclose(k.nngp, kappa / np.outer(root, root), rtol=1e-12)
    np.testing.assert_allclose(k.ntk, kappa / np.outer(root, root), rtol=1e-12)
    y = wl.RMSNorm(eps=0.1).apply((), X)
    np.testing.assert_allclose(y, X / np.sqrt((X**2).mean(1, keepdims=True) + 0.1), rtol=1e-6)
