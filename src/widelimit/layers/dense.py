"""Dense layers and token embeddings: the channels are mixed by fresh Gaussian weights."""

from enum import Enum
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..errors import ShapeError
from ..flat_draws import normals
from ..options import Range, choice, hyperparameter, option, whole
from ..state import Example, Outline, Pair
from .base import (
    Facts,
    Layer,
    Memo,
    Params,
    Positionwise,
    cast,
    fence,
    leaf,
)


class Parameterization(Enum):
    """How weights are scaled; the NNGP kernel is the same, the tangent kernel is not.

    NTK: weights are N(0, 1) and multiplied by `σ/√fan_in` in the forward pass.
    STANDARD: weights are drawn from N(0, σ²/fan_in) and used as they are.
    """

    NTK = "ntk"
    STANDARD = "standard"


class Weights(eqx.Module):
    """Fresh weights on `fan_in` inputs: the rule shared by dense and convolutional layers.

    κ ← σ_w² κ + σ_b²;  Θ ← κ_new + σ_w² Θ   (NTK parameterisation)
                        Θ ← fan_in κ + 1 + σ_w² Θ   (standard; the 1 only with a bias)

    `width_factor` s says, in the standard parameterisation, that `fan_in = s N` inputs stand for N
    of the limit (Sohl-Dickstein et al. 2020): `y = W x/√s` with `W ~ N(0, σ_w²/N)`, Θ with N.
    """

    w_std: Any = leaf("w_std", where=Range.POSITIVE, default=1.0)
    b_std: Any = leaf("b_std", where=Range.POSITIVE, default=0.0)
    parameterization: Parameterization = option(Parameterization.NTK)
    # Whether there is a bias at all; a standard deviation of exactly 0 means there is none.
    biased: bool = option(False)
    width_factor: int = option(1)

    def draw(self, key: Key[Array, ""], shape: tuple[int, ...]) -> Params:
        """Weights of shape (…fan-in axes, width) and a bias."""
        weight_key, bias_key = jax.random.split(key)
        bias = normals(bias_key, shape[-1:]) if self.biased else None
        drawn = normals(weight_key, shape), bias
        standard = self.parameterization is Parameterization.STANDARD
        return self._times_std(*drawn) if standard else drawn

    def scaled(self, params: Params) -> tuple[Array, Array | None]:
        """The weight and bias as the forward pass uses them."""
        if self.parameterization is Parameterization.NTK:
            return self._times_std(*params)
        weight, bias = params
        return (weight if self.width_factor == 1 else weight / self.width_factor**0.5), bias

    def _times_std(self, weight: Array, bias: Array | None) -> tuple[Array, Array | None]:
        fan_in = np.prod(weight.shape[:-1]) / self.width_factor
        weight = weight * cast(self.w_std, weight) / np.sqrt(fan_in).astype(weight.dtype)
        return weight, None if bias is None else bias * cast(self.b_std, bias)

    def memo(self, mask: Array | None, fan_in: int) -> Memo:
        """The output's mask, and the fan-in where the tangent kernel depends on it."""
        if self.parameterization is Parameterization.NTK:
            return mask, None
        return mask, jnp.asarray(fan_in / self.width_factor)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        """The rule above, on a pair whose κ is already averaged over the fan-in."""
        (mask1, fan_in), (mask2, _) = memo1, memo2
        pair = fence(pair, self.w_std)
        scale = cast(self.w_std, pair.nngp) ** 2
        bias = cast(self.b_std, pair.nngp) ** 2 if self.biased else None
        if self.parameterization is Parameterization.NTK:
            return pair.affine(scale=scale, lift=scale, bias=bias, masks=(mask1, mask2))
        return pair.affine(
            scale=scale,
            lift=cast(fan_in, scale),
            bias=bias,
            ntk_bias=jnp.ones_like(scale),
            masks=(mask1, mask2),
        )


