"""Networks are known by classes and leaves, functions by registered names, and nothing else."""

import json
import subprocess
import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stores import TILE, examples

import widelimit as wl
from widelimit import registry
from widelimit.layers.base import Layer

pytest.importorskip("zarr")
from widelimit.scale import KernelStore, StoreError
from widelimit.scale.description import describe


@pytest.fixture(autouse=True)
def names(monkeypatch):
    monkeypatch.setattr(registry, "_registered", dict(registry._registered))


def squared(x):
    return 0.5 * x * x


class Halved(Layer):
    share: float

    def outline(self, before):
        return before

    def cross(self, pair, memo1, memo2):
        return pair.to(self.share * pair.nngp, pair.ntk)


class Call:
    def __call__(self, x):
        return x * x


STRANGERS = {
    "a function": squared,
    "a lambda": lambda x: x * x,
    "a partial": partial(squared),
    "a jitted one": jax.jit(squared),
    "an object": Call(),
    "a method": Call().__call__,
}


@pytest.mark.parametrize("kind", STRANGERS)
def test_functions_without_a_name_are_refused(tmp_path, kind):
    net = wl.Serial(wl.Dense(4), wl.Elementwise(STRANGERS[kind]), wl.Dense(1))
    with pytest.raises(StoreError, match=r"layers\[1\].* has no registered name"):
        net.kernel_into(tmp_path / "k", examples(9), tile=TILE)
    assert not (tmp_path / "k").exists()


def test_classes_without_a_name_are_refused(tmp_path):
    net = wl.Serial(wl.Dense(4), Halved(0.5), wl.Dense(1))
    with pytest.raises(StoreError, match=r"layers\[1\] is a .*Halved, a class without"):
        net.kernel_into(tmp_path / "k", examples(9), tile=TILE)
    wl.register("Halved", Halved)
    assert describe(net)["layers"][1] == {"class": "Halved", "share": 0.5}


def test_registered_functions_are_known_by_their_names(tmp_path):
    wl.register("squared", squared)
    wl.register("cubed", lambda x: x**3)
    net = wl.Serial(wl.Dense(4), wl.Elementwise(squared), wl.Dense(1))
    stored = net.kernel_into(tmp_path / "k", examples(9), tile=TILE)
    np.testing.assert_allclose(np.asarray(stored.ntk), net.kernel(examples(9)).ntk, rtol=1e-12)
    assert '"squared"' in json.dumps(KernelStore(tmp_path / "k").manifest.facts["network"])
    other = wl.Serial(wl.Dense(4), wl.Elementwise(registry.registered()["cubed"]), wl.Dense(1))
    with pytest.raises(StoreError, match=r"is cubed, and squared in the store"):
        other.kernel_into(tmp_path / "k", examples(9))


NETWORKS = {
    "dense": lambda: wl.Serial(wl.Dense(4), wl.Relu(), wl.Dense(1)),
    "gelu": lambda: wl.Serial(wl.Dense(4), wl.Gelu(), wl.Dense(1)),
    "series": lambda: wl.Serial(wl.Dense(4), wl.Elementwise(jnp.tanh), wl.Dense(1)),
    "attention": lambda: wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1)),
    "positions": lambda: wl.Serial(
        wl.Attention(8, positions=wl.Decay(0.5)), wl.MeanPool(), wl.Dense(1)
    ),
    "convolution": lambda: wl.Serial(wl.Conv(4, 3), wl.LayerNorm(), wl.Flatten(), wl.Dense(1)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_of_this_package_are_described_alike_twice(name):
    one, two = (json.dumps(describe(NETWORKS[name]())) for _ in range(2))
    assert one == two
    assert len({json.dumps(describe(make())) for make in NETWORKS.values()}) == len(NETWORKS)


def test_another_process_gives_the_same_description():
    code = (
        "import json, jax.numpy as jnp, widelimit as wl\n"
        "from widelimit.scale.description import describe\n"
        "net = wl.Serial(wl.Dense(4), wl.Elementwise(jnp.tanh), wl.Dense(1))\n"
        "print(json.dumps(describe(net)))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == describe(NETWORKS["series"]())


def test_every_number_of_a_network_counts():
    """A leaf that changes changes the description."""
    for make in NETWORKS.values():
        net = make()
        leaves, tree = jax.tree.flatten(net)
        for index in range(len(leaves)):
            moved = list(leaves)
            moved[index] = np.asarray(moved[index]) + 1
            assert describe(jax.tree.unflatten(tree, moved)) != describe(net)
