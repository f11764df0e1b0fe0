"""The law of a network's outputs at infinite width with finitely many heads.

Given all scores p the outputs are Gaussian, `y | p ~ N(0, K_p)`, and channels are independent.
Without them they are a mixture of Gaussians over the random kernel `K_p`, and channels, sharing the
scores, are uncorrelated but dependent. A `Law` holds draws of `K_p` and averages what is Gaussian
exactly.
"""

import math
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from ..engine.inputs import Data, Inputs
from ..errors import NetworkError, ShapeError, WidelimitError
from ..finite.widths import with_heads
from ..gaussians import psd_root
from ..layers.attention.heads import INFINITE
from ..layers.base import Layer
from ..layers.readings import reading
from ..options import RandomKey, as_key, choice, generator, known_options, whole
from ..statistics import Estimate
from . import tangent
from .draws import Latent, block_size, kernel_blocks, law_inputs, require_gaussian_output
from .marginal import Marginal, MarginalReadings, averaged, group_means
from .narrow import HeadWidths
from .points import DrawPlan, Points, normal_blocks, plan

Place = int | tuple[int, ...] | np.ndarray
"""A coordinate – an example, or (example, position…) – or the weights of a linear functional."""

_LOG_2PI = math.log(2 * math.pi)
# Copies of a network with infinitely many heads whose kernels are averaged.
_REPLICATES = 16


@reading
def law(
    net: Layer,
    x: Data,
    mask: Any = None,
    *,
    key: RandomKey | None = None,
    draws: int = 4096,
    samples: int = 128,
    points: Points | str = Points.AUTO,
    head_widths: HeadWidths | str = HeadWidths.INFINITE,
    memory: int = 2**30,
) -> "Law":
    """The joint law of the outputs at the inputs `x`; see `Law`.

    `draws` of the scores of all layers with finitely many heads are averaged over, at quasi-random
    `points` where few numbers describe the scores. Layers with infinitely many heads that have no
    closed form are averages over `samples` heads, fresh in every draw: beside finite-head layers
    they widen the law by a share of order 1/samples. Without any finite-head layer the law is
    Gaussian, with one kernel averaged over 16 such draws. With `head_widths="given"` heads have the
    `key_width` and `value_width` that their layers state, in layers that are infinitely wide: for
    one attention layer this is the law of the finite network on these inputs, whatever its width.
    Where entries are dropped above the scores, kernels are those of two passes, and the law is that
    of outputs averaged over the masks; leave `Dropout` out for the law of evaluation.
    `memory` bounds the bytes of the kernels that are kept.
    """
    head_widths = choice(HeadWidths, head_widths, "head_widths")
    inputs = law_inputs(net, x, mask)
    whole("samples", samples)
    whole("memory", memory)
    after = require_gaussian_output(net, inputs.outline)
    size = inputs.size * math.prod(after.positions)
    if draws * size**2 * 8 > memory:
        raise WidelimitError(
            "The drawn kernels of a law fit into memory=.",
            got=f"{draws} draws of {size}×{size} numbers for {memory / 2**20:.0f} MiB",
            remedy="pool or select positions, take fewer inputs or draws=, or raise memory=",
        )
    with jax.enable_x64(True):
        latent = Latent.of(net, inputs, samples=samples, head_widths=head_widths)
        real = latent.real()
    key = as_key(key)
    chosen = plan(points, draws, latent.size)
    return Law(net, latent, real, key, chosen, head_widths)


@known_options
def law_from_covariance(
    net: Layer,
    covariance: ArrayLike,
    *,
    key: RandomKey | None = None,
    draws: int = 4096,
    samples: int = 128,
    points: Points | str = Points.AUTO,
    head_widths: HeadWidths | str = HeadWidths.INFINITE,
    memory: int = 2**30,
) -> "Law":
    """The law for an input that is known by its covariance alone; options as for `law`.

    `covariance` is `κ_ab` of one input, (S, S), or of several, (N, S, N, S).
    """
    x = tokens_with_covariance(covariance)
    return law(
        net,
        x,
        key=key,
        draws=draws,
        samples=samples,
        points=points,
        head_widths=head_widths,
        memory=memory,
    )


