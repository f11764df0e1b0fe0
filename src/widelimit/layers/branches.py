"""Several layers on the same input: added, multiplied, side by side, around each other."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..errors import NetworkError, OptionError, ShapeError
from ..options import Range, hyperparameter, within
from ..printing import brief
from ..state import Outline, Pair, total
from .base import Facts, Layer, cast
from .compose import Composite, Serial, require_layers


class Branches(Composite):
    """Several layers on the same input, whose outputs are merged.

    A subclass says how outlines, outputs, kernels and means are merged.
    """

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch; `Serial()` is the identity."""
        require_layers(branches, type(self).__name__)
        self.branches = branches

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.branches

    @abstractmethod
    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        """Shape and facts of the merged output."""

    @abstractmethod
    def merge_outputs(self, outputs: list[Array]) -> Array:
        """The merged output of the finite network."""

    @abstractmethod
    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        """The merged kernels; `shares` are the branches' fractions of all channels."""

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        """The merged channel means; by default as outputs are merged."""
        return self.merge_outputs(means)

    def merge_features(self, rows: list[Array], shares: Array) -> Array | None:
        """The merged feature rows, where they exist."""
        return None

    def enter(self, pair: Pair) -> Pair:
        """A pair as the branches get it."""
        return pair

    def merge_ends(self, before: Outline, outlines: list[Outline]) -> Outline:
        """What is known after branches that all began with `before` and ended like this."""
        if len({o.positions for o in outlines}) > 1:
            raise ShapeError(
                "Branches that are merged do not end in the same positions.",
                got=", ".join(str(o.positions) for o in outlines),
                remedy="give all branches the same strides and pooling",
            )
        return self.merge_outlines(before, outlines).to(noisy=any(o.noisy for o in outlines))


class Sum(Branches):
    """`y = Σ_i g_i(x)`: κ ← Σ κ_i, Θ ← Σ Θ_i. All branches but one must end in fresh weights.

    Subclasses weigh branches, `y = Σ_i √c_i g_i(x)`: κ ← Σ c_i κ_i, Θ ← Σ c_i Θ_i.
    """

    __init__ = Branches.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return Facts(linear=True)

    def coefficients(self) -> list[Any]:
        """The weight c_i of every branch's kernel."""
        return [1.0] * len(self.branches)

    def require(self, before: Outline) -> None:
        plain = before.to(fresh=False)
        ends = [(type(b).__name__, b.outline(plain)) for b in self.branches]
        require_uncorrelated(ends, "branches", "Residual(Serial(Relu(), Dense(width)))")

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        return add_outlines(outlines)

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return add_outputs(outputs, self.coefficients())

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        return total(pairs, [cast(c, pairs[0].nngp) for c in self.coefficients()])


class Residual(Sum):
    """`y = x + g(x)`, or with a weight α `y = √α x + √(1−α) g(x)`.

    κ ← κ + κ_g, or α κ + (1−α) κ_g; Θ likewise. The branch g must end in fresh weights.
    """

    weight: Any = eqx.field(metadata=within(Range.UNIT))

    def __init__(self, layer: Layer, weight: Any = None):
        """`weight`: None, or α between 0 and 1 (a hyperparameter)."""
        require_layers((layer,), "Residual")
        value = None if weight is None else hyperparameter(weight, "weight")
        if isinstance(value, np.ndarray) and not 0 <= value <= 1:
            raise OptionError(
                "The residual weight α is not between 0 and 1: it mixes √α x + √(1−α) g(x).",
                got=f"weight={weight!r}",
                remedy="give a number between 0 and 1, or None for x + g(x)",
            )
        self.branches = (Serial(), layer)
        self.weight = value

    def __repr__(self) -> str:
        weight = "" if self.weight is None else f", weight={brief(self.weight)}"
        return f"Residual({self.branches[1]!r}{weight})"

    def coefficients(self) -> list[Any]:
        return [1.0, 1.0] if self.weight is None else [self.weight, 1 - self.weight]


