"""Finite-width attention, exact in law, without ever drawing a weight matrix.

Given the inputs, a layer's scores and outputs are functions of Gaussian matrices with `S` rows and
`n` columns that enter only through `S×S` products. With `LLᵀ = XXᵀ/n`, and all `Z`, `N` standard
normal, `T` Bartlett factors:

- scores: `Q_hK_hᵀ = L Z_Q Z_Kᵀ Lᵀ = L N T_Kᵀ Lᵀ` (tied: `L T Tᵀ Lᵀ`);
- outputs: `X W_V,h W_O,h = L Z_V W_O,h = n_v^{-1/2} L N T_Oᵀ`, `T_O` the factor of as many rows as
  channels are asked for.

So the cost of a draw is `O(S³H)` at every width, and the law is exact at every width, one included.
When only `q` query positions are asked for they are put first: their rows of the triangular `L`
have `q` columns, and only `q` rows of `N` are ever needed.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, ShapeError
from ..layers.attention.heads import INFINITE
from ..layers.attention.multihead import MultiHead
from ..layers.attention.scores import Scaling, Softmax
from ..options import RandomKey, seed_words, whole
from ..printing import counted
from ..progress import Callback, Progress
from .simulation_inputs import SimulatedInputs
from .wishart import bartlett, gaussian_product

_BLOCK = 1 << 16
"""Numbers in one temporary array: large enough to hide Python, small enough for the cache."""


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedAttention:
    """Draws of one layer; the queries are the positions asked for, in that order.

    `variances` is the variance of each output given the inputs, the scores and the norms of the
    output weights: given these the output is a centred Gaussian, so that
    `ScaleMixture(variances[:, a, c])` is the finite network's law without a histogram.
    """

    outputs: Float[np.ndarray, "draws queries channels"]
    scores: Float[np.ndarray, "draws heads *fields queries S"] | None = None
    variances: Float[np.ndarray, "draws queries channels"] | None = None

    def __repr__(self) -> str:
        draws, queries, channels = self.outputs.shape
        shape = (
            counted(draws, "draw"),
            counted(queries, "query", "queries"),
            counted(channels, "channel"),
        )
        return f"SimulatedAttention({', '.join(shape)})"


def simulate(
    layer: MultiHead,
    inputs: SimulatedInputs,
    *,
    draws: int,
    key: RandomKey = 0,
    positions: Sequence[int] | None = None,
    channels: int = 1,
    scores: bool = False,
    variances: bool = False,
    progress: bool | Callback | None = None,
) -> SimulatedAttention:
    """Simulate `draws` networks and inputs, exactly in law, at any width for the same cost.

    `positions` selects the query positions (all by default): fewer are cheaper. `channels` output
    channels are returned; channels are exchangeable, so which ones is immaterial. The result
    depends on `key` and the arguments, not on the cores that share the work. Temporary memory is
    bounded whatever the draws and heads; what is returned is not: scores take
    `draws·heads·queries·S` numbers. `progress` is as elsewhere: None draws a bar on a terminal
    only, False never, a function is called with `(chunks done, chunks)`.
    """
    simulation = _Simulation(layer, inputs, positions, channels)
    words = seed_words(key)
    result = simulation.allocate(whole("draws", draws), scores=scores, variances=variances)
    parts = list(_blocks(draws, simulation.chunk))
    bar, steps = Progress.make(progress, "simulating"), range(len(parts))

    def work(chunk: int, part: slice) -> None:
        # A function of the key and the chunk alone.
        seeds = np.random.SeedSequence(words, spawn_key=(chunk,))
        simulation.fill(np.random.Generator(np.random.SFC64(seeds)), result, part)

    # Threads suffice: NumPy's generators, ufuncs and matrix products release the interpreter lock.
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        finished = as_completed([pool.submit(work, i, part) for i, part in enumerate(parts)])
        try:
            for _ in steps if bar is None else bar.track(steps):
                next(finished).result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return result


class _Simulation:
    """An attention layer on inputs with S positions and n channels, all its numbers resolved."""

    def __init__(
        self,
        layer: MultiHead,
        inputs: SimulatedInputs,
        positions: Sequence[int] | None,
        channels: int,
    ):
        """Read a layer and a request, or say what of them cannot be simulated."""
        _require_plain(layer)
        self.layer, self.inputs, self.channels = layer, inputs, whole("channels", channels)
        width = inputs.channels or layer.width
        if width is None:
            raise ShapeError(
                "The simulated layer has no width, and neither have its inputs.",
                got="Attention without width, and inputs without channels",
                remedy="give Attention(width, …), or channels= to the inputs",
            )
        output = layer.width or width
        if channels > output:
            raise ShapeError(
                "More output channels are asked for than the layer has.",
                got=f"{channels} channels of {output}",
                remedy="ask for fewer channels, or give the layer more width",
            )
        self.width, self.heads, self.fields = width, int(layer.heads), layer.score_map.fields
        self.key_width, self.value_width = layer.key_width or output, layer.value_width or output
        self.tied = layer.scaling is Scaling.LINEAR
        depth = np.sqrt(self.key_width) if layer.scaling is Scaling.SQRT else self.key_width
        self.score_factor = float(layer.qk_std) / depth
        """The factor c in front of `QKᵀ`."""
        self.allowed = None if layer.pattern is None else layer.pattern.allowed((inputs.positions,))
        """Which keys count for which query, (S, S)."""
        # Positions asked for come first.
        self.queries = _read_positions(positions, inputs.positions)
        rest = np.setdiff1d(np.arange(inputs.positions), self.queries)
        self.order = np.concatenate([self.queries, rest])
        self.natural = np.argsort(self.order)
        side = max(len(self.queries), channels, inputs.positions if self.tied else 1)
        per_head = inputs.positions * side * self.fields
        self.head_block = max(1, min(self.heads, _BLOCK // per_head))
        # Draws whose temporary arrays stay in the cache.
        per_draw = max(self.head_block * per_head, inputs.positions**2, inputs.footprint(width))
        self.chunk = max(1, _BLOCK // per_draw)

    def allocate(self, draws: int, *, scores: bool, variances: bool) -> SimulatedAttention:
        """Empty results of the full size, which the threads fill slice by slice."""
        q = len(self.queries)
        by_score = (*self._batch(draws, self.heads), q, self.inputs.positions)
        by_channel = (draws, q, self.channels)
        return SimulatedAttention(
            outputs=np.zeros(by_channel),
            scores=np.empty(by_score) if scores else None,
            variances=np.zeros(by_channel) if variances else None,
        )

    def _batch(self, draws: int, heads: int) -> tuple[int, ...]:
        """Leading axes of scores: draws and heads, and the scores of a head if there are more."""
        return (draws, heads) if self.fields == 1 else (draws, heads, self.fields)

    def fill(self, rng: np.random.Generator, result: SimulatedAttention, part: slice) -> None:
        """Simulate those in `part` and write them into `result`."""
        draws = part.stop - part.start
        factor = self.inputs.factor(rng, draws, width=self.width, order=self.order)[:, None]
        rank = factor.shape[-1]
        leading = min(len(self.queries), rank)
        query_side = factor[..., : len(self.queries), :leading]
        factor = factor[..., self.natural, :]
        key_side = np.swapaxes(factor, -1, -2) * self.score_factor
        if self.fields > 1:
            query_side, key_side = (side[..., None, :, :] for side in (query_side, key_side))
        for block in _blocks(self.heads, self.head_block):
            batch = (draws, block.stop - block.start)
            product = self._score_product(rng, self._batch(*batch), leading, rank)
            scores = query_side @ (product @ key_side)
            if result.scores is not None:
                result.scores[part, block] = scores
            self._add_outputs(rng, batch, self._weights(scores) @ factor, result, part)

    def _weights(
        self, scores: Float[np.ndarray, "... q keys"]
    ) -> Float[np.ndarray, "draws heads q keys"]:
        """`ζ(scores)`."""
        score_map = self.layer.score_map
        allowed = None if self.allowed is None else self.allowed[self.queries]
        if allowed is None and isinstance(score_map, Softmax):
            return _softmax(scores)
        with jax.enable_x64(True):
            if self.fields == 1:
                return np.asarray(score_map(*jax.device_put((scores, allowed))))
            flat, keys = jax.device_put((scores.reshape(-1, *scores.shape[-3:]), allowed))
            weights = jax.vmap(lambda g: score_map(g, keys))(flat)
            return np.asarray(weights).reshape(*scores.shape[:-3], *scores.shape[-2:])

    def _score_product(
        self, rng: np.random.Generator, batch: tuple[int, ...], leading: int, rank: int
    ) -> Float[np.ndarray, "*batch leading rank"]:
        """First rows of `Z_Q Z_Kᵀ`."""
        n_k = self.key_width
        if not self.tied:
            return gaussian_product(rng, batch, rows=leading, columns=rank, inner=n_k)
        factor = bartlett(rng, batch, rows=rank, dof=n_k)
        return factor[..., :leading, :] @ np.swapaxes(factor, -1, -2)

    def _add_outputs(
        self,
        rng: np.random.Generator,
        batch: tuple[int, int],
        mixed: Float[np.ndarray, "draws heads queries rank"],
        result: SimulatedAttention,
        part: slice,
    ) -> None:
        """Add `(n_v H)^{-1/2} Σ_h mixed_h Z_V,h Z_O,h` and its variance, over a block of heads.

        The factor is taken on the narrower side of the product: the channels (`T_O`, variance
        `|mixed_a|² |T_O,c|²`) or, when many channels are asked for, the values (`T_V`, variance
        `|(mixed T_V)_a|²`).
        """
        rank, n_v = mixed.shape[-1], self.value_width
        scale = float(self.layer.ov_std) / np.sqrt(n_v * self.heads)
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
        draws, queries = mixed.shape[0], mixed.shape[2]
        joined = np.swapaxes(mixed, 1, 2).reshape(draws, queries, -1)
        result.outputs[part] += scale * (joined @ values.reshape(draws, -1, self.channels))
        if result.variances is not None:
            row_norms = np.square(mixed).sum(axis=-1)[..., None]
            result.variances[part] += scale**2 * (row_norms * column_norms).sum(axis=1)


def _require_plain(layer: Any) -> None:
    if not isinstance(layer, MultiHead) or not layer.reads_itself:
        raise NetworkError(
            f"{type(layer).__name__} is no self-attention layer, the only kind that is simulated.",
            got=f"{type(layer).__name__}",
            remedy="pass Attention(width, heads)",
        )
    positions = layer.positions
    extras = {
        "heads=INFINITE": layer.heads == INFINITE,
        "positions=": positions.encoding or positions.biases or positions.rotary,
        "kv_heads=": layer.kv_heads not in (None, layer.heads),
        "b_std=": layer.biased,
        "projections=": not positions.projections.plain,
        "dropout=": layer.dropout > 0,
    }
    found = [name for name, used in extras.items() if used]
    if found:
        raise NetworkError(
            "The layer has parts that are not simulated: infinitely many or grouped heads, "
            "positional encodings, biases, other projections, or dropout.",
            got=", ".join(found),
            remedy="leave these out, or draw the whole network with init and apply",
        )


def _softmax(scores: Float[np.ndarray, "... keys"]) -> Float[np.ndarray, "... keys"]:
    """`exp(g_i) / Σ_j exp(g_j)` over the last axis, the keys."""
    # Reducing a short last axis is slow; over a leading axis the maximum is elementwise and fast.
    keys_first = np.ascontiguousarray(np.moveaxis(scores, -1, 0))
    weights = np.exp(scores - keys_first.max(axis=0)[..., None])
    weights /= np.einsum("...k->...", weights)[..., None]
    return weights


def _read_positions(positions: Sequence[int] | None, count: int) -> np.ndarray:
    """The query positions as an array."""
    if positions is None:
        return np.arange(count)
    queries = np.asarray(positions)
    valid = queries.ndim == 1 and queries.size > 0 and queries.dtype.kind in "iu"
    if not valid or np.intersect1d(queries, np.arange(count)).size < queries.size:
        raise ShapeError(
            f"positions= are not distinct integers from 0 to {count - 1}.",
            got=repr(positions),
            remedy="list each query position once, counting from 0",
        )
    return queries


def _blocks(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))
