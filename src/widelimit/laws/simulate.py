"""Finite-width attention, exact in law, without ever drawing a weight matrix.

Given the inputs, a layer's scores and outputs are functions of Gaussian matrices with `S` rows and
`n` columns that enter only through `S×S` products. With `LLᵀ = XXᵀ/n`, and all `Z`, `N` standard
normal, `T` Bartlett factors:

- scores: `Q_hK_hᵀ = L Z_Q Z_Kᵀ Lᵀ = L N T_Kᵀ Lᵀ` (tied: `L T Tᵀ Lᵀ`);
- outputs: `X W_V,h W_O,h = L Z_V W_O,h = n_v^{-1/2} L N T_Oᵀ`, `T_O` the factor of as many rows as
  channels are asked for.

So the cost of a run is `O(S³H)` at every width, and the law is exact at every width, one included.
When only `q` query positions are asked for they are put first: their rows of the triangular `L`
have `q` columns, and only `q` rows of `N` are ever needed.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, ShapeError
from ..progress import Callback, Progress
from .simulate_random import bartlett, gaussian_product, generator
from .simulate_setting import FiniteAttention, Inputs, positive_integer

_BLOCK = 1 << 16
"""Numbers in one temporary array: large enough to hide Python, small enough for the cache."""


@dataclass(frozen=True)
class Simulation:
    """Draws of one layer; the queries are the positions asked for, in that order.

    `variances` is the variance of each output given the inputs, the scores and the norms of the
    output weights: given these the output is a centred Gaussian, so that
    `ScaleMixture(variances[:, a, c])` is the finite network's law without a histogram.
    """

    outputs: Float[np.ndarray, "runs queries channels"]
    scores: Float[np.ndarray, "runs heads queries S"] | None = None
    weights: Float[np.ndarray, "runs heads queries S"] | None = None
    variances: Float[np.ndarray, "runs queries channels"] | None = None


def simulate(
    layer: FiniteAttention,
    inputs: Inputs,
    *,
    runs: int,
    seed: int,
    positions: Sequence[int] | None = None,
    channels: int = 1,
    scores: bool = False,
    weights: bool = False,
    variances: bool = False,
    workers: int | None = None,
    progress: bool | Callback | None = None,
) -> Simulation:
    """Draw `runs` independent networks and inputs, exactly in law, at a cost free of the width.

    `positions` selects the query positions (all by default): fewer are cheaper. `channels` output
    channels are returned; channels are exchangeable, so which ones is immaterial. The result
    depends on `seed` and the arguments, not on `workers` (threads; all cores by default).
    Temporary memory is bounded whatever the runs and heads; what is returned is not: scores and
    weights take `runs·heads·queries·S` numbers each. `progress` is as everywhere: None draws a bar
    on a terminal only, False never, a function is told `(chunks done, chunks)`.
    """
    plan = _Plan(layer, inputs, positions, channels)
    result = plan.allocate(runs, scores=scores, weights=weights, variances=variances)

    def work(chunk: int, part: slice) -> None:
        plan.fill(generator(seed, chunk), result, part)

    in_parallel(work, runs, size=plan.chunk, workers=workers, progress=progress)
    return result


class _Plan:
    """The fixed part of a simulation: order of the positions, sizes of the blocks."""

    def __init__(
        self,
        layer: FiniteAttention,
        inputs: Inputs,
        positions: Sequence[int] | None,
        channels: int,
    ):
        self.layer, self.inputs = layer, inputs
        self.queries = check_request(layer, inputs, positions, channels)
        self.channels = channels
        rest = np.setdiff1d(np.arange(inputs.positions), self.queries)
        self.order = np.concatenate([self.queries, rest])
        self.natural = np.argsort(self.order)
        per_head = inputs.positions * max(
            len(self.queries), channels, inputs.positions if layer.shares_queries_and_keys else 1
        )
        self.head_block = max(1, min(layer.heads, _BLOCK // per_head))
        per_run = max(
            self.head_block * per_head, inputs.positions**2, inputs.footprint(layer.width)
        )
        self.chunk = max(1, _BLOCK // per_run)

    def allocate(self, runs: int, *, scores: bool, weights: bool, variances: bool) -> Simulation:
        """Empty results of the full size, which the threads fill slice by slice."""
        positive_integer(runs, name="number of runs")
        q = len(self.queries)
        by_head = (runs, self.layer.heads, q, self.inputs.positions)
        by_channel = (runs, q, self.channels)
        return Simulation(
            outputs=np.zeros(by_channel),
            scores=np.empty(by_head) if scores else None,
            weights=np.empty(by_head) if weights else None,
            variances=np.zeros(by_channel) if variances else None,
        )

    def fill(self, rng: np.random.Generator, result: Simulation, part: slice) -> None:
        """Draw the runs in `part` and write them into `result`."""
        layer, runs = self.layer, part.stop - part.start
        factor = self.inputs.factor(rng, runs, width=layer.width, order=self.order)[:, None]
        rank = factor.shape[-1]
        leading = min(len(self.queries), rank)
        query_side = factor[..., : len(self.queries), :leading]
        factor = factor[..., self.natural, :]
        key_side = np.swapaxes(factor, -1, -2) * layer.score_factor
        for block in _blocks(layer.heads, self.head_block):
            batch = (runs, block.stop - block.start)
            product = self._score_product(rng, batch, leading, rank)
            scores = query_side @ (product @ key_side)
            weights = layer.weights(scores)
            if result.scores is not None:
                result.scores[part, block] = scores
            if result.weights is not None:
                result.weights[part, block] = weights
            self._add_outputs(rng, batch, weights @ factor, result, part)

    def _score_product(
        self, rng: np.random.Generator, batch: tuple[int, int], leading: int, rank: int
    ) -> Float[np.ndarray, "runs heads leading rank"]:
        """First rows of `Z_Q Z_Kᵀ`."""
        n_k = self.layer.widths[0]
        if not self.layer.shares_queries_and_keys:
            return gaussian_product(rng, batch, rows=leading, columns=rank, inner=n_k)
        factor = bartlett(rng, batch, rows=rank, dof=n_k)
        return factor[..., :leading, :] @ np.swapaxes(factor, -1, -2)

    def _add_outputs(
        self,
        rng: np.random.Generator,
        batch: tuple[int, int],
        mixed: Float[np.ndarray, "runs heads queries rank"],
        result: Simulation,
        part: slice,
    ) -> None:
        """Add `(n_v H)^{-1/2} Σ_h mixed_h Z_V,h Z_O,h` and its variance, over a block of heads.

        The factor is taken on the narrower side of the product: the channels (`T_O`, variance
        `|mixed_a|² |T_O,c|²`) or, when many channels are asked for, the values (`T_V`, variance
        `|(mixed T_V)_a|²`).
        """
        rank, n_v = mixed.shape[-1], self.layer.widths[1]
        scale = self.layer.ov_std / np.sqrt(n_v * self.layer.heads)
        if self.channels <= rank:
            factor = bartlett(rng, batch, rows=self.channels, dof=n_v)
            normals = rng.standard_normal((*batch, rank, factor.shape[-1]))
            values = normals @ np.swapaxes(factor, -1, -2)
            column_norms = np.square(factor).sum(axis=-1)[..., None, :]
        else:
            factor = bartlett(rng, batch, rows=rank, dof=n_v)
            mixed = mixed @ factor
            values = rng.standard_normal((*batch, factor.shape[-1], self.channels))
            column_norms = 1.0
        # One matrix product over heads and values together.
        runs, queries = mixed.shape[0], mixed.shape[2]
        joined = np.swapaxes(mixed, 1, 2).reshape(runs, queries, -1)
        result.outputs[part] += scale * (joined @ values.reshape(runs, -1, self.channels))
        if result.variances is not None:
            row_norms = np.square(mixed).sum(axis=-1)[..., None]
            result.variances[part] += scale**2 * (row_norms * column_norms).sum(axis=1)


def check_request(
    layer: FiniteAttention, inputs: Inputs, positions: Sequence[int] | None, channels: int
) -> np.ndarray:
    """Return the query positions as an array, or raise the error that names the broken rule."""
    inputs.check_width(layer.width)
    positive_integer(channels, name="number of channels")
    if channels > layer.widths[2]:
        raise ShapeError(
            "No more output channels can be asked for than the layer has.",
            got=f"{channels} channels of {layer.widths[2]}",
            remedy="ask for fewer channels, or raise output_width",
        )
    if positions is None:
        return np.arange(inputs.positions)
    queries = np.asarray(positions)
    valid = queries.ndim == 1 and queries.size > 0 and queries.dtype.kind in "iu"
    if valid:
        valid = queries.min() >= 0 and queries.max() < inputs.positions
    if not valid or np.unique(queries).size != queries.size:
        raise ShapeError(
            f"Positions must be distinct integers from 0 to {inputs.positions - 1}.",
            got=repr(positions),
            remedy="list each query position once, counting from 0",
        )
    return queries


def in_parallel(
    work: Callable[[int, slice], None],
    runs: int,
    *,
    size: int,
    workers: int | None,
    progress: bool | Callback | None,
) -> None:
    """Call `work(chunk, part)` on threads for consecutive parts of at most `size` runs.

    Threads suffice: NumPy's generators, ufuncs and matrix products release the interpreter lock.
    """
    if workers is None:
        workers = os.cpu_count() or 1
    if workers < 1:
        raise NetworkError(
            "A simulation needs at least one worker.",
            got=repr(workers),
            remedy="give workers=1 or more, or leave it out to use all cores",
        )
    parts = list(_blocks(runs, size))
    bar = Progress.make(progress, "simulating")
    steps = range(len(parts))
    with ThreadPoolExecutor(max_workers=workers) as pool:
        finished = as_completed([pool.submit(work, i, part) for i, part in enumerate(parts)])
        try:
            for _ in steps if bar is None else bar.track(steps):
                next(finished).result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _blocks(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
