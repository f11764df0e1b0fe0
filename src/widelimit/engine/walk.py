"""The one walk over a network: layers one after another, streams side by side, branches merged.

Layers say rules for one example and one pair, and never call each other. A task says what is done
at a layer without parts and where branches meet; `_walk` brings it there:

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

from ..errors import NetworkError, ShapeError
from ..layers.base import Layer, Memo, Params, remask
from ..layers.branches import Branches
from ..layers.compose import Parallel, Path, Serial, is_noisy
from ..layers.graph import Graph
from ..layers.pool import PositionMap
from ..state import UNKNOWN, Example, Mean, Need, Pair, UnknownMean

Scores = Mapping[Path, Any]
"""What was drawn for layers with random scores; paths begin at the network they are passed with."""


# --- the walk -------------------------------------------------------------------------------------


class _Task:
    """What a walk does at a layer without parts, and where branches meet."""

    folds = False

    def inside(self, layer: Layer, given: Any) -> Sequence[Any]:
        """What each part gets of what the layer was given."""
        return [None] * len(layer.parts)

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Any]:
        """The state after a layer without parts, and what is kept of it."""
        raise NotImplementedError

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        """The state after branches that ended in `ends`, and what is kept of all of them."""
        raise NotImplementedError

    def enter(self, layer: Branches, state: Any) -> Any:
        """The state as branches get it."""
        return state

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        """What is looked at after each part."""
        return [need] * len(layer.parts)

    def trim(self, state: Any, need: Need) -> Any:
        """The state without what nobody looks at."""
        return state

    def gather(self, kept: Sequence[Any]) -> Any:
        """What is kept of parts, as that of the whole."""
        return tuple(kept)

    def split(self, state: Any, count: int) -> Sequence[Any]:
        """The states of the streams."""
        return state

    def join(self, states: Sequence[Any]) -> Any:
        """The state of several streams."""
        return tuple(states)


def _walk(task: _Task, layer: Layer, state: Any, given: Any, need: Need = Need.FULL) -> Any:
    """The state after a layer, and what is kept of it."""
    if isinstance(layer, Serial):

        def step(state: Any, tree: Any, need: Need) -> tuple[Any, Any]:
            return _walk(task, tree[0], state, tree[1], need)

        trees = zip(layer.parts, task.inside(layer, given), strict=True)
        links = map(Link, trees, task.needs(layer, state, need))
        state, kept = fold(step, state, list(links), loops=task.folds)
        return task.trim(state, need), task.gather(kept)
    if not layer.parts:
        return task.visit(layer, state, given, need)
    several = isinstance(layer, Parallel)
    if several:
        states = task.split(state, len(layer.parts))
    else:
        assert isinstance(layer, Branches)
        states = (task.enter(layer, state),) * len(layer.parts)
    parts = zip(layer.parts, states, task.inside(layer, given), strict=True)
    found = [_walk(task, part, own, inner, need) for part, own, inner in parts]
    ends, kept = [end for end, _ in found], [keep for _, keep in found]
    if several:
        return task.join(ends), task.gather(kept)
    return task.merge(layer, state, ends, kept, given)


def split_key(key: Any, parts: int) -> list[Any]:
    """One key for each part; no key stays none."""
    return [None] * parts if key is None else list(jax.random.split(key, parts)) if parts else []


# --- finite networks ------------------------------------------------------------------------------


class _Init(_Task):
    def inside(self, layer: Layer, given: Any) -> list[Any]:
        return split_key(given, len(layer.parts))

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Params]:
        return layer.outline(state), layer.init_params(given, state)

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        return layer.outline(state), tuple(kept)


def init(net: Layer, key: Key[Array, ""], before: Any) -> Params:
    """Draw the parameters for inputs of this outline."""
    return _walk(_Init(), net, before, key)[1]


class _Run(_Task):
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
        real = RealPositions.of([mask for _, mask, _ in ends])
        y = layer.merge_outputs([y for y, _, _ in ends])
        return (remask(y, real.hide), real.mask, state[2]), None

    def split(self, state: Any, count: int) -> list[Any]:
        x, mask, edges = state
        masks = (None,) * count if mask is None else mask
        return list(zip(x, masks, (edges,) * count, strict=True))

    def join(self, states: Sequence[Any]) -> Any:
        return tuple(y for y, _, _ in states), tuple(mask for _, mask, _ in states), None


def run(net: Layer, params: Params, x: Any, mask: Any, key: Any) -> Any:
    """One example through the finite network; zero at padding."""
    return _walk(_Run(), net, (x, mask, None), (params, key))[0][0]


class RealPositions(NamedTuple):
    """Which positions are real after branches are merged: those that are real in all of them.

    Lengths for which branches disagree are refused where numbers are known (`check_masks`): alone,
    such an example has branches of different lengths, which cannot be merged.
    """

    mask: Array | None
    # Where zeros must be put; None where all branches have the very same mask.
    hide: Array | None

    @classmethod
    def of(cls, masks: list[Array | None]) -> "RealPositions":
        """From the masks of all branches."""
        if all(mask is masks[0] for mask in masks):
            return cls(masks[0], None)
        both = functools.reduce(operator.and_, [mask for mask in masks if mask is not None])
        return cls(both, both)


# --- masks of a batch -----------------------------------------------------------------------------


class _Masks(_Task):
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
        elif isinstance(layer, PositionMap):
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

    def split(self, state: Any, count: int) -> Any:
        return (None,) * count if state is None else state

    def join(self, states: Sequence[Any]) -> Any:
        return None if all(mask is None for mask in states) else tuple(states)


def check_masks(net: Layer, mask: Any, name: str) -> None:
    """Raise where an example of a batch has no real position left on its way."""
    _walk(_Masks(name), net, mask, None)


# --- infinite networks: one example ---------------------------------------------------------------


class LayerMemo(eqx.Module):
    """What pairs need of one example at one layer, and where zeros are put after the layer."""

    own: Memo
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
        hide = RealPositions.of([end.mask for end in ends]).hide
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
    return layer.cross(pair, one.own, two.own, *drawn).masked(one.mask, two.mask)


def _encode_layer(
    layer: Any, example: Any, need: Need, memo: LayerMemo, anchors: Any, drawn: tuple[Any, ...]
) -> Example:
    """An example after a layer without parts."""
    outline = _streams(example, lambda one: one.outline)
    layer.require(outline)
    nngp, full = None, False
    if need is not Need.NONE:
        pair = layer.own(_streams(example, Example.pair), memo.own, *drawn)
        pair = pair.masked(memo.mask, memo.mask).forced()
        pair = pair.diagonal() if need is Need.DIAGONAL else pair
        nngp, full = pair.nngp, pair.full
    landmarks = _streams(example, lambda one: one.landmarks)
    if landmarks is not None:
        landmarks = jax.vmap(lambda p, m: _cross_layer(layer, p, memo, m, drawn).forced())(
            landmarks, anchors
        )
    mask = _streams(example, lambda one: one.mask)
    mask = None if mask is None else layer.mask(mask)
    mean = layer.mean(example, memo.own)
    if isinstance(mean, jax.Array):
        mean = remask(mean, memo.mask, axes=0)
    features = layer.features(example)
    features = None if features is None else remask(features, memo.mask)
    edges = layer.edges(example) if isinstance(layer, Graph) else _edges(example)
    return Example(nngp, mean, mask, features, landmarks, full, layer.outline(outline), edges)


def _edges(example: Any) -> Array | None:
    """Edges are of one stream alone: `Graph` joins them with the nodes."""
    return None if isinstance(example, tuple) else example.edges


def _merge_pairs(layer: Branches, pairs: list[Pair], one: BranchesMemo, two: BranchesMemo) -> Pair:
    merged = layer.merge_pairs(pairs, one.shares.astype(pairs[0].nngp.dtype))
    return merged.masked(one.mask, two.mask)


def _merge_examples(
    layer: Branches, example: Example, ends: list[Example], memo: BranchesMemo, anchors: Any
) -> Example:
    """An example after branches that are merged."""
    real, shares = RealPositions.of([end.mask for end in ends]), memo.shares
    nngp, full = None, False
    if ends[0].nngp is not None:
        pair = _merge_pairs(layer, [end.pair() for end in ends], memo, memo)
        nngp, full = pair.forced().nngp, pair.full
    landmarks = None
    if example.landmarks is not None:
        landmarks = jax.vmap(
            lambda other, *ps: _merge_pairs(layer, list(ps), memo, other).forced()
        )(anchors, *(end.landmarks for end in ends))
    mean: Mean = None
    means = [end.mean for end in ends]
    if any(isinstance(m, UnknownMean) for m in means):
        mean = UNKNOWN
    elif any(m is not None for m in means):
        zeros = jnp.zeros(ends[0].outline.positions)
        mean = layer.merge_means([m if isinstance(m, jax.Array) else zeros for m in means], shares)
        mean = remask(mean, real.hide, axes=0)
    rows = [end.features for end in ends if end.features is not None]
    features = layer.merge_features(rows, shares) if len(rows) == len(ends) else None
    features = None if features is None else remask(features, real.hide)
    outline = layer.outline(example.outline)
    return Example(nngp, mean, real.mask, features, landmarks, full, outline, example.edges)


class _Encode(_Task):
    folds = True

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        anchors, scores = given
        return list(zip(memos_inside(layer, anchors), scores_inside(layer, scores), strict=True))

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        streams = state if isinstance(state, tuple) else (state,)
        noisy = any(stream.outline.noisy for stream in streams)
        return needs_along(layer.parts, need, encoding=True, noisy=noisy)[1:]

    def trim(self, state: Any, need: Need) -> Any:
        return _streams(state, lambda one: one.trimmed(need))

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
    return _walk(_Encode(), net, example, (anchors, scores), need)[1]


# --- infinite networks: one pair ------------------------------------------------------------------


class _Cross(_Task):
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
    return _walk(_Cross(), net, pair, (memo1, memo2, scores), need)[0]


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


class _Draw(_Task):
    """Kept of a layer are drawn scores by path, and memos."""

    def __init__(self, make: Maker):
        self.make = make

    def inside(self, layer: Layer, given: Any) -> list[Any]:
        path, key = given
        keys = split_key(key, len(layer.parts))
        return [((*path, number), own) for number, own in enumerate(keys)]

    def needs(self, layer: Serial, state: Any, need: Need) -> list[Need]:
        return _Encode().needs(layer, state, need)

    def trim(self, state: Any, need: Need) -> Any:
        return jax.vmap(lambda one: _Encode().trim(one, need))(state)

    def gather(self, kept: Sequence[Any]) -> tuple[dict[Path, Any], Memo]:
        scores = {path: field for found, _ in kept for path, field in found.items()}
        return scores, tuple(memo for _, memo in kept)

    def visit(self, layer: Layer, state: Any, given: Any, need: Need) -> tuple[Any, Any]:
        path, key = given
        random = layer.facts.random_scores
        scores = {path: self.make(path, layer, state, key)} if random else {}
        drawn = tuple(scores.values())
        memos = jax.vmap(lambda one: _memo(layer, one, drawn))(state)
        after = jax.vmap(lambda one, own: _encode_layer(layer, one, need, own, memos, drawn))(
            state, memos
        )
        return after, (scores, memos)

    def merge(self, layer: Any, state: Any, ends: Any, kept: Any, given: Any) -> Any:
        layer.require(state.outline)
        scores, memos = self.gather(kept)
        memo = jax.vmap(BranchesMemo.of)(memos, tuple(ends))
        after = jax.vmap(
            lambda one, own, *parts: _merge_examples(layer, one, list(parts), own, memo)
        )(state, memo, *ends)
        return after, (scores, memo)


def draw(net: Layer, examples: Any, need: Need, key: Key[Array, ""], make: Maker) -> Drawn:
    """Encode stacked examples jointly, and draw random scores on the way."""
    end, (scores, memos) = _walk(_Draw(make), net, examples, ((), key), need)
    return Drawn(scores, memos, end)


# --- layers in a row: what each looks at, and equal ones compiled once ----------------------------

# A run is looped over if at least this many layers are left after its first.
_LEAST = 6
# Every other layer is compiled by itself, which takes some tenths of a second.
_MOST_APART = 1000

State = Any


class Link(NamedTuple):
    """One layer of a chain: arrays and layers it works with, and what is needed after it."""

    tree: Any
    need: Need


Step = Callable[[State, Any, Need], tuple[State, Any]]
"""From the state before a layer and the layer's tree: the state after it, and what to keep."""


