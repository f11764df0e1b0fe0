"""Where a position is: random encodings with a decay, rotary angles, additive score biases."""

from abc import abstractmethod
from collections.abc import Callable
from enum import Enum
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from ...duals.base import as_module
from ...errors import NumericalError, ShapeError, WidelimitError
from ...factorizations import cholesky
from ...options import Range, choice, hyperparameter, option, positive, whole, within
from ...printing import Written, brief, written
from ..base import cast, leaf, require_drawn
from .scores import coordinates


class Combine(Enum):
    """How an encoding p joins the input x: the weights of κ̃ = w_x κ + w_p R.

    SUM: w_x = 1, w_p = σ². MIX: w_x = 1 − σ², w_p = σ², the structured encoding with a fixed total.
    CONCAT: by channel shares, w_x = c/(c + e), w_p = σ² e/(c + e).
    """

    SUM = "sum"
    CONCAT = "concat"
    MIX = "mix"


class Profile(Enum):
    """Decay of the encoding's covariance with the distance d between positions."""

    GAUSSIAN = "gaussian"
    """`exp(−rate·d²)`."""
    EXPONENTIAL = "exponential"
    """`exp(−rate·d)`."""
    RATIONAL = "rational"
    """`1/(1 + rate·d²)`."""


_PROFILES: dict[Profile, Callable[[Array, Array], Array]] = {
    Profile.GAUSSIAN: lambda rate, d: jnp.exp(-rate * d**2),
    Profile.EXPONENTIAL: lambda rate, d: jnp.exp(-rate * d),
    Profile.RATIONAL: lambda rate, d: 1 / (1 + rate * d**2),
}


class Named(eqx.Module):
    """One of the profiles above, as part of the network's structure."""

    kind: Profile = eqx.field(static=True)


def _channels(value: Any) -> int | None:
    return None if value is None else whole("channels", value)


def _strength_range(encoding: "Encoding") -> Range:
    """MIX shares a total variance of 1."""
    return Range.UNIT if encoding.combine is Combine.MIX else Range.POSITIVE


class Encoding(Written, eqx.Module):
    """A trained random encoding p of positions, Gaussian with covariance R.

    κ̃ = w_x κ + w_p R and Θ̃ = w_x Θ + w_p R. Scores use κ̃; values use κ, or κ̃ with `on_values`.

    In the finite network the encoding is as wide (m) as a head's keys, and has weights of its own:
    queries, keys (and values) are `√w_x x W/√n + √w_p p W'/√m`. So the limit of large m is the same
    whatever the input's channels n; x + σp under shared weights has it only if n grows.

    To write your own, define `covariance`; fields made by `leaf` are hyperparameters, as in layers.
    """

    # Made by `eqx.field`, of which type checkers know that it may take names alone.
    strength: Any = eqx.field(
        default=1.0,
        converter=partial(hyperparameter, name="strength"),
        metadata=within(_strength_range),
        kw_only=True,
    )
    combine: Combine = eqx.field(
        default=Combine.SUM,
        converter=partial(choice, Combine, name="combine"),
        static=True,
        kw_only=True,
    )
    """How the encoding joins the input."""
    channels: int | None = eqx.field(default=None, converter=_channels, static=True, kw_only=True)
    """For CONCAT: as how many channels it counts, e; None: as many as the input has."""
    on_values: bool = eqx.field(default=False, converter=bool, static=True, kw_only=True)
    """Whether values see it too, not only scores."""

    @abstractmethod
    def covariance(
        self, positions1: tuple[int, ...], positions2: tuple[int, ...], like: Array
    ) -> Float[Array, "a b"]:
        """R between all positions of two grids; every position has the same variance."""

    def require(self, positions: tuple[int, ...]) -> None:
        """Raise unless R is a covariance; hyperparameters inside a transformation go unchecked."""
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(self)):
            return
        with jax.ensure_compile_time_eval():
            covariance = np.asarray(self.covariance(positions, positions, jnp.zeros(())))
        least = float(np.linalg.eigvalsh(covariance.astype(np.float64))[0])
        if not least > -10 * covariance.shape[0] * np.finfo(covariance.dtype).eps:
            raise NumericalError(
                "The covariance of the positional encoding is not positive semi-definite.",
                got=f"a smallest eigenvalue of {least:.3g} over positions {positions}",
                remedy="use a named profile with norm=2, e.g. Decay(profile=Profile.GAUSSIAN)",
            )

    def shares(self, channels: Array | None, like: Array) -> tuple[Array, Array]:
        """Weights of input and encoding in κ̃; CONCAT depends on how many channels come in."""
        variance = cast(self.strength, like) ** 2
        if self.combine is Combine.SUM:
            return jnp.ones_like(variance), variance
        if self.combine is Combine.MIX:
            return 1 - variance, variance
        assert channels is not None
        content = cast(channels, like)
        place = content if self.channels is None else cast(float(self.channels), like)
        total = content + place
        return content / total, place / total * variance

    def root(
        self, positions: tuple[int, ...], grid: tuple[int, ...], like: Array
    ) -> Float[Array, "position place"]:
        """Feature rows of R for positions that lie within a grid (all inputs share its rows)."""
        require_drawn(positions, grid, "The positional encoding was")
        covariance = self.covariance(grid, grid, like)
        # It may be singular.
        largest = jax.lax.stop_gradient(jnp.max(jnp.diagonal(covariance)))
        jitter = 10 * len(covariance) * jnp.finfo(covariance.dtype).eps * largest
        root = cholesky(covariance + jitter * jnp.eye(len(covariance), dtype=covariance.dtype))
        return root[np.ravel_multi_index(tuple(coordinates(positions).T), grid)]

    def join_input(self, noise: Float[Array, "*grid place"], x: Array) -> Array:
        """The finite network's input with its encoding, from i.i.d. normal `noise` (trained).

        The two stand side by side, scaled such that weights `W/√(n + m)` on both together give
        `√w_x x W/√n + √w_p p W'/√m`.
        """
        flat = x.reshape(-1, x.shape[-1])
        root = self.root(x.shape[:-1], noise.shape[:-1], x)
        encoding = root @ noise.reshape(-1, noise.shape[-1]).astype(x.dtype)
        shares = self.shares(jnp.asarray(float(x.shape[-1])), x)
        total = x.shape[-1] + noise.shape[-1]
        parts = [
            jnp.sqrt(share * total / part.shape[-1]) * part
            for share, part in zip(shares, (flat, encoding), strict=True)
        ]
        return jnp.concatenate(parts, axis=-1).reshape(*x.shape[:-1], -1)


