"""Inputs at their positions: κ̃, of which queries and keys are made, and its feature rows."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...errors import WidelimitError
from ...state import Example, Outline, Pair
from ..base import remask
from .heads import Basis, FeatureSide, pass_noise
from .positional import Combine, Encoding, Rotary, ScoreBias
from .projections import Projections, inverse_lengths


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
                "projections= takes Projections(qk_norm=…, qk_b_std=…, v_b_std=…).",
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
                "positions= takes Decay or an Encoding of your own, Rotary, Alibi or AdditiveBias, "
                "or a tuple of them with at most one encoding and one Rotary.",
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
        return self.projections.scored(self._placed(pair, channels))

    def valued(self, pair: Pair, channels: Array | None) -> Pair:
        """κ and Θ of values: with the encoding where they see it, and their bias."""
        seen = self.encoding is not None and self.encoding.on_values
        return self.projections.valued(self._placed(pair, channels) if seen else pair)

    def inverse_lengths(self, example: Example) -> Float[Array, "position"] | None:
        """1/√κ̃_aa where queries and keys have one length; None where they keep theirs."""
        return inverse_lengths(self.variance(example)) if self.projections.qk_norm else None

    def _placed(self, pair: Pair, channels: Array | None) -> Pair:
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
