"""What the walk over a network does at its layers, one task for every kind of computation.

Layers say rules for one example and one pair, and never call each other. A task says what is done
at a layer without parts and where branches meet; `layers.compose.walk` brings it there:

| task | from | to | kept of every layer |
|---|---|---|---|
| `init` | outlines | outlines | parameters |
| `run` | an example of the finite network | its output | |
| `check_masks` | masks of a batch | masks | |
| `encode` | an `Example` | an `Example` | what pairs need of it |
| `cross` | a `Pair` | a `Pair` | |
| `draw` | stacked examples | stacked examples | drawn scores, and what pairs need |

In the encode and cross phases covariances are trimmed to what later layers look at, and many equal
layers in a row are compiled once.
"""

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from ..errors import ShapeError
from ..layers.base import Layer, Memo, Params, remask
from ..layers.branches import Branches
from ..layers.compose import Parallel, Path, Serial, Task, is_noisy, walk
from ..layers.graph import Graph
from ..layers.pool import MeanPool, PositionMap, SumPool
from ..state import UNKNOWN, Example, Mean, Need, Pair, UnknownMean

Scores = Mapping[Path, Any]
"""What was drawn for layers with random scores; paths begin at the network they are passed with."""


def split_key(key: Any, parts: int) -> list[Any]:
    """One key for each part; no key stays none."""
    return [None] * parts if key is None else list(jax.random.split(key, parts)) if parts else []


# --- finite networks ------------------------------------------------------------------------------


class _Init(Task):
    def inside(self, layer: Layer, given: Any) -> list[Any]:
        return split_key(given, len(layer.parts))

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Params]:
        return layer.outline(state), layer.init_params(given, state)

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        return layer.merge_ends(state, ends), tuple(kept)


def init(net: Layer, key: Key[Array, ""], before: Any) -> Params:
    """Draw the parameters for inputs of this outline."""
    return walk(_Init(), net, before, key)[1]


class _Run(Task):
    """The state is an array, or a tuple of them, its mask, and the edges of a graph."""

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        params, key = given
        return list(zip(params, split_key(key, len(layer.parts)), strict=True))

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, None]:
        (x, mask, edges), (params, key) = state, given
        after = None if mask is None else layer.mask(mask)
        y = layer.forward(params, x, mask, key, *((edges,) if layer.facts.edges else ()))
        edges = layer.edges(x) if isinstance(layer, Graph) else edges
        return (remask(y, after), after, edges), None

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        mask, hide = merge_masks([mask for _, mask, _ in ends])
        y = layer.merge_outputs([y for y, _, _ in ends])
        return (remask(y, hide), mask, state[2]), None

    def split(self, layer: Parallel, state: Any) -> list[Any]:
        x, mask, edges = state
        masks = (None,) * len(x) if mask is None else mask
        return list(zip(x, masks, (edges,) * len(x), strict=True))

    def join(self, states: Sequence[Any]) -> Any:
        return tuple(y for y, _, _ in states), tuple(mask for _, mask, _ in states), None


def run(net: Layer, params: Params, x: Any, mask: Any, key: Any) -> Any:
    """One example through the finite network; zero at padding."""
    return walk(_Run(), net, (x, mask, None), (params, key))[0][0]


def merge_masks(masks: list[Array | None]) -> tuple[Array | None, Array | None]:
    """Positions that are real in all branches, and where zeros must be put in their merger.

    Zeros are there (None) where all branches have the very same mask. Lengths for which branches
    disagree are refused where numbers are known (`check_masks`): alone, such an example has
    branches of different lengths, which cannot be merged.
    """
    if all(mask is masks[0] for mask in masks):
        return masks[0], None
    both = functools.reduce(operator.and_, [mask for mask in masks if mask is not None])
    return both, both


# --- masks of a batch -----------------------------------------------------------------------------


