"""What a kernel will cost on this machine, from a second or two of it.

A few tiles are computed as the whole kernel would be: same blocks, same threads, lengths in
proportion. Time goes as the number of pairs, beside what grows slower: compiling once, encoding
every example.
"""

import math
import os
import time
from dataclasses import dataclass, replace

import jax
import numpy as np

from ..engine.inputs import Inputs
from ..engine.kernel import Problem, make_pairs
from ..engine.phases import precision
from ..engine.threads import in_threads
from ..engine.tiles import Pairs, TilePlan, groups
from ..options import whole

# Seconds of each part of the calibration, beside compiling; and the side of matrices to multiply.
_SECONDS, _PRODUCT = 0.7, 48
# What a solve takes beside N³/3 multiplications and additions at the rate of such products: small
# blocks, and for every entry reading, checking and copying by one thread (measured at 2,000 to
# 8,000 examples; for many more examples the first is nearer to 1).
_SOLVE_FACTOR, _SOLVE_ENTRY = 1.3, 700
# Blocks along a side of the sample: enough kinds of tiles, few examples to encode.
_BLOCKS = 4
# Stored tiles, of 1024 examples a side, that wait for the disk beside those that are being filled.
_WAITING = 3
_NOISE = 0.1


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Time, memory and disk of a kernel on this machine; `with_workers(k)`: on a cluster."""

    examples: int
    tests: int
    pairs: int
    """Pairs to compute: half of a symmetric kernel, all of the rest."""
    rate: float
    """Pairs a second, by all cores of this machine or by all workers."""
    compiling: float
    """Seconds, once."""
    encoding: float
    """Seconds, for examples one by one."""
    factorising: float
    """Seconds of an exact solve, `Cholesky()` or `BlockedCholesky()`."""
    disk: int
    """Bytes of a store."""
    memory: int
    """Bytes that a process which computes into a store takes: inputs, `memory=`, some tiles."""
    dense: int
    """Bytes of the kernels in memory, and of one float64 array beside them to solve with."""
    workers: int

    @property
    def seconds(self) -> float:
        """Seconds until the kernel is computed."""
        return self.compiling + self.encoding + self.pairs / self.rate

    def with_workers(self, workers: int) -> "Cost":
        """With this number of single-threaded workers like the cores of this machine."""
        share = whole("workers", workers) / self.workers
        encoding = self.encoding / share
        return replace(self, rate=self.rate * share, encoding=encoding, workers=workers)

    def __repr__(self) -> str:
        return f"Cost({self})"

    def __str__(self) -> str:
        size = f"{self.examples:,} examples" + (f" and {self.tests:,} tests" if self.tests else "")
        return (
            f"kernel of {size}: {duration(self.seconds)} on {self.workers} cores "
            f"({self.rate:,.0f} pairs/s, of which compiling {duration(self.compiling)}); "
            f"{readable_bytes(self.disk)} on disk and {readable_bytes(self.memory)} of memory in a "
            f"store, or {readable_bytes(self.dense)} of memory without; an exact solve takes "
            f"{duration(self.factorising)}"
        )


def duration(seconds: float) -> str:
    """Seconds as a person says them."""
    for most, size, words in ((90, 1, ".0f s"), (5400, 60, ".0f min"), (48 * 3600, 3600, ".1f h")):
        if seconds < most:
            digits, unit = words.split()
            return f"{seconds / size:{digits}} {unit}"
    return f"{seconds / 86400:.1f} days"


def readable_bytes(count: float) -> str:
    """Bytes for people."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count / 1e3:.0f} kB"


