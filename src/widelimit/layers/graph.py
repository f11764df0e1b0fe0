"""Graphs: examples that carry edges between their positions, and sums over neighbours."""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from ..errors import NetworkError, ShapeError
from ..options import whole
from ..state import Example, Mean, Need, Outline, Pair
from .base import Facts, Layer, Memo, RowMap, require_positions, require_streams


class Graph(Layer):
    """Where a network of graphs begins: of inputs `(nodes, edges)`, the nodes are led on.

    `nodes` (N, nodes…, channels) are as other inputs. `edges` (N, nodes…, nodes…, kinds) hold the
    weight `L_ai` of node i in sums at node a, for one or more kinds of edges; every `Aggregate`
    above finds them. Graphs of different sizes are two lists of arrays, or padded arrays with
    `mask=(mask, None)`.
    """

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, streams=2)

    def outline(self, before: Any) -> Outline:
        require_streams(before, 2, "Graph", "(nodes, edges)")
        nodes, edges = before
        axes = len(edges.positions) // 2
        if not axes or edges.positions != nodes.positions[:axes] * 2:
            raise ShapeError(
                "The edges do not lead from every node to every node.",
                got=f"edges of shape {edges.shape}, nodes of shape {nodes.shape}",
                remedy="pass edges (N, nodes, nodes, kinds), such as adjacency[..., None]",
            )
        if not edges.raw:
            raise NetworkError(
                "Graph met edges that are not those of the input.",
                got="a layer below that has changed them",
                remedy="begin with Graph(), or with Parallel(net, Serial()) before it",
            )
        return nodes

    def edges(self, streams: Any) -> Array:
        """The edges among the streams of an example, finite (arrays) or infinite."""
        edges = streams[1]
        if not isinstance(edges, Example):
            return edges
        assert edges.features is not None  # of raw inputs
        return edges.features * edges.outline.channels**0.5

    def mask(self, mask: Any) -> Array | None:
        return mask[0]

    def forward(self, params: Any, x: Any, mask: Any, key: Any) -> Array:
        return x[0]

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        return pair[0]

    def mean(self, example: Any, memo: Memo) -> Mean:
        return example[0].mean

    def features(self, example: Any) -> Array | None:
        return example[0].features


class Aggregate(RowMap):
    """`y_a = Σ_i L_ai x_i` over the edges L of each example: κ ← L κ L'ᵀ, Θ ← L Θ L'ᵀ.

    The network begins with `Graph`. L waits like attention weights, until numbers are needed.
    Where nodes have more axes than edges lead between, each place along the others is summed apart.
    """

    kind: int = eqx.field(static=True, default=0, converter=partial(whole, "kind", least=0))
    """Which edges of several kinds; `Sum` adds branches over each."""

    @property
    def facts(self) -> Facts:
        return Facts(need=Need.FULL, linear=True, edges=True)

    def outline(self, before: Outline) -> Outline:
        require_positions(before, "Aggregate")
        return before

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any, edges: Any = None):
        return self.mix(x, self._weights(edges, x.shape[:-1]))

    def mix(self, f: Array, memo: Memo) -> Array:
        return jnp.tensordot(memo, f, axes=memo.ndim // 2)

    def memo(self, example: Example) -> Memo:
        return self._weights(example.edges, example.outline.positions)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        if memo1.ndim == 2 * pair.rank:
            one, two = (memo.reshape(math.isqrt(memo.size), -1) for memo in (memo1, memo2))
            return pair.map_positions_later(one, two)
        return pair.map_positions(lambda f: self.mix(f, memo1), lambda f: self.mix(f, memo2))

    def _weights(self, edges: Array | None, positions: tuple[int, ...]) -> Array:
        """The weights L of this kind, (nodes…, nodes…)."""
        if edges is None:
            raise NetworkError(
                "Aggregate met examples without edges.",
                got="a network that does not begin with Graph",
                remedy="write Serial(Graph(), …, Aggregate(), …) and pass x = (nodes, edges)",
            )
        axes = edges.ndim // 2
        if self.kind >= edges.shape[-1] or edges.shape[:axes] != positions[:axes]:
            raise ShapeError(
                "Aggregate found no edges of its kind between its positions.",
                got=f"{self!r}, edges of shape {edges.shape} and positions of shape {positions}",
                remedy="count kinds from 0, and pool, stride or select after all sums",
            )
        return edges[..., self.kind]