class _Masks(Task):
    def __init__(self, name: str):
        self.name = name

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, None]:
        if state is None:
            return None, None
        after = jax.vmap(layer.mask)(state)
        if after is not None:
            # Valid windows shorten sequences: kernels of what has nothing left would be zero.
            real = np.asarray(after)
            self._require(real.reshape(len(real), -1).any(axis=1), layer, "leaves no real position")
        elif isinstance(layer, PositionMap) and not isinstance(layer, SumPool | MeanPool):
            # Pools over everything read all that is real; others are tried out.
            read = jax.vmap(lambda m: layer.mix(m[..., None].astype(float), m))(state)
            seen = np.asarray(read).reshape(len(read), -1).any(axis=1)
            self._require(seen, layer, "reads padding alone")
        return after, None

    def _require(self, good: Any, layer: Layer, left: str) -> None:
        bad = np.flatnonzero(~good)
        if bad.size:
            raise ShapeError(
                f"{layer!r} {left} of {bad.size} examples of '{self.name}'.",
                got=f"examples that are too short, the first at index {bad[0]}",
                remedy="drop short sequences, use a smaller window or padding='same', or select a "
                "position that all have (0 or -1)",
            )

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        if all(end is ends[0] for end in ends):
            return ends[0], None
        real = [np.asarray(True) if end is None else np.asarray(end) for end in ends]
        apart = functools.reduce(operator.or_, (end != real[0] for end in real))
        found = np.flatnonzero(apart.reshape(len(apart), -1).any(axis=1))
        if found.size:
            raise ShapeError(
                f"Branches of {type(layer).__name__} do not keep the same real positions of "
                f"{found.size} examples of '{self.name}'.",
                got=f"branches of different lengths, the first at index {found[0]}",
                remedy="give all branches the same padding, strides and pooling",
            )
        return ends[0], None

    def split(self, layer: Parallel, state: Any) -> Any:
        return (None,) * len(layer.parts) if state is None else state

    def join(self, states: Sequence[Any]) -> Any:
        return None if all(mask is None for mask in states) else tuple(states)


def check_masks(net: Layer, mask: Any, name: str) -> None:
    """Raise where an example of a batch has no real position left on its way."""
    walk(_Masks(name), net, mask, None)


# --- infinite networks: one example ---------------------------------------------------------------


class LayerMemo(eqx.Module):
    """What pairs need of one example at one layer, and where zeros are put after the layer."""

    memo: Memo
    mask: Array | None  # None: there is no padding, or the layer keeps it zero


class BranchesMemo(eqx.Module):
    """The branches' memos, their fractions of all channels, and where zeros are put."""

    branches: tuple[Memo, ...]
    shares: Float[Array, " branch"]
    mask: Array | None

    @classmethod
    def of(cls, memos: Sequence[Memo], ends: Sequence[Example]) -> "BranchesMemo":
        """From the memos and the ends of the branches."""
        channels = jnp.asarray([float(end.outline.channels) for end in ends])
        hide = merge_masks([end.mask for end in ends])[1]
        return cls(tuple(memos), channels / jnp.sum(channels), hide)


def memos_inside(layer: Layer, memo: Memo) -> Sequence[Memo]:
    """The memos of the parts of a layer."""
    if memo is None:
        return (None,) * len(layer.parts)
    return memo.branches if isinstance(memo, BranchesMemo) else memo


def memo_at(net: Layer, memos: Memo, path: Path) -> Memo:
    """What `encode` or `draw` kept of the layer at a path."""
    for number in path:
        memos, net = memos_inside(net, memos)[number], net.parts[number]
    return memos


def scores_inside(layer: Layer, scores: Scores) -> list[dict[Path, Any]]:
    """The scores of the parts of a layer."""
    return [
        {path[1:]: field for path, field in scores.items() if path[0] == number}
        for number in range(len(layer.parts))
    ]


def _streams(example: Any, what: Callable[[Example], Any]) -> Any:
    """Something of an example, or of every stream of one; None where all streams have none."""
    if not isinstance(example, tuple):
        return what(example)
    found = tuple(map(what, example))
    return None if all(one is None for one in found) else found


def _memo(layer: Layer, example: Any, drawn: tuple[Any, ...]) -> LayerMemo:
    mask = None if layer.facts.keeps_zeros else _streams(example, lambda one: one.mask)
    mask = None if mask is None else layer.mask(mask)
    return LayerMemo(layer.memo(example, *drawn), mask)


def _cross_layer(
    layer: Any, pair: Any, one: LayerMemo, two: LayerMemo, drawn: tuple[Any, ...]
) -> Pair:
    return layer.cross(pair, one.memo, two.memo, *drawn).hide_padding(one.mask, two.mask)


