"""Where attention looks at infinite width: the expected size of its weights on one input."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from ..base import cast
from .heads import required_field
from .layer import Attention, AttentionMemo
from .scores import ElementwiseMap, Scaling

# Midpoints of standard normals' quantiles would waste points in the middle: an even grid is exact
# to 1e-6 for smooth functions, and to 1e-4 for those with a kink.
_POINTS = np.linspace(-8, 8, 641)
_MASSES = np.exp(-(_POINTS**2) / 2) / np.sum(np.exp(-(_POINTS**2) / 2))


def mean_weights(layer: Attention, memo: AttentionMemo) -> Float[Array, "query key"]:
    """`E|A_ai(x)|` over heads, of one input's memo; softmax's weights are positive anyway.

    At 1/d the weights are deterministic. At 1/√d they are averaged over the drawn heads or, where
    nothing is drawn, over scores `G_ai ~ N(0, qk² κ̃_aa κ̃_ii)`.
    """
    memo = memo.on_side(0)
    if layer.scaling is not Scaling.SQRT:
        return jnp.abs(memo.table)
    if layer.sampled():
        head = layer.scorer(memo, ntk=False)
        draws = required_field(layer.field).weights.astype(memo.table.dtype)
        return jnp.mean(jax.lax.map(lambda w: jnp.abs(head(w).weights), draws), axis=0)
    assert isinstance(layer.score_map, ElementwiseMap)
    deviation = cast(layer.qk_std, memo.table) * jnp.sqrt(jnp.outer(memo.table, memo.table))
    points, masses = (jnp.asarray(array, memo.table.dtype) for array in (_POINTS, _MASSES))
    sizes = jnp.abs(layer.score_map.dual.fn(deviation[..., None] * points[None, None, :]))
    weights = sizes @ masses
    return weights if memo.allowed is None else jnp.where(memo.allowed, weights, 0)
