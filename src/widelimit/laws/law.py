"""Laws of several numbers that are Gaussian given random scores, or given random scalars.

`Law` says what is asked of one number; `JointLaw` holds draws of the outputs' kernel `K_p` and
averages what is Gaussian exactly: `y | p ~ N(0, K_p)`. Laws of networks (`laws.network`) and of
traced programs (`trace.program`) are joint laws that differ in where kernels come from.
"""

import math
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Key

from ..errors import NetworkError, ShapeError, WidelimitError
from ..gaussians import psd_root
from ..options import RandomKey, as_key, generator, whole
from ..statistics import Estimate
from .marginal import Marginal, average, group_means

Coordinate = int | tuple[int, ...] | np.ndarray
"""A coordinate – an example, or (example, position…) – or the weights of a linear functional."""

_LOG_2PI = math.log(2 * math.pi)


def stack(draws: int, blocks: Iterator[np.ndarray]) -> Float[np.ndarray, "draws *rest"]:
    """Blocks of draws as one array, none of them kept beside it."""
    first = next(blocks)
    found = np.empty((draws, *first.shape[1:]))
    found[: len(first)], done = first, len(first)
    for block in blocks:
        found[done : done + len(block)] = block
        done += len(block)
    return found


def require_memory(numbers: int, memory: int, what: str) -> None:
    """Refuse arrays of so many numbers, each of 8 bytes, that take more than `memory`."""
    if 8 * numbers > memory:
        raise WidelimitError(
            f"{what} do not fit into the memory that the law may take.",
            got=f"{8 * numbers / 2**20:,.0f} MiB for memory={memory} ({memory / 2**20:,.0f} MiB)",
            remedy="take fewer draws, heads or inputs, pool or select positions, or raise memory=",
        )


class Law(ABC):
    """A law of several numbers, read one number at a time.

    `at` names a number, or a linear functional of them; with a single number it may be left out.
    Values carry standard errors (`.value`, `.error`).
    """

    @abstractmethod
    def _marginal(self, at: Any) -> Marginal:
        """The law of one number."""

    def density(self, y: ArrayLike, at: Any = None) -> Estimate:
        """Density of a coordinate or functional: an average of Gaussian densities."""
        return self._marginal(at).density(y)

    def cdf(self, y: ArrayLike, at: Any = None) -> Estimate:
        """Probability of values up to `y`."""
        return self._marginal(at).cdf(y)

    def sf(self, y: ArrayLike, at: Any = None) -> Estimate:
        """Probability of values above `y`."""
        return self._marginal(at).sf(y)

    def quantiles(self, probabilities: ArrayLike, at: Any = None) -> Estimate:
        """Quantiles of a coordinate or functional."""
        return self._marginal(at).quantiles(probabilities)

    def moments(self, orders: Sequence[int] = (2, 4), at: Any = None) -> Estimate:
        """`E[y^k]` for each order k."""
        marginal = self._marginal(at)
        found = [marginal.moment(order) for order in orders]
        return Estimate(np.array([m.value for m in found]), np.array([m.error for m in found]))

    def kurtosis(self, at: Any = None) -> Estimate:
        """Excess kurtosis: 0 for a Gaussian."""
        return self._marginal(at).kurtosis()


