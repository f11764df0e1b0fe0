"""Random kernels: a network's covariance given all its scores, as a function of normal numbers.

The scores of a layer are `G(x) = Φ_x W Φ_xᵀ` with one i.i.d. normal matrix W per head (see
`layers.attention.heads`), or a product of two where heads have finite width (see `laws.narrow`).
What makes the W's of all layers is the *latent* of a network: a vector of independent standard
normals from which the kernel `K_p` of all pairs of inputs follows, layer after layer. What is
random about a finite-head network is this vector; laws average over it, and Bayesian inference
moves it.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..compilation import compiled
from ..engine.door import read_inputs
from ..engine.inputs import Data, Inputs
from ..engine.phases import EncodedBlock, start
from ..engine.variants import finite_layers, random_layers, with_random_layers
from ..errors import NetworkError
from ..layers.attention.heads import Scheme, required_field
from ..layers.base import Layer
from ..state import Example, Need, Outline, Pair
from .narrow import HeadWidths, NarrowAttention, NarrowRecipe, narrowed

# Numbers alive while one block of draws is computed.
_BLOCK = 1 << 22


def law_inputs(net: Layer, x: Data, mask: Any = None) -> Inputs:
    """Inputs of a law, in double precision throughout: kernels are factorised."""
    if net.streams() > 1:
        raise NetworkError(
            "Laws are those of networks with one stream of inputs.",
            got=f"a network with {net.streams()} streams",
            remedy="take kernels of it with net.kernel, or use self-attention",
        )
    inputs = read_inputs(net, x, mask, dtype=np.float64).astype(np.float64)
    net.checked_mask(inputs.mask, "x")
    return inputs


class GivenScores(Layer):
    """A layer with random scores whose W's are given instead of drawn."""

    inner: Any
    weights: Float[Array, "head wave query key"]

    def outline(self, before: Outline) -> Outline:
        return self.inner.outline(before)

    def need(self, out: Need) -> Need:
        return self.inner.need(out)

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        return self.inner.encode_need(out, noisy=noisy)

    def takes_tokens(self) -> bool:
        return self.inner.takes_tokens()

    def sampled(self) -> bool:
        return True

    def drawn(self, examples: Example, key: Key[Array, ""], scheme: Any) -> Layer:
        layer = self.inner.drawn(examples, key, scheme)
        return eqx.tree_at(lambda node: node.field.weights, layer, self.weights)


@dataclasses.dataclass(frozen=True)
class WideRecipe:
    """The heads of one layer are the normals: W's of this shape, heads first."""

    shape: tuple[int, ...]

    @property
    def heads(self) -> int:
        """The number of heads."""
        return self.shape[0]

    @property
    def size(self) -> int:
        """How many normals there are."""
        return math.prod(self.shape)

    def given(self, layer: Layer, normals: Float[Array, " size"]) -> Layer:
        """The layer, its heads made of these normals."""
        return GivenScores(layer, normals.reshape(self.shape))


def stacked(
    net: Layer, inputs: Inputs, *, with_ntk: bool = False, keep_features: bool | None = None
) -> Example:
    """All inputs before the first layer as one batch, with the kernels of all their pairs."""
    x = jnp.asarray(inputs.x) if inputs.tokens else jnp.asarray(inputs.x, jnp.float64)
    mask = None if inputs.mask is None else jnp.asarray(inputs.mask)
    outline = inputs.outline
    anchors = EncodedBlock(x, mask, None)
    need = net.encode_need(Need.DIAGONAL)
    examples = jax.vmap(lambda a, m: start(a, m, outline, need, anchors))(x, mask)
    if keep_features is None:
        # Feature rows are exact but long when the channels outnumber the positions.
        keep_features = outline.channels <= inputs.size * math.prod(outline.positions)
    features = examples.features if keep_features else None
    marks = examples.landmarks
    assert marks is not None
    if with_ntk:
        marks = Pair(marks.nngp, jnp.zeros_like(marks.nngp), marks.rank, marks.full)
    return dataclasses.replace(examples, features=features, landmarks=marks)


def scheme_of(inputs: Inputs, samples: int) -> Scheme:
    """Every position of every input is a landmark, so that features are exact up to rounding."""
    return Scheme(samples, inputs.size * math.prod(inputs.outline.positions), 0.0)


def walk(
    net: Layer, examples: Example, key: Key[Array, ""], scheme: Scheme
) -> tuple[Layer, Example]:
    """Draw all scores; the `landmarks` of the examples at the end are their kernels given these."""
    drawn, _, end = net.draw(examples, Need.DIAGONAL, key, scheme)
    return drawn, end


