"""Several streams of an input, added: what was computed from each apart becomes one signal."""

import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import NetworkError, OptionError, ShapeError
from ..options import Range, hyperparameter
from ..state import UNKNOWN, Mean, Outline, Pair, UnknownMean, total
from .base import Facts, Layer, Memo, Params, cast, leaf
from .branches import add_outlines


class AddStreams(Layer):
    """`y = Σ_i √c_i x_i` over the streams of an input: κ ← Σ c_i κ_i, Θ ← Σ c_i Θ_i.

    `Parallel` runs a network on every stream first. Streams have no positions left and the same
    number of channels; all but one end in weights of their own, so that they are uncorrelated.
    """

    shares: Any = leaf("shares", where=Range.POSITIVE, scalar=False)

    def __init__(self, shares: Any):
        """`shares` are the c_i, one for each stream; none is negative."""
        given = hyperparameter(shares, "shares", scalar=False)
        numbers = isinstance(given, np.ndarray)
        if given.ndim != 1 or given.size < 2 or (numbers and bool((given < 0).any())):
            raise OptionError(
                "shares= does not hold a share for each of two or more streams.",
                got=f"shares={shares!r}",
                remedy="pass numbers that are not negative, such as AddStreams((0.5, 0.5))",
            )
        self.shares = given

    def __repr__(self) -> str:
        shares = ", ".join(f"{float(share):.3g}" for share in np.asarray(self.shares))
        return f"AddStreams(({shares}))"

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, streams=int(np.size(self.shares)))

    def outline(self, before: Any) -> Outline:
        if not isinstance(before, tuple) or len(before) != self.facts.streams:
            raise ShapeError(
                "AddStreams met another number of streams than it has shares.",
                got=f"{len(before) if isinstance(before, tuple) else 1} streams",
                remedy=f"pass x as a tuple of {self.facts.streams} arrays, and start with Parallel",
            )
        if any(one.positions for one in before):
            raise ShapeError(
                "AddStreams met streams that still have positions.",
                got=" and ".join(str(one.positions) for one in before),
                remedy="end each network of Parallel with MeanPool(), Flatten() or Select()",
            )
        return add_outlines(before)

    def require(self, before: Any) -> None:
        if sum(not one.fresh for one in before) > 1:
            raise NetworkError(
                "Several streams do not end in fresh weights (Dense, Conv or Attention, then "
                "linear layers only): kernels add over streams that are uncorrelated.",
                got=f"{sum(not one.fresh for one in before)} streams that do not",
                remedy="end each network of Parallel in Dense(width)",
            )

    def forward(self, params: Params, x: Any, mask: Any, key: Any) -> Array:
        roots = jnp.sqrt(cast(self.shares, x[0]))
        return functools.reduce(operator.add, (r * y for r, y in zip(roots, x, strict=True)))

    def mask(self, mask: Any) -> None:
        return None

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        pairs = [stream.forced() for stream in pair]
        return total(pairs, [cast(share, pairs[0].nngp) for share in self.shares])

    def mean(self, example: Any, memo: Memo) -> Mean:
        means = [stream.mean for stream in example]
        if any(isinstance(mean, UnknownMean) for mean in means):
            return UNKNOWN
        if all(mean is None for mean in means):
            return None
        zero = jnp.zeros(())
        return self.forward((), [zero if mean is None else mean for mean in means], None, None)
