"""Finite-width attention with explicit weights: the plain reference for `simulate`."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from ..progress import Callback
from .simulate import Simulation, check_request, in_parallel
from .simulate_random import generator
from .simulate_setting import FiniteAttention, Inputs, positive_integer

_BLOCK = 1 << 20


def simulate_explicit(
    layer: FiniteAttention,
    inputs: Inputs,
    *,
    runs: int,
    seed: int,
    positions: Sequence[int] | None = None,
    channels: int = 1,
    scores: bool = False,
    weights: bool = False,
    workers: int | None = None,
    progress: bool | Callback | None = None,
) -> Simulation:
    """Draw every weight matrix and run the layer, `O(n²)` numbers a run; see `simulate`."""
    queries = check_request(layer, inputs, positions, channels)
    positive_integer(runs, name="number of runs")
    by_head = (runs, layer.heads, len(queries), inputs.positions)
    result = Simulation(
        outputs=np.zeros((runs, len(queries), channels)),
        scores=np.empty(by_head) if scores else None,
        weights=np.empty(by_head) if weights else None,
    )

    def work(chunk: int, part: slice) -> None:
        rng = generator(seed, chunk)
        count = part.stop - part.start
        x = inputs.explicit(rng, count, width=layer.width)
        for head in range(layer.heads):
            head_scores, head_weights, y = _head(layer, rng, count, x)
            if result.scores is not None:
                result.scores[part, head] = head_scores[:, queries]
            if result.weights is not None:
                result.weights[part, head] = head_weights[:, queries]
            result.outputs[part] += y[:, queries, :channels]

    size = max(1, _BLOCK // (inputs.positions * layer.width**2))
    in_parallel(work, runs, size=size, workers=workers, progress=progress)
    return result


def _head(
    layer: FiniteAttention, rng: np.random.Generator, runs: int, x: Float[np.ndarray, "r S n"]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, weights and contribution to the outputs of one head with fresh weights."""
    key_width, value_width, output_width = layer.widths

    def matrix(rows: int, columns: int) -> Float[np.ndarray, "runs rows columns"]:
        return rng.standard_normal((runs, rows, columns)) / np.sqrt(rows)

    keys = x @ matrix(layer.width, key_width)
    queries = keys if layer.shares_queries_and_keys else x @ matrix(layer.width, key_width)
    scores = layer.score_factor * (queries @ np.swapaxes(keys, -1, -2))
    weights = layer.weights(scores)
    values = x @ matrix(layer.width, value_width)
    outputs = weights @ (values @ matrix(value_width, output_width))
    return scores, weights, outputs * (layer.ov_std / np.sqrt(layer.heads))
