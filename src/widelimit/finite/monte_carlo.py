"""Kernels of finite networks, averaged over draws of their weights, with standard errors."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from ..compilation import compiled
from ..engine import walk
from ..engine.inputs import Data, Inputs
from ..engine.kernel import Problem
from ..engine.phases import precision
from ..engine.tiles import Moments
from ..layers.base import Layer, Params
from ..layers.compose import is_noisy
from ..layers.readings import DEFAULT_MEMORY
from ..options import RandomKey, as_key, whole
from ..progress import Callback, Progress
from ..state import Kernels
from .empirical import Axes, empirical_ntk, jacobian_kernel

# Draws computed together hold about this much: more does not run faster.
_CHUNK_BYTES = 32 * 2**20


def monte_carlo_kernel(
    net: Layer,
    x1: Data,
    x2: Data | None = None,
    *,
    key: RandomKey,
    draws: int,
    mask: Any = None,
    mask2: Any = None,
    ntk: bool = True,
    dtype: Any = None,
    memory: int = DEFAULT_MEMORY,
    progress: bool | Callback | None = None,
) -> Kernels:
    """Average the kernels of the finite network over independent draws of its weights.

    For every draw, the NNGP kernel is the mean over output channels of `f_c(x) f_c(x')`, and the
    tangent kernel the mean over output channels of `∂f_c(x)·∂f_c(x')`, which is estimated without
    bias by one random sign per channel (`Σ_c ±f_c` has all of it in one Jacobian). Channels of one
    draw share their hidden layers, so standard errors come from draws alone. Widths are those of
    the layers: `with_width` changes them, and more output channels lower the error of every draw.

    Axes, masks and other options are those of `net.kernel`. Dropout is on, with independent masks
    in the two inputs.
    """
    whole("draws", draws)
    key = as_key(key)
    # Tangent kernels of finite networks need no rule that factorises.
    problem = Problem.read(net, x1, x2, mask, mask2, None, False, dtype, memory)
    problem.require_numbers()
    rows, columns = problem.rows, problem.columns
    noisy = is_noisy(net)
    bar = Progress.make(progress, "draws")
    moments = Moments()
    with precision(problem.dtype):
        chunk = min(_chunk_size(net, rows, columns, memory, with_ntk=ntk), draws)
        starts = range(0, draws, max(chunk, 1))
        for start in bar.track(starts) if bar else starts:
            # Draws are numbered: they do not depend on how many are computed together.
            numbers = jnp.arange(start, start + max(chunk, 1))
            keys = jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
            if chunk == 0:  # a part of the Jacobians at a time
                drawn = _draw(net, rows, columns, keys[0], noisy=noisy)
                passes = _Passes.of(net, drawn, rows, columns)
                given = (passes.batch, passes.params, *passes.sides)
                kernel = empirical_ntk(*given, trace_axes=(), memory=memory, progress=False)
                moments.add(np.asarray(passes.nngp())[None], kernel[None] / passes.signs.size)
                continue
            values = _kernels(net, rows, columns, keys, with_ntk=ntk, noisy=noisy)
            left = draws - start
            moments.add(*(None if v is None else np.asarray(v)[:left] for v in values))
    return moments.kernels()


def _chunk_size(
    net: Layer, rows: Inputs, columns: Inputs | None, memory: int, *, with_ntk: bool
) -> int:
    """How many draws are computed together; 0 if the Jacobians of one do not fit."""
    params = jax.eval_shape(lambda: walk.init(net, jax.random.key(0), rows.outline))
    parameters = sum(leaf.size for leaf in jax.tree.leaves(params))
    out = net.outline(rows.outline)
    examples = rows.size + (columns.size if columns is not None else 0)
    gradients = 2 * examples * math.prod(out.positions) * parameters if with_ntk else 0
    outputs = examples * math.prod(out.shape)
    per_draw = 4 * (2 * parameters + gradients + 2 * outputs)
    if per_draw > memory and with_ntk:
        return 0
    fits = max(1, min(memory, _CHUNK_BYTES) // per_draw)
    return 1 << (fits.bit_length() - 1)  # few different shapes, few compilations


def _draw(
    net: Layer, rows: Inputs, columns: Inputs | None, key: Key[Array, ""], *, noisy: bool
) -> tuple[Params, Array, list[Any]]:
    """Parameters, signs of the output channels, and keys of dropout for either input."""
    weight_key, sign_key, *side_keys = jax.random.split(key, 4)
    params = walk.init(net, weight_key, rows.outline)
    signs = jax.random.rademacher(sign_key, (net.outline(rows.outline).channels,), float)
    sizes = (rows.size, (rows if columns is None else columns).size)
    pairs = zip(side_keys, sizes, strict=True)
    return params, signs, [jax.random.split(k, n) if noisy else None for k, n in pairs]


class _Passes(eqx.Module):
    """A drawn network on two batches of inputs."""

    net: Layer
    params: Params
    signs: Array
    sides: tuple[Any, Any]  # (x, mask, dropout keys) of either input; None: the same pass

    @classmethod
    def of(cls, net: Layer, draw: Any, rows: Inputs, columns: Inputs | None):
        """Without x2, and without dropout, the second pass is the first."""
        params, signs, keys = draw
        second = None
        if columns is not None or keys[1] is not None:
            second = (*(rows if columns is None else columns).on_device(), keys[1])
        return cls(net, params, signs, ((*rows.on_device(), keys[0]), second))

    def one(self, params: Params, side: Any) -> Array:
        """Σ_c ±f_c of one example: all channels in one Jacobian."""
        return walk.run(self.net, params, *side) @ self.signs

    def batch(self, params: Params, side: Any) -> Array:
        """The same of a batch."""
        return jax.vmap(self.one, (None, 0))(params, side)

    def nngp(self) -> Array:
        """Mean over channels of f_c(x) f_c(x'), axes (N1, N2, positions…, positions'…)."""

        def outputs(side: Any) -> Array:
            return jax.vmap(lambda s: walk.run(self.net, self.params, *s))(side)

        one = outputs(self.sides[0])
        two = one if self.sides[1] is None else outputs(self.sides[1])
        kernel = jnp.tensordot(one, two, axes=(-1, -1)) / one.shape[-1]
        return jnp.moveaxis(kernel, one.ndim - 1, 1)

    def ntk(self) -> Array:
        """Mean over channels of ∂f_c(x)·∂f_c(x'), with the axes of `nngp`."""
        axes = Axes(jax.eval_shape(self.batch, self.params, self.sides[0]).ndim - 1, (), ())
        kernel = jacobian_kernel(self.one, self.params, *self.sides, axes)
        return kernel / self.signs.size


@compiled
def _kernels(
    net: Layer,
    rows: Inputs,
    columns: Inputs | None,
    keys: Key[Array, " draw"],
    *,
    with_ntk: bool,
    noisy: bool,
) -> tuple[Array, Array | None]:
    """NNGP and tangent kernels of several draws."""

    def one(draw: Any) -> tuple[Array, Array | None]:
        passes = _Passes.of(net, draw, rows, columns)
        return passes.nngp(), passes.ntk() if with_ntk else None

    # Weights are drawn one network after the other: XLA compiles that in half the time.
    return jax.vmap(one)(jax.lax.map(lambda k: _draw(net, rows, columns, k, noisy=noisy), keys))