class Concat(Branches):
    """Channels side by side: κ ← Σ_i (c_i/C) κ_i for c_i of C channels; Θ likewise."""

    __init__ = Branches.__init__  # type checkers take inherited fields for arguments

    @property
    def facts(self) -> Facts:
        return Facts(linear=True)

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        # Channels of different branches have different variances: no longer i.i.d.
        alone = len(outlines) == 1
        return join_outlines(
            outlines,
            channels=sum(one.channels for one in outlines),
            gaussian=alone and outlines[0].gaussian,
            alike=alone and outlines[0].alike,
            raw=all(one.raw for one in outlines),
        )

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return jnp.concatenate(outputs, axis=-1)

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        return total(pairs, list(shares.astype(pairs[0].nngp.dtype)))

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return jnp.tensordot(shares, jnp.stack(means), 1)

    def merge_features(self, rows: list[Array], shares: Array) -> Array | None:
        scaled = [r * jnp.sqrt(s).astype(r.dtype) for r, s in zip(rows, shares, strict=True)]
        return jnp.concatenate(scaled, axis=-1)


def join_outlines(outlines: Sequence[Outline], **changes: Any) -> Outline:
    """What is known about all of several branches, or streams."""
    facts = {
        name: all(getattr(one, name) for one in outlines)
        for name in ("gaussian", "fresh", "weighted", "alike")
    }
    noisy = any(one.noisy for one in outlines)
    return outlines[0].to(**{**facts, "raw": False, "noisy": noisy, **changes})


def add_outlines(outlines: Sequence[Outline]) -> Outline:
    """What is known about a sum of branches, or of streams."""
    require_same_channels(outlines, "added")
    return join_outlines(outlines)


def add_outputs(outputs: Sequence[Array], coefficients: Sequence[Any]) -> Array:
    """`Σ_i √c_i y_i`."""
    parts = [jnp.sqrt(cast(c, y)) * y for c, y in zip(coefficients, outputs, strict=True)]
    return sum(parts[1:], parts[0])


def require_uncorrelated(ends: list[tuple[str, Outline]], what: str, example: str) -> None:
    """Raise where several branches or streams, each with its name, may be correlated."""
    names = [name for name, end in ends if not end.fresh]
    if len(names) > 1:
        raise NetworkError(
            f"Several {what} do not end in fresh weights (Dense, Conv or Attention, then linear "
            f"layers only): kernels add over {what} that are uncorrelated.",
            got=f"{len(names)} {what} that do not ({' and '.join(names)})",
            remedy=f"end all but one of them in fresh weights: {example}",
        )


def require_same_channels(outlines: Sequence[Outline], how: str) -> None:
    """Raise unless all branches have as many channels."""
    if len({outline.channels for outline in outlines}) > 1:
        raise ShapeError(
            f"Branches that are {how} do not have the same number of channels.",
            got=" and ".join(str(outline.channels) for outline in outlines),
            remedy="give the last layers of all branches the same width",
        )


class Product(Branches):
    """`y = Π_i g_i(x)`, channel by channel (gates): κ ← Π κ_i, Θ ← Σ_i Θ_i Π_{j≠i} κ_j.

    Exact when the branches are independent, all but one of them containing weights of their own,
    and when the average over channels of a product is the product of averages: in all but one of
    them the channels share one law.
    """

    __init__ = Branches.__init__  # type checkers take inherited fields for arguments

    def require(self, before: Outline) -> None:
        plain = before.to(weighted=False)
        without = [b for b in self.branches if not b.outline(plain).weighted]
        if len(without) > 1:
            raise NetworkError(
                "Several branches of a product have no weights of their own: kernels multiply over "
                "branches that are independent.",
                got=f"{len(without)} branches without weights",
                remedy="put a Dense or Conv layer into the branches",
            )
        unlike = [b for b in self.branches if not b.outline(before).alike]
        if len(unlike) > 1:
            raise NetworkError(
                "Several branches of a product do not end in channels of one law: large channels "
                "may meet large ones there, and kernels do not multiply.",
                got=f"{len(unlike)} branches that end in raw inputs, Concat or Flatten",
                remedy="end all branches but one in Dense or Conv",
            )

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        require_same_channels(outlines, "multiplied")
        return join_outlines(
            outlines,
            gaussian=len(outlines) == 1 and outlines[0].gaussian,
            # Uncorrelated with the input as soon as one independent factor has mean zero.
            fresh=any(one.fresh for one in outlines),
        )

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return math.prod(outputs[1:], start=outputs[0])

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        product = pairs[0].compute()
        for pair in pairs[1:]:
            other = pair.compute()
            ntk = None
            if product.ntk is not None and other.ntk is not None:
                ntk = product.ntk * other.nngp + product.nngp * other.ntk
            product = product.to(product.nngp * other.nngp, ntk)
        return product