class JointLaw(Law):
    """Joint law of outputs at fixed inputs.

    Outputs have coordinates: an example index for networks that pool or flatten, `(example,
    position…)` for networks that keep positions. Wherever a coordinate is expected as `at`, an
    array of shape `law.shape` stands for the linear functional `Σ weights·y`. With a single
    coordinate `at` may be left out. Values carry standard errors (`.value`, `.error`).
    """

    def __init__(
        self, real: np.ndarray, key: Key[Array, ""], groups: int, memory: int = sys.maxsize
    ):
        """`real` says which coordinates are not padding; draws form `groups` independent groups.

        `memory` bounds the bytes of what is returned.
        """
        self.real, self.key, self.groups, self.memory = real, key, groups, memory

    @property
    def shape(self) -> tuple[int, ...]:
        """Examples, then the positions of the output."""
        return self.real.shape

    @property
    def draws(self) -> int:
        """How many kernels there are: one where nothing is random."""
        return len(self.kernels)

    @property
    @abstractmethod
    def random(self) -> bool:
        """Whether outputs are Gaussian only given what is drawn."""

    @cached_property
    def kernels(self) -> Float[np.ndarray, "draws n n"]:
        """`K_p` of every draw, coordinates flattened; fixed by the law's key."""
        return self._draw_kernels()

    @abstractmethod
    def _draw_kernels(self) -> Float[np.ndarray, "draws n n"]:
        """The kernels that the law averages over."""

    @abstractmethod
    def _redraw(self, draws: int, key: Key[Array, ""]) -> Iterator[Float[np.ndarray, "block n n"]]:
        """Independent kernels in blocks, where they are random."""

    def _key(self, key: RandomKey | None, number: int) -> Key[Array, ""]:
        """The given key, or the one that this law keeps for its reading of that number."""
        return jax.random.fold_in(self.key, number) if key is None else as_key(key)

    # --- addressing ---

    def _weights(self, at: Coordinate | None) -> Float[np.ndarray, " n"]:
        """A coordinate as a functional."""
        if isinstance(at, np.ndarray) and at.dtype.kind == "f":
            if at.shape != self.shape or not np.isfinite(at).all():
                raise ShapeError(
                    "The linear functional does not have one finite weight for each coordinate.",
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
                raise self._no_such_coordinate("no coordinate")
            return 0
        parts = at if isinstance(at, tuple | list) else (at,)
        try:
            index = tuple(operator.index(part) for part in parts)
        except TypeError:
            raise self._no_such_coordinate(repr(at)) from None
        inside = len(index) == len(self.shape) and all(
            0 <= i < extent for i, extent in zip(index, self.shape, strict=True)
        )
        if not inside:
            raise self._no_such_coordinate(repr(at))
        if not self.real[index]:
            raise ShapeError(
                "The coordinate is padding, which is always zero and has no law.",
                got=f"the padded coordinate {at!r}",
                remedy="ask for a position that the mask leaves in",
            )
        return int(np.ravel_multi_index(index, self.shape))

    def _no_such_coordinate(self, got: str) -> ShapeError:
        names = ["example", *(["position"] * (len(self.shape) - 1))]
        ranges = ", ".join(
            f"{name} 0 to {extent - 1}" for name, extent in zip(names, self.shape, strict=True)
        )
        return ShapeError(
            f"The law has no such coordinate; it has ({ranges}).",
            got=got,
            remedy="give integers in range, e.g. at=" + repr((0,) * len(self.shape)),
        )

    def at(self, *index: int) -> Marginal:
        """The law of one coordinate: `law.at(example, position…)`."""
        return self._marginal(index if len(index) != 1 or len(self.shape) == 1 else index[0])

    def functional(self, weights: ArrayLike) -> Marginal:
        """The law of `Σ weights·y`, weights of shape `law.shape`."""
        return self._marginal(np.asarray(weights, np.float64))

    def _marginal(self, at: Coordinate | None) -> Marginal:
        weights = self._weights(at)
        used = np.flatnonzero(weights)
        part = self.kernels[:, used[:, None], used[None, :]]
        variances = np.einsum("dij,i,j->d", part, weights[used], weights[used])
        return Marginal(variances, groups=min(self.groups, self.draws))

    # --- several numbers ---

    def covariance(self) -> Estimate:
        """`E[K_p]`, (N, N, positions…, positions'…): the covariance of the outputs."""
        found = average(group_means(self.kernels, min(self.groups, self.draws)))
        return Estimate(self._unflatten(found.value), self._unflatten(found.error))

    def joint_density(
        self, y: Float[np.ndarray, "*points k"], at: Sequence[Coordinate]
    ) -> Estimate:
        """Joint density of a few coordinates or functionals: an average of normal densities."""
        values = np.asarray(y, np.float64)
        if len(at) == 0 or values.ndim == 0 or values.shape[-1] != len(at):
            raise ShapeError(
                "The points do not have one entry for each coordinate of the joint density.",
                got=f"points of shape {values.shape} for {len(at)} coordinates",
                remedy="give y of shape (…, k) and at=[(example, position), …] of length k",
            )
        rows = np.stack([self._weights(place) for place in at])
        covariance = np.einsum("ki,dij,lj->dkl", rows, self.kernels, rows)
        try:
            lower = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:
            raise NetworkError(
                "The coordinates are linearly dependent and have no joint density.",
                got=f"a singular covariance of the coordinates {list(at)!r}",
                remedy="leave out coordinates that are determined by the others (equal inputs, or "
                "more coordinates than the kernel has rank)",
            ) from None
        flat = values.reshape(-1, len(at))
        diagonal = np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)
        white = np.linalg.solve(lower, np.broadcast_to(flat.T, (len(lower), *flat.T.shape)))
        logs = -0.5 * np.square(white).sum(axis=1) - diagonal[:, None] - 0.5 * len(at) * _LOG_2PI
        with np.errstate(over="ignore"):  # what is beyond all numbers, `average` refuses
            found = average(group_means(np.exp(logs), min(self.groups, self.draws)))
        shape = values.shape[:-1]
        return Estimate(found.value.reshape(shape), found.error.reshape(shape))

    def sample_kernels(
        self, draws: int | None = None, *, key: RandomKey | None = None
    ) -> Float[np.ndarray, "draws *shape"]:
        """Independent draws of `K_p`, (draws, N, N, positions…, positions'…)."""
        draws = self.draws if draws is None else whole("draws", draws)
        size = self.real.size
        require_memory(draws * size**2, self.memory, f"{draws:,} kernels of {size}×{size} numbers")
        if not self.random:
            return self._unflatten(np.broadcast_to(self.kernels, (draws, size, size)))
        return self._unflatten(stack(draws, self._redraw(draws, self._key(key, 1))))

    def sample(
        self, draws: int, *, key: RandomKey | None = None, channels: int = 1
    ) -> Float[np.ndarray, "draws N *positions channels"]:
        """Outputs of `draws` independent networks, with scores drawn anew.

        The channels of one network share its scores, as they do in the network.
        """
        whole("draws", draws)
        whole("channels", channels)
        first, second = jax.random.split(self._key(key, 2))
        size, rng = self.real.size, generator(second)
        require_memory(draws * size * channels, self.memory, f"{draws:,} samples of the outputs")

        def sample(kernels: np.ndarray, count: int) -> np.ndarray:
            # Kernels may come from single precision.
            return psd_root(kernels, tolerance=1e-3) @ rng.standard_normal((count, size, channels))

        if self.random:
            blocks = (sample(block, len(block)) for block in self._redraw(draws, first))
        else:
            blocks = iter([sample(self.kernels, draws)])
        return stack(draws, blocks).reshape(draws, *self.shape, channels)

    def _unflatten(self, kernels: np.ndarray) -> np.ndarray:
        """(…, n, n) to (…, N, N, positions…, positions'…)."""
        n, positions = self.shape[0], self.shape[1:]
        size, lead = math.prod(positions), kernels.ndim - 2
        blocks = np.swapaxes(kernels.reshape(*kernels.shape[:lead], n, size, n, size), -3, -2)
        return blocks.reshape(*kernels.shape[:lead], n, n, *positions, *positions)