class Latent(eqx.Module):
    """A network on fixed inputs, as a function from standard normals to the kernel of all pairs."""

    net: Layer
    """With the layers whose heads have finite width as `NarrowAttention`."""
    inputs: Any  # an `Inputs`
    scheme: Scheme
    recipes: tuple[WideRecipe | NarrowRecipe, ...] = eqx.field(static=True)

    @classmethod
    def of(
        cls,
        net: Layer,
        inputs: Inputs,
        *,
        samples: int,
        head_widths: HeadWidths = HeadWidths.INFINITE,
    ) -> "Latent":
        """Find out which normals the network needs; enter double precision before."""
        scheme, key = scheme_of(inputs, samples), jax.random.key(0)
        net = narrowed(net) if head_widths is HeadWidths.GIVEN else net
        recipes: list[WideRecipe | NarrowRecipe] = []
        noisy: list[bool] = []

        def look() -> None:
            drawn, _ = walk(net, stacked(net, inputs), key, scheme)
            for layer in random_layers(drawn):
                narrow = isinstance(layer, NarrowAttention)
                field = required_field(layer.inner.field if narrow else layer.field)
                made = NarrowRecipe.of(layer) if narrow else WideRecipe(field.weights.shape)
                recipes.append(made)
                noisy.append(field.noisy)

        jax.eval_shape(look)
        if any(noisy):
            raise NetworkError(
                "A law is that of one network on all inputs: given its scores, outputs are "
                "Gaussian. With dropout below random scores every pass has scores of its own.",
                got="Dropout below attention at 1/√d",
                remedy="leave Dropout out (evaluation), or take kernels with net.kernel",
            )
        return cls(net, inputs, scheme, tuple(recipes))

    @property
    def size(self) -> int:
        """How many normals there are."""
        return sum(recipe.size for recipe in self.recipes)

    @property
    def finite_layers(self) -> list[Any]:
        """The layers whose scores stay random."""
        return finite_layers(self.net)

    @property
    def output(self) -> Outline:
        """Shape of one example's output."""
        return self.net.outline(self.inputs.outline)

    def kernel(self, normals: Float[Array, " latent"]) -> Float[Array, "n n"]:
        """`K_p` between all coordinates: examples times positions, flattened."""
        ends = np.cumsum([recipe.size for recipe in self.recipes])
        parts = jnp.split(normals, ends[:-1]) if self.recipes else []
        pending = iter(zip(self.recipes, parts, strict=True))

        def given(layer: Any) -> Layer:
            recipe, part = next(pending)
            return recipe.given(layer, part)

        net = with_random_layers(self.net, given)
        _, end = walk(net, stacked(net, self.inputs), jax.random.key(0), self.scheme)
        assert end.landmarks is not None
        return flattened(end.landmarks.forced().nngp)

    def real(self) -> np.ndarray:
        """Which output positions are real, (N, positions…)."""
        if self.inputs.mask is None:
            return np.ones((self.inputs.size, *self.output.positions), bool)
        return np.asarray(_end_mask(self))


@compiled
def _end_mask(latent: Latent) -> Array:
    examples = stacked(latent.net, latent.inputs)
    mask = walk(latent.net, examples, jax.random.key(0), latent.scheme)[1].mask
    return jnp.ones((latent.inputs.size, *latent.output.positions), bool) if mask is None else mask


def flattened(kernels: Float[Array, "..."]) -> Float[Array, "n n"]:
    """(N, N, positions…, positions'…) to a matrix over coordinates."""
    count, rank = kernels.shape[0], (kernels.ndim - 2) // 2
    size = math.prod(kernels.shape[2 : 2 + rank])
    blocks = kernels.reshape(count, count, size, size)
    return jnp.swapaxes(blocks, 1, 2).reshape(count * size, count * size)


@compiled
def kernels_of(latent: Latent, normals: Float[Array, "draws latent"]) -> Float[Array, "draws n n"]:
    """The kernels of a block of latents."""
    return jax.vmap(latent.kernel)(normals)


def block_size(latent: Latent) -> int:
    """Draws whose temporary arrays stay within bounds; a power of two, so that blocks match."""
    positions = latent.inputs.size * math.prod(latent.inputs.outline.positions)
    heads = max((recipe.heads for recipe in latent.recipes), default=1)
    per_draw = latent.size + 8 * positions**2 + heads * positions**2
    return 1 << max(0, int(math.log2(max(1, _BLOCK // per_draw))))


def kernel_blocks(
    latent: Latent, normals: Iterator[np.ndarray], *, size: int
) -> Iterator[Float[np.ndarray, "draws n n"]]:
    """Kernels block by block; a short block is filled up, so that one compilation serves all."""
    for block in normals:
        short = size - len(block)
        filled = np.concatenate([block, np.zeros((short, block.shape[1]))]) if short else block
        yield np.asarray(kernels_of(latent, jnp.asarray(filled)))[: len(block)]


def require_gaussian_output(net: Layer, outline: Outline) -> Outline:
    """Given the scores, outputs are Gaussian only after fresh weights."""
    after = net.outline(outline)
    if not after.gaussian:
        raise NetworkError(
            "The law of outputs is Gaussian given the scores when the network ends in fresh "
            "weights (Dense, Conv, Attention; pooling may follow).",
            got="a network whose last layers are an activation, a product or a concatenation",
            remedy="end the network in Dense(1)",
        )
    return after
