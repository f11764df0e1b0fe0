"""Entries that are dropped in every pass anew: rates, masks, and what an input alone gains."""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..errors import OptionError
from ..flat_draws import coins
from ..state import Pair


def checked_rate(rate: float, name: str = "rate") -> float:
    """A probability of dropping an entry."""
    number = isinstance(rate, int | float | np.number) and not isinstance(rate, bool)
    if not number or not 0 <= rate < 1:
        raise OptionError(
            "A dropout rate is a probability below 1.",
            got=f"{name}={rate!r}",
            remedy="give a number with 0 ≤ rate < 1",
        )
    return float(rate)


def dropped(key: Key[Array, ""], x: Float[Array, "*shape"], rate: float) -> Float[Array, "*shape"]:
    """Each entry with probability `1 − rate`, divided by it; else 0."""
    keep = coins(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), jnp.zeros((), x.dtype))


def with_diagonal(pair: Pair, values: Float[Array, " positions"]) -> Pair:
    """An input's covariance with other variances κ_aa(x, x); its tangent kernel is left out."""
    if not pair.full or pair.rank == 0:
        return pair.to(values.reshape(pair.nngp.shape), None)
    forced = pair.forced()
    square = forced.nngp.reshape(values.size, values.size)
    square = jnp.fill_diagonal(square, values, inplace=False)
    return pair.to(square.reshape(forced.nngp.shape), None)
