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
which a layer of yours may have, are compiled for one thread (`_ONE_THREAD`). Products and sums stay
with YNNPACK: what takes its place adds long sums in plain loops, which costs three digits in single
precision (8e-5 instead of 1e-7 for attention on 16×16 images). Threads that wait forever are
noticed (`engine.threads`). Calls back into Python, which may wait as well, occur nowhere.
"""

import functools
import gc
import itertools
import os
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar, cast

import jax
import numpy as np
from equinox.internal import Static, hashable_combine, hashable_partition
from jax.core import Tracer

from .errors import ForkError

Function = TypeVar("Function", bound=Callable[..., Any])

# A matrix of six groups of lengths takes about fifty. Each holds 5 to 10 MB.
MOST = 128

# After this many have gone, cyclic references are collected, as long as compiling one takes.
SWEEP = 8

_ARRAYS = (jax.Array, np.ndarray, np.generic)

# Transforms do not wait for XLA's threads inside one of them; see above.
_ONE_THREAD: dict[str, Any] = {"xla_cpu_multi_thread_eigen": False}

_kept: OrderedDict[Any, Callable[..., Any]] = OrderedDict()
_changing = threading.Lock()
_count = itertools.count()


def _split(tree: Any) -> tuple[tuple[Any, ...], Any]:
    """The arrays among the leaves, None elsewhere, and everything else, which is hashable."""
    return hashable_partition(tree, lambda leaf: isinstance(leaf, _ARRAYS))


def compiled(function: Function) -> Function:
    """The function, compiled for every kind of arguments: all arrays in them are traced."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        arrays, rest = _split((args, options))
        shapes = tuple(None if array is None else (array.shape, array.dtype) for array in arrays)
        inner = _is_traced(arrays)
        # 1, 1.0 and True are equal, but not of one kind.
        kind = (function, rest, tuple(map(type, rest[0])), shapes, inner)
        gone = 0
        with _changing:
            run = _kept.get(kind)
            if run is None:
                run = _kept[kind] = _jitted(function, rest, inner)
                while len(_kept) > MOST:
                    _kept.popitem(last=False)
                    gone = next(_count)
            _kept.move_to_end(kind)
        if gone % SWEEP == SWEEP - 1:
            gc.collect()  # what was traced refers to itself, and would stay for long
        found, others = run(arrays)
        # Tracers answer the question whether they are ready with an error that prints the trace.
        jax.block_until_ready([one for one in found if not isinstance(one, Tracer)])
        return hashable_combine(found, others.value)

    return cast(Function, call)


def kept() -> int:
    """How many compilations are kept at present."""
    return len(_kept)


def jitted(function: Function) -> Function:
    """`jax.jit` for programs of their own, with the options that all programs here have."""
    return cast(Function, jax.jit(function, compiler_options=_options()))


@functools.cache
def _options() -> dict[str, Any]:
    """`_ONE_THREAD`, where this XLA knows it."""
    try:
        jax.jit(lambda: 0, compiler_options=_ONE_THREAD)()
    except jax.errors.JaxRuntimeError:  # no such option
        return {}
    return _ONE_THREAD


_zero = jax.jit(lambda: 0)


def _is_traced(arrays: tuple[Any, ...]) -> bool:
    """Whether this is a part of a larger program, which has options of its own."""
    return any(isinstance(array, Tracer) for array in (*arrays, _zero()))


def _jitted(function: Callable[..., Any], rest: Any, inner: bool) -> Callable[..., Any]:
    """A compiled function of its own, which takes its compilation along when it goes."""

    def run(arrays: tuple[Any, ...]) -> tuple[tuple[Any, ...], Static]:
        args, options = hashable_combine(arrays, rest)
        found, others = _split(function(*args, **options))
        return found, Static(others)

    run.__name__ = run.__qualname__ = getattr(function, "__name__", "run")
    return jax.jit(run) if inner else jitted(run)


# --- forked processes: JAX stays behind in the parent ---------------------------------------------

_started = False  # whether this process has entered the library's computations
_parent: int | None = None  # whose copy this process is, if JAX had started there


def require_own_jax() -> None:
    """Refuse in a forked copy of a process in which JAX was running.

    It costs a look at one variable: the children themselves take note when they begin.
    """
    global _started
    _started = True
    if _parent is not None:
        raise ForkError(
            "JAX does not survive a fork: its threads stay in the parent, and the child would wait "
            "for them forever.",
            got=f"process {os.getpid()}, forked from {_parent} after JAX had started",
            remedy='start processes with multiprocessing.get_context("forkserver") or "spawn" '
            "(for all: multiprocessing.set_start_method), or fork before the first computation",
        )


def _note_fork() -> None:
    """Runs in every forked child, before anything else of it; forking before JAX starts is safe."""
    global _parent
    asked = getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", None)
    if _started if asked is None else asked():
        _parent = os.getppid()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
