"""Branches that multiply each other."""

import math

from jaxtyping import Array

from ..errors import NetworkError
from ..state import Outline, Pair
from .base import Layer
from .branches import Branches, require_same_channels
from .compose import require_layers


class Product(Branches):
    """`y = Π_i g_i(x)`, channel by channel (gates): κ ← Π κ_i, Θ ← Σ_i Θ_i Π_{j≠i} κ_j.

    Exact when the branches are independent, all but one of them containing weights of their own,
    and when the average over channels of a product is the product of averages: in all but one of
    them the channels share one law.
    """

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch, all of the same width."""
        require_layers(branches, "Product")
        self.branches = branches

    def require(self, before: Outline) -> None:
        plain = before.to(weighted=False)
        without = [b for b in self.branches if not b.outline(plain).weighted]
        if len(without) > 1:
            raise NetworkError(
                "Kernels of a product multiply when the branches are independent: all but one of "
                "them must contain weights of their own.",
                got=f"{len(without)} branches without weights",
                remedy="put a Dense or Conv layer into the branches",
            )
        unlike = [b for b in self.branches if not b.outline(before).alike]
        if len(unlike) > 1:
            raise NetworkError(
                "Kernels of a product multiply when channels share one law in all branches but "
                "one; large channels may meet large ones otherwise.",
                got=f"{len(unlike)} branches that end in raw inputs, Concat or Flatten",
                remedy="end all branches but one in Dense or Conv",
            )

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        require_same_channels(outlines, "multiplied")
        return outlines[0].to(
            gaussian=len(outlines) == 1 and outlines[0].gaussian,
            # Uncorrelated with the input as soon as one independent factor has mean zero.
            fresh=any(o.fresh for o in outlines),
            weighted=all(o.weighted for o in outlines),
            alike=all(o.alike for o in outlines),
            raw=False,
        )

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return math.prod(outputs[1:], start=outputs[0])

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        product = pairs[0].forced()
        for pair in pairs[1:]:
            other = pair.forced()
            ntk = None
            if product.ntk is not None and other.ntk is not None:
                ntk = product.ntk * other.nngp + product.nngp * other.ntk
            product = product.to(product.nngp * other.nngp, ntk)
        return product

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return self.merge_outputs(means)
