"""Vectors: families of i.i.d. coordinates, as functions of limit variables.

`v = n^power · (constant + scale·form + Σ mix·product)`. The linear part is Gaussian; products are
products of nonlinear functions. Arrays are flat over the family: (draws or 1, size).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce

import numpy as np

from .gaussian import Cut, Form, Remap
from .layout import Layout, refinement
from .trees import (
    Apply,
    Deviations,
    Leaf,
    LimitPoints,
    Number,
    Product,
    Tree,
    Whole,
    scaled,
    scaled_leaf,
)

Part = tuple[np.ndarray | None, Product]


@dataclass(frozen=True, eq=False)
class WideVector:
    """A family over `shape`, in which the width axis `axis` counts cells of the layout."""

    shape: tuple[int, ...]
    axis: int
    layout: Layout
    power: Fraction
    constant: np.ndarray
    form: Form | None = None
    scale: np.ndarray | None = None
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        """Members, cells included."""
        return self.constant.shape[-1]

    @classmethod
    def of(
        cls,
        tree: Tree,
        shape: tuple[int, ...],
        axis: int,
        layout: Layout,
        power: Fraction = Fraction(0),
    ) -> WideVector:
        """A vector that is given by an expression."""
        product = tree if isinstance(tree, Product) else Product(tree)
        zero = np.zeros((1, product.size))
        return cls(shape, axis, layout, power, zero, parts=((None, product),))

    # ---- what it is made of -----------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        """Whether all coordinates are the same number."""
        return self.form is None and not self.parts

    @property
    def is_linear(self) -> bool:
        """Whether it is Gaussian."""
        return not self.parts

    @property
    def is_zero(self) -> bool:
        """Whether it is exactly zero."""
        return self.is_constant and not self.constant.any()

    @property
    def draws(self) -> int:
        """How many draws of scalars it distinguishes."""
        arrays = [self.constant, self.scale, *(mix for mix, _ in self.parts)]
        return max(a.shape[0] for a in arrays if a is not None)

    def forms(self) -> Iterator[Form]:
        """All linear forms in it."""
        if self.form is not None:
            yield self.form
        for _, product in self.parts:
            yield from product.forms()

    def simple(self) -> bool:
        """Whether members depend on no other members' forms."""
        return all(mix is None and product.simple() for mix, product in self.parts)

    def tree(self) -> Tree:
        """The vector as one expression."""
        trees: list[Tree] = [] if self.form is None else [self.leaf()]
        for mix, product in self.parts:
            first, *others = product.children
            if mix is None:
                trees.append(product if others else first)
            else:
                trees.append(Whole(self._bare((mix, product))))
        if self.constant.any() or not trees:
            trees.append(Number(self.constant))
        return reduce(lambda one, two: Apply("add", np.add, (one, two)), trees)

    def leaf(self) -> Tree:
        """The linear part."""
        assert self.form is not None
        assert self.scale is not None
        leaf = Leaf(self.form)
        return leaf if (self.scale == 1).all() else scaled(leaf, self.scale)

    def _bare(self, part: Part) -> WideVector:
        """One part alone."""
        zero = np.zeros((1, self.size))
        return replace(self, constant=zero, form=None, scale=None, parts=(part,))

    def evaluate(self, points: LimitPoints) -> np.ndarray:
        """Values at points of the limit variables."""
        total = points.pick(self.constant)[:, None, :]
        if self.form is not None:
            assert self.scale is not None
            total = total + points.pick(self.scale)[:, None, :] * points.form(self.form)
        for mix, product in self.parts:
            value = product.evaluate(points)
            if mix is not None:
                value = value @ np.swapaxes(points.pick(mix), 1, 2)
            total = total + value
        return total

    # ---- new members ------------------------------------------------------------------------

    def remapped_members(self, remap: Remap) -> WideVector:
        """The family with other members; shape and axis are left to the caller."""
        if remap.is_identity(self.size):
            return self
        present = remap.present

        def numbers(data: np.ndarray) -> np.ndarray:
            taken = data[:, remap.safe]
            return taken if present.all() else taken * present

        parts = tuple(_remapped_part(part, remap) for part in self.parts)
        return replace(
            self,
            constant=numbers(self.constant),
            form=None if self.form is None else self.form.remapped(remap),
            scale=None if self.scale is None else self.scale[:, remap.safe],
            parts=parts,
        )

    def reindexed(self, index: np.ndarray, axis: int) -> WideVector:
        """`index` has the new shape and points into the flat old family (-1: zero)."""
        moved = self.remapped_members(Remap(index.ravel()))
        return replace(moved, shape=index.shape, axis=axis)

    def refined(self, layout: Layout) -> WideVector:
        """The same vector on a finer layout."""
        if layout == self.layout:
            return self
        remap = refinement(self.shape, self.axis, self.layout, layout)
        shape = (*self.shape[: self.axis], layout.cells, *self.shape[self.axis + 1 :])
        return replace(self.remapped_members(remap), shape=shape, layout=layout)

    # What operations that only move entries ask of values of every kind.

    @property
    def layouts(self) -> dict[int, Layout]:
        """The width axis and how it is cut."""
        return {self.axis: self.layout}

    def moved(self, index: np.ndarray, axes: dict[int, int]) -> WideVector:
        """`axes` maps the old width axis to the new one."""
        return self.reindexed(index, axes[self.axis])

    def refined_at(self, axis: int, layout: Layout) -> WideVector:
        """The same vector on a finer layout."""
        return self.refined(layout)

    def relaid(self, layouts: dict[int, Layout]) -> WideVector:
        """The same entries under other names of the cells."""
        return replace(self, layout=layouts[self.axis])

    @property
    def indices(self) -> np.ndarray:
        """The flat number of every member, in the vector's shape."""
        return np.arange(self.size).reshape(self.shape)

    def by_cell(self) -> np.ndarray:
        """Members as (cells, others)."""
        return np.moveaxis(self.indices, self.axis, 0).reshape(self.layout.cells, -1)

    # ---- algebra ----------------------------------------------------------------------------

    def times(self, numbers: np.ndarray, power: Fraction = Fraction(0)) -> WideVector:
        """Each member times a number, (draws or 1, size)."""
        if not numbers.any():
            return self.constant_like(np.zeros((1, self.size)), self.power + power)
        parts = []
        for mix, product in self.parts:
            if mix is not None:
                parts.append((mix * numbers[..., None], product))
            else:
                first, *rest = product.children
                parts.append((None, Product(scaled(first, numbers), *rest)))
        return replace(
            self,
            power=self.power + power,
            constant=self.constant * numbers,
            scale=None if self.scale is None else self.scale * numbers,
            parts=tuple(parts),
        )

    def plus(self, other: WideVector) -> WideVector:
        """The sum of vectors of one shape, layout and power."""
        form, scale = self.form, self.scale
        if other.form is not None:
            if form is None:
                form, scale = other.form, other.scale
            else:
                assert scale is not None
                assert other.scale is not None
                if form is other.form:
                    scale = scale + other.scale
                else:
                    form = form.scaled(scale).plus(other.form.scaled(other.scale))
                    scale = np.ones((1, self.size))
        return replace(
            self,
            constant=self.constant + other.constant,
            form=form,
            scale=scale,
            parts=_added(self.parts + other.parts),
        )

    def mixed(self, weights: np.ndarray, shape: tuple[int, ...], axis: int) -> WideVector:
        """`Σ_j weights_ij v_j` over members, weights (draws or 1, new, size)."""
        form = scale = None
        if self.form is not None:
            assert self.scale is not None
            form = self.form.mixed(weights * self.scale[:, None, :])
            scale = np.ones((1, weights.shape[1]))
        parts = tuple(
            (weights if mix is None else weights @ mix, product) for mix, product in self.parts
        )
        constant = (weights @ self.constant[..., None])[..., 0]
        return replace(
            self, shape=shape, axis=axis, constant=constant, form=form, scale=scale, parts=parts
        )

    def multiplied(self, other: WideVector) -> WideVector:
        """The product of vectors of one shape and layout, coordinate by coordinate."""
        if other.is_constant:
            return self.times(other.constant, other.power)
        if self.is_constant:
            return other.times(self.constant, self.power)
        power = self.power + other.power
        if self.is_linear and other.is_linear:
            return self._expanded(other, power)
        left, right = self._factors(), other._factors()
        if left is None or right is None:
            left, right = left or (Whole(self),), right or (Whole(other),)
        return self._of(Product(*_joined((*left, *right))), power)

    def _expanded(self, other: WideVector, power: Fraction) -> WideVector:
        """`(c + f)(c' + f') = cc' + c'f + cf' + ff'` of Gaussians: products have Wick's formula."""
        centred = [replace(v, constant=np.zeros((1, v.size))) for v in (self, other)]
        linear = [v.times(w.constant) for v, w in zip(centred, (other, self), strict=True)]
        total = replace(linear[0], power=power).plus(replace(linear[1], power=power))
        product = self._of(Product(self.leaf(), other.leaf()), power)
        constant = self.constant_like(self.constant * other.constant, power)
        return total.plus(product).plus(constant)

    def applied(self, tree: Tree) -> WideVector:
        """A vector of the same kind, power 0, that is given by an expression."""
        return self._of(Product(tree), Fraction(0))

    def constant_like(self, numbers: np.ndarray, power: Fraction = Fraction(0)) -> WideVector:
        """A vector of equal coordinates."""
        return WideVector(self.shape, self.axis, self.layout, power, numbers)

    def _of(self, product: Product, power: Fraction) -> WideVector:
        if not any(True for _ in product.forms()):
            numbers = product.evaluate(Deviations([0.0]))[:, 0, :].astype(float)
            return self.constant_like(np.broadcast_to(numbers, (len(numbers), self.size)), power)
        return WideVector.of(product, self.shape, self.axis, self.layout, power)

    def _factors(self) -> tuple[Tree, ...] | None:
        """The vector as a product of trees, where it is one."""
        alone: tuple[Tree, ...] | None = None
        if self.form is None and len(self.parts) == 1 and not self.constant.any():
            mix, product = self.parts[0]
            alone = product.children if mix is None else None
        if alone is not None and all(scaled_leaf(factor) for factor in alone):
            return alone
        tree = self.tree()
        return (tree,) if tree.univariate() is not None else alone