def tokens_with_covariance(covariance: ArrayLike) -> Float[np.ndarray, "N S channels"]:
    """Inputs `x` with `x_a·x'_b / channels` as given, and channels of mean zero."""
    given = np.asarray(covariance, np.float64)
    square = (
        given.ndim in (2, 4) and given.shape[: given.ndim // 2] == given.shape[given.ndim // 2 :]
    )
    if not square or 0 in given.shape or not np.isfinite(given).all():
        raise ShapeError(
            "A covariance over positions has shape (S, S), or (N, S, N, S) for several inputs.",
            got=f"shape {given.shape}" + ("" if np.isfinite(given).all() else " with NaN"),
            remedy="pass κ_ab, for instance np.eye(4) for four independent tokens",
        )
    examples = 1 if given.ndim == 2 else given.shape[0]
    size = given.shape[-1]
    joint = given.reshape(examples * size, examples * size)
    values, vectors = np.linalg.eigh((joint + joint.T) / 2)
    symmetric = np.allclose(joint, joint.T, rtol=1e-6, atol=1e-12 * np.abs(joint).max())
    if not symmetric or values[0] < -1e-8 * max(values[-1], 0.0):
        raise ShapeError(
            "A covariance is symmetric and positive semi-definite.",
            got=f"smallest eigenvalue {values[0]:.3g}, largest {values[-1]:.3g}",
            remedy="pass x @ x.T / channels, or the input itself to law(net, x)",
        )
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    # Every channel has its mirror image: layer normalisation then finds nothing to centre.
    x = math.sqrt(root.shape[1]) * np.concatenate([root, -root], axis=1)
    return x.reshape(examples, size, -1)


class Law(MarginalReadings):
    """Joint law of the outputs at fixed inputs; made by `net.law(x)`.

    Outputs have coordinates: an example index for networks that pool or flatten, `(example,
    position…)` for networks that keep positions. Wherever a coordinate is expected as `at`, an
    array of shape `law.shape` stands for the linear functional `Σ weights·y`. With a single
    coordinate `at` may be left out. Values carry standard errors (`.value`, `.error`).
    """

    def __init__(
        self,
        net: Layer,
        latent: Latent,
        real: np.ndarray,
        key: Key[Array, ""],
        points: DrawPlan,
        head_widths: HeadWidths,
    ):
        """`real` says which output positions are not padding."""
        self.net, self.latent, self.real, self.key, self.points = net, latent, real, key, points
        self.head_widths = head_widths

    def __repr__(self) -> str:
        heads = [str(layer.heads) for layer in self.latent.finite_layers]
        if not heads:
            return f"Law(outputs of shape {self.shape}, Gaussian)"
        points = f"{self.points.draws} {self.points.points.value} draws of the scores"
        given = " of given width" if self.head_widths is HeadWidths.GIVEN else ""
        return f"Law(outputs of shape {self.shape}, {points} of {' and '.join(heads)} heads{given})"

    @property
    def inputs(self) -> Inputs:
        """The inputs, checked."""
        return self.latent.inputs

    @property
    def shape(self) -> tuple[int, ...]:
        """Examples, then the positions of the output."""
        return self.real.shape

    @property
    def draws(self) -> int:
        """How many draws of the scores there are."""
        return len(self.kernels)

    @property
    def groups(self) -> int:
        """How many independent groups the draws form; errors are spreads between groups."""
        return self.points.groups

    @cached_property
    def kernels(self) -> Float[np.ndarray, "draws n n"]:
        """`K_p` of every draw, coordinates flattened; fixed by the law's key."""
        if not self.latent.recipes:
            return self._drawn(1, self.key)
        if not self.latent.finite_layers:
            return self._drawn(_REPLICATES, self.key).mean(axis=0, keepdims=True)
        return self._evaluated(self.points, self.key)

    def _key(self, key: RandomKey | None, number: int) -> Key[Array, ""]:
        """The given key, or the one that this law keeps for its reading of that number."""
        return jax.random.fold_in(self.key, number) if key is None else as_key(key)

    def _drawn(self, draws: int, key: Key[Array, ""]) -> np.ndarray:
        """Independent kernels; all the same where nothing stays random."""
        return self._evaluated(DrawPlan(Points.RANDOM, draws, draws), key)

    def _fresh(self, draws: int, key: Key[Array, ""]) -> np.ndarray:
        """Kernels of networks drawn anew."""
        if self.latent.finite_layers:
            return self._drawn(draws, key)
        return np.broadcast_to(self.kernels, (draws, *self.kernels.shape[1:]))

    def _evaluated(self, points: DrawPlan, key: Key[Array, ""]) -> np.ndarray:
        with jax.enable_x64(True):
            size = min(block_size(self.latent), points.draws)
            normals = normal_blocks(points, self.latent.size, key, size=size)
            return np.concatenate(list(kernel_blocks(self.latent, normals, size=size)))

    # --- addressing ---

    def _weights(self, at: Place | None) -> Float[np.ndarray, " n"]:
        """A coordinate as a functional."""
        if isinstance(at, np.ndarray) and at.dtype.kind == "f":
            if at.shape != self.shape or not np.isfinite(at).all():
                raise ShapeError(
                    "A linear functional has one finite weight for each coordinate.",
                    got=f"weights of shape {at.shape} for outputs of shape {self.shape}",
                    remedy=f"give an array of shape {self.shape}",
                )
            return np.asarray(at, np.float64).ravel()
        weights = np.zeros(self.real.size)
        weights[self._index(at)] = 1.0
        return weights

    def _index(self, at: Any) -> int:
        """The flat index of a coordinate."""
        if at is None:
            if self.real.size != 1:
                raise self._misplaced("no coordinate")
            return 0
        parts = at if isinstance(at, tuple | list) else (at,)
        try:
            index = tuple(operator.index(part) for part in parts)
        except TypeError:
            raise self._misplaced(repr(at)) from None
        inside = len(index) == len(self.shape) and all(
            0 <= i < extent for i, extent in zip(index, self.shape, strict=True)
        )
        if not inside:
            raise self._misplaced(repr(at))
        if not self.real[index]:
            raise ShapeError(
                "Only real positions have a law; padding is always zero.",
                got=f"the padded coordinate {at!r}",
                remedy="ask for a position that the mask leaves in",
            )
        return int(np.ravel_multi_index(index, self.shape))

    def _misplaced(self, got: str) -> ShapeError:
        names = ["example", *(["position"] * (len(self.shape) - 1))]
        ranges = ", ".join(
            f"{name} 0 to {extent - 1}" for name, extent in zip(names, self.shape, strict=True)
        )
        return ShapeError(
            f"A coordinate of this law is ({ranges}).",
            got=got,
            remedy="give integers in range, e.g. at=" + repr((0,) * len(self.shape)),
        )

    def at(self, *index: int) -> Marginal:
        """The law of one coordinate: `law.at(example, position…)`."""
        return self._marginal(index if len(index) != 1 or len(self.shape) == 1 else index[0])

    def functional(self, weights: ArrayLike) -> Marginal:
        """The law of `Σ weights·y`, weights of shape `law.shape`."""
        return self._marginal(np.asarray(weights, np.float64))

    def _marginal(self, at: Place | None) -> Marginal:
        weights = self._weights(at)
        used = np.flatnonzero(weights)
        part = self.kernels[:, used[:, None], used[None, :]]
        variances = np.einsum("dij,i,j->d", part, weights[used], weights[used])
        return Marginal(variances, groups=min(self.groups, self.draws))

    # --- several numbers ---

    def covariance(self) -> Estimate:
        """`E[K_p]`, (N, N, positions…, positions'…): the covariance of the outputs."""
        found = averaged(group_means(self.kernels, min(self.groups, self.draws)))
        return Estimate(self._unflattened(found.value), self._unflattened(found.error))

    def joint_density(self, y: Float[np.ndarray, "*points k"], at: Sequence[Place]) -> Estimate:
        """Joint density of a few coordinates or functionals: an average of normal densities."""
        values = np.asarray(y, np.float64)
        if len(at) == 0 or values.ndim == 0 or values.shape[-1] != len(at):
            raise ShapeError(
                "A joint density is taken at points with one entry for each coordinate.",
                got=f"points of shape {values.shape} for {len(at)} coordinates",
                remedy="give y of shape (…, k) and at=[(example, position), …] of length k",
            )
        rows = np.stack([self._weights(place) for place in at])
        covariance = np.einsum("ki,dij,lj->dkl", rows, self.kernels, rows)
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            raise NetworkError(
                "Coordinates with a joint density are not linearly dependent.",
                got=f"a singular covariance of the coordinates {list(at)!r}",
                remedy="leave out coordinates that are determined by the others (equal inputs, or "
                "more coordinates than the kernel has rank)",
            ) from None
        flat = values.reshape(-1, len(at))
        diagonal = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        white = np.linalg.solve(lower, np.broadcast_to(flat.T, (len(lower), *flat.T.shape)))
        logs = -0.5 * np.square(white).sum(axis=1) - diagonal[:, None] - 0.5 * len(at) * _LOG_2PI
        found = averaged(group_means(np.exp(logs), min(self.groups, self.draws)))
        shape = values.shape[:-1]
        return Estimate(found.value.reshape(shape), found.error.reshape(shape))

    def sample_kernels(
        self, draws: int | None = None, *, key: RandomKey | None = None
    ) -> Float[np.ndarray, "draws *shape"]:
        """Independent draws of `K_p`, (draws, N, N, positions…, positions'…)."""
        draws = self.points.draws if draws is None else whole("draws", draws)
        return self._unflattened(self._fresh(draws, self._key(key, 1)))

    def sample(
        self, draws: int, *, key: RandomKey | None = None, channels: int = 1
    ) -> Float[np.ndarray, "draws N *positions channels"]:
        """Outputs of `draws` independent networks, with scores drawn anew.

        The channels of one network share its scores, as they do in the network.
        """
        whole("draws", draws)
        whole("channels", channels)
        first, second = jax.random.split(self._key(key, 2))
        roots = psd_root(self._fresh(draws, first), tolerance=1e-3)  # kernels in single precision
        white = generator(second).standard_normal((draws, self.real.size, channels))
        return (roots @ white).reshape(draws, *self.shape, channels)

    def _unflattened(self, kernels: np.ndarray) -> np.ndarray:
        """(…, n, n) to (…, N, N, positions…, positions'…)."""
        n, positions = self.shape[0], self.shape[1:]
        size, lead = math.prod(positions), kernels.ndim - 2
        blocks = np.swapaxes(kernels.reshape(*kernels.shape[:lead], n, size, n, size), -3, -2)
        return blocks.reshape(*kernels.shape[:lead], n, n, *positions, *positions)

    # --- comparisons ---

    def gaussian(self, *, samples: int = 1024) -> "Law":
        """The same network with infinitely many heads, infinitely wide: a law with one kernel.

        Where scores have no closed form its kernel is an average over 16 times `samples` heads.
        """
        return law(with_heads(self.net, INFINITE), self.inputs, key=self.key, samples=samples)

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
        whole("channels", channels)
        drawn = tangent.sample_ntk(self.net, self.inputs, draws, channels, self._key(key, 3))
        return self._unflattened(drawn)

    def ntk(self, *, draws: int = 256, key: RandomKey | None = None) -> Estimate:
        """Mean tangent kernel over scores and output channels, (N, N, positions…, positions'…).

        For a layer with finitely many heads under a nonlinearity this is what `net.kernel` refuses:
        there the average does not factorise layer by layer.
        """
        self._require_wide_heads()
        whole("draws", draws)
        drawn = tangent.mean_ntk(self.net, self.inputs, draws, self._key(key, 4))
        found = averaged(drawn)
        return Estimate(self._unflattened(found.value), self._unflattened(found.error))

    def _require_wide_heads(self) -> None:
        if self.head_widths is HeadWidths.GIVEN:
            raise NetworkError(
                "Tangent kernels of a law take infinitely wide heads.",
                got="a law with head_widths='given'",
                remedy="take net.law(x).ntk(), or wl.empirical_ntk of drawn networks",
            )
