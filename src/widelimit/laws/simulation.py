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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jaxtyping import Float

from ..errors import NetworkError, ShapeError
from ..layers.attention.heads import INFINITE
from ..layers.attention.multihead import MultiHead
from ..layers.attention.scores import Scaling, ScoreMap, Softmax
from ..options import RandomKey, seed_words, whole
from ..printing import counted
from ..progress import Callback, Progress
from .simulation_inputs import SimulatedInputs
from .wishart import bartlett, gaussian_product

_BLOCK = 1 << 16
"""Numbers in one temporary array: large enough to hide Python, small enough for the cache."""


@dataclass(frozen=True)
class _Setting:
    """An attention layer on inputs with S positions and n channels, all its numbers resolved."""

    heads: int
    channels: int
    key_width: int
    value_width: int
    output_width: int
    tied: bool
    score_factor: float
    """The factor c in front of `QKᵀ`."""
    ov_std: float
    score_map: ScoreMap
    allowed: np.ndarray | None = field(repr=False)
    """Which keys count for which query, (S, S)."""

    @classmethod
    def of(cls, layer: MultiHead, inputs: SimulatedInputs) -> "_Setting":
        """Read a layer, or say what of it cannot be simulated."""
        _require_plain(layer)
        channels = inputs.channels or layer.width
        if channels is None:
            raise ShapeError(
                "The simulated layer has no width, and neither have its inputs.",
                got="Attention without width, and inputs without channels",
                remedy="give Attention(width, …), or channels= to the inputs",
            )
        output = layer.width or channels
        key_width = layer.key_width or output
        linear = layer.scaling is not Scaling.SQRT
        return cls(
            heads=int(layer.heads),
            channels=channels,
            key_width=key_width,
            value_width=layer.value_width or output,
            output_width=output,
            tied=layer.scaling is Scaling.LINEAR,
            score_factor=float(layer.qk_std) / (key_width if linear else np.sqrt(key_width)),
            ov_std=float(layer.ov_std),
            score_map=layer.score_map,
            allowed=None if layer.pattern is None else layer.pattern.allowed((inputs.positions,)),
        )

    def weights(
        self, scores: Float[np.ndarray, "... q keys"], queries: np.ndarray
    ) -> Float[np.ndarray, "... q keys"]:
        """`ζ(scores)` of some queries."""
        allowed = None if self.allowed is None else self.allowed[queries]
        if allowed is None and isinstance(self.score_map, Softmax):
            return _softmax(scores)
        with jax.enable_x64(True):
            if self.fields == 1:
                return np.asarray(self.score_map(*jax.device_put((scores, allowed))))
            flat, keys = jax.device_put((scores.reshape(-1, *scores.shape[-3:]), allowed))
            weights = jax.vmap(lambda g: self.score_map(g, keys))(flat)
            return np.asarray(weights).reshape(*scores.shape[:-3], *scores.shape[-2:])

    @property
    def fields(self) -> int:
        """Independent scores in each head."""
        return self.score_map.fields

    def heads_of(self, draws: int, heads: int) -> tuple[int, ...]:
        """Leading axes of scores: draws and heads, and the scores of a head if there are more."""
        return (draws, heads) if self.fields == 1 else (draws, heads, self.fields)


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


@dataclass(frozen=True, eq=False, repr=False)
class SimulatedAttention:
    """Draws of one layer; the queries are the positions asked for, in that order.

    `variances` is the variance of each output given the inputs, the scores and the norms of the
    output weights: given these the output is a centred Gaussian, so that
    `ScaleMixture(variances[:, a, c])` is the finite network's law without a histogram.
    """

    outputs: Float[np.ndarray, "draws queries channels"]
    scores: Float[np.ndarray, "draws heads *fields queries S"] | None = None
    weights: Float[np.ndarray, "draws heads queries S"] | None = None
    variances: Float[np.ndarray, "draws queries channels"] | None = None

    def __repr__(self) -> str:
        draws, queries, channels = self.outputs.shape
        kept = [
            name for name in ("scores", "weights", "variances") if getattr(self, name) is not None
        ]
        extra = f", with {', '.join(kept)}" if kept else ""
        shape = f"{counted(draws, 'draw')}, {counted(queries, 'query', 'queries')}, "
        shape += counted(channels, "channel")
        return f"SimulatedAttention({shape}{extra})"


def simulate(
    layer: MultiHead,
    inputs: SimulatedInputs,
    *,
    draws: int,
    key: RandomKey = 0,
    positions: Sequence[int] | None = None,
    channels: int = 1,
    scores: bool = False,
    weights: bool = False,
    variances: bool = False,
    workers: int | None = None,
    progress: bool | Callback | None = None,
) -> SimulatedAttention:
    """Simulate `draws` networks and inputs, exactly in law, at any width for the same cost.

    `positions` selects the query positions (all by default): fewer are cheaper. `channels` output
    channels are returned; channels are exchangeable, so which ones is immaterial. The result
    depends on `key` and the arguments, not on `workers` (threads; all cores by default).
    Temporary memory is bounded whatever the draws and heads; what is returned is not: scores and
    weights take `draws·heads·queries·S` numbers each. `progress` is as elsewhere: None draws a bar
    on a terminal only, False never, a function is called with `(chunks done, chunks)`.
    """
    plan = _SimulationPlan(_Setting.of(layer, inputs), inputs, positions, channels)
    words = seed_words(key)
    result = plan.allocate(draws, scores=scores, weights=weights, variances=variances)

    def work(chunk: int, part: slice) -> None:
        plan.fill(_stream(words, chunk), result, part)

    _in_parallel(work, draws, size=plan.chunk, workers=workers, progress=progress)
    return result