def members_of(tree: Tree) -> WideVector:
    """A tree as a bare family."""
    if isinstance(tree, Whole):
        return tree.vector
    # In one piece, even a product: what is a function of one variable stays one.
    return WideVector.of(Product(tree), (tree.size,), 0, Layout(1, 1, Fraction(1)))


def _remapped_part(part: Part, remap: Remap) -> Part:
    mix, product = part
    if mix is None:
        return None, product.remapped(remap)
    weights = mix[:, remap.safe]
    if not remap.present.all():
        weights = weights * remap.present[None, :, None]
    cut = remap.cut
    if cut is None:
        return weights, product
    # Blocks of a mixture are cut: one copy of what is mixed for every piece.
    pieces, each = cut.major * cut.minor, np.arange(product.size)
    i, j = np.divmod(np.repeat(np.arange(pieces), product.size), cut.minor)
    copies = product.remapped(Remap(np.tile(each, pieces), Cut(cut.major, cut.minor, i, j)))
    spread = np.zeros((*weights.shape[:2], pieces, product.size))
    piece = cut.major_index * cut.minor + cut.minor_index
    spread[:, np.arange(weights.shape[1]), piece] = weights
    return spread.reshape(*weights.shape[:2], -1), copies


def _joined(factors: tuple[Tree, ...]) -> tuple[Tree, ...]:
    """Factors that are functions of one and the same form become one, but not linear ones."""
    if all(scaled_leaf(factor) for factor in factors):
        return factors
    found: list[Tree] = []
    for factor in factors:
        form = factor.univariate()
        same = next((k for k, f in enumerate(found) if form and f.univariate() is form), None)
        if same is None:
            found.append(factor)
        else:
            found[same] = Apply("mul", np.multiply, (found[same], factor))
    return tuple(found)


def _added(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Parts that are functions of one and the same form become one."""

    def form_of(part: Part) -> Form | None:
        mix, product = part
        return product.univariate() if mix is None and len(product.children) == 1 else None

    found: list[Part] = []
    for part in parts:
        form = form_of(part)
        same = next((k for k, p in enumerate(found) if form and form_of(p) is form), None)
        if same is None:
            found.append(part)
        else:
            both = (found[same][1].children[0], part[1].children[0])
            found[same] = (None, Product(Apply("add", np.add, both)))
    return tuple(found)
