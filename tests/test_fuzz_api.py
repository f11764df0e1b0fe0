"""Odd values for every parameter of the public interface: an answer or an error of this library."""

import inspect
import math
import warnings
from functools import partial

import jax
import numpy as np
import pytest
from fuzzing import tried
from hypothesis import strategies as st

import widelimit as wl
from widelimit import data
from widelimit.data.labels import class_names, class_numbers
from widelimit.errors import WidelimitError
from widelimit.inference import GPPosterior

ODD = (
    *(None, True, 0, -1, 1, 2, 3.5, math.nan, math.inf, -0.5, 10**400, 1j, "x", "", b"x"),
    *([], [1, 2], (), (1,), (0,), (-1, 2), {}, object(), len, jax.random.key(0)),
    *(np.zeros(2), np.float64(2), np.array(2.0), np.array("a"), np.array([1, None])),
)
ROWS = np.sin(np.arange(12.0)).reshape(4, 3)
ODD_ROWS = (
    *(None, 3, "x", [], [[]], ROWS[:0], ROWS[:, :0], ROWS[0], ROWS.astype("c16"), ROWS > 0),
    *(ROWS.astype("m8[s]"), ROWS.astype(str), ROWS * np.nan, ROWS * 1e308, [ROWS, ROWS[:2]]),
    *([ROWS, ROWS[:, :2]], np.ma.masked_array(ROWS, ROWS > 0), ROWS.astype(object), {"x": 1}),
    *(np.array([[1, None]]), ROWS.astype(np.float16), (ROWS, ROWS), np.ones((2, 3, 4)), [1, [2]]),
)
NET = wl.Serial(wl.Dense(4), wl.Relu(), wl.Dense(1))
LAYERS = [
    thing
    for thing in (getattr(wl.layers, name) for name in sorted(wl.layers.__all__))
    if inspect.isclass(thing) and issubclass(thing, wl.Layer) and thing is not wl.Layer
]


def layer_calls():
    """Every parameter of every layer with every odd value."""
    for layer in LAYERS:
        parameters = inspect.signature(layer).parameters.values()
        required = [p for p in parameters if p.default is p.empty]
        needed = {p.name: 8 for p in required if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        for parameter in parameters:
            for odd in ODD:
                if parameter.kind is parameter.VAR_POSITIONAL:
                    yield layer, (odd,), needed
                elif parameter.kind is not parameter.VAR_KEYWORD:
                    yield layer, (), {**needed, parameter.name: odd}


def ends_well(function, *arguments, **options):
    """Call; what is raised must be an error of this library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            function(*arguments, **options)
        except WidelimitError:
            return
        except Exception as error:  # named with the call that raised it
            said = f"{function}(*{arguments!r}, **{options!r}) raised {error!r}"
            pytest.fail(said[:600])


def test_layers_refuse_odd_parameters():
    calls = list(layer_calls())
    assert len(calls) >= 1000
    for layer, arguments, options in calls:
        ends_well(layer, *arguments, **options)


odd_rows, odd = st.sampled_from(ODD_ROWS), st.sampled_from(ODD)
ROOMS = {
    "kernel": lambda x, v: NET.kernel(x, mask=v),
    "kernel of two": lambda x, v: NET.kernel(ROWS, x, mask2=v),
    "memory": lambda x, v: NET.kernel(x, memory=v),
    "dtype": lambda x, v: NET.kernel(x, dtype=v),
    "key": lambda x, v: NET.init(v, (3,)),
    "targets": lambda x, v: GPPosterior.condition(np.eye(4), x, noise=v),
    "gram": lambda x, v: GPPosterior.condition(x, np.ones(4), noise=0.1),
    "pad": lambda x, v: data.pad([ROWS, x]),
    "labels": lambda x, v: class_numbers([str(v)], class_names(["a", "b"])),
    "table": lambda x, v: data.read_frame(str(v)),
    "save": lambda x, v: wl.save(v, "/dev/null"),
}


def fuzz(count):
    cases = st.tuples(odd_rows, odd)
    return sum(tried(count, cases, partial(_check, call)) for call in ROOMS.values())


def _check(call, case):
    ends_well(call, *case)


def test_calls_refuse_odd_values():
    assert fuzz(12) >= 100


@pytest.mark.slow
def test_many_calls_refuse_odd_values():
    assert fuzz(150) >= 1000