def _encode_layer(
    layer: Any, example: Any, need: Need, memo: LayerMemo, anchors: Any, drawn: tuple[Any, ...]
) -> Example:
    """An example after a layer without parts."""
    outline = _streams(example, lambda one: one.outline)
    layer.require(outline)
    nngp, full = None, False
    if need is not Need.NONE:
        pair = layer.own(_streams(example, Example.pair), memo.memo, *drawn)
        pair = pair.hide_padding(memo.mask, memo.mask).compute()
        pair = pair.diagonal() if need is Need.DIAGONAL else pair
        nngp, full = pair.nngp, pair.full
    landmarks = _streams(example, lambda one: one.landmarks)
    if landmarks is not None:
        landmarks = jax.vmap(lambda p, m: _cross_layer(layer, p, memo, m, drawn).compute())(
            landmarks, anchors
        )
    mask = _streams(example, lambda one: one.mask)
    mask = None if mask is None else layer.mask(mask)
    after = layer.outline(outline)
    mean = None if after.gaussian else layer.mean(example, memo.memo)
    if isinstance(mean, jax.Array):
        mean = remask(mean, memo.mask, axes=0)
    features = layer.features(example)
    features = None if features is None else remask(features, memo.mask)
    # Edges are of one stream alone: `Graph` joins them with the nodes.
    edges = layer.edges(example) if isinstance(layer, Graph) else getattr(example, "edges", None)
    return Example(nngp, mean, mask, features, landmarks, full, after, edges)


def _merge_pairs(layer: Branches, pairs: list[Pair], one: BranchesMemo, two: BranchesMemo) -> Pair:
    merged = layer.merge_pairs(pairs, one.shares.astype(pairs[0].nngp.dtype))
    return merged.hide_padding(one.mask, two.mask)


def _merge_examples(
    layer: Branches, example: Example, ends: list[Example], memo: BranchesMemo, anchors: Any
) -> Example:
    """An example after branches that are merged."""
    (mask, hide), shares = merge_masks([end.mask for end in ends]), memo.shares
    nngp, full = None, False
    if ends[0].nngp is not None:
        pair = _merge_pairs(layer, [end.pair() for end in ends], memo, memo)
        nngp, full = pair.compute().nngp, pair.full
    landmarks = None
    if example.landmarks is not None:
        landmarks = jax.vmap(
            lambda other, *ps: _merge_pairs(layer, list(ps), memo, other).compute()
        )(anchors, *(end.landmarks for end in ends))
    mean: Mean = None
    means = [end.mean for end in ends]
    if any(isinstance(m, UnknownMean) for m in means):
        mean = UNKNOWN
    elif any(m is not None for m in means):
        zeros = jnp.zeros(ends[0].outline.positions)
        mean = layer.merge_means([m if isinstance(m, jax.Array) else zeros for m in means], shares)
        mean = remask(mean, hide, axes=0)
    rows = [end.features for end in ends if end.features is not None]
    features = layer.merge_features(rows, shares) if len(rows) == len(ends) else None
    features = None if features is None else remask(features, hide)
    outline = layer.merge_ends(example.outline, [end.outline for end in ends])
    return Example(nngp, mean, mask, features, landmarks, full, outline, example.edges)


class _Encode(Task):
    folds = True

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        anchors, scores = given
        return list(zip(memos_inside(layer, anchors), scores_inside(layer, scores), strict=True))

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        streams = state if isinstance(state, tuple) else (state,)
        noisy = any(stream.outline.noisy for stream in streams)
        return needs_along(layer.parts, need, encoding=True, noisy=noisy)[1:]

    def trim(self, state: Any, need: Need) -> Any:
        return _streams(state, lambda one: one.trim(need))

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, LayerMemo]:
        anchors, scores = given
        drawn = tuple(scores.values())
        memo = _memo(layer, state, drawn)
        return _encode_layer(layer, state, need, memo, anchors, drawn), memo

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        layer.require(state.outline)
        memo = BranchesMemo.of(kept, ends)
        return _merge_examples(layer, state, ends, memo, given[0]), memo


def encode(net: Layer, example: Any, need: Need, anchors: Memo, scores: Scores) -> Memo:
    """What pairs need of one example, of every layer.

    `anchors` are what they need of the landmark inputs, stacked; `scores` what was drawn.
    """
    return walk(_Encode(), net, example, (anchors, scores), need)[1]


# --- infinite networks: one pair ------------------------------------------------------------------


