"""Several layers on the same input: added, multiplied, side by side, around each other."""

import functools
import operator
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..errors import NetworkError, OptionError, ShapeError
from ..options import Range, within
from ..printing import brief
from ..state import UNKNOWN, Example, Mean, Need, Outline, Pair, UnknownMean, total
from .base import Layer, Memo, Params, cast, hyperparameter, remask
from .compose import Composite, Serial, require_layers, split_key
from .labels import Arrangement, Family, Label


class Branches(Composite):
    """Several layers on the same input, whose outputs are merged."""

    branches: eqx.AbstractVar[tuple[Layer, ...]]

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.branches

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement.BRANCHES

    @property
    def label(self) -> Label:
        return Label("+", "", Family.OTHER)

    @abstractmethod
    def rebuilt(self, parts: tuple[Layer, ...]) -> "Branches":
        """The same layer around other branches."""

    def parts_of(self, memo: Memo) -> tuple[Memo, ...]:
        return memo.branches

    @abstractmethod
    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        """Shape and facts of the merged output."""

    @abstractmethod
    def merge_outputs(self, outputs: list[Array]) -> Array:
        """The merged output of the finite network."""

    @abstractmethod
    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        """The merged kernels; `shares` are the branches' fractions of all channels."""

    @abstractmethod
    def merge_means(self, means: list[Array], shares: Array) -> Array:
        """The merged channel means."""

    def merge_features(self, rows: list[Array], shares: Array) -> Array | None:
        """The merged feature rows, where they exist."""
        return None

    def outline(self, before: Outline) -> Outline:
        outlines = [branch.outline(before) for branch in self.branches]
        if len({o.positions for o in outlines}) > 1:
            raise ShapeError(
                "Branches that are merged keep the same positions.",
                got=", ".join(str(o.positions) for o in outlines),
                remedy="give all branches the same strides and pooling",
            )
        merged = self.merge_outlines(before, outlines)
        return merged.to(noisy=any(o.noisy for o in outlines))

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        keys = split_key(key, len(self.branches))
        return tuple(b.init_params(k, before) for b, k in zip(self.branches, keys, strict=True))

    def run(self, params: Params, x: Any, mask: Any, key: Any) -> tuple[Any, Any]:
        keys = split_key(key, len(self.branches))
        results = [
            branch.run(own, x, mask, subkey)
            for branch, own, subkey in zip(self.branches, params, keys, strict=True)
        ]
        real = _Real.of([after for _, after in results])
        return remask(self.merge_outputs([y for y, _ in results]), real.hide), real.mask

    def checked_mask(self, mask: Any, name: str) -> Any:
        ends = [branch.checked_mask(mask, name) for branch in self.branches]
        if all(end is ends[0] for end in ends):
            return ends[0]
        real = [np.asarray(True) if end is None else np.asarray(end) for end in ends]
        apart = functools.reduce(operator.or_, (end != real[0] for end in real))
        found = np.flatnonzero(apart.reshape(len(apart), -1).any(axis=1))
        if found.size:
            raise ShapeError(
                "Branches that are merged keep the same real positions.",
                got=f"branches of different lengths for {found.size} examples of '{name}', the "
                f"first at index {found[0]}",
                remedy="give all branches the same padding, strides and pooling",
            )
        return ends[0]

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        self.require(example.outline)
        inner = (None,) * len(self.branches) if anchors is None else anchors.branches
        memos, ends = [], []
        for branch, anchor in zip(self.branches, inner, strict=True):
            memo, end = branch.encode(example, need, anchor)
            memos.append(memo)
            ends.append(end)
        memo = _memo(memos, ends)
        return memo, self._merged(example, ends, memo, anchors)

    def _merged(
        self,
        example: Example,
        ends: list[Example],
        memo: "_BranchesMemo",
        anchors: "_BranchesMemo | None",
    ) -> Example:
        real, shares = _Real.of([end.mask for end in ends]), memo.shares
        nngp, full = None, False
        if ends[0].nngp is not None:
            pair = self._joined([end.pair() for end in ends], memo, memo)
            nngp, full = pair.forced().nngp, pair.full
        landmarks = None
        if example.landmarks is not None:
            landmarks = jax.vmap(lambda other, *ps: self._joined(list(ps), memo, other).forced())(
                anchors, *(end.landmarks for end in ends)
            )
        mean: Mean = None
        means = [end.mean for end in ends]
        if any(isinstance(m, UnknownMean) for m in means):
            mean = UNKNOWN
        elif any(m is not None for m in means):
            zeros = jnp.zeros(ends[0].outline.positions)
            mean = self.merge_means(
                [m if isinstance(m, jax.Array) else zeros for m in means], shares
            )
            mean = remask(mean, real.hide, axes=0)
        rows = [end.features for end in ends]
        features = None
        if all(row is not None for row in rows):
            features = self.merge_features([row for row in rows if row is not None], shares)
            features = None if features is None else remask(features, real.hide)
        outline = self.outline(example.outline)
        return Example(nngp, mean, real.mask, features, landmarks, full, outline)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        ends = [
            branch.step(pair, own1, own2, need)
            for branch, own1, own2 in zip(
                self.branches, memo1.branches, memo2.branches, strict=True
            )
        ]
        return self._joined(ends, memo1, memo2)

    def _joined(self, pairs: list[Pair], memo1: "_BranchesMemo", memo2: "_BranchesMemo") -> Pair:
        merged = self.merge_pairs(pairs, memo1.shares.astype(pairs[0].nngp.dtype))
        return merged.masked(memo1.mask, memo2.mask)

    def draw(self, examples: Example, need: Need, key: Key[Array, ""], scheme: Any):
        branches, memos, ends = [], [], []
        for branch, subkey in zip(self.branches, split_key(key, len(self.branches)), strict=True):
            drawn, memo, end = branch.draw(examples, need, subkey, scheme)
            branches.append(drawn)
            memos.append(memo)
            ends.append(end)
        memo = jax.vmap(lambda own, *parts: _memo(own, list(parts)))(tuple(memos), *ends)
        merged = jax.vmap(lambda one, own, *parts: self._merged(one, list(parts), own, memo))(
            examples, memo, *ends
        )
        return self.rebuilt(tuple(branches)), memo, merged


