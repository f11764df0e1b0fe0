"""Functions of limit variables, member by member of a family: small expression trees.

`Leaf` is a linear form, `Number` an array of numbers, `Apply` a coordinatewise function, `Product`
a product, `Whole` a vector. Every node can be evaluated at points of the limit variables, as an
array (draws, points, size).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .closed_forms import ClosedForm
from .gaussian import Form, Remap

if TYPE_CHECKING:
    from .vectors import WideVector


class LimitPoints(ABC):
    """Where trees are evaluated, for all draws of the scalars or a `part` of them."""

    def __init__(self) -> None:
        self.cache: dict[int, tuple[Any, np.ndarray]] = {}
        self.part = slice(None)

    @abstractmethod
    def form(self, form: Form) -> np.ndarray:
        """The values of linear forms, (draws, points, size)."""

    def pick(self, numbers: np.ndarray) -> np.ndarray:
        """Those of the draws at hand, of numbers (draws or 1, …)."""
        return numbers if len(numbers) == 1 else numbers[self.part]


class Deviations(LimitPoints):
    """The same points of every form by itself, in units of its deviation."""

    def __init__(self, x: Any):
        super().__init__()
        self.x = np.asarray(x, float)

    def form(self, form: Form) -> np.ndarray:
        return self.pick(form.deviation)[:, None, :] * self.x[None, :, None]


class Tree(ABC):
    """A node; `size` members, made of those of its children."""

    def __init__(self, size: int, children: tuple[Tree, ...] = ()) -> None:
        self.size, self.children = size, children
        self._remapped: dict[Any, Tree] = {}
        self.memory: dict[Any, Any] = {}
        """What was integrated of this node already."""

    def remapped(self, remap: Remap) -> Tree:
        """New members; zeros are allowed in products only."""
        if remap.is_identity(self.size):
            return self
        if remap.key not in self._remapped:
            self._remapped[remap.key] = self._remap(remap)
        return self._remapped[remap.key]

    def evaluate(self, points: LimitPoints) -> np.ndarray:
        """Values, (draws, points, size)."""
        key = id(self)
        if key not in points.cache:
            # The node is kept beside its values so that its id stays its own.
            points.cache[key] = (self, self._evaluate(points))
        return points.cache[key][1]

    @abstractmethod
    def _remap(self, remap: Remap) -> Tree:
        """The rule of the node."""

    @abstractmethod
    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        """The rule of the node."""

    def forms(self) -> Iterator[Form]:
        """All linear forms below."""
        for child in self.children:
            yield from child.forms()

    def simple(self) -> bool:
        """Whether members depend on no other members' forms."""
        return all(child.simple() for child in self.children)

    def univariate(self) -> Form | None:
        """The one form this is a function of, if there is just one."""
        if not self.simple():
            return None
        found = {id(form): form for form in self.forms()}
        return next(iter(found.values())) if len(found) == 1 else None


class Leaf(Tree):
    """A linear form."""

    def __init__(self, form: Form):
        super().__init__(form.size)
        self.form = form

    def _remap(self, remap: Remap) -> Tree:
        return Leaf(self.form.remapped(remap))

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return points.form(self.form)

    def forms(self) -> Iterator[Form]:
        yield self.form


class Number(Tree):
    """Numbers that do not depend on the coordinate, (draws or 1, size)."""

    def __init__(self, data: np.ndarray):
        super().__init__(data.shape[-1])
        self.data = data

    def _remap(self, remap: Remap) -> Tree:
        return Number(self.data[:, remap.index])

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return points.pick(self.data)[:, None, :]


class Apply(Tree):
    """`function` of the children, coordinate by coordinate; `closed` is that of its first child."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        children: tuple[Tree, ...],
        closed: ClosedForm | None = None,
    ):
        super().__init__(children[0].size, children)
        self.name, self.function, self.closed = name, function, closed

    def _remap(self, remap: Remap) -> Tree:
        children = tuple(c.remapped(remap) for c in self.children)
        return Apply(self.name, self.function, children, self.closed)

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        values = np.broadcast_arrays(*(child.evaluate(points) for child in self.children))
        return np.asarray(self.function(*values))


class Whole(Tree):
    """A vector: a factor of a product, or one of its mixtures inside a function."""

    def __init__(self, vector: WideVector):
        super().__init__(vector.size)
        self.vector = vector

    def _remap(self, remap: Remap) -> Tree:
        return Whole(self.vector.remapped_members(remap))

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return self.vector.evaluate(points)

    def forms(self) -> Iterator[Form]:
        return self.vector.forms()

    def simple(self) -> bool:
        return self.vector.simple()


class Product(Tree):
    """A product of trees of one size, whose members may be zero."""

    def __init__(self, *factors: Tree):
        super().__init__(factors[0].size, factors)

    def remapped(self, remap: Remap) -> Product:
        """New members of every factor."""
        if remap.is_identity(self.size):
            return self
        safe = Remap(remap.safe, remap.cut)
        first, *rest = (factor.remapped(safe) for factor in self.children)
        if not remap.present.all():
            first = scaled(first, remap.present[None, :].astype(float))
        return Product(first, *rest)

    _remap = remapped

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return functools.reduce(np.multiply, (tree.evaluate(points) for tree in self.children))


def scaled(tree: Tree, numbers: np.ndarray) -> Tree:
    """Members times numbers, (draws or 1, size)."""
    return Apply("mul", np.multiply, (tree, Number(numbers)))


def unscaled(tree: Tree) -> tuple[Tree, np.ndarray]:
    """A tree without the numbers that it is multiplied by, and these."""
    factor = np.ones((1, tree.size))
    while isinstance(tree, Apply) and tree.name == "mul" and isinstance(tree.children[1], Number):
        factor, tree = factor * tree.children[1].data, tree.children[0]
    return tree, factor


def scaled_leaf(tree: Tree) -> tuple[Form, np.ndarray] | None:
    """The form and the number (draws or 1, size) whose product a tree is, if it is one."""
    inner, factor = unscaled(tree)
    return (inner.form, factor) if isinstance(inner, Leaf) else None
