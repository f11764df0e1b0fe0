"""Compiled functions: one for every kind of arguments, and not more than so many of them.

JAX keeps what it has compiled for ever: some ten megabytes for every new shape, and memory maps, of
which a process may only have so many. Here the functions that have not been called for longest go.
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

# After so many have gone, rings of references are looked for, which takes as long as compiling one.
_SWEEP = 8

_ARRAYS = (jax.Array, np.ndarray, np.generic)

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
        kind = (function, frame.kind, tuple((array.shape, array.dtype) for array in arrays))
        gone = 0
        with _changing:
            run = _kept.get(kind)
            if run is None:
                run = _kept[kind] = _jitted(function, frame)
                while len(_kept) > MOST:
                    _kept.popitem(last=False)
                    gone = next(_count)
            _kept.move_to_end(kind)
        if gone % _SWEEP == _SWEEP - 1:
            gc.collect()  # what was traced refers to itself, and would stay for long
        found, around = run(arrays)
        # Tracers answer the question whether they are ready with an error that prints the trace.
        jax.block_until_ready([one for one in found if not isinstance(one, Tracer)])
        return around.filled(found)

    return cast(Function, call)


def kept() -> int:
    """How many compilations are kept at present."""
    return len(_kept)


def _jitted(function: Callable[..., Any], frame: _Frame) -> Callable[..., Any]:
    """A compiled function of its own, which takes its compilation along when it goes."""

    def run(arrays: list[Any]) -> tuple[list[Any], _Frame]:
        args, options = frame.filled(arrays)
        return _Frame.of(function(*args, **options))

    run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
    return jax.jit(run)
