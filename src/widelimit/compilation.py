"""Compiled functions: one for every kind of arguments, and a bounded number of them.

JAX keeps what it has compiled forever: some ten megabytes for every new shape, and memory maps, of
which there is a limit. Here the functions that have not been called for longest go.

All programs of the package are compiled here, because of what XLA may do with its threads. On a
processor it has one pool of them, which the steps of all running programs share – and every tile
has one. Most steps never wait: loops, products and convolutions of Eigen hand out their parts and
return, and whoever ends the last part goes on. Three kinds wait *in* a thread of the pool for parts
that they have given *to* the pool: batches of LAPACK's factorisations and solves, Fourier
transforms, and products of the YNNPACK library, which work on parts of other steps meanwhile (so
two threads can wait for each other's unfinished parts). When all threads wait like this, nothing
ever ends; batches of LAPACK were seen to do it. They are loops here (`factorizations`). Transforms,
which a layer of yours may have, are compiled for one thread (`_CALM`). Products and sums stay with
YNNPACK: what takes its place adds long sums in plain loops, which costs three digits in single
precision (8e-5 instead of 1e-7 for attention on 16×16 images). Threads that wait forever are
noticed (`engine.threads`). Calls back into Python, which may wait as well, occur nowhere.
"""

import functools
import gc
import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import jax
import numpy as np
from jax.core import Tracer

Function = TypeVar("Function", bound=Callable[..., Any])

# A matrix of six groups of lengths takes about fifty. Each holds 5 to 10 MB.
MOST = 128

# After this many have gone, cyclic references are collected, as long as compiling one takes.
SWEEP = 8

_ARRAYS = (jax.Array, np.ndarray, np.generic)

# Transforms do not wait for XLA's threads inside one of them; see above.
_CALM: dict[str, Any] = {"xla_cpu_multi_thread_eigen": False}

_kept: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_changing = threading.Lock()
_count = itertools.count()


@jax.tree_util.register_static
class _Frame(NamedTuple):
    """A structure with its leaves, but for arrays: these are passed on their own."""

    structure: Any
    others: tuple[Any, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, tree: Any) -> "tuple[list[Any], _Frame]":
        """Arrays, and the frame around them."""
        leaves, structure = jax.tree.flatten(tree)
        arrays, places = [], []
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, _ARRAYS):
                arrays.append(leaf)
                places.append(place)
                leaves[place] = None
        return arrays, cls(structure, tuple(leaves), tuple(places))

    def filled(self, arrays: list[Any]) -> Any:
        """The structure with these arrays."""
        leaves = list(self.others)
        for place, array in zip(self.places, arrays, strict=True):
            leaves[place] = array
        return jax.tree.unflatten(self.structure, leaves)

    @property
    def kind(self) -> tuple[Any, ...]:
        """What frames of one kind share; 1, 1.0 and True are equal, but not of one kind."""
        return *self, tuple(map(type, self.others))


def compiled(function: Function) -> Function:
    """The function, compiled for every kind of arguments: all arrays in them are traced."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        arrays, frame = _Frame.of((args, options))
        shapes = tuple((array.shape, array.dtype) for array in arrays)
        inner = _is_traced(arrays)
        kind = (function, frame.kind, shapes, inner)
        gone = 0
        with _changing:
            run = _kept.get(kind)
            if run is None:
                run = _kept[kind] = _jitted(function, frame, inner)
                while len(_kept) > MOST:
                    _kept.popitem(last=False)
                    gone = next(_count)
            _kept.move_to_end(kind)
        if gone % SWEEP == SWEEP - 1:
            gc.collect()  # what was traced refers to itself, and would stay for long
        found, around = run(arrays)
        # Tracers answer the question whether they are ready with an error that prints the trace.
        jax.block_until_ready([one for one in found if not isinstance(one, Tracer)])
        return around.filled(found)

    return cast(Function, call)


def kept() -> int:
    """How many compilations are kept at present."""
    return len(_kept)


def jitted(function: Function) -> Function:
    """`jax.jit` for programs of their own, with the options that all programs here have."""
    return cast(Function, jax.jit(function, compiler_options=_options()))


@functools.cache
def _options() -> dict[str, Any]:
    """`_CALM`, as far as this XLA knows it."""
    if _is_known(_CALM):
        return _CALM
    return {name: value for name, value in _CALM.items() if _is_known({name: value})}


def _is_known(options: dict[str, Any]) -> bool:
    try:
        jax.jit(lambda: 0, compiler_options=options)()
    except jax.errors.JaxRuntimeError:  # no such option
        return False
    return True


_zero = jax.jit(lambda: 0)


def _is_traced(arrays: list[Any]) -> bool:
    """Whether this is a part of a larger program, which has options of its own."""
    return any(isinstance(array, Tracer) for array in (*arrays, _zero()))


def _jitted(function: Callable[..., Any], frame: _Frame, inner: bool) -> Callable[..., Any]:
    """A compiled function of its own, which takes its compilation along when it goes."""

    def run(arrays: list[Any]) -> tuple[list[Any], _Frame]:
        args, options = frame.filled(arrays)
        return _Frame.of(function(*args, **options))

    run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
    return jax.jit(run) if inner else jitted(run)
