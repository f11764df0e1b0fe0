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
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..compilation import compiled
from ..engine.inputs import Inputs
from ..engine.phases import EncodedBlock, cross_one, encode_one
from ..engine.variants import random_layers, with_random_layers
from ..errors import NetworkError, WidelimitError
from ..factorizations import eigh
from ..flat_draws import normals
from ..layers.attention.heads import INFINITE
from ..layers.attention.layer import Attention
from ..layers.attention.projections import inverse_lengths, of_one_length
from ..layers.base import Layer, Memo, cast
from ..state import Example, Need, Outline, Pair
from .draws import flattened, scheme_of, stacked, walk

# Derivatives of kernels with a kink are singular where two inputs coincide exactly: the two sides
# are kept apart by this share of their correlation. The error is about its square root over π.
_APART = 1e-9
# Score derivatives of all coordinates: beyond this, their covariance is too large to factorise.
_MOST_DERIVATIVES = 4096
_BLOCK = 1 << 22


class _FrozenMemo(eqx.Module):
    mask: Array | None
    channels: Array | None
    weights: Float[Array, "head query key"]


class FrozenAttention(Layer):
    """Attention with given scores: `κ ← ov² mean_h A_h κ A'_hᵀ`, `Θ ← ov² mean_h A_h(Θ+2κ)A'_hᵀ`.

    Scores are those of one example, or of all of them after a draw; `seen` are then the kernels
    they were drawn from.
    """

    inner: Attention
    scores: Float[Array, "*examples head query key"]
    seen: Pair | None = None
    apart: float = eqx.field(static=True, default=0.0)

    def outline(self, before: Outline) -> Outline:
        return self.inner.outline(before)

    def need(self, out: Need) -> Need:
        return Need.FULL

    def memo(self, example: Example) -> Memo:
        allowed = self.inner._allowed(example.outline.positions, example.mask)
        weights = jax.vmap(lambda g: self.inner.score_map(g, allowed))(self.scores)
        return _FrozenMemo(example.mask, self.inner.positions.channels(example.outline), weights)

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        return self._mixed(pair, memo1, memo2, 1 - self.apart)

    def own(self, pair: Pair, memo: Memo) -> Pair:
        return self._mixed(pair, memo, memo, 1.0)

    def mean(self, example: Example, memo: Memo) -> None:
        return None

    def _mixed(self, pair: Pair, memo1: Memo, memo2: Memo, share: float) -> Pair:
        layer, masks = self.inner, (memo1.mask, memo2.mask)
        pair = layer.positions.valued(pair, memo1.channels)
        shape = pair.forced().nngp.shape

        def mix(kernel: Array) -> Array:
            size = memo1.weights.shape[-1]
            flat = kernel.reshape(size, -1)
            mixed = jnp.einsum("hai,ij,hbj->ab", memo1.weights, flat, memo2.weights)
            return (mixed / memo1.weights.shape[0]).reshape(shape)

        mixed = pair.masked(*masks).each(mix)
        scale = share * cast(layer.ov_std, mixed.nngp) ** 2
        bias = cast(layer.b_std, mixed.nngp) ** 2 if layer.biased else None
        return mixed.affine(scale=scale, lift=2 * scale, bias=bias, masks=masks).masked(*masks)


class RecordedAttention(Layer):
    """Attention that draws its scores and keeps them, with the kernels they were drawn from."""

    inner: Attention

    def outline(self, before: Outline) -> Outline:
        return self.inner.outline(before)

    def need(self, out: Need) -> Need:
        return Need.FULL

    def draw(self, examples: Example, need: Need, key: Key[Array, ""], scheme: Any):
        layer, marks = self.inner, examples.landmarks
        assert marks is not None
        channels = layer.positions.channels(examples.outline)
        seen = jax.vmap(jax.vmap(lambda pair: layer.positions.scored(pair, channels)))(marks)
        if layer.positions.projections.qk_norm:
            seen = _of_one_length(seen, examples.size)
        scores = _scores(layer, seen.nngp, examples, key)

        def frozen(own: Array) -> FrozenAttention:
            return FrozenAttention(layer, own)

        memos = jax.vmap(lambda own, one: frozen(own).masked_memo(one))(scores, examples)
        after = jax.vmap(lambda own, one: frozen(own).encode(one, need, memos)[1])(scores, examples)
        return FrozenAttention(layer, scores, seen), memos, after


