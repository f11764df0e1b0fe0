"""Functions of limit variables, member by member of a family: small expression trees.

`Leaf` is a linear form, `Number` an array of numbers, `Apply` a coordinatewise function, `Mixed` a
linear combination of products of other members, `Whole` a vector. Every node can be evaluated at
points of the limit variables, as an array (draws, points, size).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .closed_forms import ClosedForm
from .gaussian import Cut, Form, Remap

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
    """A node; `size` members."""

    size: int

    def __init__(self) -> None:
        self._remapped: dict[Any, Tree] = {}
        self.memory: dict[Any, Any] = {}
        """What was integrated of this node already."""

    def remapped(self, remap: Remap) -> Tree:
        """New members; zeros are not allowed here."""
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

    @abstractmethod
    def forms(self) -> Iterator[Form]:
        """All linear forms below."""

    def simple(self) -> bool:
        """Whether members depend on no other members' forms."""
        return True

    def univariate(self) -> Form | None:
        """The one form this is a function of, if there is just one."""
        if not self.simple():
            return None
        found = {id(form): form for form in self.forms()}
        return next(iter(found.values())) if len(found) == 1 else None


class Leaf(Tree):
    """A linear form."""

    def __init__(self, form: Form):
        super().__init__()
        self.form, self.size = form, form.size

    def _remap(self, remap: Remap) -> Tree:
        return Leaf(self.form.remapped(remap))

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return points.form(self.form)

    def forms(self) -> Iterator[Form]:
        yield self.form


class Number(Tree):
    """Numbers that do not depend on the coordinate, (draws or 1, size)."""

    def __init__(self, data: np.ndarray):
        super().__init__()
        self.data, self.size = data, data.shape[-1]

    def _remap(self, remap: Remap) -> Tree:
        return Number(self.data[:, remap.index])

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return points.pick(self.data)[:, None, :]

    def forms(self) -> Iterator[Form]:
        return iter(())


class Apply(Tree):
    """`function` of the children, coordinate by coordinate; `closed` is that of its first child."""

    def __init__(
        self,
        name: str,
        function: Callable[..., Any],
        children: tuple[Tree, ...],
        closed: ClosedForm | None = None,
    ):
        super().__init__()
        self.name, self.function, self.children, self.closed = name, function, children, closed
        self.size = children[0].size

    def _remap(self, remap: Remap) -> Tree:
        children = tuple(c.remapped(remap) for c in self.children)
        return Apply(self.name, self.function, children, self.closed)

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        values = np.broadcast_arrays(*(child.evaluate(points) for child in self.children))
        return np.asarray(self.function(*values))

    def forms(self) -> Iterator[Form]:
        for child in self.children:
            yield from child.forms()

    def simple(self) -> bool:
        return all(child.simple() for child in self.children)


class Mixed(Tree):
    """`Σ_j weights_ij atom_j`, weights (draws or 1, size, members of the atom)."""

    def __init__(self, weights: np.ndarray, atom: Atom):
        super().__init__()
        self.weights, self.atom = weights, atom
        self.size = weights.shape[1]

    def _remap(self, remap: Remap) -> Tree:
        weights = self.weights[:, remap.index]
        if remap.cut is None:
            return Mixed(weights, self.atom)
        return Mixed(*cut_mixture(weights, self.atom, remap))

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return self.atom.evaluate(points) @ np.swapaxes(points.pick(self.weights), 1, 2)

    def forms(self) -> Iterator[Form]:
        return self.atom.forms()

    def simple(self) -> bool:
        return False


class Whole(Tree):
    """A vector as a factor of a product."""

    def __init__(self, vector: WideVector):
        super().__init__()
        self.vector, self.size = vector, vector.size

    def _remap(self, remap: Remap) -> Tree:
        return Whole(self.vector.remapped_members(remap))

    def _evaluate(self, points: LimitPoints) -> np.ndarray:
        return self.vector.evaluate(points)

    def forms(self) -> Iterator[Form]:
        return self.vector.forms()

    def simple(self) -> bool:
        return self.vector.simple()


class Atom:
    """A product of trees of one size."""

    def __init__(self, factors: tuple[Tree, ...]):
        self.factors, self.size = factors, factors[0].size

    def remapped(self, remap: Remap) -> Atom:
        """New members of every factor."""
        if remap.is_identity(self.size):
            return self
        safe = Remap(remap.safe, remap.cut)
        factors = tuple(f.remapped(safe) for f in self.factors)
        if not remap.present.all():
            factors = (masked(factors[0], remap.present), *factors[1:])
        return Atom(factors)

    def evaluate(self, points: LimitPoints) -> np.ndarray:
        """The product's values."""
        value = self.factors[0].evaluate(points)
        for factor in self.factors[1:]:
            value = value * factor.evaluate(points)
        return value

    def forms(self) -> Iterator[Form]:
        """All linear forms below."""
        for factor in self.factors:
            yield from factor.forms()

    def simple(self) -> bool:
        """Whether members depend on no other members' forms."""
        return all(factor.simple() for factor in self.factors)


def scaled_leaf(tree: Tree) -> tuple[Form, np.ndarray] | None:
    """The form and the number (draws or 1, size) whose product a tree is, if it is one."""
    inner, factor = unscaled(tree)
    return (inner.form, factor) if isinstance(inner, Leaf) else None


def unscaled(tree: Tree) -> tuple[Tree, np.ndarray]:
    """A tree without the numbers that it is multiplied by, and these."""
    factor = np.ones((1, tree.size))
    while isinstance(tree, Apply) and tree.name == "mul" and isinstance(tree.children[1], Number):
        factor, tree = factor * tree.children[1].data, tree.children[0]
    return tree, factor


def masked(tree: Tree, present: np.ndarray) -> Tree:
    """The tree, and zero where a member is not `present`."""
    where = Number(present[None, :].astype(float))
    return Apply("mul", np.multiply, (tree, where))


def cut_mixture(weights: np.ndarray, atom: Atom, remap: Remap) -> tuple[np.ndarray, Atom]:
    """Blocks of a mixture are cut: one copy of the atoms for every piece."""
    cut = remap.cut
    assert cut is not None
    pieces = cut.major * cut.minor
    piece = cut.major_index * cut.minor + cut.minor_index
    each = np.arange(atom.size)
    i, j = np.divmod(np.repeat(np.arange(pieces), atom.size), cut.minor)
    copies = atom.remapped(Remap(np.tile(each, pieces), Cut(cut.major, cut.minor, i, j)))
    spread = np.zeros((weights.shape[0], weights.shape[1], pieces, atom.size))
    rows = np.arange(weights.shape[1])
    spread[:, rows, piece] = weights
    return spread.reshape(*weights.shape[:2], -1), copies
