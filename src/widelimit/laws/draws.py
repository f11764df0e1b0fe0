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
from ..engine.inputs import Data, Inputs, read_inputs
from ..engine.phases import EncodedBlock, finite_layers, maker, start
from ..engine.walk import Drawn, check_masks, draw, need_before
from ..errors import NetworkError
from ..layers.attention.heads import Scheme, ScoreField
from ..layers.base import Layer
from ..layers.compose import Path, outlines_of, streams_of
from ..state import Example, Need, Outline, Pair
from .narrow import HeadRecipe, HeadWidths, narrow_layers, with_random_scores

# Numbers alive while one block of draws is computed.
_BLOCK = 1 << 22


def law_inputs(net: Layer, x: Data, mask: Any = None) -> Inputs:
    """Inputs of a law, in double precision throughout: kernels are factorised."""
    if streams_of(net) > 1:
        raise NetworkError(
            "The law is not known for more than one stream of inputs.",
            got=f"a network with {streams_of(net)} streams",
            remedy="take kernels of it with net.kernel, or use self-attention",
        )
    inputs = read_inputs(net, x, mask, dtype=np.float64).astype(np.float64)
    check_masks(net, inputs.mask, "x")
    return inputs


def stack_inputs(
    net: Layer, inputs: Inputs, *, with_ntk: bool = False, keep_features: bool | None = None
) -> Example:
    """All inputs before the first layer as one batch, with the kernels of all their pairs."""
    x = jnp.asarray(inputs.x) if inputs.tokens else jnp.asarray(inputs.x, jnp.float64)
    mask = None if inputs.mask is None else jnp.asarray(inputs.mask)
    outline = inputs.outline
    anchors = EncodedBlock(x, mask, None)
    need = need_before(net, Need.DIAGONAL, encoding=True)
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


def scheme_of(net: Layer, inputs: Inputs, samples: int) -> Scheme:
    """Every position of every input is a landmark, so that features are exact up to rounding.

    Of the layer that meets most: a `ClassToken` adds a position to those of the inputs.
    """
    outlines = [inputs.outline, *outlines_of(net, inputs.outline).values()]
    longest = max(math.prod(outline.positions) for outline in outlines)
    return Scheme(samples, inputs.size * longest, 0.0)


class Latent(eqx.Module):
    """A network on fixed inputs, as a function from standard normals to the kernel of all pairs."""

    net: Layer
    """Layers at 1/d whose heads have finite width are at 1/√d, which is the same."""
    inputs: Any  # an `Inputs`
    scheme: Scheme
    recipes: tuple[tuple[Path, HeadRecipe], ...] = eqx.field(static=True)

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
        scheme = scheme_of(net, inputs, samples)
        narrow = narrow_layers(net) if head_widths is HeadWidths.GIVEN else {}
        random = with_random_scores(net) if narrow else net
        plain = cls(random, inputs, scheme, ())
        found: dict[Path, ScoreField] = jax.eval_shape(lambda: plain.drawn().scores)
        if any(field.noisy for field in found.values()):
            raise NetworkError(
                "Inputs do not share their scores: with dropout below, every pass has scores of "
                "its own, and outputs are not Gaussian given those of one network.",
                got="Dropout below attention at 1/√d",
                remedy="leave Dropout out (evaluation), or take kernels with net.kernel",
            )
        outlines = outlines_of(net, inputs.outline)
        recipes = []
        for path, field in found.items():
            recipe = HeadRecipe(field.weights.shape)
            if path in narrow:
                positions = inputs.size * math.prod(outlines[path].positions)
                recipe = HeadRecipe.narrow(narrow[path], field.weights.shape, positions)
            recipes.append((path, recipe))
        return cls(random, inputs, scheme, tuple(recipes))

    @property
    def size(self) -> int:
        """How many normals there are."""
        return sum(recipe.size for _, recipe in self.recipes)

    @property
    def finite_layers(self) -> list[Any]:
        """The layers whose scores stay random."""
        return list(finite_layers(self.net).values())

    @property
    def output(self) -> Outline:
        """Shape of one example's output."""
        return self.net.outline(self.inputs.outline)

    def drawn(self, normals: Float[Array, " latent"] | None = None) -> Drawn:
        """The inputs after the network, with the scores that these normals make.

        The `landmarks` at the end are the kernels of all pairs given the scores.
        """
        given, begin = {}, 0
        if normals is not None:
            for path, recipe in self.recipes:
                given[path] = recipe, normals[begin : begin + recipe.size]
                begin += recipe.size
        draw_any = maker(self.scheme)

        def make(path: Path, layer: Any, examples: Any, key: Key[Array, ""]) -> ScoreField:
            field = draw_any(path, layer, examples, key)
            if path not in given:
                return field
            recipe, part = given[path]
            return recipe.fill(field, layer, examples, part)

        examples = stack_inputs(self.net, self.inputs)
        return draw(self.net, examples, Need.DIAGONAL, jax.random.key(0), make)

    def kernel(self, normals: Float[Array, " latent"]) -> Float[Array, "n n"]:
        """`K_p` between all coordinates: examples times positions, flattened."""
        return flatten(self.drawn(normals).end.landmarks.compute().nngp)

    def real(self) -> np.ndarray:
        """Which output positions are real, (N, positions…)."""
        if self.inputs.mask is None:
            return np.ones((self.inputs.size, *self.output.positions), bool)
        return np.asarray(_end_mask(self))


@compiled
def _end_mask(latent: Latent) -> Array:
    mask = latent.drawn().end.mask
    return jnp.ones((latent.inputs.size, *latent.output.positions), bool) if mask is None else mask


def flatten(kernels: Float[Array, "..."]) -> Float[Array, "n n"]:
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
    heads = max((recipe.heads for _, recipe in latent.recipes), default=1)
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
            "The outputs are not Gaussian given the scores: they are if the network ends in fresh "
            "weights (Dense, Conv, Attention; pooling may follow).",
            got="a network whose last layers are an activation, a product or a concatenation",
            remedy="end the network in Dense(1)",
        )
    return after
