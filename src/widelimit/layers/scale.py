"""All entries times one number."""

from typing import Any

from jaxtyping import Array

from ..state import Outline, Pair
from .base import Facts, Memo, RowMap, cast, leaf


class Scale(RowMap):
    """`y = c·x`: κ ← c² κ, Θ ← c² Θ."""

    factor: Any = leaf("factor", kw_only=False)
    """c, a hyperparameter of any sign."""

    def outline(self, before: Outline) -> Outline:
        return before.to(raw=False)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, keeps_zeros=True, cuttable=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return self.mix(x, None)

    def mix(self, f: Array, memo: Memo) -> Array:
        return cast(self.factor, f) * f

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        scale = cast(self.factor, pair.nngp) ** 2
        return pair.affine(scale=scale, lift=scale * 0)
