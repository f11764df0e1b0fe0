"""Networks from layers: one after another, side by side, around each other."""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from ..errors import NetworkError, ShapeError, WidelimitError
from ..state import Example, Need, Outline, Pair, total
from .base import Layer, Memo, Params, cast, hyperparameter


class Serial(Layer):
    """Layers one after another. Without layers: the identity."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer):
        """The first layer meets the input."""
        for layer in layers:
            if not isinstance(layer, Layer):
                raise NetworkError(
                    "Serial takes layers as separate arguments.",
                    got=repr(layer),
                    remedy="write Serial(Dense(64), Relu(), …); unpack a list with *",
                )
        self.layers = layers

    def outline(self, before: Outline) -> Outline:
        for layer in self.layers:
            before = layer.outline(before)
        return before

    def need(self, out: Need) -> Need:
        for layer in reversed(self.layers):
            out = layer.need(out)
        return out

    def encode_need(self, out: Need) -> Need:
        for layer in reversed(self.layers):
            out = layer.encode_need(out)
        return out

    def _needs(self, out: Need, *, encoding: bool) -> list[Need]:
        """What is needed after each layer."""
        needs = [out]
        for layer in reversed(self.layers[1:]):
            needs.append(layer.encode_need(needs[-1]) if encoding else layer.need(needs[-1]))
        return needs[::-1] if self.layers else []

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        params = []
        for layer, subkey in zip(self.layers, _split(key, len(self.layers)), strict=True):
            params.append(layer.init_params(subkey, before))
            before = layer.outline(before)
        return tuple(params)

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        for layer, own, subkey in zip(
            self.layers, params, _split(key, len(self.layers)), strict=True
        ):
            x, mask = layer.forward(own, x, mask, subkey)
        return x, mask

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        memos = []
        anchors = anchors or (None,) * len(self.layers)
        for layer, after, anchor in zip(
            self.layers, self._needs(need, encoding=True), anchors, strict=True
        ):
            memo, example = layer.encode(example, after, anchor)
            memos.append(memo)
        return tuple(memos), example.trimmed(need)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        needs = self._needs(need, encoding=False)
        for layer, own1, own2, after in zip(self.layers, memo1, memo2, needs, strict=True):
            pair = layer.step(pair, own1, own2, after)
        return pair.diagonal() if need is Need.DIAGONAL and pair.full else pair

    def takes_tokens(self) -> bool:
        return bool(self.layers) and self.layers[0].takes_tokens()

    def sampled(self) -> bool:
        return any(layer.sampled() for layer in self.layers)

    def draw(self, crowd: Example, need: Need, key: Key[Array, ""], scheme: Any):
        layers, memos = [], []
        needs = self._needs(need, encoding=True)
        keys = _split(key, len(self.layers))
        for layer, after, subkey in zip(self.layers, needs, keys, strict=True):
            layer, memo, crowd = layer.draw(crowd, after, subkey, scheme)
            layers.append(layer)
            memos.append(memo)
        return Serial(*layers), tuple(memos), jax.vmap(lambda one: one.trimmed(need))(crowd)


def Repeat(layer: Layer, times: int) -> Serial:  # noqa: N802 - reads as a layer
    """The layer `times` times, each with its own weights."""
    if isinstance(times, bool) or not isinstance(times, int) or times < 0:
        raise WidelimitError(
            "A layer is repeated a whole number of times.",
            got=f"times={times!r}",
            remedy="give an integer of at least 0",
        )
    return Serial(*(layer,) * times)


class Branches(Layer):
    """Several layers on the same input, whose outputs are merged."""

    branches: eqx.AbstractVar[tuple[Layer, ...]]

    @abstractmethod
    def rebuilt(self, branches: tuple[Layer, ...]) -> "Branches":
        """The same layer around other branches."""

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
        return self.merge_outlines(before, outlines)

    def need(self, out: Need) -> Need:
        return max(branch.need(out) for branch in self.branches)

    def encode_need(self, out: Need) -> Need:
        return max(branch.encode_need(out) for branch in self.branches)

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        keys = _split(key, len(self.branches))
        return tuple(b.init_params(k, before) for b, k in zip(self.branches, keys, strict=True))

    def forward(self, params: Params, x: Array, mask: Array | None, key: Any):
        keys = _split(key, len(self.branches))
        results = [
            branch.forward(own, x, mask, subkey)
            for branch, own, subkey in zip(self.branches, params, keys, strict=True)
        ]
        return self.merge_outputs([y for y, _ in results]), results[0][1]

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        self.require(example.outline)
        inner = (None,) * len(self.branches) if anchors is None else anchors[0]
        memos, ends = [], []
        for branch, anchor in zip(self.branches, inner, strict=True):
            memo, end = branch.encode(example, need, anchor)
            memos.append(memo)
            ends.append(end)
        return (tuple(memos), _shares(ends)), self._merged(example, ends)

    def _merged(self, example: Example, ends: list[Example]) -> Example:
        shares = _shares(ends)
        nngp, full = None, False
        if ends[0].nngp is not None:
            pair = self.merge_pairs([end.pair() for end in ends], shares)
            nngp, full = pair.forced().nngp, pair.full
        landmarks = None
        if example.landmarks is not None:
            landmarks = jax.vmap(lambda *pairs: self.merge_pairs(list(pairs), shares).forced())(
                *(end.landmarks for end in ends)
            )
        mean = None
        if any(end.mean is not None for end in ends):
            zeros = jnp.zeros(ends[0].outline.positions)
            mean = self.merge_means([zeros if e.mean is None else e.mean for e in ends], shares)
        rows = [end.features for end in ends]
        features = None
        if all(row is not None for row in rows):
            features = self.merge_features([row for row in rows if row is not None], shares)
        outline = self.outline(example.outline)
        return Example(nngp, mean, ends[0].mask, features, landmarks, full, outline)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        (memos1, shares), (memos2, _) = memo1, memo2
        ends = [
            branch.step(pair, own1, own2, need)
            for branch, own1, own2 in zip(self.branches, memos1, memos2, strict=True)
        ]
        return self.merge_pairs(ends, shares.astype(pair.nngp.dtype))

    def takes_tokens(self) -> bool:
        return any(branch.takes_tokens() for branch in self.branches)

    def sampled(self) -> bool:
        return any(branch.sampled() for branch in self.branches)

    def draw(self, crowd: Example, need: Need, key: Key[Array, ""], scheme: Any):
        branches, memos, ends = [], [], []
        for branch, subkey in zip(self.branches, _split(key, len(self.branches)), strict=True):
            drawn, memo, end = branch.draw(crowd, need, subkey, scheme)
            branches.append(drawn)
            memos.append(memo)
            ends.append(end)
        merged = jax.vmap(lambda one, *parts: self._merged(one, list(parts)))(crowd, *ends)
        shares = jax.vmap(lambda *parts: _shares(list(parts)))(*ends)
        return self.rebuilt(tuple(branches)), (tuple(memos), shares), merged


def _split(key: Any, parts: int) -> list[Any]:
    return [None] * parts if key is None else list(jax.random.split(key, parts)) if parts else []


def _shares(ends: list[Example]) -> Array:
    channels = jnp.asarray([float(end.outline.channels) for end in ends])
    return channels / jnp.sum(channels)


class Additive(Branches):
    """`y = Σ_i √c_i g_i(x)`: kernels add, κ ← Σ c_i κ_i, Θ ← Σ c_i Θ_i.

    True when the branches are uncorrelated: all but one of them end in fresh weights.
    """

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
        _require_same_channels(outlines, "added")
        return outlines[0].to(
            gaussian=all(o.gaussian for o in outlines),
            fresh=all(o.fresh for o in outlines),
            weighted=all(o.weighted for o in outlines),
        )

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
        _require_branches(branches, "Sum")
        self.branches = branches

    def rebuilt(self, branches: tuple[Layer, ...]) -> "Sum":
        return Sum(*branches)

    def coefficients(self) -> list[Any]:
        return [1.0] * len(self.branches)


class Residual(Additive):
    """`y = x + g(x)`, or with a weight α `y = √α x + √(1−α) g(x)`.

    κ ← κ + κ_g, or α κ + (1−α) κ_g; Θ likewise. The branch g must end in fresh weights.
    """

    branches: tuple[Layer, ...]
    weight: Any

    def __init__(self, layer: Layer, weight: Any = None):
        """`weight`: None, or α between 0 and 1 (a hyperparameter)."""
        _require_branches((layer,), "Residual")
        if isinstance(weight, int | float) and not 0 <= weight <= 1:
            raise WidelimitError(
                "A residual weight α mixes √α x + √(1−α) g(x).",
                got=f"weight={weight!r}",
                remedy="give a number between 0 and 1, or None for x + g(x)",
            )
        self.branches = (Serial(), layer)
        self.weight = hyperparameter(weight)

    def rebuilt(self, branches: tuple[Layer, ...]) -> "Residual":
        return Residual(branches[1], self.weight)

    def coefficients(self) -> list[Any]:
        return [1.0, 1.0] if self.weight is None else [self.weight, 1 - self.weight]


class Product(Branches):
    """`y = Π_i g_i(x)`, channel by channel (gates): κ ← Π κ_i, Θ ← Σ_i Θ_i Π_{j≠i} κ_j.

    True when the branches are independent: all but one of them contain weights of their own.
    """

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch, all of the same width."""
        _require_branches(branches, "Product")
        self.branches = branches

    def rebuilt(self, branches: tuple[Layer, ...]) -> "Product":
        return Product(*branches)

    def require(self, before: Outline) -> None:
        plain = before.to(weighted=False)
        without = [b for b in self.branches if not b.outline(plain).weighted]
        if len(without) > 1:
            raise NetworkError(
                "Kernels of a product multiply when the branches are independent: all but one of "
                "them must contain weights of their own.",
                got=f"{len(without)} branches without weights",
                remedy="put a Dense or Conv layer into the branches",
            )

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        _require_same_channels(outlines, "multiplied")
        return outlines[0].to(
            gaussian=len(outlines) == 1 and outlines[0].gaussian,
            # Uncorrelated with the input as soon as one independent factor has mean zero.
            fresh=any(o.fresh for o in outlines),
            weighted=all(o.weighted for o in outlines),
        )

    def merge_outputs(self, outputs: list[Array]) -> Array:
        return math.prod(outputs[1:], start=outputs[0])

    def merge_pairs(self, pairs: list[Pair], shares: Array) -> Pair:
        product = pairs[0].forced()
        for pair in pairs[1:]:
            other = pair.forced()
            ntk = None
            if product.ntk is not None and other.ntk is not None:
                ntk = product.ntk * other.nngp + product.nngp * other.ntk
            product = product.to(product.nngp * other.nngp, ntk)
        return product

    def merge_means(self, means: list[Array], shares: Array) -> Array:
        return self.merge_outputs(means)


