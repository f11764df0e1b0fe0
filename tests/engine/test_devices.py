"""Several devices share the work, and nothing that is for processors alone reaches accelerators."""

import json
import os
import subprocess
import sys

import equinox as eqx
import jax
import numpy as np
import pytest

import widelimit as wl
from widelimit.engine.inputs import as_inputs
from widelimit.engine.phases import (
    Realisation,
    cross_list,
    cross_tile,
    draw_block,
    encode_block,
)
from widelimit.layers.attention.heads import Scheme

_RUN = """
import json
import jax, numpy as np
import widelimit as wl
from widelimit.engine import tiles

used = set()
real = tiles.compiled_cross_tile

def recorded(*args, **options):
    found = real(*args, **options)
    used.update(str(device) for device in found[0].devices())
    return found

tiles.compiled_cross_tile = recorded
net = wl.Serial(wl.Dense(8, b_std=0.3), wl.Relu(), wl.Dense(1))
x = np.random.default_rng(0).normal(size=(1500, 4))
shared = net.kernel(x).ntk
by_all = sorted(used)
used.clear()
with jax.default_device(jax.devices()[-1]):
    alone = net.kernel(x).ntk
print(json.dumps([by_all, sorted(used), bool((shared == alone).all())]))
"""


@pytest.mark.slow
def test_several_devices_are_used_without_asking():
    flags = "--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count=3"
    done = subprocess.run(
        [sys.executable, "-c", _RUN],
        env=os.environ | {"XLA_FLAGS": flags},
        capture_output=True,
        check=True,
    )
    by_all, by_one, same = json.loads(done.stdout)
    assert len(by_all) == 3
    assert len(by_one) == 1  # a default device is the only one
    assert same


NETWORKS = {
    "dense": wl.Serial(wl.Dense(4), wl.Relu(), wl.Dense(4), wl.Gelu(), wl.Dense(1)),
    "attention": wl.Serial(
        wl.Conv(4, 3),
        wl.Relu(),
        wl.Attention(4, scaling=wl.Scaling.LINEAR),
        wl.Relu(),
        wl.MeanPool(),
        wl.Dense(1),
    ),
}


def lowered(function, *args, platform):
    """The program for a platform that need not be here."""
    return jax.export.export(jax.jit(function), platforms=[platform])(*args).mlir_module()


def loops(program):
    return program.count("stablehlo.while")


@pytest.mark.parametrize("name", NETWORKS)
def test_the_engine_lowers_for_accelerators_without_what_is_for_processors(name):
    net = NETWORKS[name]
    shape = (4, 3) if name == "dense" else (4, 5, 3)
    inputs = as_inputs(np.random.default_rng(0).normal(size=shape).astype(np.float32))
    x, _ = inputs.on_device()
    leaves, rest = eqx.partition(net, eqx.is_array_like)

    def tile(leaves, x):
        whole = Realisation(eqx.combine(leaves, rest))
        encoding = encode_block(whole, x, None, inputs.outline)
        pairs = cross_list(whole, encoding, encoding, inputs.outline, with_ntk=True)
        return cross_tile(whole, encoding, encoding, inputs.outline, with_ntk=True), pairs

    leaves = jax.tree.map(np.float32, leaves)
    fenced = loops(lowered(tile, leaves, x, platform="cpu"))
    assert fenced > 0  # fences are loops
    for platform in ("cuda", "tpu"):
        assert loops(lowered(tile, leaves, x, platform=platform)) < fenced / 4


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_drawn_heads_lower_for_accelerators(platform):
    net = wl.Serial(wl.Attention(4, heads=wl.INFINITE), wl.MeanPool(), wl.Dense(1))
    inputs = as_inputs(np.random.default_rng(0).normal(size=(2, 3, 2)).astype(np.float32))
    x, _ = inputs.on_device()

    def drawn(x):
        key, scheme = jax.random.key(0), Scheme(4, 8, 1e-4)
        real = draw_block(net, x, None, inputs.outline, key, scheme, with_landmarks=False)
        encoding = encode_block(real, x, None, inputs.outline)
        return cross_tile(real, encoding, encoding, inputs.outline, with_ntk=True)

    assert "stablehlo" in lowered(drawn, x, platform=platform)