class _Cross(Task):
    folds = True

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        one, two, scores = given
        memos = memos_inside(layer, one), memos_inside(layer, two)
        return list(zip(*memos, scores_inside(layer, scores), strict=True))

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        return needs_along(layer.parts, need, encoding=False, noisy=False)[1:]

    def trim(self, state: Any, need: Need) -> Any:
        single = isinstance(state, Pair)
        return state.diagonal() if single and need is Need.DIAGONAL and state.full else state

    def enter(self, layer: Branches, state: Pair) -> Pair:
        return layer.enter(state)

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Pair, None]:
        one, two, scores = given
        return self.trim(_cross_layer(layer, state, one, two, tuple(scores.values())), need), None

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        return _merge_pairs(layer, ends, *given[:2]), None


def cross(
    net: Layer, pair: Any, memo1: Memo, memo2: Memo, scores: Scores, need: Need = Need.FULL
) -> Pair:
    """The kernels of one pair after the network."""
    return walk(_Cross(), net, pair, (memo1, memo2, scores), need)[0]


# --- infinite networks: scores of stacked examples ------------------------------------------------

Maker = Callable[[Path, Any, Any, Key[Array, ""]], Any]
"""From the path, a layer with random scores, stacked examples before it and a key: what is drawn.

The `landmarks` of the examples are the examples themselves: kernels of all their pairs.
"""


class Drawn(NamedTuple):
    """Scores of a network, what pairs need of the examples, and the examples after it."""

    scores: dict[Path, Any]
    memos: Memo
    end: Any


class _Draw(_Encode):
    """`_Encode` of stacked examples; kept of a layer are drawn scores by path, and memos."""

    folds = False

    def __init__(self, make: Maker):
        self.make = make

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        path, key = given
        keys = split_key(key, len(layer.parts))
        return [((*path, number), one) for number, one in enumerate(keys)]

    def trim(self, state: Any, need: Need) -> Any:
        return jax.vmap(lambda one: super(_Draw, self).trim(one, need))(state)

    def gather(self, kept: Sequence[Any]) -> tuple[dict[Path, Any], Memo]:
        scores = {path: field for found, _ in kept for path, field in found.items()}
        return scores, tuple(memo for _, memo in kept)

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Any]:
        path, key = given
        random = layer.facts.random_scores
        scores = {path: self.make(path, layer, state, key)} if random else {}
        drawn = tuple(scores.values())
        memos = jax.vmap(lambda one: _memo(layer, one, drawn))(state)
        after = jax.vmap(lambda one, memo: _encode_layer(layer, one, need, memo, memos, drawn))(
            state, memos
        )
        return after, (scores, memos)

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        layer.require(state.outline)
        scores, memos = self.gather(kept)
        memo = jax.vmap(BranchesMemo.of)(memos, tuple(ends))
        after = jax.vmap(
            lambda one, mine, *parts: _merge_examples(layer, one, list(parts), mine, memo)
        )(state, memo, *ends)
        return after, (scores, memo)


def draw(net: Layer, examples: Any, need: Need, key: Key[Array, ""], make: Maker) -> Drawn:
    """Encode stacked examples jointly, and draw random scores on the way."""
    end, (scores, memos) = walk(_Draw(make), net, examples, ((), key), need)
    return Drawn(scores, memos, end)


# --- what part of a covariance is looked at -------------------------------------------------------


def need_before(layer: Layer, out: Need, *, encoding: bool = False, noisy: bool = False) -> Need:
    """What part of its input's covariance the part `out` of a layer's output takes.

    `encoding`: in the encode phase, where memos look at the covariance too. `noisy`: a layer below
    drops entries, so that an example's own covariance is not the one between two passes of it.
    """
    if isinstance(layer, Serial):
        return needs_along(layer.parts, out, encoding=encoding, noisy=noisy)[0]
    if layer.parts:
        return max(need_before(part, out, encoding=encoding, noisy=noisy) for part in layer.parts)
    facts = layer.facts
    need = out if facts.need is None else facts.need
    if not encoding:
        return need
    if noisy and facts.random_scores:
        return Need.FULL
    return max(need if out else Need.NONE, facts.need_own)


def needs_along(layers: Sequence[Layer], out: Need, *, encoding: bool, noisy: bool) -> list[Need]:
    """The same for layers one after another: before the first layer, and after each."""
    before = [noisy]
    for layer in layers:
        before.append(before[-1] or is_noisy(layer))
    needs = [out]
    for layer, noise in zip(reversed(layers), reversed(before[:-1]), strict=True):
        needs.append(need_before(layer, needs[-1], encoding=encoding, noisy=noise))
    return needs[::-1]