def measure(problem: Problem, examples: int | None, tests: int) -> Cost:
    """The cost for a number of examples like these (None: as many), and of `tests` with them."""
    problem.require_numbers()
    net, inputs, memory = problem.net, problem.rows, problem.memory
    examples = inputs.size if examples is None else whole("examples", examples)
    whole("tests", tests, least=0)
    repeated = inputs[np.arange(min(examples, 1024)) % inputs.size]
    side = TilePlan.make(net, [repeated], problem.dtype, memory).tile
    sample = _like(inputs, min(examples, _BLOCKS * side))
    begin = time.perf_counter()
    pairs = make_pairs(replace(problem, rows=sample, columns=None), [groups(net, sample)])
    with precision(pairs.dtype):
        places = pairs.places
        # The diagonal has work of its own: an example and itself are computed in double precision.
        first = list(
            {(pairs.kind(place), place[0] == place[1]): place for place in places}.values()
        )
        for place in first:
            pairs.computed(place)
        compiling = time.perf_counter() - begin
        begin = time.perf_counter()
        for place in first:
            pairs.computed(place)
        compiling = max(0.0, compiling - (time.perf_counter() - begin))
        encoding, per_example = _encoding(pairs)
        rate = _rate(pairs, [(i, j) for i, j in places if i != j] or places)
        diagonal = _rate(pairs, [(i, j) for i, j in places if i == j])
        size = len(pairs.left[0].members)
        encoding += max(0.0, size / diagonal - size / rate)
    count = examples * (examples + 1) // 2 + tests * examples
    fits = min(1.0, memory / 4 / max(1.0, per_example * examples))
    # Blocks that do not stay in memory are encoded for every tile that needs them.
    again = 2 * (1 - fits) * count / max(1, pairs.left[0].plan.tile)
    item = np.dtype(problem.dtype).itemsize
    parts = (2 if problem.ntk else 1) * (1 if problem.sampler is None else 2)
    entries = math.prod(net.outline(inputs.outline).positions) ** 2
    per_pair = item * parts * entries
    per_input = inputs.nbytes / inputs.size
    tiles = (pairs.at_once + _WAITING) * 2**20 * parts * item
    return Cost(
        examples=examples,
        tests=tests,
        pairs=count,
        rate=rate,
        compiling=compiling,
        encoding=encoding * (examples + tests + again),
        factorising=_solving(examples),
        disk=int(count * per_pair),
        memory=int(memory + per_input * (examples + tests) + tiles),
        dense=int((examples**2 + tests * examples) * per_pair + 8 * examples**2),
        workers=os.cpu_count() or 1,
    )


def _like(inputs: Inputs, count: int) -> Inputs:
    """More examples like these; copies are changed a little, for equal examples cost more."""
    rng = np.random.default_rng(0)
    index = np.arange(count) % inputs.size
    chosen = inputs[index]

    def changed(x: np.ndarray) -> np.ndarray:
        if count <= inputs.size:
            return x
        if inputs.tokens:
            return rng.permuted(x, axis=0)
        return (x * (1 + _NOISE * rng.standard_normal(x.shape))).astype(x.dtype)

    parts = tuple(map(changed, chosen.x)) if isinstance(chosen.x, tuple) else changed(chosen.x)
    return chosen._replace(x=parts)


def _encoding(pairs: Pairs) -> tuple[float, float]:
    """Seconds and bytes to encode an example."""
    side, blocks = pairs.left, range(len(pairs.left))
    side.kept.clear()
    begin = time.perf_counter()
    found = [side.encoded(block, 0) for block in blocks]
    jax.block_until_ready(found)
    seconds, many = time.perf_counter() - begin, len(pairs.reals)
    nbytes = sum(leaf.nbytes for leaf in jax.tree.leaves(found))
    size = sum(len(side[block].members) for block in blocks)
    return seconds * many / size, nbytes * many / size


def _rate(pairs: Pairs, places: list[tuple[int, int]]) -> float:
    """Pairs a second, over tiles drawn as they occur, for about the time of the calibration."""
    rng = np.random.default_rng(0)
    done, seconds, batch = 0, 0.0, max(8, 4 * pairs.at_once)
    while seconds < _SECONDS:
        chosen = [places[k] for k in rng.integers(len(places), size=batch)]
        begin = time.perf_counter()
        for _ in in_threads(pairs.computed, chosen, at_once=pairs.at_once, alike=pairs.kind):
            pass
        seconds += time.perf_counter() - begin
        done += sum(len(pairs.left[i].members) * len(pairs.right[j].members) for i, j in chosen)
        batch *= 2
    return done / seconds


def _solving(examples: int) -> float:
    """Seconds of an exact solve on all cores, from those of small products.

    The products are too small for threads, whose waits for one another are what other work on the
    machine makes longer: a hundred times, where a matrix of 1,000 is factorised beside five others.
    """
    matrix, times = np.ones((_PRODUCT, _PRODUCT)), []
    for _ in range(2_000):
        begin = time.perf_counter()
        np.matmul(matrix, matrix)
        times.append(time.perf_counter() - begin)
    step = float(np.median(times)) / _PRODUCT**3  # of one multiplication and addition
    cubic = _SOLVE_FACTOR * examples**3 / 6 / (os.cpu_count() or 1)
    return step * (cubic + _SOLVE_ENTRY * examples**2)
