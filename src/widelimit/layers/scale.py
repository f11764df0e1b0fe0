"""All entries times one number."""

from typing import Any

from jaxtyping import Array

from ..state import Example, Mean, Outline, Pair
from .base import Facts, Memo, Positionwise, cast, leaf


class Scale(Positionwise):
    """`y = c·x`: κ ← c² κ, Θ ← c² Θ."""

    factor: Any = leaf("factor")

    def __init__(self, factor: Any):
        """`factor` is c, a hyperparameter of any sign."""
        self.factor = factor

    def outline(self, before: Outline) -> Outline:
        return before.to(raw=False)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, keeps_zeros=True, cuttable=True)

    def forward(self, params: Any, x: Array, mask: Array | None, key: Any):
        return cast(self.factor, x) * x

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        scale = cast(self.factor, pair.nngp) ** 2
        return pair.affine(scale=scale, lift=scale * 0)

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.mapped_mean(lambda m: cast(self.factor, m) * m)

    def features(self, example: Example) -> Array | None:
        rows = example.features
        return None if rows is None else rows * cast(self.factor, rows)
