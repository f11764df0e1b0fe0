"""Layers say rules, one walk leads through them, and what is drawn stands beside the network."""

import inspect
import sys
import threading
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from networks import NETWORKS
from strangers import Affine

import widelimit as wl
from widelimit.engine.inputs import outline_of
from widelimit.engine.phases import random_layers
from widelimit.engine.sampling import realisations
from widelimit.layers.compose import layers_of, map_layers, outlines_of

X = np.random.default_rng(0).standard_normal((3, 4, 3))


def test_a_layer_has_at_most_sixteen_members():
    """Public methods stand in a class of their own; methods of Python's are no members."""
    own = {name for name in vars(wl.Layer) if not name.startswith("_")}
    assert len(own) <= 16, sorted(own)
    rules = {"outline", "init_params", "forward", "memo", "cross", "own", "mean", "facts"}
    assert rules <= own


def test_no_layer_leads_through_others():
    """What is done to parts is said once, in `engine.walk`: layers only merge their results."""
    walks = ("encode", "run", "step", "draw", "mapped", "resized", "with_heads", "checked_mask")
    for case in NETWORKS.values():
        for _, layer in layers_of(case.net):
            assert not [name for name in walks if hasattr(layer, name)]
    for kind in (wl.Serial, wl.Parallel, wl.Residual, wl.Concat):
        assert not [name for name in walks if hasattr(kind, name)]


def _deep() -> wl.Serial:
    attention = wl.Attention(8, qk_std=1.2)
    residual = wl.Residual(wl.Serial(wl.Relu(), attention))
    return wl.Serial(wl.Dense(8), residual, wl.Sum(wl.Dense(8), attention), wl.MeanPool())


def test_drawn_scores_stand_beside_the_network():
    net = _deep()
    paths = [(1, 1, 1), (2, 1)]
    assert list(random_layers(net)) == paths
    for real in realisations(net, net.sampler(X, samples=2, replicates=2), np.float64):
        assert list(real.scores) == paths
        assert jax.tree.structure(real.net) == jax.tree.structure(net)
    outlines = outlines_of(net, outline_of(net, (4, 3)))
    assert [outlines[path].shape for path in paths] == [(4, 8), (4, 8)]


def test_a_sampler_of_another_network_is_refused():
    shallow = wl.Serial(wl.Attention(8), wl.MeanPool())
    for sampler in (shallow.sampler(X), _deep().sampler(X)):
        other = _deep() if sampler.pivots is None else wl.Serial(wl.Dense(8), _deep())
        with pytest.raises(wl.errors.NetworkError, match="fitted for"):
            other.kernel(X, sampler=sampler)


def test_layers_are_mapped_in_place():
    net = wl.Serial(wl.Dense(4), wl.Residual(wl.Serial(Affine(), wl.Dense(4)), 0.3), wl.Serial())
    wide = wl.with_width(net, 16, outputs=8)
    assert [layer.width for _, layer in layers_of(wide) if hasattr(layer, "width")] == [8, 8]
    same = map_layers(lambda layer: layer, net)
    assert eqx.tree_equal(same, net)


NETS = {
    "dense": wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1)),
    "attention": wl.Serial(wl.Dense(8), wl.Attention(8, scaling="linear"), wl.MeanPool()),
    "sampled": wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1)),
}


@pytest.mark.parametrize("name", NETS)
def test_few_files_are_entered_for_a_kernel(name, capsys):
    """All files of the package that a second call enters, its compilation included."""
    net, shape = NETS[name], (4, 3) if name == "dense" else (4, 5, 3)
    options = {"key": 0, "samples": 2, "progress": False} if name == "sampled" else {}
    net.kernel(np.ones((2, *shape[1:])), **options)
    jax.clear_caches()
    wl.compilation._kept.clear()
    root, entered = Path(inspect.getfile(wl)).parent, {}

    def note(frame, event, argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(root):
            entered.setdefault(str(path.relative_to(root)), frame.f_code.co_name)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        net.kernel(np.random.default_rng(1).standard_normal(shape), **options)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    with capsys.disabled():
        print(f"\n{name}: {len(entered)} files, from {', '.join(entered)}")
    assert len(entered) <= 25
