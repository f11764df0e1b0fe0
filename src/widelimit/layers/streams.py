"""Several streams of an input, added: what was computed from each apart becomes one signal."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import OptionError, ShapeError
from ..options import Range, hyperparameter
from ..state import UNKNOWN, Mean, Outline, Pair, UnknownMean, total
from .base import Facts, Layer, Memo, Params, cast, leaf, require_streams
from .branches import add_outlines, add_outputs, require_uncorrelated


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
        require_streams(before, self.facts.streams, "AddStreams", "one for each of its shares")
        if any(one.positions for one in before):
            raise ShapeError(
                "AddStreams met streams that still have positions.",
                got=" and ".join(str(one.positions) for one in before),
                remedy="end each network of Parallel with MeanPool(), Flatten() or Select()",
            )
        return add_outlines(before)

    def require(self, before: Any) -> None:
        ends = [(f"stream {number}", one) for number, one in enumerate(before, 1)]
        require_uncorrelated(ends, "streams", "Parallel(Dense(width), Dense(width))")

    def forward(self, params: Params, x: Any, mask: Any, key: Any) -> Array:
        return add_outputs(x, list(self.shares))

    def mask(self, mask: Any) -> None:
        return None

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Pair:
        pairs = [stream.compute() for stream in pair]
        return total(pairs, [cast(share, pairs[0].nngp) for share in self.shares])

    def mean(self, example: Any, memo: Memo) -> Mean:
        means = [stream.mean for stream in example]
        if any(isinstance(mean, UnknownMean) for mean in means):
            return UNKNOWN
        if all(mean is None for mean in means):
            return None
        zeros = jnp.zeros(())
        return add_outputs([zeros if mean is None else mean for mean in means], list(self.shares))
