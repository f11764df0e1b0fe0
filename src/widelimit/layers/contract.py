"""Sums of positions with given weights: the general linear map over positions."""

import re
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import OptionError, ShapeError
from ..options import cast, hyperparameter, leaf
from ..state import Outline
from .base import Memo, with_fields
from .pool import PositionMap


class Contract(PositionMap):
    """Positions summed with the weights of an array, as `einsum` writes it.

    `Contract(M, "ai,i->a")` is `y_a = Σ_i M_ai x_i`: κ ← M κ Mᵀ, Θ ← M Θ Mᵀ. Letters stand for
    axes of the array, for position axes of the input, and for those of the output: `"ai,ij->aj"`
    mixes the rows of images, `"i,i->i"` weighs positions, `"i,i->"` sums them up. Padding adds
    nothing; an output position is real where some real position could add to it.
    """

    rule: str = eqx.field(static=True)
    array: Any = leaf("array", tuned=False, scalar=False)

    def __init__(self, array: Any, rule: str):
        """`array` holds the weights, which are not trained; `rule` says where they go."""
        self.array = hyperparameter(array, "array", scalar=False)
        self.rule = rule.replace(" ", "") if isinstance(rule, str) else ""
        known = re.fullmatch("([a-z]*),([a-z]*)->([a-z]*)", self.rule)
        weights, taken, left = ("", "", "?") if known is None else known.groups()
        unique = all(len({*side}) == len(side) for side in (weights, taken, left))
        if not unique or not {*left} <= {*weights, *taken} or len(weights) != np.ndim(self.array):
            raise OptionError(
                "rule= does not say by small letters how an array meets positions.",
                got=f"rule={rule!r} with an array of {np.ndim(self.array)} axes",
                remedy="write it as einsum does, array first, such as Contract(matrix, 'ai,i->a')",
            )

    def outline(self, before: Outline) -> Outline:
        weights, taken, left = self._letters
        sizes = dict(zip(weights, np.shape(self.array), strict=True))
        fits = len(taken) == len(before.positions) and all(
            sizes.setdefault(letter, extent) == extent
            for letter, extent in zip(taken, before.positions, strict=False)
        )
        if not fits:
            raise ShapeError(
                "The array of Contract does not fit the positions of its input.",
                got=f"{self.rule!r} with an array of shape {np.shape(self.array)} for positions of "
                f"shape {before.positions}",
                remedy="name one letter for each position axis, of the array's extents",
            )
        return before.to(positions=tuple(sizes[letter] for letter in left))

    @property
    def _letters(self) -> list[str]:
        return re.split(",|->", self.rule)

    def mask(self, mask: Array) -> Array | None:
        if not self._letters[2]:
            return None
        ones = with_fields(self, array=jnp.ones(np.shape(self.array)))
        return ones.mix(mask[..., None].astype(float), None)[..., 0] > 0

    def mix(self, f: Array, memo: Memo) -> Array:
        weights, taken, left = self._letters
        f = f if memo is None else f * memo[..., None].astype(f.dtype)
        return jnp.einsum(f"{weights},{taken}Z->{left}Z", cast(self.array, f), f)
