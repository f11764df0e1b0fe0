"""Compiled functions: made once for every kind of arguments, and the oldest go."""

import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from networks import NETWORKS

import widelimit as wl
from widelimit import compilation
from widelimit.compilation import compiled, jitted, kept


@pytest.fixture
def few(monkeypatch):
    """Only four compilations are kept."""
    monkeypatch.setattr(compilation, "MOST", 4)
    return 4


@pytest.fixture
def traced():
    """A compiled function, and the shapes for which it was compiled."""
    shapes = []

    @compiled
    def scaled(x, factor, *, name="a"):
        shapes.append((x.shape, factor, name))
        return {"value": factor * x, "name": name, "type": type(factor)}

    scaled.shapes = shapes
    return scaled


def test_one_compilation_for_each_kind_of_arguments(traced):
    ones = np.ones(3, np.float32)
    for factor in (2, 2, 2.0, True):
        found = traced(ones, factor)
        assert found["type"] is type(factor)
        np.testing.assert_array_equal(found["value"], factor * ones)
    traced(5 * ones, 2)
    traced(ones, 2, name="b")
    assert len(traced.shapes) == 4
    assert traced(ones, 2, name="b")["name"] == "b"
    traced(ones, jnp.asarray(2.0))  # arrays are traced, their values do not matter
    traced(ones, jnp.asarray(3.0))
    assert len(traced.shapes) == 5


def test_the_oldest_compilations_go(few, traced):
    hot = np.ones(1)
    for size in range(2, 20):
        traced(hot, 2)
        traced(np.ones(size), 2)
        assert kept() <= few
    assert [shape for shape, *_ in traced.shapes].count((1,)) == 1  # in use, so it stayed
    traced(np.ones(2), 2)
    assert [shape for shape, *_ in traced.shapes].count((2,)) == 2


def test_inside_transformations(traced):
    slope = jax.grad(lambda x: traced(x, 3)["value"].sum())(jnp.ones(2))
    np.testing.assert_array_equal(slope, [3, 3])
    np.testing.assert_array_equal(jax.vmap(lambda x: traced(x, 3)["value"])(jnp.ones((2, 2))), 3)


def test_inside_other_programs_they_have_the_options_of_those(traced):
    """XLA's options belong to whole programs, also where nothing that is passed on is traced."""
    outer = jax.jit(lambda x: traced(x, 3)["value"] + traced(np.ones(2), 4)["value"])
    np.testing.assert_array_equal(outer(np.ones(2)), [7, 7])


def test_options_of_all_programs_are_known_here():
    assert compilation._options() == compilation._ONE_THREAD


@pytest.fixture
def programs(monkeypatch):
    """What is compiled from now on, as XLA runs it."""
    texts = []

    def noted(function):
        run = jitted(function)

        def call(arrays):
            texts.append(run.lower(arrays).compile().as_text())
            return run(arrays)

        return call

    monkeypatch.setattr(compilation, "jitted", noted)
    monkeypatch.setattr(compilation, "_kept", OrderedDict())
    return texts


def assert_calm(programs):
    assert programs
    for program in programs:
        assert not re.search(r"\bfft\(|callback", program)
        called = re.findall(r'custom_call_target="([^"]+)"', program)
        assert all(target.startswith("lapack_") for target in called), called


def test_tiles_hold_no_step_that_waits(programs):
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    net.kernel(np.random.default_rng(0).normal(size=(9, 6, 24)).astype(np.float32))
    assert_calm(programs)


@pytest.mark.slow
@pytest.mark.optimised
@pytest.mark.parametrize("name", NETWORKS)
def test_nor_do_those_of_any_layer(name, programs):
    case = NETWORKS[name]
    x = jax.tree.map(lambda a: a if a.dtype.kind == "i" else a.astype("f4"), case.inputs(12))
    case.net.kernel(x, samples=4)
    assert_calm(programs)


def test_all_programs_are_compiled_in_one_place():
    """What is only lowered, to count its operations, or traced, as a part of others, is none."""
    package = Path(wl.__file__).parent
    elsewhere = [
        f"{path.name}: {line.strip()}"
        for path in package.rglob("*.py")
        if path.name != "compilation.py"
        for line in path.read_text().splitlines()
        if re.search(r"\b(jax\.jit|filter_jit|pmap|pure_callback|io_callback)\b", line)
        and not re.search(r"\.lower\(|# .*traced once", line)
    ]
    assert not elsewhere


def test_options_that_this_xla_does_not_know_are_left_out(monkeypatch):
    monkeypatch.setattr(compilation, "_ONE_THREAD", {"xla_cpu_no_such_option": True})
    assert compilation._options.__wrapped__() == {}


def test_kernels_of_many_shapes_keep_few_compilations(few):
    net = wl.Serial(wl.Dense(8), wl.Erf(), wl.MeanPool(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(2, 9, 3))
    for length in (3, 5, 7, 9):
        net.kernel(x[:, :length], ntk=False)
        assert kept() <= few
    # Computed with a compilation that was made anew, after the first had gone.
    repeated = np.concatenate([x[:, :3]] * 3, axis=1)
    np.testing.assert_allclose(net.kernel(x[:, :3]).nngp, net.kernel(repeated).nngp, rtol=1e-10)


GROWTH = """
import sys
import numpy as np
import widelimit as wl
from widelimit import compilation

compilation.MOST = 8

def resident():
    with open("/proc/self/status") as status:
        return int(next(l for l in status if l.startswith("VmRSS")).split()[1]) / 1024

net = wl.Serial(wl.Conv(8, 3), wl.Relu(), wl.MeanPool(), wl.Dense(1))
x = np.random.default_rng(0).normal(size=(3, 60, 3)).astype(np.float32)
for length in range(5, 15):
    net.kernel(x[:, :length])
before = resident()
for length in range(15, 45):
    net.kernel(x[:, :length])
print((resident() - before) / 30)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_memory_does_not_grow_with_the_number_of_shapes():
    found = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, check=True)
    assert float(found.stdout) < 4  # MiB a shape: 2 seen, and 12 where nothing goes
