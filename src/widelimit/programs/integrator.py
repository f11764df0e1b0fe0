"""Means and second moments of vectors, given the scalars.

A product of two is one of functions of limit variables. It falls apart into groups that share no
correlated variables; groups of one function, or of two functions of one variable each, are
summed by Hermite series. Everything else is averaged over quasi-random points of all the limit
variables it needs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from ..gaussians import psd_root
from .closed_forms import ClosedForm
from .gaussian import Form, GaussianSource, Postponed, correlated
from .hermite import FAR_SHARE, HermiteSeries, mehler, no_square_mean, nodes
from .integration import FAR, Method, Rule
from .thresholds import PARALLEL
from .trees import (
    Apply,
    Deviations,
    LimitPoints,
    Number,
    Product,
    Tree,
    Whole,
    scaled_leaf,
    unscaled,
)
from .vectors import Part, WideVector, members_of

Numbers = TypeVar("Numbers")


class _NeedsPoints(Exception):
    """Variables are too entangled for series."""


class Integrator:
    """How expectations are taken for `draws` draws of the scalars at once."""

    def __init__(self, *, draws: int, rule: Rule, rng: np.random.Generator):
        self.draws, self.rule, self.rng = draws, rule, rng
        self.used = self.worst = Method.CLOSED_FORM
        """The least exact method since `used` was set last, and at all."""
        self.postponed = Postponed()
        self._seconds: dict[tuple[Any, ...], tuple[np.ndarray, Method]] = {}

    def note(self, method: Method) -> None:
        """Numbers rest on a method."""
        self.used, self.worst = max(self.used, method), max(self.worst, method)

    def measured(self, compute: Callable[[], Numbers]) -> tuple[Numbers, Method]:
        """What is computed, and the least exact method behind it."""
        before, self.used = self.used, Method.CLOSED_FORM
        found, method = compute(), self.used
        self.note(before)
        return found, method

    # ---- vectors ----------------------------------------------------------------------------

    def mean(self, vector: WideVector) -> np.ndarray:
        """`E[v_i]`, (draws or 1, size)."""
        self._inherit(vector)
        try:
            return self._mean(vector)
        except _NeedsPoints:
            return self._averaged([vector], lambda weights, values: weights @ values)

    def second(
        self, u: WideVector, v: WideVector, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """`E[u_i v_j]` for members `rows` (c, A), `columns` (c, B): (draws or 1, c, A, B)."""
        self._inherit(u)
        self._inherit(v)
        try:
            return self._second(u, v, rows, columns)
        except _NeedsPoints:

            def products(weights: np.ndarray, one: np.ndarray, two: np.ndarray) -> np.ndarray:
                left = np.moveaxis(one[:, :, rows], 1, -1) * weights
                return left @ np.swapaxes(np.moveaxis(two[:, :, columns], 1, -1), -1, -2)

            return self._averaged([u, v], products)

    def second_once(
        self, u: WideVector, v: WideVector, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """`E[u_i v_j]` for members `rows` (A,), `columns` (B,): (draws or 1, A, B), kept.

        What several weights are applied to has its second moments taken once.
        """
        key = (u, v, rows.tobytes(), columns.tobytes())
        if key not in self._seconds:
            self._seconds[key] = self.measured(
                lambda: self.second(u, v, rows[None], columns[None])[:, 0]
            )
        found, method = self._seconds[key]
        self.note(method)
        return found

    def _inherit(self, vector: WideVector) -> None:
        for form in vector.forms():
            for term in form.terms:
                self.note(term.source.method)

    def gram(self, u: WideVector, v: WideVector) -> np.ndarray:
        """`E[u_i v_j]` within every cell: (draws or 1, cells, A, B)."""
        return self.second(u, v, u.by_cell(), v.by_cell())

    def _second(
        self, u: WideVector, v: WideVector, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        total: Any = np.zeros((1, *rows.shape, columns.shape[1]))
        both = u.form is not None and v.form is not None
        if u.form is not None and v.form is not None:
            found = u.form.covariance(v.form, rows, columns)
            total = total + found * _table(np.asarray(u.scale), rows, np.asarray(v.scale), columns)
        for k, (mix, product) in enumerate(_pieces(u)):
            for m, (other_mix, other) in enumerate(_pieces(v)):
                if not (both and k == m == 0):  # the linear parts
                    found = self._mixed_pair(mix, product, rows, other_mix, other, columns)
                    total = total + found
        return total

    def _mean(self, vector: WideVector) -> np.ndarray:
        total = vector.constant
        for mix, product in vector.parts:
            each, mean = np.arange(product.size)[:, None], np.ones((1, product.size, 1, 1))
            for group in self._groups([(f, each, 0) for f in product.children]):
                mean = mean * self._group(group)
            mean = mean[..., 0, 0]
            total = total + (mean if mix is None else (mix @ mean[..., None])[..., 0])
        return total

    def _mixed_pair(
        self,
        mix: np.ndarray | None,
        product: Product,
        rows: np.ndarray,
        other_mix: np.ndarray | None,
        other: Product,
        columns: np.ndarray,
    ) -> np.ndarray:
        if mix is None and other_mix is None:
            return self._pair(product, other, rows, columns)
        left = np.arange(product.size)[None] if mix is not None else rows.reshape(1, -1)
        right = np.arange(other.size)[None] if other_mix is not None else columns.reshape(1, -1)
        table = self._pair(product, other, left, right)[:, 0]  # (draws, A*, B*)
        if mix is not None:
            first = mix[:, rows] @ table[:, None]  # (draws, c, A, B*)
        else:
            first = table.reshape(table.shape[0], *rows.shape, -1)
        if other_mix is not None:
            return first @ np.swapaxes(other_mix[:, columns], -1, -2)
        cells = np.arange(rows.shape[0])
        split = first.reshape(*first.shape[:3], *columns.shape)
        return np.moveaxis(split[:, cells, :, cells], 0, 1)

    # ---- products of functions --------------------------------------------------------------

    def _pair(self, a: Product, b: Product, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """`E[a_i b_j]`."""
        factors = [(f, rows, 0) for f in a.children] + [(f, columns, 1) for f in b.children]
        value = np.ones((1, *rows.shape, columns.shape[1]))
        for group in self._groups(factors):
            value = value * self._group(group)
        return value

    def _groups(self, factors: list[_Side]) -> list[list[_Side]]:
        """Factors that share correlated variables belong together."""
        groups: list[list[_Side]] = []
        for factor in factors:
            linked = [g for g in groups if any(_correlated(factor, other) for other in g)]
            apart = [g for g in groups if not any(g is other for other in linked)]
            groups = [*apart, [*(f for g in linked for f in g), factor]]
        return groups

    def _group(self, group: list[_Side]) -> np.ndarray:
        """The expectation of one group, ready to be multiplied with the others.

        Wick's formula, the closed forms of functions, series in one variable each, in that order.
        """
        if all(scaled_leaf(tree) for tree, _, _ in group):
            return self._wick(group)
        if len(group) == 1:
            tree, index, side = group[0]
            return _beside(self._tree_mean(tree)[:, index], side)
        if len(group) > 2:
            raise _NeedsPoints
        (first, rows, side), (other, columns, other_side) = group
        across = side != other_side
        if across and side == 1:
            (first, rows, side), (other, columns, other_side) = group[::-1]
        shape = rows.shape
        if not across:
            rows, columns = rows.reshape(-1, 1), columns.reshape(-1, 1)
        found = self._two(first, other, rows, columns)
        if across:
            return found
        return _beside(found[..., 0, 0].reshape(found.shape[0], *shape), side)

    def _wick(self, group: list[_Side]) -> np.ndarray:
        """`E[Z₁ Π Zⱼ] = Σⱼ Cov(Z₁, Zⱼ) E[Π_{k≠j} Z_k]` of centred linear forms."""
        if len(group) % 2:
            return np.zeros((1, 1, 1, 1))
        if not group:
            return np.ones((1, 1, 1, 1))
        total: np.ndarray = np.zeros((1, 1, 1, 1))
        first, *rest = group
        for k, other in enumerate(rest):
            covariance = _covariance(first, other)
            if covariance.any():
                total = total + covariance * self._wick(rest[:k] + rest[k + 1 :])
        return total

    def _two(self, a: Tree, b: Tree, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        if isinstance(a, Whole) or isinstance(b, Whole):
            return self._second(members_of(a), members_of(b), rows, columns)
        for one, two, turn in ((a, b, False), (b, a, True)):
            if (line := scaled_leaf(one)) is not None:  # Stein: it sees a slope
                form, factor = line
                x = two.univariate()
                if x is None:
                    raise _NeedsPoints
                slope, mine = self._slope(two, x), (columns, rows) if turn else (rows, columns)
                found = form.covariance(x, *mine) * _table(factor, mine[0], slope, mine[1])
                return np.swapaxes(found, -1, -2) if turn else found
        one, two = _closed(a), _closed(b)
        if one is not None and two is not None and one.form is two.form:
            q, r = one.variance[:, rows][..., :, None], two.variance[:, columns][..., None, :]
            c = one.argument.covariance(two.argument, rows, columns)
            c = c * _table(one.inner, rows, two.inner, columns)
            return _table(one.outer, rows, two.outer, columns) * one.form.pair(q, c, r)
        x, y = a.univariate(), b.univariate()
        if x is None or y is None:
            raise _NeedsPoints
        self._use_grid(2)
        draws = max(self._draws(a), self._draws(b))
        left, right = self._series(a, x, draws), self._series(b, y, draws)
        rho = _quotient(
            x.covariance(y, rows, columns), _table(x.deviation, rows, y.deviation, columns)
        )
        rho = np.where(np.abs(rho) > 1 - PARALLEL, np.sign(rho), rho)
        if not (left.converges(rho) and right.converges(rho)):
            raise _NeedsPoints
        return mehler(left, right, rows, columns, rho)

    def _use_grid(self, dimension: int) -> None:
        if self.rule.method(dimension) is not Method.QUADRATURE:
            raise _NeedsPoints
        self.note(Method.QUADRATURE)

    def _slope(self, tree: Tree, form: Form) -> np.ndarray:
        """`E[φ'(x)] = E[x φ(x)] / Var(x)`, (draws or 1, size): all a linear partner sees."""
        closed = _closed(tree)
        if closed is not None:
            return closed.outer * closed.inner * closed.form.slope(closed.variance)
        self._use_grid(1)
        first = self._series(tree, form, self._draws(tree)).coefficient(1)
        return _quotient(first, form.deviation)

    def _tree_mean(self, tree: Tree) -> np.ndarray:
        closed = _closed(tree)
        if closed is not None:
            return closed.outer * closed.form.mean(closed.variance)
        if isinstance(tree, Whole):
            return self._mean(tree.vector)
        if not any(True for _ in tree.forms()):
            return np.asarray(tree.evaluate(Deviations([0.0])), float)[:, 0, :]
        form = tree.univariate()
        if form is None:
            raise _NeedsPoints
        self._use_grid(1)
        return self._series(tree, form, self._draws(tree)).coefficient(0)

    def _series(self, tree: Tree, form: Form, draws: int) -> HermiteSeries:
        grid = self.rule.line(repeated=draws > 1)
        if grid not in tree.memory:
            values = np.asarray(tree.evaluate(Deviations(nodes(grid)[0])), float)
            shape = (values.shape[0], grid.points, tree.size)
            series = HermiteSeries.of(np.broadcast_to(values, shape), grid)
            self._require_no_pole(tree, series)
            tree.memory[grid] = series
        return tree.memory[grid]

    def _require_no_pole(self, tree: Tree, series: HermiteSeries) -> None:
        """Raise where finer and finer points about a peak find more and more of a square mean.

        About `|z|^{−p}` with m points in a cell, its square mean is off by `m^{2p−1}`: what eight
        times as many points add shrinks for p < ½, and does not where there is no square mean.
        """
        for peak, draw in series.peaks():
            found = []
            for m in (8, 64, 512):
                # Points that happen to hit a pole tell nothing: the median of nine sets does.
                inside = (np.arange(m) + (np.arange(9)[:, None] + 0.5) / 9) / m - 0.5
                points = Deviations((peak + series.grid.step * inside).ravel())
                points.part = slice(draw, draw + 1)
                values = np.square(np.asarray(tree.evaluate(points), float))
                found.append(np.median(values.reshape(9, m, -1).mean(axis=1), axis=0))
            first, second = found[1] - found[0], found[2] - found[1]
            if ((second > 0.5 * first) & (first > _NOT_YET * found[0])).any():
                raise no_square_mean("1/z near 0")

    def _draws(self, tree: Tree) -> int:
        """How many laws of the scalars an expression distinguishes."""
        if "draws" not in tree.memory:  # one point is enough to see the shape
            tree.memory["draws"] = int(np.shape(tree.evaluate(Deviations([0.0])))[0])
        return tree.memory["draws"]

    # ---- points -----------------------------------------------------------------------------

    def _averaged(self, vectors: list[WideVector], reduce: Callable[..., np.ndarray]) -> np.ndarray:
        """Averages over points of all variables at once: a grid for few of them, else Sobol's."""
        draws = max(len(v.evaluate(Deviations([0.0]))) for v in vectors)
        points = lambda dimension, draws: self.rule.nodes(dimension, draws, self.rng)  # noqa: E731
        cloud = Cloud([form for v in vectors for form in v.forms()], points, draws)
        method = self.rule.method(cloud.dimension, cloud.draws)
        self.note(method)
        size = cloud.points * sum(v.size for v in vectors)
        room = max(1, _ROOM // size)
        found = []
        for begin in range(0, draws, room):
            cloud.part, cloud.cache = slice(begin, begin + room), {}
            values = [v.evaluate(cloud) for v in vectors]
            for each in values:
                _require_square_mean(each, cloud.weights, cloud.far)
            found.append(reduce(cloud.weights, *values))
        return np.concatenate(found)


Points = Callable[[int, int], tuple[np.ndarray, np.ndarray]]
_Side = tuple[Tree, np.ndarray, int]
_ROOM = 1 << 23  # numbers evaluated at once
# Of the largest eigenvalue: what sampled second moments may be below zero, what is no dimension.
_ROOTS = {"tolerance": 3e-2, "drop": 1e-13}
_NOT_YET = 0.01  # of what is found so far: less is added by rounding
_MANY, _LARGEST = 4096, 0.25  # one point of as many does not hold that share of a square mean


def _require_square_mean(values: np.ndarray, weights: np.ndarray, far: np.ndarray) -> None:
    """Raise where one point, or points `far` out, have much of a square mean."""
    if values.shape[0] * values.shape[1] < _MANY:
        return
    square = np.square(values) * weights[:, None]
    total = np.maximum(square.sum(axis=(0, 1)), 1e-300)
    top, beyond = square.max(axis=(0, 1)), square[:, far].sum(axis=(0, 1))
    if (top > _LARGEST * total).any() or (beyond > FAR_SHARE * total).any():
        raise no_square_mean("1/z near 0, or sums of Cauchy variables")


class Cloud(LimitPoints):
    """Points of all limit variables that some forms need: of the forms, or of their sources."""

    def __init__(self, forms: list[Form], points: Points, draws: int):
        """`points(dimension, draws)` has standard normals (draws or 1, P, dimension), weights."""
        super().__init__()
        forms = list({id(form): form for form in forms}.values())
        needed = _needed_members(forms)
        count = sum(form.size for form in forms)
        if count <= sum(int(members.sum()) for _, members in needed.values()):
            blocks = [((id(form), None), np.ones(form.size, bool)) for form in forms]
            self._roots = [(psd_root(_joint(forms, count), **_ROOTS), blocks)]
        else:
            self._roots = [
                (psd_root(source.among(np.flatnonzero(members)), **_ROOTS), [(key, members)])
                for key, (source, members) in needed.items()
            ]
        roots = [root for root, _ in self._roots]
        dimension = sum(root.shape[-1] for root in roots)
        repeated = max([1, *(len(root) for root in roots)])
        self.draws = max(draws, repeated)
        normals, self.weights = points(dimension, self.draws)
        self.dimension, self.points = dimension, len(self.weights)
        # Of many variables every point is about √dimension away.
        reach = max(FAR, np.sqrt(dimension) + 3)
        self.far = np.square(normals).sum(axis=-1).min(axis=0) > reach**2
        self._white = normals

    def _members(self) -> dict[Any, np.ndarray]:
        """Values (draws, points, size) of forms or of sources' members, at the draws at hand."""
        white, begin, found = self.pick(self._white), 0, {}
        for root, blocks in self._roots:
            width, first = root.shape[-1], 0
            rows = np.swapaxes(self.pick(root), 1, 2)
            values = white[..., begin : begin + width] @ rows
            begin += width
            for key, members in blocks:
                count = int(members.sum())
                found[key] = np.zeros((*values.shape[:2], len(members)))
                found[key][..., members] = values[..., first : first + count]
                first += count
        return found

    def form(self, form: Form) -> np.ndarray:
        if "members" not in self.cache:
            self.cache["members"] = (self, self._members())  # pyright: ignore
        members: Any = self.cache["members"][1]  # pyright: ignore
        known = members.get((id(form), None))
        return form_values(form, members) if known is None else known


def _needed_members(forms: list[Form]) -> dict[tuple[int, int], tuple[GaussianSource, np.ndarray]]:
    """The members of sources, by their blocks, that forms are made of."""
    needed: dict[tuple[int, int], tuple[GaussianSource, np.ndarray]] = {}
    for form in forms:
        for term in form.terms:
            used = np.abs(term.coefficients(term.span)).max(axis=0) > 0
            for label in np.unique(term.labels):
                columns = used[term.labels == label].any(axis=0)
                if not columns.any():
                    continue
                key = (id(term.source), int(label))
                whole = np.zeros(term.source.size, bool)
                whole[: len(columns)] = columns
                if key in needed:
                    whole |= needed[key][1]
                needed[key] = (term.source, whole)
    return needed


def _joint(forms: list[Form], count: int) -> np.ndarray:
    """Covariances of all members of forms, (draws or 1, count, count)."""
    each = [np.arange(form.size)[None] for form in forms]
    parts = {
        (i, j): a.covariance(b, each[i], each[j])[:, 0]
        for i, a in enumerate(forms)
        for j, b in enumerate(forms[: i + 1])
    }
    ends = np.cumsum([0, *(form.size for form in forms)])
    where = [slice(*bounds) for bounds in itertools.pairwise(ends)]
    total = np.zeros((max([1, *map(len, parts.values())]), count, count))
    for (i, j), part in parts.items():
        total[:, where[i], where[j]] = part
        total[:, where[j], where[i]] = np.swapaxes(part, 1, 2)
    return total


def form_values(form: Form, members: dict[tuple[int, int], np.ndarray]) -> np.ndarray:
    """Values of linear forms, for values (draws, points, size) of sources in blocks."""
    total: np.ndarray | None = None
    for term in form.terms:
        for label in np.unique(term.labels):
            here = np.flatnonzero(term.labels == label)
            key = (id(term.source), int(label))
            if key not in members:
                continue
            values = term.at(members[key], here)
            if total is None:
                total = np.zeros((*values.shape[:2], form.size))
            if values.shape[0] > total.shape[0]:
                total = np.repeat(total, values.shape[0], axis=0)
            total[..., here] += values
    return np.zeros((1, 1, form.size)) if total is None else total


@dataclass(frozen=True)
class _Closed:
    """`outer·φ(inner·argument)` of a function φ that has a closed form."""

    form: ClosedForm
    argument: Form
    inner: np.ndarray
    outer: np.ndarray

    @property
    def variance(self) -> np.ndarray:
        """Of what φ is taken of."""
        return np.square(self.inner) * self.argument.variance


def _closed(tree: Tree) -> _Closed | None:
    inner, outer = unscaled(tree)
    if not isinstance(inner, Apply) or inner.closed is None:
        return None
    line = scaled_leaf(inner.children[0])
    return None if line is None else _Closed(inner.closed, *line, outer)


def _table(a: np.ndarray, rows: np.ndarray, b: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """`a_i b_j` of numbers (draws, size)."""
    return a[:, rows][..., :, None] * b[:, columns][..., None, :]


def _quotient(top: np.ndarray, bottom: np.ndarray) -> np.ndarray:
    """Zero where the lower number is."""
    return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1.0), 0.0)