class _BranchesMemo(eqx.Module):
    """The branches' memos, their fractions of all channels, and where zeros are put."""

    branches: tuple[Memo, ...]
    shares: Float[Array, " branch"]
    mask: Array | None


def _memo(memos: Sequence[Memo], ends: list[Example]) -> _BranchesMemo:
    channels = jnp.asarray([float(end.outline.channels) for end in ends])
    hide = _Real.of([end.mask for end in ends]).hide
    return _BranchesMemo(tuple(memos), channels / jnp.sum(channels), hide)


class _Real(NamedTuple):
    """Which positions are real after branches are merged: those that are real in all of them.

    Lengths for which branches disagree are refused where numbers are known (`checked_mask`): alone,
    such an example has branches of different lengths, which cannot be merged.
    """

    mask: Array | None
    # Where zeros must be put; None where all branches have the very same mask.
    hide: Array | None

    @classmethod
    def of(cls, masks: list[Array | None]) -> "_Real":
        given = [mask for mask in masks if mask is not None]
        if all(mask is masks[0] for mask in masks):
            return cls(masks[0], None)
        both = functools.reduce(operator.and_, given)
        return cls(both, both)


class Additive(Branches):
    """`y = Σ_i √c_i g_i(x)`: kernels add, κ ← Σ c_i κ_i, Θ ← Σ c_i Θ_i.

    True when the branches are uncorrelated: all but one of them end in fresh weights.
    """

    @property
    def linear(self) -> bool:
        return True

    @abstractmethod
    def coefficients(self) -> list[Any]:
        """The weight c_i of every branch's kernel."""

    def require(self, before: Outline) -> None:
        plain = before.to(fresh=False)
        correlated = [b for b in self.branches if not b.outline(plain).fresh]
        if len(correlated) > 1:
            names = " and ".join(type(b).__name__ for b in correlated)
            raise NetworkError(
                "Kernels add over branches that are uncorrelated: all but one of them must end in "
                "fresh weights (Dense, Conv or Attention, then linear layers only).",
                got=f"{len(correlated)} branches that do not ({names})",
                remedy="end the branch in fresh weights: Residual(Serial(Relu(), Dense(width)))",
            )

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        return added(outlines)

    def merge_outputs(self, outputs: list[Array]) -> Array:
        parts = [
            jnp.sqrt(cast(c, y)) * y for c, y in zip(self.coefficients(), outputs, strict=True)
        ]
        return sum(parts[1:], parts[0])

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        return total(pairs, [cast(c, pairs[0].nngp) for c in self.coefficients()])

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return self.merge_outputs(means)


