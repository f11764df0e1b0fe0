"""Strict by default: implicit rank promotion is an error in every test."""

import os
from pathlib import Path

# Before JAX is imported. Test processes share the cores already, and the threads of XLA inside one
# operation were seen to wait for each other for ever, once in some hours of tests. The older way to
# compile fused loops takes two thirds of the time.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false"
)

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

# Two thirds of the time of most tests is the compiler's, for functions that run once on small
# arrays. Not so where networks are drawn by the thousand, and where rounding is the matter.
_OPTIMISED = (
    *("compositions/", "duals/", "finite/", "laws/", "netsor/", "trace/", "_finite.py"),
    *("test_sampling.py", "test_precision.py", "test_closeness.py", "test_kernels.py"),
)


@pytest.fixture(autouse=True)
def compiler_effort(request):
    """Small functions are compiled without optimisation."""
    path = request.path.as_posix()
    jax.config.update("jax_disable_most_optimizations", not any(n in path for n in _OPTIMISED))


_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 30_000  # Linux allows a process 65,530 by default


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Every compiled function keeps memory maps; a process that has too many of them dies."""
    yield
    if _MAPS.exists() and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()