def _profile(profile: Any) -> Any:
    """A function of distances as a pytree."""
    if callable(profile):
        return as_module(profile)
    return profile if isinstance(profile, Named) else Named(choice(Profile, profile, "profile"))


def _norm(norm: Any) -> float:
    """The p of a distance, which may be infinite."""
    infinite = isinstance(norm, float) and norm == np.inf
    return norm if infinite else positive("norm", norm)


class Decay(Encoding):
    """An encoding whose covariance decays with distance: `R_ab = profile(‖pos_a − pos_b‖)`.

    Positions are 1-D, 2-D or n-D. `rate` and `strength` (σ) are hyperparameters.
    """

    rate: Any = leaf("rate", where=Range.POSITIVE, default=1.0, kw_only=False)
    profile: Any = eqx.field(default=Profile.GAUSSIAN, converter=_profile, kw_only=True)
    """A `Profile`, or any function of the distance: it is called with `rate·d`, and keeps its
    leaves where it is an Equinox module."""
    norm: float = eqx.field(default=2.0, converter=_norm, static=True, kw_only=True)
    """The p of the distance."""

    def __check_init__(self) -> None:
        if isinstance(self.rate, np.ndarray) and self.rate < 0:
            raise WidelimitError(
                "The decay rate is negative: nearby positions would be the least alike.",
                got=f"rate={self.rate!r}",
                remedy="give a rate of at least 0",
            )
        given = isinstance(self.strength, np.ndarray)
        if self.combine is Combine.MIX and given and self.strength**2 > 1:
            raise WidelimitError(
                "The deviation σ is above 1, where Combine.MIX, √(1−σ²) x + σ p, has no meaning.",
                got=f"strength={self.strength!r}",
                remedy="give a strength σ between 0 and 1, or use Combine.SUM",
            )

    def __repr__(self) -> str:
        named = isinstance(self.profile, Named)
        profile = self.profile.kind if named else getattr(self.profile, "function", self.profile)
        text = written(self, hidden=("profile",))
        if profile is Profile.GAUSSIAN:
            return text
        between = "" if text.endswith("()") else ", "
        return f"{text[:-1]}{between}profile={brief(profile)})"

    def require(self, positions: tuple[int, ...]) -> None:
        """Named profiles are covariances for Euclidean distances, in any number of dimensions."""
        if not isinstance(self.profile, Named) or self.norm != 2:
            super().require(positions)

    def covariance(
        self, positions1: tuple[int, ...], positions2: tuple[int, ...], like: Array
    ) -> Float[Array, "a b"]:
        """R between all positions of two grids."""
        gaps = coordinates(positions1)[:, None, :] - coordinates(positions2)[None, :, :]
        distance = jnp.asarray(np.linalg.norm(gaps, ord=self.norm, axis=-1), like.dtype)
        rate = cast(self.rate, like)
        if isinstance(self.profile, Named):
            return _PROFILES[self.profile.kind](rate, distance)
        return self.profile(rate * distance).astype(like.dtype)