class Concat(Branches):
    """Channels of all branches side by side: κ ← Σ_i (c_i/C) κ_i for c_i of C channels; Θ likewise."""

    branches: tuple[Layer, ...]

    def __init__(self, *branches: Layer):
        """At least one branch; `Serial()` is the identity."""
        _require_branches(branches, "Concat")
        self.branches = branches

    def rebuilt(self, branches: tuple[Layer, ...]) -> "Concat":
        return Concat(*branches)

    def merge_outlines(self, before: Outline, outlines: list[Outline]) -> Outline:
        # Channels of different branches have different variances: no longer i.i.d.
        return outlines[0].to(
            channels=sum(o.channels for o in outlines),
            gaussian=len(outlines) == 1 and outlines[0].gaussian,
            fresh=all(o.fresh for o in outlines),
            weighted=all(o.weighted for o in outlines),
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


def _require_branches(branches: tuple[Any, ...], name: str) -> None:
    if not branches or not all(isinstance(branch, Layer) for branch in branches):
        raise NetworkError(
            f"{name} takes one or more layers as separate arguments.",
            got=repr(branches),
            remedy=f"write {name}(first, second); Serial() is the identity",
        )


def _require_same_channels(outlines: list[Outline], how: str) -> None:
    if len({outline.channels for outline in outlines}) > 1:
        raise ShapeError(
            f"Branches that are {how} have the same number of channels.",
            got=" and ".join(str(outline.channels) for outline in outlines),
            remedy="give the last layers of all branches the same width",
        )
