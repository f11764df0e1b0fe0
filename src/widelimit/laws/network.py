"""The law of a network's outputs at infinite width with finitely many heads.

Given all scores p the outputs are Gaussian, `y | p ~ N(0, K_p)`, and channels are independent.
Without them they are a mixture of Gaussians over the random kernel `K_p`, and channels, sharing the
scores, are uncorrelated but dependent.
"""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from ..compilation import require_own_jax
from ..engine.inputs import Data, Inputs
from ..errors import NetworkError, ShapeError
from ..finite.widths import with_heads
from ..gaussians import covariance_root
from ..layers.attention.heads import INFINITE
from ..layers.base import Layer
from ..options import RandomKey, as_key, choice, whole
from ..statistics import Estimate
from . import tangent
from .draws import Latent, block_size, kernel_blocks, law_inputs, require_gaussian_output
from .law import JointLaw, require_memory, stack
from .marginal import average
from .narrow import HeadWidths
from .points import DrawPlan, normal_blocks, plan_draws

# Copies of a network with infinitely many heads whose kernels are averaged.
_REPLICATES = 16


def make_law(
    net: Layer,
    x: Data,
    mask: Any,
    key: RandomKey | None,
    draws: int,
    samples: int,
    head_widths: HeadWidths | str,
    memory: int,
) -> "NetworkLaw":
    """The joint law of the outputs at the inputs `x`; the options are those of `Layer.law`."""
    require_own_jax()
    head_widths = choice(HeadWidths, head_widths, "head_widths")
    inputs = law_inputs(net, x, mask)
    whole("draws", draws)
    whole("samples", samples)
    whole("memory", memory)
    after = require_gaussian_output(net, inputs.outline)
    size = inputs.size * math.prod(after.positions)
    with jax.enable_x64(True):
        latent = Latent.of(net, inputs, samples=samples, head_widths=head_widths)
        kept = draws if latent.finite_layers else 1
        require_memory(kept * size**2, memory, f"{kept:,} kernels of {size}×{size} numbers")
        require_memory(latent.size, memory, f"The {latent.size:,} normals behind a draw of scores")
        real = latent.real()
    chosen = plan_draws(draws, latent.size, most=max(kept, memory // (8 * size**2)))
    return NetworkLaw(net, latent, real, as_key(key), chosen, head_widths, memory)


def law_from_covariance(net: Layer, covariance: ArrayLike, **options: Any) -> "NetworkLaw":
    """The law for an input that is known by its covariance alone; options are those of `Layer.law`.

    `covariance` is `κ_ab` of one input, (S, S), or of several, (N, S, N, S).
    """
    return net.law(tokens_with_covariance(covariance), **options)


def tokens_with_covariance(covariance: ArrayLike) -> Float[np.ndarray, "N S channels"]:
    """Inputs `x` with `x_a·x'_b / channels` as given, and channels of mean zero."""
    given = np.asarray(covariance, np.float64)
    half = given.ndim // 2
    if given.ndim not in (2, 4) or given.shape[:half] != given.shape[half:]:
        raise ShapeError(
            "The covariance is not of shape (S, S), or (N, S, N, S) for several inputs.",
            got=f"shape {given.shape}",
            remedy="pass κ_ab, for instance np.eye(4) for four independent tokens",
        )
    examples, size = 1 if half == 1 else given.shape[0], given.shape[-1]
    root = covariance_root(given.reshape(examples * size, -1), tolerance=1e-8)
    # Every channel has its mirror image: layer normalisation then finds nothing to centre.
    x = math.sqrt(root.shape[1]) * np.concatenate([root, -root], axis=1)
    return x.reshape(examples, size, -1)


class NetworkLaw(JointLaw):
    """Joint law of a network's outputs at fixed inputs; made by `net.law(x)`."""

    def __init__(
        self,
        net: Layer,
        latent: Latent,
        real: np.ndarray,
        key: Key[Array, ""],
        points: DrawPlan,
        head_widths: HeadWidths,
        memory: int,
    ):
        """`real` says which output positions are not padding."""
        super().__init__(real, key, points.groups, memory)
        self.net, self.latent, self.points = net, latent, points
        self.head_widths = head_widths

    def __repr__(self) -> str:
        heads = [str(layer.heads) for layer in self.latent.finite_layers]
        kind = "Gaussian"
        if heads:
            kind = f"{self.draws} draws of the scores of "
            kind += f"{' and '.join(heads)} heads"
            kind += " of given width" if self.head_widths is HeadWidths.GIVEN else ""
        return f"NetworkLaw(outputs of shape {self.shape}, {kind})"

    @property
    def inputs(self) -> Inputs:
        """The inputs, checked."""
        return self.latent.inputs

    @property
    def random(self) -> bool:
        """Whether there are layers with finitely many heads, whose scores stay random."""
        return bool(self.latent.finite_layers)

    def _draw_kernels(self) -> Float[np.ndarray, "draws n n"]:
        if self.random:
            return stack(self.points.draws, self._blocks(self.points, self.key))
        draws = _REPLICATES if self.latent.recipes else 1
        total = sum(block.sum(axis=0) for block in self._redraw(draws, self.key))
        return np.asarray(total)[None] / draws

    def _redraw(self, draws: int, key: Key[Array, ""]) -> Iterator[np.ndarray]:
        return self._blocks(DrawPlan(draws, draws), key)

    def _blocks(self, points: DrawPlan, key: Key[Array, ""]) -> Iterator[np.ndarray]:
        """The kernels at these points."""
        size = min(block_size(self.latent), points.draws)
        normals = normal_blocks(points, self.latent.size, key, size=size)
        blocks = kernel_blocks(self.latent, normals, size=size)
        while True:
            with jax.enable_x64(True):  # not around yield, where it would be the caller's too
                block = next(blocks, None)
            if block is None:
                return
            yield block

    # --- comparisons ---

    def gaussian(self, *, samples: int = 1024) -> "NetworkLaw":
        """The same network with infinitely many heads, infinitely wide: a law with one kernel.

        Where scores have no closed form its kernel is an average over 16 times `samples` heads.
        """
        net = with_heads(self.net, INFINITE)
        return net.law(self.inputs, key=self.key, samples=samples, memory=self.memory)

    # --- tangent kernels ---

    def sample_ntk(
        self, draws: int, *, key: RandomKey | None = None, channels: int = 1
    ) -> Float[np.ndarray, "draws c c *shape"]:
        """Tangent kernels at initialisation of `draws` networks.

        Axes: (draws, channel, channel', N, N, positions…, positions'…). With finitely many heads
        the tangent kernel is random and correlated across output channels; see `laws.tangent`.
        """
        self._require_wide_heads()
        whole("draws", draws)
        size = whole("channels", channels) * self.real.size
        require_memory(draws * size**2, self.memory, f"{draws:,} tangent kernels")
        drawn = tangent.sample_ntk(self.net, self.inputs, draws, channels, self._key(key, 3))
        return self._unflatten(drawn)

    def ntk(self, *, draws: int = 256, key: RandomKey | None = None) -> Estimate:
        """Mean tangent kernel over scores and output channels, (N, N, positions…, positions'…).

        For a layer with finitely many heads under a nonlinearity this is what `net.kernel` refuses:
        there the average does not factorise layer by layer.
        """
        self._require_wide_heads()
        whole("draws", draws)
        require_memory(draws * self.real.size**2, self.memory, f"{draws:,} tangent kernels")
        drawn = tangent.sample_ntk(self.net, self.inputs, draws, None, self._key(key, 4))
        found = average(drawn)
        return Estimate(self._unflatten(found.value), self._unflatten(found.error))

    def _require_wide_heads(self) -> None:
        if self.head_widths is HeadWidths.GIVEN:
            raise NetworkError(
                "Tangent kernels are not known for heads of finite width.",
                got="a law with head_widths='given'",
                remedy="take net.law(x).ntk(), or wl.empirical_ntk of drawn networks",
            )
