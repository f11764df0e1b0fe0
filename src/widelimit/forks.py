"""Forked processes: JAX's threads stay behind in the parent, and a child would wait forever."""

import os
import sys

from .errors import ForkError

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
    """Runs in every forked child, before anything else of it."""
    global _parent
    if _jax_runs():
        _parent = os.getppid()


def _jax_runs() -> bool:
    """Whether JAX has started its threads; before that, forking is safe."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    asked = getattr(bridge, "backends_are_initialized", None)
    return _started if asked is None else bool(asked())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)
