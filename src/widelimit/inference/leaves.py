"""The hyperparameters of a network by name: list, set, and move them within their range.

Every hyperparameter is an array leaf of the network. Its name is the way to it, without the words
that say nothing: `Serial(Dense(64, w_std=1.5), Relu(), Dense(1))` has `0.w_std` and `2.w_std`.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jax.tree_util import GetAttrKey, SequenceKey

from ..errors import NetworkError
from ..layers.base import Layer
from ..options import Range, listed

_SILENT = {"layers", "branches", "weights"}


class Hyperparameter(NamedTuple):
    """One array leaf of a network.

    `scale` is True for the scales of a model (standard deviations, rates, residual weights), False
    for constants of its formulas (slopes of an activation, an ε). A leaf on the border of its
    range, such as the standard deviation 0 of a missing bias, is `absent` and cannot move.
    """

    name: str
    value: np.ndarray
    range: Range
    scale: bool
    absent: bool


def hyperparameters(net: Layer) -> tuple[Hyperparameter, ...]:
    """All hyperparameters of a network, in the order of its leaves."""
    found = []
    for leaf in _leaves(net):
        if leaf.name is None:
            continue
        value = np.asarray(leaf.value, np.float64)
        where, tuned = _declared(leaf.owner, leaf.name.rsplit(".", 1)[-1])
        scale = tuned and where is not Range.REAL
        absent = not where.holds(value)
        found.append(Hyperparameter(leaf.name, value, where, scale, absent))
    return tuple(found)


def with_hyperparameters(net: Layer, values: Mapping[str, Any]) -> Layer:
    """A copy of the network with other values of some hyperparameters: `{"0.w_std": 1.5}`."""
    known = {found.name: found for found in hyperparameters(net)}
    for name, value in values.items():
        if name not in known:
            raise NetworkError(
                "Hyperparameters are set by the names they have in the network.",
                got=f"{name!r}",
                remedy=f"use one of {', '.join(known)}",
            )
        old, fits = known[name], False
        with suppress(TypeError, ValueError):  # what is no number
            given = np.asarray(value, np.float64)
            fits = given.shape == old.value.shape and old.range.holds(given)
        if old.absent or not fits:
            raise NetworkError(
                f"The hyperparameter {name!r} of shape {old.value.shape} takes values that are "
                f"{old.range.value}, and a bias that is absent stays absent.",
                got=f"{value!r} in place of {old.value}",
                remedy="give a value in that range, or build the layer anew",
            )
    return replaced(net, values, (np.asarray(v, np.float64) for v in values.values()))


def grid(net: Layer, axes: Mapping[str, Sequence[Any]]) -> Iterator[tuple[dict[str, Any], Layer]]:
    """The network with every combination of the given values, as pairs (values by name, network).

    `axes` maps names of hyperparameters (see `hyperparameters`) to the values to try, such as
    `{"0.w_std": [1.0, 1.5], "2.qk_std": [0.5, 2.0]}`.
    """
    for values in product(*(listed(name, tried) for name, tried in axes.items())):
        choice = dict(zip(axes, values, strict=True))
        yield choice, with_hyperparameters(net, choice)


def replaced(net: Layer, names: Iterable[str], values: Iterable[Any]) -> Layer:
    """The same network with other leaves, unchecked: for values that may be abstract."""
    new: dict[str | None, Any] = dict(zip(names, values, strict=True))
    leaves = [new.get(leaf.name, leaf.value) for leaf in _leaves(net)]
    return jax.tree.unflatten(jax.tree.structure(net), leaves)


class _Leaf(NamedTuple):
    name: str | None  # None for what is not a hyperparameter
    value: Any
    owner: Any  # the object that holds the leaf


def _leaves(net: Layer) -> Iterator[_Leaf]:
    """All leaves of the network, in order."""
    for path, value in jax.tree_util.tree_flatten_with_path(net)[0]:
        words: list[str] = []
        owner: Any = net
        node: Any = net
        for key in path:
            owner = node
            if isinstance(key, GetAttrKey):
                word, node = key.name, getattr(node, key.name)
            else:
                word = key.idx if isinstance(key, SequenceKey) else key.key
                node = node[word]
            words.append(str(word))
        name = ".".join(word for word in words if word not in _SILENT)
        yield _Leaf(name if eqx.is_inexact_array(value) else None, value, owner)


def _declared(owner: Any, name: str) -> tuple[Range, bool]:
    """The range that a field was declared with, and whether it is a constant of a formula."""
    fields = dataclasses.fields(owner) if dataclasses.is_dataclass(owner) else ()
    facts = next((dict(field.metadata) for field in fields if field.name == name), {})
    where = facts.get("range", Range.REAL)
    return where if isinstance(where, Range) else where(owner), facts.get("tuned", True)
