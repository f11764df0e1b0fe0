"""Several networks with one trunk: what they share is computed once for all of them.

Most of a kernel's cost lies in the layers over positions. Networks that differ only in how their
positions are read out – flattened, pooled, attended – are therefore computed together.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from ...errors import ShapeError
from ...layers.base import Layer, fence
from ...layers.branches import Branches
from ...layers.compose import require_layers
from ...state import Outline, Pair


class Readouts(Branches):
    """Outputs side by side, as positions: `y_r = g_r(x)`, each branch with weights of its own.

    The kernel of a pair is diagonal over readouts, `κ_rr = κ_{g_r}`, because different readouts
    have independent weights; Θ likewise.
    """

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """Every branch ends in fresh weights (Dense) and leaves no positions."""
        require_layers(branches, "Readouts")
        self.branches = branches

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        # Weights below the branching are shared: only those above it make readouts independent.
        own = [branch.outline(before.to(fresh=False)) for branch in self.branches]
        if any(outline.positions or not outline.fresh for outline in own):
            raise ShapeError(
                "A readout leaves positions, or does not end in weights of its own.",
                got=", ".join(str(outline.shape) for outline in outlines),
                remedy="pool or flatten, then end in Dense(1)",
            )
        return outlines[0].to(positions=(len(outlines),))

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return jnp.stack(outputs)

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        def diagonal(of: Callable[[Pair], Array]) -> Array:
            return jnp.diag(jnp.stack([of(pair) for pair in plain]))

        plain = [pair.compute() for pair in pairs]
        ntk = None if plain[0].ntk is None else diagonal(lambda pair: _known(pair.ntk))
        return Pair(diagonal(lambda pair: pair.nngp), ntk, 1, True)

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return jnp.stack(means)

    def enter(self, pair: Pair) -> Pair:
        # Behind the fence the trunk is computed once, not once for every readout.
        return fence(pair.compute(), self.branches)


def _known(ntk: Any) -> Array:
    assert ntk is not None
    return ntk
