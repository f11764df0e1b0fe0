"""Strict by default: implicit rank promotion is an error in every test."""

import gc
import itertools
import os
import subprocess
import uuid
from pathlib import Path

# Before JAX is imported. Test processes share the cores already. The first flag is about
# convolutions of Eigen; products and loops have their threads all the same (see
# `engine/test_soak.py`). The second is the older way to compile fused loops, and the faster one;
# the third compiles in half the time what runs nearly as fast, the fourth wants no threads for it.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_cpu_multi_thread_eigen=false --xla_cpu_use_fusion_emitters=false "
    "--xla_backend_optimization_level=1 --xla_cpu_parallel_codegen_split_count=1",
)
# Before NumPy is imported. Small matrices are shared out over threads that wait for each other
# while all cores are busy: 400 nodes of Gauss's rule take 1.7 s of processor time, or 0.01 s.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# What one process has compiled, others read: those beside it, those it starts, and the next run.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".pytest_cache" / "compiled")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.02")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")

import array_types
import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")

# Two thirds of the time of most tests is the compiler's, for functions that run once on small
# arrays. Not so where networks are drawn by the thousand; and rounding is judged as users meet it.
_OPTIMISED = (
    *("test_finite.py", "_finite.py", "test_simulate.py", "test_precision.py", "test_closeness.py"),
    "test_unlike_channels.py",
)


jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True)
def compiler_effort(request):
    """Small functions are compiled without optimisation, those of modules among them."""
    path = request.path.as_posix()
    marked = request.node.get_closest_marker("optimised") is not None
    optimised = marked or any(name in path for name in _OPTIMISED)
    if marked:  # also what ran before, step by step
        jax.clear_caches()
    jax.config.update("jax_disable_most_optimizations", not optimised)


def pytest_configure():
    """Before any test imports the package."""
    array_types.install()
    from widelimit import compilation

    # Tests meet more kinds of arguments than programs do, and all of them are small. To look
    # through all that is kept takes a second: after every eight, a tenth of the time of all tests.
    compilation.MOST = 512
    compilation.SWEEP = 64


def pytest_collection_finish():
    """What is there now stays: looking through all of it for garbage takes long."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


_MAPS = Path("/proc/self/maps")
_MOST_MAPS = 30_000  # Linux allows a process 65,530 by default
_done = itertools.count(1)


@pytest.fixture(autouse=True)
def few_memory_maps():
    """Every compiled function keeps memory maps; a process that has too many of them dies.

    To count 12,000 of them takes 6 ms: now and then is enough.
    """
    yield
    now = next(_done) % 20 == 0 and _MAPS.exists()
    if now and _MAPS.read_bytes().count(b"\n") > _MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def mounted(tmp_path):
    """Mounts a small file system in memory; skips where that is not permitted."""
    places = []

    def mount(options):
        place = tmp_path / uuid.uuid4().hex
        place.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("mounting a file system is not permitted here")
        places.append(place)
        return place

    yield mount
    for place in places:
        subprocess.run(["umount", "--lazy", str(place)], check=True)  # files may be open still