def fold(
    step: Step, state: State, chain: Sequence[Link], *, loops: bool
) -> tuple[State, list[Any]]:
    """`state, kept = step(state, tree, need)` along the chain: the last state, all that is kept.

    Where `loops` are asked for, runs of links that differ in numbers only become one, as soon as
    the state has the same shape after a layer as before it.
    """
    kept: list[Any] = []
    runs = _runs(chain) if loops else [[link] for link in chain]
    if loops:
        _require_few(len(runs))
    for run in runs:
        first, *rest = run
        state, out = step(state, first.tree, first.need)
        kept.append(out)
        if len(rest) >= _LEAST and _steady(step, state, rest[0]):
            state, outs = _loop(step, state, rest)
            kept += outs
            continue
        _require_few(len(rest))
        for link in rest:
            state, out = step(state, link.tree, link.need)
            kept.append(out)
    return state, kept


def _require_few(layers: int) -> None:
    if layers > _MOST_APART:
        raise NetworkError(
            f"{layers:,} layers in a row that differ from each other are too many to compile.",
            got=f"more than {_MOST_APART:,}",
            remedy="repeat one block, Repeat(block, times): equal blocks are compiled once",
        )


def _runs(chain: Sequence[Link]) -> list[list[Link]]:
    runs: list[list[Link]] = []
    for link in chain:
        if runs and link.need == runs[-1][0].need and _alike(link.tree, runs[-1][0].tree):
            runs[-1].append(link)
        else:
            runs.append([link])
    return runs


def _alike(one: Any, two: Any) -> bool:
    """Whether two trees differ in the numbers of their arrays only."""
    (leaves1, structure1), (leaves2, structure2) = map(jax.tree.flatten, (one, two))
    return structure1 == structure2 and all(
        hasattr(a, "dtype") and hasattr(b, "dtype") and (a.shape, a.dtype) == (b.shape, b.dtype)
        for a, b in zip(leaves1, leaves2, strict=True)
    )


def _steady(step: Step, state: State, link: Link) -> bool:
    """Whether the state has the same shape after a layer as before it."""
    after = jax.eval_shape(lambda s, tree: step(s, tree, link.need)[0], state, link.tree)
    return _alike(jax.eval_shape(lambda s: s, state), after)


def _loop(step: Step, state: State, run: list[Link]) -> tuple[State, list[Any]]:
    trees = jax.tree.map(lambda *leaves: jnp.stack(leaves), *(link.tree for link in run))
    state, outs = jax.lax.scan(lambda s, tree: step(s, tree, run[0].need), state, trees)
    return state, [jax.tree.map(lambda leaf, i=i: leaf[i], outs) for i in range(len(run))]


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
