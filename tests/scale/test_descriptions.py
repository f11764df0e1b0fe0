"""Networks are the same where all that their functions reach is, and nowhere else."""

import json
import os
import subprocess
import sys
from functools import wraps

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from stores import examples

import widelimit as wl
from widelimit.scale.descriptions import described

SLOPE = 0.5


def by_global():
    return lambda x: SLOPE * x * x


def helper(x):
    return SLOPE * x * x


def by_helper():
    return lambda x: helper(x)


class Call:
    def __init__(self, slope):
        self.slope = slope

    def __call__(self, x):
        return self.slope * x * x

    def method(self, x):
        return self.slope * x * x


def by_keyword(slope):
    def function(x, *, factor=slope):
        return factor * x * x

    return function


def by_decorator(slope):
    def scaled(function):
        @wraps(function)
        def wrapper(x):
            return slope * function(x)

        return wrapper

    return scaled(lambda x: x * x)


def by_derivative(slope):
    function = jax.custom_jvp(lambda x: slope * x * x)
    function.defjvp(lambda x, t: (slope * x[0] ** 2, 2 * slope * x[0] * t[0]))
    return jax.jit(function)


def by_derivative_alone(slope):
    function = jax.custom_jvp(lambda x: x * x)
    function.defjvp(lambda x, t: (x[0] ** 2, 2 * slope * x[0] * t[0]))
    return function


def by_object(slope):
    inner = Call(slope)
    return lambda x: inner.slope * x * x


class Module(eqx.Module):
    slope: float

    def __call__(self, x):
        return self.slope * x * x


MAKERS = [
    Call,
    lambda slope: Call(slope).method,
    by_keyword,
    by_decorator,
    by_derivative,
    by_derivative_alone,
    by_object,
    Module,
    lambda slope: jax.jit(Call(slope)),
    lambda slope: jax.tree_util.Partial(jnp.multiply, slope),
]


@pytest.mark.parametrize("make", MAKERS)
def test_a_number_behind_a_function_is_seen(make):
    one, same, other = (json.dumps(described(make(slope))) for slope in (0.5, 0.5, 0.6))
    assert one == same
    assert one != other


@pytest.mark.parametrize("make", [by_global, by_helper])
def test_globals_that_a_function_reads_are_seen(monkeypatch, make):
    one = described(make())
    assert described(make()) == one
    monkeypatch.setitem(globals(), "SLOPE", 0.6)
    assert described(make()) != one


def test_a_store_is_refused_where_only_a_global_has_changed(tmp_path, monkeypatch):
    pytest.importorskip("zarr")
    x = examples(5)

    def kernel():
        net = wl.Serial(wl.Dense(4), wl.Elementwise(by_global()), wl.Dense(1))
        return net.kernel(x, store=tmp_path / "k", tile=8)

    kernel()
    kernel()
    monkeypatch.setitem(globals(), "SLOPE", 0.6)
    with pytest.raises(wl.scale.StoreError, match=r"globals\.SLOPE is 0\.6, and 0\.5 in the store"):
        kernel()


def test_the_code_of_a_class_of_ones_own_is_seen():
    def made(factor):
        class Scaled(eqx.Module):
            slope: float

            def scaled(self, x):
                return factor * self.slope * x

        return described(Scaled(1.0))

    assert made(2) == made(2)
    assert made(2) != made(3)


def test_functions_that_call_each_other():
    def even(x):
        return odd(x - 1)

    def odd(x):
        return even(x - 1)

    assert described(even) == described(even)
    json.dumps(described(even))


_SCRIPT = """
import json, sys
sys.path.insert(0, sys.argv[1])
import test_descriptions as t
from widelimit.scale.descriptions import described
words = lambda x: x if "a" in {"a", "b", "c"} else -x
others = [t.by_helper(), words]
print(json.dumps([described(one) for one in [make(0.5) for make in t.MAKERS] + others]))
"""


@pytest.mark.slow
def test_another_process_has_the_same_descriptions():
    found = []
    for seed in ("1", "2"):
        command = [sys.executable, "-c", _SCRIPT, os.path.dirname(__file__)]
        environment = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
        found.append(done.stdout)
    assert found[0] == found[1]
    assert " at 0x" not in found[0]