class Sum(Additive):
    """`y = Σ_i g_i(x)`: κ ← Σ κ_i, Θ ← Σ Θ_i. All branches but one must end in fresh weights."""

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch; `Serial()` is the identity."""
        require_layers(branches, "Sum")
        self.branches = branches

    def rebuilt(self, parts: tuple[Layer, ...]) -> "Sum":
        return Sum(*parts)

    def coefficients(self) -> list[Any]:
        return [1.0] * len(self.branches)


class Residual(Additive):
    """`y = x + g(x)`, or with a weight α `y = √α x + √(1−α) g(x)`.

    κ ← κ + κ_g, or α κ + (1−α) κ_g; Θ likewise. The branch g must end in fresh weights.
    """

    branches: tuple[Layer, ...]
    weight: Any = eqx.field(metadata=within(Range.UNIT))

    def __init__(self, layer: Layer, weight: Any = None):
        """`weight`: None, or α between 0 and 1 (a hyperparameter)."""
        require_layers((layer,), "Residual")
        value = None if weight is None else hyperparameter(weight, "weight")
        if isinstance(value, np.ndarray) and not 0 <= value <= 1:
            raise OptionError(
                "A residual weight α mixes √α x + √(1−α) g(x).",
                got=f"weight={weight!r}",
                remedy="give a number between 0 and 1, or None for x + g(x)",
            )
        self.branches = (Serial(), layer)
        self.weight = value

    def __repr__(self) -> str:
        weight = "" if self.weight is None else f", weight={brief(self.weight)}"
        return f"Residual({self.branches[1]!r}{weight})"

    def rebuilt(self, parts: tuple[Layer, ...]) -> "Residual":
        return Residual(parts[1], self.weight)

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement.SKIP

    @property
    def label(self) -> Label:
        if self.weight is None:
            return Label("x + g(x)", "", Family.OTHER)
        alpha = float(np.asarray(self.weight))
        return Label(f"√{alpha:.3g} x + √{1 - alpha:.3g} g(x)", "", Family.OTHER)

    def coefficients(self) -> list[Any]:
        return [1.0, 1.0] if self.weight is None else [self.weight, 1 - self.weight]


class Concat(Branches):
    """Channels side by side: κ ← Σ_i (c_i/C) κ_i for c_i of C channels; Θ likewise."""

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch; `Serial()` is the identity."""
        require_layers(branches, "Concat")
        self.branches = branches

    def rebuilt(self, parts: tuple[Layer, ...]) -> "Concat":
        return Concat(*parts)

    @property
    def linear(self) -> bool:
        return True

    @property
    def label(self) -> Label:
        return Label("concat", "", Family.OTHER)

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        # Channels of different branches have different variances: no longer i.i.d.
        return outlines[0].to(
            channels=sum(o.channels for o in outlines),
            gaussian=len(outlines) == 1 and outlines[0].gaussian,
            fresh=all(o.fresh for o in outlines),
            weighted=all(o.weighted for o in outlines),
            alike=len(outlines) == 1 and outlines[0].alike,
            raw=all(o.raw for o in outlines),
        )

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return jnp.concatenate(outputs, axis=-1)

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        return total(pairs, list(shares.astype(pairs[0].nngp.dtype)))

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return sum(
            (s * m for s, m in zip(shares[1:], means[1:], strict=True)), shares[0] * means[0]
        )

    def merge_features(self, rows: list[Array], shares: Array) -> Array | None:
        scaled = [r * jnp.sqrt(s).astype(r.dtype) for r, s in zip(rows, shares, strict=True)]
        return jnp.concatenate(scaled, axis=-1)


def added(outlines: Sequence[Outline]) -> Outline:
    """What is known about a sum of branches, or of streams."""
    require_same_channels(outlines, "added")
    return outlines[0].to(
        gaussian=all(one.gaussian for one in outlines),
        fresh=all(one.fresh for one in outlines),
        weighted=all(one.weighted for one in outlines),
        alike=all(one.alike for one in outlines),
        raw=False,
        noisy=any(one.noisy for one in outlines),
    )


def require_same_channels(outlines: Sequence[Outline], how: str) -> None:
    """Raise unless all branches have as many channels."""
    if len({outline.channels for outline in outlines}) > 1:
        raise ShapeError(
            f"Branches that are {how} have the same number of channels.",
            got=" and ".join(str(outline.channels) for outline in outlines),
            remedy="give the last layers of all branches the same width",
        )
