"""How inputs become queries, keys and values: biases, one length, positions, feature rows."""

import functools
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ...duals.geometry import safe_inverse, safe_sqrt
from ...errors import WidelimitError
from ...options import Range
from ...printing import Written
from ...state import Example, Outline, Pair
from ..base import Params, cast, leaf, remask
from ..dense import check_bias
from .heads import Basis, FeatureSide, pass_noise
from .positional import Combine, Encoding, Rotary, ScoreBias


class Projections(Written, eqx.Module):
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
        self.qk_biased, self.qk_b_std = check_bias(qk_b_std)
        self.v_biased, self.v_b_std = check_bias(v_b_std)

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

    def add_bias(
        self, params: Params, name: str, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Queries, keys or values from what their weights give."""
        if f"{name}_bias" not in params:
            return x
        std = self.v_b_std if name == "value" else self.qk_b_std
        return x + cast(std, x) * params[f"{name}_bias"][:, None, :]

    def score_side(
        self, params: Params, name: str, x: Float[Array, "head position d"]
    ) -> Float[Array, "head position d"]:
        """Queries or keys, brought to one length where that is asked for."""
        x = self.add_bias(params, name, x)
        if not self.qk_norm:
            return x
        return x * inverse_lengths(jnp.mean(x**2, axis=-1, keepdims=True))


def _lift(pair: Pair, b_std: Any) -> Pair:
    """κ + σ²."""
    pair = pair.compute()
    return pair.to(pair.nngp + cast(b_std, pair.nngp) ** 2, pair.ntk)


def inverse_lengths(variance: Float[Array, "*positions"]) -> Float[Array, "*positions"]:
    """1/√κ̃_aa, and 0 where the variance is."""
    return safe_inverse(safe_sqrt(variance))


def normalise(pair: Pair, one: Array | None, two: Array | None) -> Pair:
    """κ̃ and Θ̃ times the inverse lengths of either input; as they are without lengths."""
    if one is None or two is None:
        return pair
    return pair.each(lambda kernel: kernel * jnp.outer(one, two).reshape(kernel.shape))


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
        for part in (self.encoding, self.rotary):
            if part is not None:
                part.require(positions)

    def bias(self, positions: tuple[int, ...], like: Array) -> Array | None:
        """Everything that is added to the scores."""
        values = [part.bias(positions, like) for part in self.biases]
        return functools.reduce(operator.add, values) if values else None

    def channels(self, outline: Outline) -> Array | None:
        """The input's channels, where the weights of κ̃ depend on them."""
        if self.encoding is None or self.encoding.combine is not Combine.CONCAT:
            return None
        return jnp.asarray(float(outline.channels))

    # --- of pairs ---------------------------------------------------------------------------------

    def scored(self, pair: Pair, channels: Array | None) -> Pair:
        """κ̃ and Θ̃ of queries and keys: with encoding and bias."""
        pair = self._place(pair, channels)
        return _lift(pair, self.projections.qk_b_std) if self.projections.qk_biased else pair

    def valued(self, pair: Pair, channels: Array | None) -> Pair:
        """κ and Θ of values: with the encoding where they see it, and their bias."""
        if self.encoding is not None and self.encoding.on_values:
            pair = self._place(pair, channels)
        return _lift(pair, self.projections.v_b_std) if self.projections.v_biased else pair

    def _place(self, pair: Pair, channels: Array | None) -> Pair:
        """κ̃ = w_x κ + w_p R and Θ̃ = w_x Θ + w_p R."""
        if self.encoding is None:
            return pair
        pair = pair.compute()
        grid1, grid2 = pair.nngp.shape[: pair.rank], pair.nngp.shape[pair.rank :]
        content, share = self.encoding.shares(channels, pair.nngp)
        place = self.encoding.covariance(grid1, grid2, pair.nngp)
        place = share * place.reshape(*grid1, *grid2)
        ntk = None if pair.ntk is None else content * pair.ntk + place
        return pair.to(content * pair.nngp + place, ntk)

    # --- of one example ---------------------------------------------------------------------------

    def inverse_lengths(self, example: Example) -> Float[Array, "position"] | None:
        """1/√κ̃_aa where queries and keys have one length; None where they keep theirs."""
        return inverse_lengths(self.variance(example)) if self.projections.qk_norm else None

    def variance(self, example: Example) -> Float[Array, "position"]:
        """κ̃_aa(x, x), positions flattened."""
        variance = example.variance().reshape(-1)
        if self.encoding is not None:
            grid = example.outline.positions
            content, share = self.encoding.shares(self.channels(example.outline), variance)
            place = self.encoding.covariance(grid, grid, variance)
            variance = content * variance + share * jnp.diagonal(place)
        if not self.projections.qk_biased:
            return variance
        return variance + cast(self.projections.qk_b_std, variance) ** 2

    def rows(self, example: Example, grid: tuple[int, ...] | None) -> Float[Array, "position rank"]:
        """Feature rows of κ̃ that are known exactly: the input's, the encoding's root, the bias."""
        assert example.features is not None
        rows = example.features.reshape(-1, example.features.shape[-1])
        if self.encoding is not None:
            positions = example.outline.positions
            content, share = self.encoding.shares(self.channels(example.outline), rows)
            root = self.encoding.root(positions, grid or positions, rows)
            rows = jnp.concatenate([jnp.sqrt(content) * rows, jnp.sqrt(share) * root], axis=-1)
        if not self.projections.qk_biased:
            return rows
        constant = jnp.full((rows.shape[0], 1), cast(self.projections.qk_b_std, rows))
        return jnp.concatenate([rows, constant], axis=-1)

    def features(
        self, example: Example, basis: Basis, *, of_values: bool = False
    ) -> Float[Array, "position rank"]:
        """Feature rows φ_a(x) of κ̃, or of the values' κ, in a drawn field's basis; 0 at padding.

        From landmarks, `φ_a(x) = κ(x_a, pivots) · matrix`.
        """
        if basis.pivots is None and not of_values:
            rows = self.rows(example, basis.grid)
        else:
            assert example.landmarks is not None
            assert basis.matrix is not None
            found = jax.vmap(self._kernel_of(example.outline, of_values))(example.landmarks)
            table = jnp.moveaxis(found.reshape(found.shape[0], example.size, -1), 0, 1)
            table = table.reshape(example.size, -1)
            rows = table[:, basis.pivots] @ basis.matrix.astype(table.dtype)
        return rows if example.mask is None else remask(rows, example.mask.reshape(-1))

    def noise(
        self, example: Example, rows: Float[Array, "position rank"], slots: int
    ) -> Float[Array, "position slot"] | None:
        """What this pass of the example has beyond its feature rows; None without dropout."""
        if not example.outline.noisy:
            return None
        scored = self.scored(example.pair(), self.channels(example.outline))
        # Encodings and biases give padding a variance too, which none of the real positions shares.
        own = scored.hide_padding(example.mask, example.mask).nngp
        return pass_noise(own.reshape(example.size, -1), rows, slots)

    # --- of all examples that scores are drawn for ------------------------------------------------

    def side(self, examples: Example, *, of_values: bool = False) -> FeatureSide:
        """What stacked examples offer as features of κ̃, or of the values' κ."""
        grid, rows = examples.outline.positions, None
        if examples.features is not None and not of_values:
            rows = jax.vmap(lambda one: self.rows(one, grid))(examples)
        slots = examples.size if examples.outline.noisy else 0
        return FeatureSide(rows, lambda: self._joint_covariance(examples, of_values), grid, slots)

    def _joint_covariance(self, examples: Example, of_values: bool) -> Float[Array, "n n"] | None:
        """κ of what makes one of the sides, between all real positions of all examples."""
        if examples.landmarks is None:
            return None
        each = jax.vmap(jax.vmap(self._kernel_of(examples.outline, of_values)))
        blocks = each(examples.landmarks)
        blocks = blocks.reshape(*blocks.shape[:2], examples.size, examples.size)
        joint = jnp.moveaxis(blocks, 2, 1).reshape(blocks.shape[0] * examples.size, -1)
        if examples.mask is not None:
            real = examples.mask.reshape(-1).astype(joint.dtype)
            joint = joint * real[:, None] * real[None, :]
        return joint

    def _kernel_of(self, outline: Outline, of_values: bool) -> Callable[[Pair], Array]:
        """From a pair to the κ of what makes one of the sides."""
        side, channels = self.valued if of_values else self.scored, self.channels(outline)
        return lambda pair: side(pair, channels).compute().nngp