class ScoreBias(Written, eqx.Module):
    """Something added to the scores: a constant matrix over positions."""

    @abstractmethod
    def bias(self, positions: tuple[int, ...], like: Array) -> Float[Array, "query key"]:
        """The matrix (query, key) over flattened positions."""


class Alibi(ScoreBias):
    """Attention with linear biases: `−slope·‖pos_query − pos_key‖₁` is added to the scores."""

    slope: Any = leaf("slope", where=Range.POSITIVE, default=0.5, kw_only=False)

    def bias(self, positions: tuple[int, ...], like: Array) -> Array:
        places = coordinates(positions)
        gaps = np.abs(places[:, None, :] - places[None, :, :]).sum(axis=-1)
        return -cast(self.slope, like) * jnp.asarray(gaps, like.dtype)


def _bias_value(value: Any) -> Any:
    return as_module(value) if callable(value) else hyperparameter(value, "value", scalar=False)


class AdditiveBias(ScoreBias):
    """Any function of the offset `pos_key − pos_query`, or a given matrix, added to the scores."""

    value: Any = eqx.field(converter=_bias_value)
    """A matrix (query, key), or a function of the offsets (query, key, axes)."""

    def bias(self, positions: tuple[int, ...], like: Array) -> Array:
        places = coordinates(positions)
        if callable(self.value):
            offsets = jnp.asarray(places[None, :, :] - places[:, None, :], like.dtype)
            return jnp.asarray(self.value(offsets))
        size = len(places)
        if self.value.shape != (size, size):
            raise ShapeError(
                "The score bias does not have one row and one column for each position.",
                got=f"a matrix of shape {tuple(self.value.shape)} for {size} positions",
                remedy="give a matrix of that size, or a function of the offsets",
            )
        return cast(self.value, like)


class Rotary(Written, eqx.Module):
    """Rotary positions: pairs of query and key channels turn by angles θ_k·position.

    Scores depend on the offset i − a: `Cov(G_ai, G_bj) = σ² κ_ab κ_ij ρ((i−a)−(j−b))` with
    `ρ(Δ) = mean_k cos(θ_k Δ)`; at 1/d the score is `σ κ_ai ρ(i−a)`. θ_k = base^(−k/pairs).
    """

    base: Any = leaf("base", where=Range.POSITIVE, tuned=False, default=10_000.0, kw_only=False)
    pairs: int = option(8, converter=partial(whole, "pairs"))
    """How many different frequencies there are (half a head's key width)."""

    def frequencies(self, like: Array) -> Float[Array, "pairs"]:
        """θ_k."""
        exponents = jnp.asarray(-np.arange(self.pairs) / self.pairs, like.dtype)
        return cast(self.base, like) ** exponents

    def require(self, positions: tuple[int, ...]) -> None:
        """Raise unless positions are a sequence."""
        if len(positions) != 1:
            raise ShapeError(
                "Rotary met an input that is no sequence: it is defined along a sequence.",
                got=f"positions of shape {positions}",
                remedy="flatten the positions into one axis, or use Decay, which takes any number",
            )

    def waves(self, positions: tuple[int, ...], like: Array) -> Float[Array, "waves query key"]:
        """cos(θ_k(i−a)) for every k, then sin(θ_k(i−a)), each divided by √pairs."""
        index = np.arange(positions[0])
        offsets = jnp.asarray(index[None, :] - index[:, None], like.dtype)
        angles = self.frequencies(like)[:, None, None] * offsets[None]
        waves = jnp.concatenate([jnp.cos(angles), jnp.sin(angles)])
        return waves / jnp.sqrt(jnp.asarray(self.pairs, like.dtype))

    def rotate(self, x: Float[Array, "positions channels"]) -> Float[Array, "positions channels"]:
        """Queries or keys of the finite network, turned; channels come in pairs."""
        half = x.shape[-1] // 2
        places = jnp.arange(x.shape[0], dtype=x.dtype)
        theta = self.frequencies(x)[jnp.arange(half) % self.pairs]
        angles = places[:, None] * theta[None, :]
        first, second = x[:, :half], x[:, half:]
        cos, sin = jnp.cos(angles), jnp.sin(angles)
        return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], axis=-1)