def _beside(values: np.ndarray, side: int) -> np.ndarray:
    """Numbers of the rows (side 0) or columns, to be multiplied with tables of both."""
    return values[..., :, None] if side == 0 else values[..., None, :]


def _covariance(one: _Side, two: _Side) -> np.ndarray:
    """Of linear forms of rows and columns, or of two on one side."""
    if one[2] > two[2]:
        one, two = two, one
    (a, rows, side), (b, columns, other) = one, two
    (x, f), (y, g) = scaled_leaf(a), scaled_leaf(b)  # pyright: ignore[reportGeneralTypeIssues]
    if side != other:
        return x.covariance(y, rows, columns) * _table(f, rows, g, columns)
    flat = x.covariance(y, rows.reshape(-1, 1), columns.reshape(-1, 1))[..., 0, 0]
    found = flat.reshape(len(flat), *rows.shape) * f[:, rows] * g[:, columns]
    return _beside(found, side)


def _correlated(one: _Side, two: _Side) -> bool:
    """Whether any needed pair of members shares correlated variables."""
    (tree, index, side), (other, other_index, other_side) = one, two
    if side == other_side:
        index, other_index = index.reshape(-1, 1), other_index.reshape(-1, 1)
    simple = tree.simple() and other.simple()
    return correlated(tree.forms(), other.forms(), index, other_index, simple=simple)


def _pieces(vector: WideVector) -> list[Part]:
    """The linear part first, mixtures of products, and the constant, as products."""
    linear: list[Part] = [] if vector.form is None else [(None, Product(vector.leaf()))]
    there = vector.constant.any()
    return [*linear, *vector.parts, *([(None, Product(Number(vector.constant)))] if there else [])]