def make_weights(w_std: Any, b_std: Any, parameterization: Parameterization | str) -> Weights:
    """Weights, with a bias or without."""
    biased, b_std = check_bias(b_std)
    kind = choice(Parameterization, parameterization, "parameterization")
    return Weights(w_std=w_std, b_std=b_std, parameterization=kind, biased=biased)


def check_bias(b_std: Any) -> tuple[bool, Any]:
    """Whether there is a bias, and its standard deviation; None and exactly 0 mean none."""
    value = hyperparameter(0.0 if b_std is None else b_std, "b_std")
    return isinstance(value, jax.Array) or bool(value != 0), value


def require_channels(x: Array, weight: Array) -> None:
    """Raise where parameters were drawn for inputs with other channels."""
    if x.shape[-1] != weight.shape[-2]:
        raise ShapeError(
            "The parameters were drawn for other channels than they meet.",
            got=f"{x.shape[-1]} channels, and weights for {weight.shape[-2]}",
            remedy="call init with the shape of one example, x.shape[1:]",
        )


def add_bias(y: Array, bias: Array | None) -> Array:
    """With a bias of the last axes, where there is one."""
    return y if bias is None else y + bias.reshape(*(1,) * (y.ndim - bias.ndim), *bias.shape)


class Dense(Positionwise):
    """`y_a = (σ_w/√n) W x_a + σ_b b` at every position a.

    κ ← σ_w² κ + σ_b²,  Θ ← κ_new + σ_w² Θ.
    """

    width: int = eqx.field(static=True)
    weights: Weights

    def __init__(
        self,
        width: int,
        *,
        w_std: Any = 1.0,
        b_std: Any = 0.0,
        parameterization: Parameterization | str = Parameterization.NTK,
    ):
        """Fresh weights onto `width` channels. `w_std` is σ_w, `b_std` σ_b; 0 means no bias.

        `parameterization` matters to the tangent kernel (see `Parameterization`).
        """
        self.width = whole("width", width)
        self.weights = make_weights(w_std, b_std, parameterization)

    def outline(self, before: Outline) -> Outline:
        return before.with_weights(channels=self.width)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        return self.weights.draw(key, (before.channels, self.width))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        weight, bias = self.weights.scaled(params)
        require_channels(x, weight)
        return add_bias(x @ weight, bias)

    @property
    def facts(self) -> Facts:
        return Facts(linear=True, keeps_zeros=True, cuttable=True)

    def memo(self, example: Example) -> Memo:
        return self.weights.memo(example.mask, example.outline.channels)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return self.weights.cross(pair, memo1, memo2)

    def features(self, example: Example) -> Array | None:
        if example.features is None:
            return None
        rows = example.features * cast(self.weights.w_std, example.features)
        if not self.weights.biased:
            return rows
        column = example.ones(rows.dtype) * cast(self.weights.b_std, rows)
        return jnp.concatenate([rows, column[..., None]], axis=-1)


class Embedding(Layer):
    """Integer tokens to i.i.d. Gaussian rows of a table: `y_a = σ E[token_a]`.

    Tokens enter as one-hot vectors, κ_ab = 1 where the tokens agree; κ ← σ² κ, Θ ← κ_new.
    """

    width: int = eqx.field(static=True, converter=partial(whole, "width"))
    """How many columns the table has."""
    vocabulary: int = eqx.field(static=True, converter=partial(whole, "vocabulary"), kw_only=True)
    """How many rows."""
    std: Any = leaf("std", where=Range.POSITIVE, default=1.0)

    @property
    def facts(self) -> Facts:
        return Facts(cuttable=True, vocabulary=self.vocabulary)

    def outline(self, before: Outline) -> Outline:
        if before.channels != 0:
            raise ShapeError(
                "Embedding is not the first layer, which gets integer token ids (N, positions…).",
                got=f"an input with {before.channels} channels",
                remedy="pass an integer array without a channel axis, or use Dense for vectors",
            )
        return before.with_weights(channels=self.width)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        return normals(key, (self.vocabulary, self.width))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        return params[x] * cast(self.std, params)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        scale = cast(self.std, pair.nngp) ** 2
        return pair.affine(scale=scale, lift=scale)
