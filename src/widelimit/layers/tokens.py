"""Trained vectors beside the input: one for each position, one in front of all."""

import functools
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, Key

from ..errors import NetworkError, ShapeError
from ..flat_draws import normals
from ..options import Range, option, whole
from ..state import Example, Mean, Outline, Pair
from .base import Facts, Layer, Memo, Params, cast, leaf, require_drawn


class TrainedVectors(Layer):
    """What layers with trained vectors of deviation σ share."""

    std: eqx.AbstractVar[Any]

    def require(self, before: Outline) -> None:
        if before.raw:
            raise NetworkError(
                f"{type(self).__name__} stands on raw inputs; its vectors are orthogonal only "
                "along many channels.",
                got="raw inputs, whose channels do not grow with the width",
                remedy="put a Dense or Conv layer in front of it",
            )

    def require_channels(self, before: Outline) -> None:
        """Raise where there is nothing to add vectors to."""
        if not before.positions or not before.channels:
            raise ShapeError(
                f"{type(self).__name__} met an input without positions or without channels.",
                got=f"an input of shape {before.shape}",
                remedy="put it after Dense, Conv or Embedding, on inputs with positions",
            )


class PositionTable(TrainedVectors):
    """`y_a = x_a + σ p_a + σ_c c`: a trained vector for every position, and one for all of them.

    Entries of p and c are N(0, 1). Positions are told apart by their index, in all inputs alike:
    κ_ab ← κ_ab + σ² δ_ab + σ_c², the same for Θ.
    """

    std: Any = leaf("std", where=Range.POSITIVE, default=1.0)
    common_std: Any = leaf("common_std", where=Range.POSITIVE, default=0.0)
    """σ_c: a token type that all positions have."""
    most: int | None = option(converter=lambda n: None if n is None else whole("most", n))
    """How many positions the table has rows for; None: as many as inputs have."""

    def outline(self, before: Outline) -> Outline:
        self.require_channels(before)
        if self.most is not None and math.prod(before.positions) > self.most:
            raise ShapeError(
                "The table of positions has fewer rows than the input has positions.",
                got=f"{math.prod(before.positions)} positions, and {self.most} rows",
                remedy="shorten inputs, or give the table more rows",
            )
        return before.to(raw=False)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, cuttable=True)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        place, common = jax.random.split(key)
        return {
            "place": normals(place, before.shape),
            "common": normals(common, (before.channels,)),
        }

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        drawn = params["place"]
        require_drawn(x.shape, drawn.shape, "The table of positions was")
        table = drawn[tuple(slice(extent) for extent in x.shape)]
        common = jnp.broadcast_to(params["common"], x.shape)
        return x + cast(self.std, x) * table + cast(self.common_std, x) * common

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        pair = pair.compute()
        like = pair.nngp
        place, common = cast(self.std, like) ** 2, cast(self.common_std, like) ** 2
        added = jnp.broadcast_to(place + common, like.shape)
        if pair.full:
            index = jnp.indices(like.shape, sparse=True)
            ends = zip(index[: pair.rank], index[pair.rank :], strict=True)
            same = functools.reduce(jnp.logical_and, (one == two for one, two in ends))
            added = place * same.astype(like.dtype) + common
        return pair.to(like + added, None if pair.ntk is None else pair.ntk + added)

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.mean


class ClassToken(TrainedVectors):
    """A trained vector σ c in front of all positions, which become one sequence of S + 1.

    Entries of c are N(0, 1): κ₀₀ = Θ₀₀ = σ², nothing between it and the input; the rest stays.
    Images are read row by row, and padded ones by the rows that they have without padding.
    """

    std: Any = leaf("std", where=Range.POSITIVE, default=1.0)

    def outline(self, before: Outline) -> Outline:
        self.require_channels(before)
        return before.to(positions=(1 + math.prod(before.positions),), raw=False)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, keeps_zeros=True)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        return normals(key, (before.channels,))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        token = cast(self.std, x) * params.astype(x.dtype)
        rows = _in_order(x.reshape(-1, x.shape[-1]), _row_order(mask))
        return jnp.concatenate([token[None, :], rows])

    def mask(self, mask: Array) -> Array:
        real = _in_order(mask.reshape(-1), _row_order(mask))
        return jnp.concatenate([jnp.ones(1, bool), real])

    def memo(self, example: Example) -> Memo:
        return _row_order(example.mask)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        pair = pair.compute()
        square = cast(self.std, pair.nngp) ** 2
        shapes = pair.nngp.shape[: pair.rank], pair.nngp.shape[pair.rank :]
        sizes = [math.prod(shape) for shape in shapes[: 1 + pair.full]]

        def longer(kernel: Array) -> Array:
            ordered = _in_order(kernel.reshape(sizes), memo1)
            if pair.full:
                ordered = _in_order(ordered.T, memo2).T
            padded = jnp.pad(ordered, [(1, 0)] * len(sizes))
            return padded.at[(0,) * len(sizes)].set(square)

        ntk = None if pair.ntk is None else longer(pair.ntk)
        return Pair(longer(pair.nngp), ntk, 1, pair.full)

    def mean(self, example: Example, memo: Memo) -> Mean:
        return example.map_mean(
            lambda m: jnp.concatenate([jnp.zeros(1), _in_order(m.reshape(-1), memo)])
        )


def _row_order(mask: Array | None) -> Int[Array, " position"] | None:
    """The numbers of all positions, those of the image without its padding first, row by row.

    Where rows end is a matter of the image, not of the array that it is padded to: the second row
    of 2 pixels begins at position 2 even where the array has room for 5. None where positions
    stand in that order anyway.
    """
    if mask is None or mask.ndim < 2:
        return None
    inside, place = jnp.ones((), bool), jnp.zeros((), int)
    for axis, extent in enumerate(mask.shape):
        others = tuple(a for a in range(mask.ndim) if a != axis)
        real = extent - jnp.argmax(jnp.any(mask, axis=others)[::-1])
        index = jnp.arange(extent).reshape(tuple(-1 if a == axis else 1 for a in range(mask.ndim)))
        inside, place = inside & (index < real), place * real + index
    return jnp.argsort(jnp.where(inside, place, mask.size).reshape(-1), stable=True)


def _in_order(rows: Array, order: Array | None) -> Array:
    return rows if order is None else rows[order]