class _SimulationPlan:
    """The fixed part of a simulation: order of the positions, sizes of the blocks."""

    def __init__(
        self,
        layer: _Setting,
        inputs: SimulatedInputs,
        positions: Sequence[int] | None,
        channels: int,
    ):
        self.layer, self.inputs = layer, inputs
        self.queries = _check_request(layer, inputs, positions, channels)
        self.channels = channels
        rest = np.setdiff1d(np.arange(inputs.positions), self.queries)
        self.order = np.concatenate([self.queries, rest])
        self.natural = np.argsort(self.order)
        side = max(len(self.queries), channels, inputs.positions if layer.tied else 1)
        per_head = inputs.positions * side * layer.fields
        self.head_block = max(1, min(layer.heads, _BLOCK // per_head))
        # Runs whose temporary arrays stay in the cache.
        per_run = max(self.head_block * per_head, inputs.positions**2)
        self.chunk = max(1, _BLOCK // max(per_run, inputs.footprint(layer.channels)))

    def allocate(
        self, draws: int, *, scores: bool, weights: bool, variances: bool
    ) -> SimulatedAttention:
        """Empty results of the full size, which the threads fill slice by slice."""
        whole("draws", draws)
        q = len(self.queries)
        by_head = (draws, self.layer.heads, q, self.inputs.positions)
        by_score = (*self.layer.heads_of(draws, self.layer.heads), q, self.inputs.positions)
        by_channel = (draws, q, self.channels)
        return SimulatedAttention(
            outputs=np.zeros(by_channel),
            scores=np.empty(by_score) if scores else None,
            weights=np.empty(by_head) if weights else None,
            variances=np.zeros(by_channel) if variances else None,
        )

    def fill(self, rng: np.random.Generator, result: SimulatedAttention, part: slice) -> None:
        """Simulate those in `part` and write them into `result`."""
        layer, draws = self.layer, part.stop - part.start
        factor = self.inputs.factor(rng, draws, width=layer.channels, order=self.order)[:, None]
        rank = factor.shape[-1]
        leading = min(len(self.queries), rank)
        query_side = factor[..., : len(self.queries), :leading]
        factor = factor[..., self.natural, :]
        key_side = np.swapaxes(factor, -1, -2) * layer.score_factor
        for block in _blocks(layer.heads, self.head_block):
            batch = (draws, block.stop - block.start)
            product = self._score_product(rng, layer.heads_of(*batch), leading, rank)
            left, right = (
                side if layer.fields == 1 else side[..., None, :, :]
                for side in (query_side, key_side)
            )
            scores = left @ (product @ right)
            weights = layer.weights(scores, self.queries)
            if result.scores is not None:
                result.scores[part, block] = scores
            if result.weights is not None:
                result.weights[part, block] = weights
            self._add_outputs(rng, batch, weights @ factor, result, part)

    def _score_product(
        self, rng: np.random.Generator, batch: tuple[int, ...], leading: int, rank: int
    ) -> Float[np.ndarray, "*batch leading rank"]:
        """First rows of `Z_Q Z_Kᵀ`."""
        n_k = self.layer.key_width
        if not self.layer.tied:
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
        rank, n_v = mixed.shape[-1], self.layer.value_width
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
        draws, queries = mixed.shape[0], mixed.shape[2]
        joined = np.swapaxes(mixed, 1, 2).reshape(draws, queries, -1)
        result.outputs[part] += scale * (joined @ values.reshape(draws, -1, self.channels))
        if result.variances is not None:
            row_norms = np.square(mixed).sum(axis=-1)[..., None]
            result.variances[part] += scale**2 * (row_norms * column_norms).sum(axis=1)


def _stream(words: tuple[int, ...], chunk: int) -> np.random.Generator:
    """The random stream of one chunk of work: a function of the key's words and `chunk` alone."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words, spawn_key=(chunk,))))


def _check_request(
    layer: _Setting, inputs: SimulatedInputs, positions: Sequence[int] | None, channels: int
) -> np.ndarray:
    """The query positions as an array."""
    whole("channels", channels)
    if channels > layer.output_width:
        raise ShapeError(
            "More output channels are asked for than the layer has.",
            got=f"{channels} channels of {layer.output_width}",
            remedy="ask for fewer channels, or give the layer more width",
        )
    if positions is None:
        return np.arange(inputs.positions)
    queries = np.asarray(positions)
    valid = queries.ndim == 1 and queries.size > 0 and queries.dtype.kind in "iu"
    if valid:
        valid = queries.min() >= 0 and queries.max() < inputs.positions
    if not valid or np.unique(queries).size != queries.size:
        raise ShapeError(
            f"positions= are not distinct integers from 0 to {inputs.positions - 1}.",
            got=repr(positions),
            remedy="list each query position once, counting from 0",
        )
    return queries


def _in_parallel(
    work: Callable[[int, slice], None],
    draws: int,
    *,
    size: int,
    workers: int | None,
    progress: bool | Callback | None,
) -> None:
    """Call `work(chunk, part)` on threads for consecutive parts of at most `size` draws.

    Threads suffice: NumPy's generators, ufuncs and matrix products release the interpreter lock.
    """
    workers = os.cpu_count() or 1 if workers is None else whole("workers", workers)
    parts = list(_blocks(draws, size))
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
