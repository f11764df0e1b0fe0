"""How inputs become queries, keys and values: biases, one length, positions, feature rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...duals.geometry import safe_inverse, safe_sqrt
from ...errors import WidelimitError
from ...options import Range
from ...printing import written
from ...state import Example, Outline, Pair
from ..base import Params, cast, leaf, remask
from ..dense import checked_bias
from .heads import Basis, FeatureSide, pass_noise
from .positional import Combine, Encoding, Rotary, ScoreBias


class Projections(eqx.Module):
    """`q = N(x W_Q/√n + σ_qk b_Q)`, keys likewise, `v = x W_V/√n + σ_v b_V`.

    With `qk_norm`, N(q) = √d q/‖q‖ for every head and position. The norms of wide heads
    concentrate at their means: `κ̃ ← κ̃ + σ_qk²`, then `κ̃_ab ← κ̃_ab/√(κ̃_aa κ̃'_bb)` and Θ̃ by the same
    factor; values have `κ ← κ + σ_v²`. Biases are trained; the layer's own terms account for
    that, and Θ̃ and Θ are those of the input.
    """

    qk_norm: bool = eqx.field(static=True)
    qk_biased: bool = eqx.field(static=True)
    v_biased: bool = eqx.field(static=True)
    qk_b_std: Any = leaf("qk_b_std", where=Range.POSITIVE)
    v_b_std: Any = leaf("v_b_std", where=Range.POSITIVE)

    def __init__(self, *, qk_norm: bool = False, qk_b_std: Any = 0.0, v_b_std: Any = 0.0):
        """`qk_b_std` (σ_qk) and `v_b_std` (σ_v) are hyperparameters."""
        self.qk_norm = bool(qk_norm)
        self.qk_biased, self.qk_b_std = checked_bias(qk_b_std)
        self.v_biased, self.v_b_std = checked_bias(v_b_std)

    def __repr__(self) -> str:
        return written(self)

    @property
    def plain(self) -> bool:
        """Whether there is nothing but weights."""
        return not (self.qk_norm or self.qk_biased or self.v_biased)

    # --- finite width -----------------------------------------------------------------------------

    def shapes(self, heads: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
        """Biases for these weights (head, n, width): one for each head and channel."""
        biased = {"query": self.qk_biased, "key": self.qk_biased, "value": self.v_biased}
        return {
            f"{name}_bias": (shape[0], shape[-1])
            for name, shape in heads.items()
            if biased.get(name)
        }

    def score_side(
        self, params: Params, name: str, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Queries or keys from what their weights give."""
        if self.qk_biased:
            x = x + cast(self.qk_b_std, x) * params[f"{name}_bias"][:, None, :]
        if not self.qk_norm:
            return x
        length = safe_sqrt(jnp.mean(x**2, axis=-1, keepdims=True))
        return x * safe_inverse(length)

    def value_side(
        self, params: Params, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Values from what their weights give."""
        if not self.v_biased:
            return x
        return x + cast(self.v_b_std, x) * params["value_bias"][:, None, :]

    # --- infinite width ---------------------------------------------------------------------------

    def scored(self, pair: Pair) -> Pair:
        """κ̃ + σ_qk²."""
        return _lift(pair, self.qk_b_std) if self.qk_biased else pair

    def valued(self, pair: Pair) -> Pair:
        """κ + σ_v²."""
        return _lift(pair, self.v_b_std) if self.v_biased else pair

    def variance(self, variance: Float[Array, "position"]) -> Float[Array, "position"]:
        """κ̃_aa + σ_qk²."""
        return variance + cast(self.qk_b_std, variance) ** 2 if self.qk_biased else variance

    def rows(self, rows: Float[Array, "position rank"]) -> Float[Array, "position rank2"]:
        """Feature rows with the bias as one more."""
        if not self.qk_biased:
            return rows
        constant = jnp.full((rows.shape[0], 1), cast(self.qk_b_std, rows))
        return jnp.concatenate([rows, constant], axis=-1)


def _lift(pair: Pair, b_std: Any) -> Pair:
    pair = pair.forced()
    return pair.to(pair.nngp + cast(b_std, pair.nngp) ** 2, pair.ntk)


def inverse_lengths(variance: Float[Array, "position"]) -> Float[Array, "position"]:
    """1/√κ̃_aa, and 0 where the variance is."""
    return safe_inverse(safe_sqrt(variance))


def normalise(pair: Pair, one: Array | None, two: Array | None) -> Pair:
    """κ̃ and Θ̃ times the inverse lengths of either input; as they are without lengths."""
    if one is None or two is None:
        return pair
    pair = pair.forced()
    shape = pair.nngp.shape
    factor = jnp.outer(one, two).reshape(shape)
    return pair.to(pair.nngp * factor, None if pair.ntk is None else pair.ntk * factor)


class Positions(eqx.Module):
    """The positional parts of an attention layer, sorted by what they act on."""

    encoding: Encoding | None
    biases: tuple[ScoreBias, ...]
    rotary: Rotary | None
    projections: Projections

    def __repr__(self) -> str:
        parts = self.parts
        return repr(parts if len(parts) > 1 else parts[0] if parts else None)

    @property
    def parts(self) -> tuple[Any, ...]:
        """All of them, in the order in which they are written."""
        return tuple(p for p in (self.encoding, self.rotary, *self.biases) if p is not None)

    @classmethod
    def make(cls, given: Any, projections: Projections | None = None) -> "Positions":
        """From nothing, one part, or several (at most one encoding and one rotation)."""
        projections = Projections() if projections is None else projections
        if not isinstance(projections, Projections):
            raise WidelimitError(
                "projections= is not Projections(qk_norm=…, qk_b_std=…, v_b_std=…).",
                got=repr(projections),
                remedy="e.g. projections=Projections(qk_norm=True)",
            )
        parts = () if given is None else given if isinstance(given, tuple | list) else (given,)
        encodings = [p for p in parts if isinstance(p, Encoding)]
        rotations = [p for p in parts if isinstance(p, Rotary)]
        biases = tuple(p for p in parts if isinstance(p, ScoreBias))
        known = len(encodings) + len(rotations) + len(biases) == len(parts)
        if not known or len(encodings) > 1 or len(rotations) > 1:
            raise WidelimitError(
                "positions= is not Decay, an Encoding of your own, Rotary, Alibi or AdditiveBias, "
                "nor a tuple of them with at most one encoding and one Rotary.",
                got=repr(given),
                remedy="e.g. positions=Decay(rate=0.5), or positions=(Decay(), Alibi())",
            )
        encoding, rotary = (encodings or [None])[0], (rotations or [None])[0]
        return cls(encoding, biases, rotary, projections)

    def require(self, positions: tuple[int, ...]) -> None:
        """Raise where these parts do not fit the positions."""
        if self.encoding is not None:
            self.encoding.require(positions)
        if self.rotary is not None:
            self.rotary.require(positions)

    def bias(self, positions: tuple[int, ...], like: Array) -> Array | None:
        """Everything that is added to the scores."""
        total = None
        for part in self.biases:
            value = part.bias(positions, like)
            total = value if total is None else total + value
        return total

    def channels(self, outline: Outline) -> Array | None:
        """The input's channels, where the weights of κ̃ depend on them."""
        if self.encoding is None or self.encoding.combine is not Combine.CONCAT:
            return None
        return jnp.asarray(float(outline.channels))

    def scored(self, pair: Pair, channels: Array | None) -> Pair:
        """κ̃ and Θ̃ of queries and keys: with encoding and bias."""
        return self.projections.scored(self._place(pair, channels))

    def valued(self, pair: Pair, channels: Array | None) -> Pair:
        """κ and Θ of values: with the encoding where they see it, and their bias."""
        seen = self.encoding is not None and self.encoding.on_values
        return self.projections.valued(self._place(pair, channels) if seen else pair)

    def inverse_lengths(self, example: Example) -> Float[Array, "position"] | None:
        """1/√κ̃_aa where queries and keys have one length; None where they keep theirs."""
        return inverse_lengths(self.variance(example)) if self.projections.qk_norm else None

    def _place(self, pair: Pair, channels: Array | None) -> Pair:
        """κ̃ = w_x κ + w_p R and Θ̃ = w_x Θ + w_p R."""
        if self.encoding is None:
            return pair
        pair = pair.forced()
        grid1, grid2 = pair.nngp.shape[: pair.rank], pair.nngp.shape[pair.rank :]
        shares = self.encoding.shares(channels, pair.nngp)
        place = self.encoding.covariance(grid1, grid2, pair.nngp)
        place = shares.place * place.reshape(*grid1, *grid2)
        nngp, ntk = (
            None if kernel is None else shares.content * kernel + place
            for kernel in (pair.nngp, pair.ntk)
        )
        assert nngp is not None
        return pair.to(nngp, ntk)

    def variance(self, example: Example) -> Float[Array, "position"]:
        """κ̃_aa(x, x), positions flattened."""
        variance = example.variance().reshape(-1)
        if self.encoding is None:
            return self.projections.variance(variance)
        grid = example.outline.positions
        shares = self.encoding.shares(self.channels(example.outline), variance)
        place = self.encoding.covariance(grid, grid, variance)
        variance = shares.content * variance + shares.place * jnp.diagonal(place)
        return self.projections.variance(variance)

    def rows(self, example: Example, grid: tuple[int, ...] | None) -> Float[Array, "position rank"]:
        """Feature rows of κ̃ that are known exactly: the input's, and the encoding's root."""
        assert example.features is not None
        rows = example.features.reshape(-1, example.features.shape[-1])
        if self.encoding is None:
            return self.projections.rows(rows)
        positions = example.outline.positions
        shares = self.encoding.shares(self.channels(example.outline), rows)
        root = self.encoding.root(positions, grid or positions, rows)
        parts = [jnp.sqrt(shares.content) * rows, jnp.sqrt(shares.place) * root]
        return self.projections.rows(jnp.concatenate(parts, axis=-1))

    def features(self, example: Example, basis: Basis) -> Float[Array, "position rank"]:
        """Feature rows φ_a(x) of κ̃ in a drawn field's basis; zero at padding."""
        if basis.pivots is None:
            rows = self.rows(example, basis.grid)
            return rows if example.mask is None else remask(rows, example.mask.reshape(-1))
        return self._landmark_rows(example, basis, self.scored)

    def value_features(self, example: Example, basis: Basis) -> Float[Array, "position rank"]:
        """Feature rows of the values' κ in a drawn field's basis; zero at padding."""
        return self._landmark_rows(example, basis, self.valued)

    def _landmark_rows(
        self, example: Example, basis: Basis, side: Callable[[Pair, Array | None], Pair]
    ) -> Float[Array, "position rank"]:
        """`φ_a(x) = κ(x_a, pivots) · matrix`, of what makes one of the sides."""
        channels, landmarks = self.channels(example.outline), example.landmarks
        assert landmarks is not None
        assert basis.matrix is not None
        found = jax.vmap(lambda pair: side(pair, channels).forced().nngp)(landmarks)
        table = jnp.moveaxis(found.reshape(found.shape[0], example.size, -1), 0, 1)
        table = table.reshape(example.size, -1)
        rows = table[:, basis.pivots] @ basis.matrix.astype(table.dtype)
        return rows if example.mask is None else remask(rows, example.mask.reshape(-1))

    def side(self, examples: Example) -> FeatureSide:
        """What stacked examples offer as features of κ̃."""
        grid = examples.outline.positions
        rows = None
        if examples.features is not None:
            rows = jax.vmap(lambda one: self.rows(one, grid))(examples)
        slots = examples.size if examples.outline.noisy else 0
        return FeatureSide(rows, lambda: self._joint_covariance(examples, self.scored), grid, slots)

    def value_side(self, examples: Example) -> FeatureSide:
        """What stacked examples offer as features of the values' κ."""
        return FeatureSide(None, lambda: self._joint_covariance(examples, self.valued))

    def noise(
        self, example: Example, rows: Float[Array, "position rank"], slots: int
    ) -> Float[Array, "position slot"] | None:
        """What this pass of the example has beyond its feature rows; None without dropout."""
        if not example.outline.noisy:
            return None
        scored = self.scored(example.pair(), self.channels(example.outline))
        # Encodings and biases give padding a variance too, which none of the real positions shares.
        own = scored.masked(example.mask, example.mask).nngp
        return pass_noise(own.reshape(example.size, -1), rows, slots)

    def _joint_covariance(
        self, examples: Example, side: Callable[[Pair, Array | None], Pair]
    ) -> Float[Array, "n n"] | None:
        """κ of what makes one of the sides, between all real positions of all examples."""
        if examples.landmarks is None:
            return None
        channels = self.channels(examples.outline)

        def square(pair: Pair) -> Array:
            return side(pair, channels).forced().nngp.reshape(examples.size, examples.size)

        blocks = jax.vmap(jax.vmap(square))(examples.landmarks)
        joint = jnp.moveaxis(blocks, 2, 1).reshape(blocks.shape[0] * examples.size, -1)
        if examples.mask is not None:
            real = examples.mask.reshape(-1).astype(joint.dtype)
            joint = joint * real[:, None] * real[None, :]
        return joint