def _of_one_length(seen: Pair, size: int) -> Pair:
    """Kernels of all pairs of examples, of queries and keys that are brought to one length."""
    own = jax.vmap(lambda n: seen.nngp[n, n].reshape(size, size))(jnp.arange(len(seen.nngp)))
    lengths = jax.vmap(lambda block: inverse_lengths(jnp.diagonal(block)))(own)
    rows = jax.vmap(of_one_length, (0, None, 0))
    return jax.vmap(rows, (0, 0, None))(seen, lengths, lengths)


def _scores(
    layer: Attention, covariance: Array, examples: Example, key: Key[Array, ""]
) -> Float[Array, "example head query key"]:
    """`σ Φ_x W_h Φ_xᵀ` plus biases, from a root Φ of κ̃ over all positions of all examples."""
    grid = examples.outline.positions
    size, count = math.prod(grid), covariance.shape[0]
    joint = flattened(covariance)
    values, vectors = eigh(joint)
    root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]
    rows = root.reshape(count, size, count * size)
    rotary = layer.positions.rotary
    waves = None if rotary is None else rotary.waves(grid, rows)
    number = 1 if waves is None else waves.shape[0]
    shape = (int(layer.heads), number, count * size, count * size)
    w = normals(key, shape, rows.dtype)
    fields = jnp.einsum("nar,hwrs,nis->nhwai", rows, w, rows)
    scores = fields[:, :, 0] if waves is None else jnp.einsum("nhwai,wai->nhai", fields, waves)
    scores = cast(layer.qk_std, scores) * scores
    bias = layer.positions.bias(grid, scores)
    return scores if bias is None else scores + bias[None, None]


