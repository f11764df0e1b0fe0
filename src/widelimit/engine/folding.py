"""Layers in a row: what part of a covariance each looks at, and equal ones compiled once."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import NetworkError
from ..layers.base import Layer
from ..layers.compose import Serial, is_noisy
from ..state import Need

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


def folded(
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
            state, outs = _looped(step, state, rest)
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
    leaves1, structure1 = jax.tree.flatten(one)
    leaves2, structure2 = jax.tree.flatten(two)
    return structure1 == structure2 and all(
        _is_array(a) and _is_array(b) and a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(leaves1, leaves2, strict=True)
    )


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray)


def _steady(step: Step, state: State, link: Link) -> bool:
    after = jax.eval_shape(lambda s, tree: step(s, tree, link.need)[0], state, link.tree)
    before = jax.eval_shape(lambda s: s, state)
    return _same_shapes(before, after)


def _same_shapes(one: Any, two: Any) -> bool:
    same_structure = jax.tree.structure(one) == jax.tree.structure(two)
    return same_structure and all(
        a.shape == b.shape and a.dtype == b.dtype
        for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    )


def _looped(step: Step, state: State, run: list[Link]) -> tuple[State, list[Any]]:
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
