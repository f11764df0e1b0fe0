"""Attention heads that are not all alike: slopes, temperatures or patterns by head."""

from typing import Any

import equinox as eqx

from ..errors import NetworkError
from .attention.heads import INFINITE
from .attention.multihead import MultiHead
from .base import Layer
from .branches import Sum
from .compose import require_layers


class HeadGroups(Sum):
    """One attention layer whose heads come in groups: `y = Σ_g √(H_g/H) y_g`.

    Every group is an attention layer of `H_g` heads with its own positions, `qk_std` (the inverse
    temperature), pattern or score map; all groups have the same width. As heads are independent,
    κ ← Σ_g (H_g/H) κ_g and Θ likewise. With infinitely many heads groups have equal
    shares; `with_heads` keeps the shares as they are.
    """

    shares: tuple[float, ...] = eqx.field(static=True)

    def __init__(self, *groups: Layer):
        """At least one attention layer; all with finitely many heads, or all with infinitely many.

        Heads with slopes of their own, for instance:
        `HeadGroups(*(Attention(64, heads=1, positions=Alibi(s)) for s in (0.5, 0.25, 0.125)))`.
        """
        require_layers(groups, "HeadGroups")
        attention = [group for group in groups if isinstance(group, MultiHead)]
        kinds = {group.heads == INFINITE for group in attention}
        if len(attention) < len(groups) or len(kinds) > 1:
            raise NetworkError(
                "Groups of heads are not attention layers, all with finitely many heads or all "
                "with infinitely many.",
                got=", ".join(map(repr, groups)),
                remedy="e.g. HeadGroups(Attention(64, heads=2, qk_std=1.0), "
                "Attention(64, heads=2, qk_std=4.0))",
            )
        self.branches = groups
        heads = [1 if group.heads == INFINITE else int(group.heads) for group in attention]
        self.shares = tuple(count / sum(heads) for count in heads)

    def coefficients(self) -> list[Any]:
        return list(self.shares)
