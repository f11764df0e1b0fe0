"""Training moves the tangent kernel when heads are few, at every width; with many heads it stands.

Finite networks in the NTK parameterisation are trained by full-batch gradient descent on a few
examples until the loss has fallen a hundredfold; the tangent kernel is compared before and after.
"""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.compilation import jitted
from widelimit.factorizations import eigh
from widelimit.layers.attention.layer import Attention
from widelimit.layers.base import Layer
from widelimit.layers.compose import Serial
from widelimit.layers.dense import Dense
from widelimit.layers.pool import MeanPool
from widelimit.progress import Callback

EXAMPLES, POSITIONS, CHANNELS = 4, 3, 8


def network(width: int, heads: int) -> Layer:
    """Attention, the mean over positions, a linear readout."""
    attention = Attention(width, heads=heads, qk_std=2.0)
    return Serial(attention, MeanPool(), Dense(1))


def tangent_kernel(net: Layer, params: Any, x: Array) -> Float[Array, "n n"]:
    """`Σ ∂f(x)/∂θ ∂f(x')/∂θ` of a finite network with one output."""
    jacobian = jax.jacrev(lambda p: net.apply(p, x)[:, 0])(params)
    rows = [leaf.reshape(x.shape[0], -1) for leaf in jax.tree.leaves(jacobian)]
    return jnp.sum(jnp.stack([row @ row.T for row in rows]), axis=0)


def trained(net: Layer, key: Array, x: Array, y: Array, steps: int) -> tuple[Array, Array, Array]:
    """Tangent kernels before and after training, and the share of the loss that is left."""
    params = net.init(key, x.shape[1:])
    before = tangent_kernel(net, params, x)
    rate = 0.5 / eigh(before)[0][-1]

    def loss(p: Any) -> Array:
        return 0.5 * jnp.sum((net.apply(p, x)[:, 0] - y) ** 2)

    def step(p: Any, _: None) -> tuple[Any, None]:
        return jax.tree.map(lambda a, g: a - rate * g, p, jax.grad(loss)(p)), None

    after, _ = jax.lax.scan(step, params, None, length=steps)
    return before, tangent_kernel(net, after, x), loss(after) / loss(params)


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `moving_ntk.csv`, `.json` and `.png` into `out`."""
    large = size != Size.SMALL
    widths, seeds, steps = ((32, 128, 512), 8, 200) if large else ((32, 128), 3, 100)
    # A network with 128 heads has 128 times the weights: one width less.
    cases = [(w, 1) for w in widths] + [(w, 128) for w in widths[:2]]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(EXAMPLES, POSITIONS, CHANNELS)), jnp.float32)
    y = jnp.asarray(rng.choice([-1.0, 1.0], EXAMPLES), jnp.float32)
    rows = []
    for width, heads in tracked(cases, progress):
        net = network(width, heads)
        go = jitted(lambda key, net=net: trained(net, key, x, y, steps))
        for seed in range(seeds):
            before, after, left = go(jax.random.key(seed))
            moved = jnp.linalg.norm(after - before) / jnp.linalg.norm(before)
            rows.append(
                {
                    "width": width,
                    "heads": heads,
                    "seed": seed,
                    "moved": float(moved),
                    "loss_left": float(left),
                }
            )
    result = {
        f"heads={heads}, width={width}": {
            "moved": float(np.median(_column(rows, width, heads, "moved"))),
            "loss_left": float(np.median(_column(rows, width, heads, "loss_left"))),
        }
        for width, heads in cases
    }
    figure, axes = canvas(1)
    for heads, color in ((1, "C3"), (128, "C0")):
        places = [w for w, h in cases if h == heads]
        medians = [np.median(_column(rows, w, heads, "moved")) for w in places]
        label = f"{heads} head{'s' if heads > 1 else ''}"
        axes[0, 0].loglog(places, medians, "o-", color=color, label=label)
        for width in places:
            points = _column(rows, width, heads, "moved")
            axes[0, 0].loglog([width] * len(points), points, ".", color=color, alpha=0.4)
    axes[0, 0].set_xlabel("width")
    axes[0, 0].set_xticks(widths, [str(width) for width in widths])
    axes[0, 0].set_xticks([], minor=True)
    axes[0, 0].set_ylabel("relative change of the tangent kernel")
    axes[0, 0].legend(frameon=False)
    publish(out, "moving_ntk", result, rows, figure)
    return result


def _column(rows: list[dict[str, Any]], width: int, heads: int, name: str) -> np.ndarray:
    return np.array([r[name] for r in rows if (r["width"], r["heads"]) == (width, heads)])


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    return [
        f"{name}: the tangent kernel moves by {one['moved']:.1%} (median) while the loss falls to "
        f"{one['loss_left']:.1%} of its start."
        for name, one in result.items()
    ]


STUDY = Study(
    "moving-ntk",
    "The tangent kernel moves when heads are few",
    "Change of the tangent kernel in training, one head and 128 heads, by width.",
    run,
    {
        "moving_ntk": "How far the tangent kernel moves in training, relative to its size, by "
        "width: one dot for each network, lines through the medians.",
    },
    conclude,
)
