"""Strict by default: implicit rank promotion is an error in every test."""

from pathlib import Path

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 30_000  # Linux allows a process 65,530 by default


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Every compiled function keeps memory maps; a process that has too many of them dies."""
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