def _parts(net: Layer, inputs: Inputs, key: Key[Array, ""]) -> tuple[Array, Array, FrozenAttention]:
    """`Θ_p`, the covariance of D over (example, position, score), and the layer as drawn."""
    recorded = with_random_layers(net, RecordedAttention)
    examples = stacked(recorded, inputs, with_ntk=True)
    drawn, end = walk(recorded, examples, key, scheme_of(inputs, 1))
    assert end.landmarks is not None
    kernels = end.landmarks.forced()
    assert kernels.ntk is not None
    layer = next(n for n in jax.tree.leaves(drawn, is_leaf=_is_frozen) if _is_frozen(n))
    x = jnp.asarray(inputs.x)
    mask = None if inputs.mask is None else jnp.asarray(inputs.mask)

    def between(p1: Array, p2: Array, one: EncodedBlock, two: EncodedBlock) -> Array:
        """`K(p, p')` of one pair, positions flattened."""

        def encoded(scores: Array, side: EncodedBlock) -> EncodedBlock:
            frozen = _with_scores(net, scores)
            memos = encode_one(frozen, side.x, side.mask, inputs.outline)
            return EncodedBlock(side.x, side.mask, memos)

        left, right = encoded(p1, one), encoded(p2, two)
        kernel = cross_one(_with_scores(net, p1), left, right, inputs.outline, with_ntk=False)[0]
        rows = math.prod(kernel.shape[: kernel.ndim // 2])
        return kernel.reshape(rows, -1)

    # Few outputs and many scores: backwards on one side, forwards on the other.
    second = jax.jacfwd(jax.jacrev(between, 0), 1)
    data = EncodedBlock(x, mask, None)

    def row(p1: Array, one: EncodedBlock) -> Array:
        return jax.vmap(lambda p2, two: second(p1, p2, one, two))(layer.scores, data)

    blocks = jax.vmap(row)(layer.scores, data)  # (N, N', O, O', H, S, S, H', S', S')
    n, o, scores = blocks.shape[0], blocks.shape[2], math.prod(layer.scores.shape[1:])
    blocks = blocks.reshape(n, n, o, o, scores, scores)
    matrix = blocks.transpose(0, 2, 4, 1, 3, 5).reshape(n * o * scores, -1)
    return flattened(kernels.ntk), (matrix + matrix.T) / 2, layer


def _with_scores(net: Layer, scores: Array) -> Layer:
    return with_random_layers(net, lambda layer: FrozenAttention(layer, scores, apart=_APART))


def _is_frozen(node: Any) -> bool:
    return isinstance(node, FrozenAttention)


def _through_scores(
    layer: FrozenAttention, left: Float[Array, "n o h s s"], right: Float[Array, "n o h s s"]
) -> Float[Array, "n n o o"]:
    """`D Θ^G D'ᵀ` for all pairs of examples; heads do not meet."""
    assert layer.seen is not None
    assert layer.seen.ntk is not None
    n, size = left.shape[0], left.shape[-1]
    kernel = layer.seen.nngp.reshape(n, n, size, size)
    theta = layer.seen.ntk.reshape(n, n, size, size)
    rotary = layer.inner.positions.rotary
    waves = jnp.ones((1, size, size), left.dtype)
    if rotary is not None:
        waves = rotary.waves((size,), left)
    variance = cast(layer.inner.qk_std, left) ** 2

    def pair(a: Array, b: Array, k: Array, t: Array) -> Array:
        def term(query: Array, key: Array, wave: Array) -> Array:
            moved = jnp.einsum("bhjl,ij,kl->bhik", b * wave[None, None], query, key)
            return jnp.einsum("ahik,bhik->ab", a * wave[None, None], moved)

        def wave_sum(wave: Array) -> Array:
            return term(2 * k + t, k, wave) + term(k, t, wave)

        return jnp.sum(jax.vmap(wave_sum)(waves), axis=0)

    over_right = jax.vmap(pair, (None, 0, 0, 0))
    return variance * jax.vmap(over_right, (0, None, 0, 0))(left, right, kernel, theta)


@compiled
def _sampled(
    net: Layer, inputs: Inputs, keys: Key[Array, " draws"], channels: int
) -> Float[Array, "draws c c n n"]:
    def one(key: Key[Array, ""]) -> Array:
        first, second = jax.random.split(key)
        fixed, covariance, layer = _parts(net, inputs, first)
        values, vectors = eigh(covariance)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]
        white = normals(second, (covariance.shape[0], channels), covariance.dtype)
        shape = (channels, inputs.size, -1, *layer.scores.shape[1:])
        gradients = (root @ white).T.reshape(shape)

        def through(c: Array, d: Array) -> Array:
            return _joined(_through_scores(layer, c, d))

        scored = jax.vmap(lambda c: jax.vmap(lambda d: through(c, d))(gradients))(gradients)
        diagonal = jnp.eye(channels, dtype=fixed.dtype)[:, :, None, None]
        return scored + diagonal * fixed[None, None]

    return jax.vmap(one)(keys)


@compiled
def _means(net: Layer, inputs: Inputs, keys: Key[Array, " draws"]) -> Float[Array, "draws n n"]:
    def one(key: Key[Array, ""]) -> Array:
        fixed, covariance, layer = _parts(net, inputs, key)
        # E[D Θ^G Dᵀ] over the channels: the sum over the columns of any root of D's covariance.
        values, vectors = eigh(covariance)
        root = vectors * jnp.sqrt(jnp.maximum(values, 0))[None, :]
        columns = root.T.reshape(root.shape[1], inputs.size, -1, *layer.scores.shape[1:])
        add = lambda total, c: (total + _joined(_through_scores(layer, c, c)), None)  # noqa: E731
        return jax.lax.scan(add, fixed, columns)[0]

    return jax.vmap(one)(keys)


def _joined(blocks: Float[Array, "n n o o"]) -> Float[Array, "n*o n*o"]:
    return flattened(blocks) if blocks.shape[-1] > 1 else blocks[:, :, 0, 0]


def sample_ntk(
    net: Layer, inputs: Inputs, draws: int, channels: int, key: Key[Array, ""]
) -> Float[np.ndarray, "draws c c n n"]:
    """Draws of the tangent kernel between all coordinates, for `channels` output channels."""
    size = _checked(net, inputs)
    with jax.enable_x64(True):
        if size == 0:
            fixed = np.asarray(_deterministic(net, inputs))
            return np.broadcast_to(
                np.eye(channels)[:, :, None, None] * fixed,
                (draws, channels, channels, *fixed.shape),
            )
        blocks = _blocks(draws, size, key)
        return np.concatenate([np.asarray(_sampled(net, inputs, k, channels)) for k in blocks])


def mean_ntk(
    net: Layer, inputs: Inputs, draws: int, key: Key[Array, ""]
) -> Float[np.ndarray, "draws n n"]:
    """The tangent kernel averaged over output channels, given each of `draws` draws of scores."""
    size = _checked(net, inputs)
    with jax.enable_x64(True):
        if size == 0:
            fixed = np.asarray(_deterministic(net, inputs))
            return np.broadcast_to(fixed, (draws, *fixed.shape))
        blocks = _blocks(draws, size, key)
        return np.concatenate([np.asarray(_means(net, inputs, k)) for k in blocks])


def _blocks(draws: int, size: int, key: Key[Array, ""]) -> list[Array]:
    keys = jax.random.split(key, draws)
    step = max(1, min(draws, _BLOCK // (4 * size**2)))
    return [keys[begin : begin + step] for begin in range(0, draws, step)]


@compiled
def _deterministic(net: Layer, inputs: Inputs) -> Array:
    examples = stacked(net, inputs, with_ntk=True)
    end = walk(net, examples, jax.random.key(0), scheme_of(inputs, 1))[1]
    assert end.landmarks is not None
    ntk = end.landmarks.forced().ntk
    assert ntk is not None
    return flattened(ntk)


def _checked(net: Layer, inputs: Inputs) -> int:
    """How many score derivatives there are; 0 if no scores are random."""
    layers = random_layers(net)
    if not layers:
        return 0
    alone = len(layers) == 1 and isinstance(layers[0], Attention) and layers[0].heads != INFINITE
    if not alone:
        heads = ", ".join("INFINITE" if n.heads == INFINITE else str(n.heads) for n in layers)
        raise NetworkError(
            "The random tangent kernel is known for one self-attention layer with finitely many "
            "heads: with more layers of random scores, upper scores move with lower ones.",
            got=f"layers of random scores with {heads} heads",
            remedy="keep one finite-head layer and give the others scaling=Scaling.LINEAR or an "
            "elementwise score map; for infinitely many heads everywhere use net.kernel(x).ntk",
        )
    positions = math.prod(net.outline(inputs.outline).positions)
    scores = int(layers[0].heads) * _positions_at(net, inputs.outline) ** 2
    size = inputs.size * positions * scores
    if size > _MOST_DERIVATIVES:
        raise WidelimitError(
            f"Tangent kernels with finitely many heads take at most {_MOST_DERIVATIVES} "
            "derivatives of coordinates by scores (inputs × output positions × heads × S²).",
            got=f"{size}",
            remedy="take fewer inputs at a time, shorter ones, or pool before the readout",
        )
    return size


class _Probe(Layer):
    """Stands in for attention and notes which positions it meets."""

    inner: Attention
    met: list[int] = eqx.field(static=True)

    def outline(self, before: Outline) -> Outline:
        self.met.append(math.prod(before.positions))
        return self.inner.outline(before)


def _positions_at(net: Layer, outline: Outline) -> int:
    """How many positions meet the layer of random scores."""
    met: list[int] = []
    probed = with_random_layers(net, lambda layer: _Probe(layer, met))
    probed.outline(outline)
    return met[0]
