"""The tangent kernel at initialisation with finitely many heads.

The scores p of a finite-head layer are finitely many numbers with a tangent kernel of their own,
`Θ^G_{ik,jl} = σ²(2κ̃_ij κ̃_kl + Θ̃_ij κ̃_kl + κ̃_ij Θ̃_kl)` within each head and 0 between heads.
Everything else in the network is infinitely wide, with the kernel `K_p` and a tangent kernel
`Θ_p` given the scores. By the chain rule, for output channels c, c',

    Θ[c, c'] = δ_cc' Θ_p + D_c Θ^G D_c'ᵀ,   D_c = ∂f_c/∂p.

As a function of its scores each channel is a Gaussian process, `Cov(f_c(p), f_c(p')) = K(p, p')`,
the NNGP kernel of the network with scores p on one side and p' on the other. So D_c is Gaussian
with covariance `∂_p∂_p' K(p, p')` at `p' = p`, independently for each channel given the scores.
For softmax under a linear readout this is `u_ak = A_ak(ṽ_k − (Aṽ)_a)` with value fields
`ṽ ~ N(0, κ)`; under a nonlinearity it contains the joint expectation
`E[φ'(y_a)φ'(y'_b) ∂y_a ∂y'_b]`, which the product of the two expectations is not.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..compilation import compiled
from ..engine.inputs import Inputs
from ..engine.phases import (
    EncodedBlock,
    Realisation,
    cross_one,
    encode_one,
    finite_layers,
    maker,
    random_layers,
)
from ..engine.walk import draw, memo_at
from ..errors import NetworkError, WidelimitError
from ..factorizations import eigh
from ..flat_draws import normals
from ..layers.attention.heads import INFINITE, HeldScores, ScoreField
from ..layers.attention.multihead import MultiHead
from ..layers.attention.placement import inverse_lengths, normalise
from ..layers.base import Layer, cast
from ..layers.compose import Path, outlines_of
from ..state import Example, Need, Pair
from .draws import flatten, scheme_of, stack_inputs

# Derivatives of kernels with a kink are singular where two inputs coincide exactly: the two sides
# are kept apart by this share of their correlation. The error is about its square root over π.
_APART = 1e-9
# Score derivatives of all coordinates: beyond this, their covariance is too large to factorise.
_MOST_DERIVATIVES = 4096
_BLOCK = 1 << 22


_Sides = tuple[Pair, Pair]
"""Covariances and tangent kernels of queries and of keys, of all pairs of examples."""


class _Recorded(ScoreField):
    """Drawn scores that are held fixed, and the kernels that they were drawn from."""

    seen: _Sides | None = None


class _Parts(NamedTuple):
    """What a tangent kernel is made of, given the scores of all examples."""

    fixed: Float[Array, "n*o n*o"]
    """`Θ_p`."""
    root: Float[Array, "d d"]
    """Of the covariance of D, over (example, position, score)."""
    scores: Float[Array, "n h f q k"]
    seen: _Sides


def _seen(layer: MultiHead, examples: Example) -> _Sides:
    """κ^q, κ̃ and their tangent kernels between all examples, brought to one length where asked."""
    positions, marks = layer.positions, examples.landmarks
    assert marks is not None
    channels = positions.channels(examples.outline)

    def sides(pair: Pair) -> tuple[Pair, Pair]:
        queries, context = layer.sides(pair)
        scored = positions.scored(context, channels).compute()
        return scored if queries is context else queries.compute(), scored

    query, key = jax.vmap(jax.vmap(sides))(marks)
    if not positions.projections.qk_norm:
        return query, key
    numbers = jnp.arange(len(key.nngp))
    own = jax.vmap(lambda n: key.nngp[n, n].reshape(examples.size, examples.size))(numbers)
    lengths = jax.vmap(lambda block: inverse_lengths(jnp.diagonal(block)))(own)
    rows = jax.vmap(normalise, (0, None, 0))
    normal = jax.vmap(rows, (0, 0, None))(key, lengths, lengths)
    return normal, normal


def _parts(net: Layer, inputs: Inputs, key: Key[Array, ""]) -> _Parts:
    """Everything given one draw of the scores."""
    ((path, layer),) = random_layers(net).items()
    draw_any = maker(scheme_of(net, inputs, 1))

    def make(path: Path, layer: Any, examples: Any, key: Key[Array, ""]) -> _Recorded:
        field = draw_any(path, layer, examples, key)
        seen = _seen(layer, examples)
        return _Recorded(field.weights, field.query, field.key, trained=False, seen=seen)

    drawn = draw(net, stack_inputs(net, inputs, with_ntk=True), Need.DIAGONAL, key, make)
    kernels, field = drawn.end.landmarks.compute(), drawn.scores[path]
    memo = memo_at(net, drawn.memos, path).memo
    scores = jax.vmap(lambda one: jax.vmap(layer.scorer(one))(field.weights))(memo)
    x = jnp.asarray(inputs.x)
    mask = None if inputs.mask is None else jnp.asarray(inputs.mask)

    def between(p1: Array, p2: Array, one: EncodedBlock, two: EncodedBlock) -> Array:
        """`K(p, p')` of one pair, positions flattened."""

        def held(scores: Array) -> Realisation:
            return Realisation(net, {path: HeldScores(scores, 1 - _APART)})

        def encoded(scores: Array, side: EncodedBlock) -> EncodedBlock:
            memos = encode_one(held(scores), side.x, side.mask, inputs.outline)
            return EncodedBlock(side.x, side.mask, memos)

        left, right = encoded(p1, one), encoded(p2, two)
        kernel = cross_one(held(p1), left, right, inputs.outline, with_ntk=False)[0]
        rows = math.prod(kernel.shape[: kernel.ndim // 2])
        return kernel.reshape(rows, -1)

    # Few outputs and many scores: backwards on one side, forwards on the other.
    second = jax.jacfwd(jax.jacrev(between, 0), 1)
    data = EncodedBlock(x, mask, None)

    def row(p1: Array, one: EncodedBlock) -> Array:
        return jax.vmap(lambda p2, two: second(p1, p2, one, two))(scores, data)

    blocks = jax.vmap(row)(scores, data)  # (N, N', O, O', H, F, Q, K, H', F', Q', K')
    n, o, size = blocks.shape[0], blocks.shape[2], math.prod(scores.shape[1:])
    blocks = blocks.reshape(n, n, o, o, size, size)
    matrix = blocks.transpose(0, 2, 4, 1, 3, 5).reshape(n * o * size, -1)
    values, vectors = eigh((matrix + matrix.T) / 2)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]
    return _Parts(flatten(kernels.ntk), root, scores, field.seen)


def _through_scores(
    layer: MultiHead,
    seen: _Sides,
    left: Float[Array, "n o h f q k"],
    right: Float[Array, "n o h f q k"],
) -> Float[Array, "n n o o"]:
    """`D Θ^G D'ᵀ` for all pairs of examples; heads and their scores do not meet."""
    n, queries, keys = left.shape[0], *left.shape[-2:]
    flat = [
        jnp.asarray(kernel).reshape(n, n, size, size)
        for side, size in zip(seen, (queries, keys), strict=True)
        for kernel in (side.nngp, side.ntk)
    ]
    rotary = layer.positions.rotary
    waves = jnp.ones((1, queries, keys), left.dtype)
    if rotary is not None:
        waves = rotary.waves((keys,), left)
    variance = cast(layer.qk_std, left) ** 2

    def pair(a: Array, b: Array, q: Array, tq: Array, k: Array, tk: Array) -> Array:
        def term(query: Array, key: Array, wave: Array) -> Array:
            moved = jnp.einsum("bhfjl,ij,kl->bhfik", b * wave[None, None, None], query, key)
            return jnp.einsum("ahfik,bhfik->ab", a * wave[None, None, None], moved)

        def wave_sum(wave: Array) -> Array:
            return term(2 * q + tq, k, wave) + term(q, tk, wave)

        return jnp.sum(jax.vmap(wave_sum)(waves), axis=0)

    over_right = jax.vmap(pair, (None, 0, 0, 0, 0, 0))
    return variance * jax.vmap(over_right, (0, None, 0, 0, 0, 0))(left, right, *flat)


@compiled
def _sample(
    net: Layer, inputs: Inputs, keys: Key[Array, " draws"], channels: int | None
) -> Float[Array, "draws *c n n"]:
    """For every key a tangent kernel of these channels; without channels, its average over them."""
    (layer,) = random_layers(net).values()

    def one(key: Key[Array, ""]) -> Array:
        first, second = (key, key) if channels is None else jax.random.split(key)
        parts = _parts(net, inputs, first)
        root, outputs = parts.root, parts.fixed.shape[0] // inputs.size
        shape = (-1, inputs.size, outputs, *parts.scores.shape[1:])

        def through(c: Array, d: Array) -> Array:
            blocks = _through_scores(layer, parts.seen, c, d)
            return flatten(blocks) if blocks.shape[-1] > 1 else blocks[:, :, 0, 0]

        if channels is None:
            # E[D Θ^G Dᵀ] over the channels: the sum over the columns of any root of D's covariance.
            columns = root.T.reshape(shape)
            return jax.lax.scan(lambda s, c: (s + through(c, c), None), parts.fixed, columns)[0]
        white = normals(second, (root.shape[0], channels), root.dtype)
        gradients = (root @ white).T.reshape(shape)
        scored = jax.vmap(lambda c: jax.vmap(lambda d: through(c, d))(gradients))(gradients)
        diagonal = jnp.eye(channels, dtype=parts.fixed.dtype)[:, :, None, None]
        return scored + diagonal * parts.fixed[None, None]

    return jax.vmap(one)(keys)


def sample_ntk(
    net: Layer, inputs: Inputs, draws: int, channels: int | None, key: Key[Array, ""]
) -> Float[np.ndarray, "draws *c n n"]:
    """Draws of the tangent kernel between all coordinates, for `channels` output channels.

    Without channels: averaged over them, given each draw of the scores.
    """
    size = _count_derivatives(net, inputs)
    with jax.enable_x64(True):
        if size == 0:
            ntk = jnp.asarray(net.kernel(inputs, progress=False).ntk)
            found = np.asarray(flatten(ntk))
            found = found if channels is None else np.eye(channels)[:, :, None, None] * found
            return np.broadcast_to(found, (draws, *found.shape))
        keys = jax.random.split(key, draws)
        step = max(1, min(draws, _BLOCK // (4 * size**2)))
        blocks = [keys[begin : begin + step] for begin in range(0, draws, step)]
        return np.concatenate([np.asarray(_sample(net, inputs, k, channels)) for k in blocks])


def _count_derivatives(net: Layer, inputs: Inputs) -> int:
    """How many score derivatives there are; 0 if no scores are random."""
    layers = random_layers(net)
    if not layers:
        return 0
    if len(layers) > 1 or finite_layers(net).keys() != layers.keys():
        heads = ", ".join(
            "INFINITE" if n.heads == INFINITE else str(n.heads) for n in layers.values()
        )
        raise NetworkError(
            "The law of the tangent kernel is not known for several layers of random scores, where "
            "upper scores move with lower ones, nor for infinitely many heads.",
            got=f"layers of random scores with {heads} heads",
            remedy="keep one finite-head layer and give the others scaling=Scaling.LINEAR or an "
            "elementwise score map; for infinitely many heads everywhere use net.kernel(x).ntk",
        )
    ((path, layer),) = layers.items()
    positions = math.prod(net.outline(inputs.outline).positions)
    keys = math.prod(outlines_of(net, inputs.outline)[path].positions)
    scores = int(layer.heads) * layer.score_map.fields * keys**2
    size = inputs.size * positions * (scores if layer.reads_itself else scores // keys)
    if size > _MOST_DERIVATIVES:
        raise WidelimitError(
            f"The tangent kernel has more than {_MOST_DERIVATIVES} derivatives of coordinates by "
            "scores (inputs × output positions × heads × S²).",
            got=f"{size}",
            remedy="take fewer inputs at a time, shorter ones, or pool before the readout",
        )
    return size
