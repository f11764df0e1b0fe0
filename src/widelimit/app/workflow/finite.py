"""Few heads at infinite width: the law of one output, beside networks that are only wide."""

import enum
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key
from scipy.special import ndtri

from ...compilation import jitted
from ...errors import WidelimitError
from ...laws import NetworkLaw
from ...layers.activations import Gelu
from ...layers.attention.layer import Attention
from ...layers.base import Layer
from ...layers.blocks import TransformerBlock
from ...layers.branches import Residual
from ...layers.compose import Serial
from ...layers.dense import Dense
from ...layers.norm import LayerNorm
from ...layers.pool import MeanPool, Select

_NETWORKS_AT_ONCE = 250
_MOST_PARAMETERS = 2**28  # of networks that are drawn at once
_MOST_NETWORKS = 10**6
_CHANNELS = 8  # of one network, which share its scores and are otherwise independent


class LawNetwork(enum.Enum):
    """Networks whose law is asked for, by name."""

    ATTENTION = "attention"
    RESIDUAL = "residual"
    TRANSFORMER = "transformer"


LAW_NETWORKS = {
    LawNetwork.ATTENTION: "normalised input, softmax attention at 1/√d, first position",
    LawNetwork.RESIDUAL: "a dense layer, residual softmax attention at 1/√d, average",
    LawNetwork.TRANSFORMER: "a dense layer, one pre-norm transformer block, average, dense",
}


def _network(name: LawNetwork, heads: int, width: int, qk_std: float) -> Layer:
    attention = Attention(width, heads=heads, qk_std=qk_std)
    if name is LawNetwork.ATTENTION:
        return Serial(LayerNorm(), attention, Select(0))
    if name is LawNetwork.RESIDUAL:
        return Serial(LayerNorm(), Dense(width), Residual(attention, 0.5), MeanPool(), Dense(1))
    block = TransformerBlock(width, attention=attention, hidden=width, activation=Gelu)
    return Serial(Dense(width), *block.layers, MeanPool(), Dense(1))


PROBABILITIES = (0.5, 0.9, 0.99, 0.999)


@dataclass(frozen=True, eq=False)
class HeadLaw:
    """The law of one output with a number of heads; `samples` of finite networks in its units."""

    net: Layer
    heads: int
    law: NetworkLaw
    samples: np.ndarray | None

    @property
    def name(self) -> str:
        """For legends."""
        return f"{self.heads} head{'s' if self.heads > 1 else ''}"

    @cached_property
    def std(self) -> float:
        """The standard deviation of the output."""
        return float(np.sqrt(self.law.moments((2,)).value[0]))

    @cached_property
    def numbers(self) -> dict[str, Any]:
        """What is said of it: excess kurtosis is 0, and quantiles are equal, for a Gaussian."""
        kurtosis = self.law.kurtosis()
        values = np.asarray(self.law.quantiles(np.array(PROBABILITIES)).value) / self.std
        finite, texts = None, list(map(str, PROBABILITIES))
        if self.samples is not None:
            finite = float(np.mean(self.samples**4) / np.mean(self.samples**2) ** 2 - 3)
        return {
            "heads": self.heads,
            "std": self.std,
            "excess_kurtosis": float(kurtosis.value),
            "excess_kurtosis_error": float(kurtosis.error),
            "quantiles_in_std": dict(zip(texts, values.tolist(), strict=True)),
            "gaussian_quantiles": dict(zip(texts, ndtri(PROBABILITIES).tolist(), strict=True)),
            "finite_width_kurtosis": finite,
        }

    @property
    def kurtosis(self) -> str:
        """Excess kurtosis with its standard error from the finite number of draws."""
        error = self.numbers["excess_kurtosis_error"]
        return f"{self.numbers['excess_kurtosis']:.3f} ± {error:.3f}"

    def density(self, grid: np.ndarray) -> np.ndarray:
        """Density in units of the standard deviation."""
        return np.asarray(self.law.density(grid * self.std).value) * self.std


def head_law(
    name: LawNetwork,
    x: np.ndarray,
    *,
    heads: int,
    qk_std: float,
    draws: int,
    key: Key[Array, ""],
    width: int = 0,
    networks: int = 0,
) -> HeadLaw:
    """The law at the input x (1, positions, channels), and outputs of `networks` finite ones.

    The output is one channel: of the first position, or of the average over positions.
    """
    net = _network(name, heads, max(width, 1), qk_std)
    found = HeadLaw(net, heads, net.law(x, key=key, draws=draws), None)
    if not width:
        return found
    return replace(
        found, samples=_outputs(net, x, networks, jax.random.fold_in(key, heads)) / found.std
    )


def _outputs(net: Layer, x: np.ndarray, count: int, key: Key[Array, ""]) -> np.ndarray:
    """Some output channels of `count` random finite networks: each has the law of one output."""
    single, shape = jnp.asarray(x, jnp.float32), x.shape[1:]
    drawn = jax.eval_shape(lambda: net.init(0, shape))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(drawn))
    if parameters > _MOST_PARAMETERS or count > _MOST_NETWORKS:
        raise WidelimitError(
            "The finite networks are too large or too many to draw.",
            got=f"{count:,} networks of {parameters:,} parameters",
            remedy=f"take up to {_MOST_NETWORKS:,} networks of up to {_MOST_PARAMETERS:,} "
            "parameters (fewer heads, less width), or none",
            option=("networks", "heads", "width"),
        )
    at_once = min(_NETWORKS_AT_ONCE, _MOST_PARAMETERS // parameters)

    @jitted
    def run(keys: Array) -> Array:
        one = jax.vmap(lambda k: net.apply(net.init(k, shape), single)[0, :_CHANNELS])
        return jax.lax.map(one, keys)

    rounds = math.ceil(count / at_once)
    keys = jax.random.split(key, rounds * at_once).reshape(rounds, at_once)
    outputs = np.asarray(run(keys), np.float64)
    return outputs.reshape(rounds * at_once, -1)[:count].ravel()
