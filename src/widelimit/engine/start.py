"""How inputs enter a network: examples and pairs before the first layer."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from ..layers.base import Memo
from ..state import Example, Need, Pair, require_equal_positions


class EncodedBlock(eqx.Module):
    """What pairs need from a block of examples: the inputs themselves, then every layer's memo."""

    x: Any  # an array, or a tuple of arrays for several streams
    mask: Any
    memos: Memo

    def stream(self, index: int) -> "EncodedBlock":
        """One stream of inputs that have several."""
        mask = None if self.mask is None else self.mask[index]
        return EncodedBlock(self.x[index], mask, None)


def start(x: Any, mask: Any, outline: Any, need: Need, anchors: EncodedBlock | None = None) -> Any:
    """An example before the first layer; a tuple of them for several streams."""
    if isinstance(outline, tuple):
        masks = (None,) * len(outline) if mask is None else mask
        return tuple(
            start(x[i], masks[i], part, need, None if anchors is None else anchors.stream(i))
            for i, part in enumerate(outline)
        )
    tokens = outline.channels == 0
    dtype = kernel_dtype(x)
    own = EncodedBlock(x, mask, None)
    pair = start_pair(own, own, outline, need, dtype, with_ntk=False)
    mean = None if tokens else jnp.mean(x, axis=-1)
    features = None if tokens else x / jnp.sqrt(jnp.asarray(x.shape[-1], dtype))
    nngp = None if need is Need.NONE else pair.nngp
    landmarks = None
    if anchors is not None:
        marks = EncodedBlock(anchors.x, anchors.mask, None)
        landmarks = jax.vmap(
            lambda mark: start_pair(own, mark, outline, Need.FULL, dtype, with_ntk=False)
        )(marks)
    return Example(nngp, mean, mask, features, landmarks, pair.full, outline)


def start_pair(
    one: EncodedBlock, two: EncodedBlock, outline: Any, need: Need, dtype: Any, *, with_ntk: bool
) -> Any:
    """κ_ab = x_a·x'_b / channels (one-hot tokens: 1 where they agree), Θ = 0."""
    if isinstance(outline, tuple):
        return tuple(
            start_pair(one.stream(i), two.stream(i), part, need, dtype, with_ntk=with_ntk)
            for i, part in enumerate(outline)
        )
    x1, x2 = one.x, two.x
    rank, full = len(outline.positions), need is not Need.DIAGONAL
    if not full:
        require_equal_positions(x1.shape[:rank], x2.shape[:rank])
    if outline.channels == 0:
        a = x1.reshape(*x1.shape, *(1,) * rank) if full else x1
        b = x2.reshape(*(1,) * rank, *x2.shape) if full else x2
        nngp = (a == b).astype(dtype)
    elif full:
        flat1, flat2 = x1.reshape(-1, x1.shape[-1]), x2.reshape(-1, x2.shape[-1])
        nngp = (flat1 @ flat2.T).reshape(*x1.shape[:-1], *x2.shape[:-1]) / outline.channels
    else:
        nngp = jnp.sum(x1 * x2, axis=-1) / outline.channels
    pair = Pair(nngp, None, rank, full)
    if outline.channels == 0:
        pair = pair.masked(one.mask, two.mask)  # padding holds token 0, a real token too
    # A matrix product stands in memory, whoever reads it.
    settled = full and outline.channels > 0
    if not with_ntk:
        return Pair(pair.nngp, None, rank, full, settled=settled)
    return Pair(pair.nngp, jnp.zeros_like(nngp), rank, full, settled=settled, blank=True)


def kernel_dtype(x: Any) -> Any:
    """The dtype of kernels of these inputs."""
    first = jax.tree.leaves(x)[0]
    floating = jnp.issubdtype(first.dtype, jnp.floating)
    return first.dtype if floating else jnp.result_type(float)
