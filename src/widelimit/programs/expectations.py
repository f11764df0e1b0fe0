"""Means and second moments of vectors, given the scalars.

A product of two atoms is a product of functions of limit variables. It falls apart into groups that
share no correlated variables; groups of one function, or of two functions of one variable each, are
summed by Hermite series. Everything else is averaged over quasi-random points of all the limit
variables it needs.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import scipy
from scipy import special

from .gaussian import Form, GaussianSource
from .hermite import COARSE, FINE, Grid, HermiteSeries, mehler, no_square_mean, nodes
from .trees import Atom, Leaf, Tree, Whole
from .vectors import WideVector, members_of


class _NeedsPoints(Exception):
    """Variables are too entangled for series."""


class Integrator:
    """How expectations are taken for `draws` draws of the scalars at once."""

    def __init__(self, *, draws: int, points: int, rng: np.random.Generator):
        self.draws, self.points, self.rng = draws, points, rng
        self.sampled = False
        """Whether anything was averaged over points rather than summed."""

    def grid(self, draws: int) -> Grid:
        """One law is integrated finely, many coarsely."""
        return FINE if draws == 1 else COARSE

    # ---- vectors ----------------------------------------------------------------------------

    def mean(self, vector: WideVector) -> np.ndarray:
        """`E[v_i]`, (draws or 1, size)."""
        try:
            total = vector.constant
            for mix, atom in vector.parts:
                mean = self._atom_mean(atom)
                total = total + (mean if mix is None else (mix @ mean[..., None])[..., 0])
            return total
        except _NeedsPoints:
            values = self._sample([vector])
            return vector.evaluate(values).mean(axis=1)

    def second(
        self, u: WideVector, v: WideVector, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """`E[u_i v_j]` for members `rows` (c, A), `columns` (c, B): (draws or 1, c, A, B)."""
        try:
            return self._second(u, v, rows, columns)
        except _NeedsPoints:
            points = self._sample([u, v])
            one, two = u.evaluate(points), v.evaluate(points)
            for values in (one, two):
                _require_square_mean(values)
            left = np.moveaxis(one[:, :, rows], 1, -1)
            right = np.moveaxis(two[:, :, columns], 1, -1)
            return left @ np.swapaxes(right, -1, -2) / left.shape[-1]

    def gram(self, u: WideVector, v: WideVector) -> np.ndarray:
        """`E[u_i v_j]` within every cell: (draws or 1, cells, A, B)."""
        return self.second(u, v, u.by_cell(), v.by_cell())

    def _second(
        self, u: WideVector, v: WideVector, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        total = u.constant[:, rows][..., :, None] * v.constant[:, columns][..., None, :]
        if u.constant.any():
            rest = self._rest_mean(v)[:, columns]
            total = total + u.constant[:, rows][..., :, None] * rest[..., None, :]
        if v.constant.any():
            rest = self._rest_mean(u)[:, rows]
            total = total + rest[..., :, None] * v.constant[:, columns][..., None, :]
        if u.form is not None and v.form is not None:
            assert u.scale is not None
            assert v.scale is not None
            found = u.form.covariance(v.form, rows, columns)
            total = (
                total + found * u.scale[:, rows][..., :, None] * v.scale[:, columns][..., None, :]
            )
        for mix, atom, scale in _pieces(u):
            for other_mix, other, other_scale in _pieces(v):
                if scale is not None and other_scale is not None:
                    continue
                found = self._mixed_pair(mix, atom, rows, other_mix, other, columns)
                if scale is not None:
                    found = found * scale[:, rows][..., :, None]
                if other_scale is not None:
                    found = found * other_scale[:, columns][..., None, :]
                total = total + found
        return total

    def _rest_mean(self, vector: WideVector) -> np.ndarray:
        """The mean without the constant."""
        total = np.zeros((1, vector.size))
        for mix, atom in vector.parts:
            mean = self._atom_mean(atom)
            total = total + (mean if mix is None else (mix @ mean[..., None])[..., 0])
        return total

    def _mixed_pair(
        self,
        mix: np.ndarray | None,
        atom: Atom,
        rows: np.ndarray,
        other_mix: np.ndarray | None,
        other: Atom,
        columns: np.ndarray,
    ) -> np.ndarray:
        if mix is None and other_mix is None:
            return self._pair(atom, other, rows, columns)
        left = np.arange(atom.size)[None] if mix is not None else rows.reshape(1, -1)
        right = np.arange(other.size)[None] if other_mix is not None else columns.reshape(1, -1)
        table = self._pair(atom, other, left, right)[:, 0]  # (draws, A*, B*)
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

    def _atom_mean(self, atom: Atom) -> np.ndarray:
        """(draws or 1, size)."""
        each = np.arange(atom.size)[:, None]
        value = np.ones((1, atom.size, 1, 1))
        for group in self._groups([(f, each, 0) for f in atom.factors]):
            value = value * self._group(group)
        return value[..., 0, 0]

    def _pair(self, a: Atom, b: Atom, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """`E[a_i b_j]`."""
        factors = [(f, rows, 0) for f in a.factors] + [(f, columns, 1) for f in b.factors]
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
        """The expectation of one group, ready to be multiplied with the others."""
        if len(group) == 1:
            tree, index, side = group[0]
            mean = self._tree_mean(tree)[:, index]
            return mean[..., :, None] if side == 0 else mean[..., None, :]
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
        flat = found[..., 0, 0].reshape(found.shape[0], *shape)
        return flat[..., :, None] if side == 0 else flat[..., None, :]

    def _two(self, a: Tree, b: Tree, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        if isinstance(a, Whole) or isinstance(b, Whole):
            return self._second(_vector(a), _vector(b), rows, columns)
        x, y = a.univariate(), b.univariate()
        if x is None or y is None:
            raise _NeedsPoints
        if isinstance(a, Leaf):
            return x.covariance(y, rows, columns) * self._slope(b, y)[:, columns][..., None, :]
        if isinstance(b, Leaf):
            return x.covariance(y, rows, columns) * self._slope(a, x)[:, rows][..., :, None]
        draws = max(self._draws(a), self._draws(b))
        left, right = self._series(a, x, draws), self._series(b, y, draws)
        deviations = (
            _root(x.variance)[:, rows][..., :, None] * _root(y.variance)[:, columns][..., None, :]
        )
        covariance = x.covariance(y, rows, columns)
        rho = np.divide(
            covariance,
            deviations,
            out=np.zeros(np.broadcast_shapes(covariance.shape, deviations.shape)),
            where=deviations > 0,
        )
        rho = np.clip(rho, -1.0, 1.0)
        if not (left.converges(rho) and right.converges(rho)):
            raise _NeedsPoints
        return mehler(left, right, rows, columns, rho)

    def _slope(self, tree: Tree, form: Form) -> np.ndarray:
        """`E[φ'(x)] = E[x φ(x)] / Var(x)`, (draws or 1, size): all a linear partner sees."""
        if isinstance(tree, Leaf):
            return np.ones((1, tree.size))
        first = self._series(tree, form, self._draws(tree)).coefficients[..., 1]
        deviation = _root(form.variance)
        shape = np.broadcast_shapes(first.shape, deviation.shape)
        return np.divide(first, deviation, out=np.zeros(shape), where=deviation > 0)

    def _tree_mean(self, tree: Tree) -> np.ndarray:
        if isinstance(tree, Leaf):
            return np.zeros((1, tree.size))
        if isinstance(tree, Whole):
            vector = tree.vector
            return vector.constant + self._rest_mean(vector)
        if not any(True for _ in tree.forms()):
            return np.asarray(tree.evaluate(_At(nodes(FINE)[0])), float)[:, 0, :]
        form = tree.univariate()
        if form is None:
            raise _NeedsPoints
        return self._series(tree, form, self._draws(tree)).mean

    def _series(self, tree: Tree, form: Form, draws: int) -> HermiteSeries:
        grid = self.grid(draws)
        key = (grid, tuple(t.source.size for t in form.terms))
        if key not in tree.memory:
            values = np.asarray(tree.evaluate(_At(nodes(grid)[0])), float)
            shape = (values.shape[0], grid.points, tree.size)
            series = HermiteSeries.of(np.broadcast_to(values, shape), grid)
            self._require_no_pole(tree, series)
            tree.memory[key] = series
        return tree.memory[key]

    def _require_no_pole(self, tree: Tree, series: HermiteSeries) -> None:
        """Raise where finer and finer points about a peak find more and more of a square mean.

        About `|z|^{−p}` with m points in a cell, its square mean is off by `m^{2p−1}`: what eight
        times as many points add shrinks for p < ½, and does not where there is no square mean.
        """
        peaks = series.peaks()
        if not len(peaks):
            return
        step = 2 * series.grid.reach / series.grid.points
        found = []
        for m in (8, 64, 512):
            inside = peaks[:, None] + step * ((np.arange(m) + 0.5) / m - 0.5)
            values = np.square(np.asarray(tree.evaluate(_At(inside.ravel())), float))
            found.append(values.reshape(len(values), len(peaks), m, -1).mean(axis=2))
        first, second = found[1] - found[0], found[2] - found[1]
        if ((second > 0.5 * first) & (first > _NOT_YET * found[0])).any():
            raise no_square_mean("1/z near 0")

    def _draws(self, tree: Tree) -> int:
        """How many laws of the scalars an expression distinguishes."""
        # One point is enough to see the shape.
        return int(np.shape(tree.evaluate(_At(nodes(_PROBE)[0])))[0])

    # ---- points -----------------------------------------------------------------------------

    def _sample(self, vectors: Iterable[WideVector]) -> Cloud:
        self.sampled = True
        return Cloud([f for v in vectors for f in v.forms()], self)


_Side = tuple[Tree, np.ndarray, int]
_NOT_YET = 0.01  # of what is found so far: less is added by rounding
_MANY, _LARGEST = 4096, 0.25  # one point of as many does not hold that share of a square mean


def _require_square_mean(values: np.ndarray) -> None:
    """Raise where a single point has much of a sampled square mean, as without a variance."""
    if values.shape[0] * values.shape[1] < _MANY:
        return
    with np.errstate(invalid="ignore", over="ignore"):
        square = np.square(values)
        share = square.max(axis=(0, 1)) / np.maximum(square.sum(axis=(0, 1)), 1e-300)
    if (share > _LARGEST).any():
        raise no_square_mean("1/z near 0, or sums of Cauchy variables")


_PROBE = Grid(2, 1.0, 1, 1.0, 1.0)


class _At:
    """Points of the one variable of an expression, in units of its deviation."""

    def __init__(self, x: np.ndarray):
        self.x = x
        self.cache: dict = {}

    def form(self, form: Form) -> np.ndarray:
        return _root(form.variance)[:, None, :] * self.x[None, :, None]


class Cloud:
    """Quasi-random points of all limit variables that some forms need."""

    def __init__(self, forms: list[Form], integrator: Integrator):
        self.cache: dict = {}
        self.values: dict[tuple[int, int], np.ndarray] = {}
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
        roots = {
            key: (source, members, _factor(source.covariance[:, members][:, :, members]))
            for key, (source, members) in needed.items()
        }
        dimensions = sum(root.shape[-1] for _, _, root in roots.values())
        draws = max([1, *(root.shape[0] for _, _, root in roots.values())])
        normals = _normals(
            draws,
            integrator.points if draws > 1 else 64 * integrator.points,
            dimensions,
            integrator.rng,
        )
        begin = 0
        for key, (source, members, root) in roots.items():
            width = root.shape[-1]
            white = normals[..., begin : begin + width]
            begin += width
            found = np.zeros((*white.shape[:2], source.size))
            found[..., members] = white @ np.swapaxes(root, 1, 2)
            self.values[key] = found

    def form(self, form: Form) -> np.ndarray:
        return form_values(form, self.values)


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


def _normals(draws: int, points: int, dimensions: int, rng: np.random.Generator) -> np.ndarray:
    """Scrambled Sobol points, shifted anew for every draw: (draws, points, dimensions)."""
    dimensions = max(dimensions, 1)
    sobol = scipy.stats.qmc.Sobol(dimensions, scramble=True, rng=rng)
    uniform = sobol.random(points)[None]
    if draws > 1:
        uniform = (uniform + rng.random((draws, 1, dimensions))) % 1.0
    edge = 0.5**40
    return special.ndtri(np.clip(uniform, edge, 1 - edge))


def _factor(covariance: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(covariance)
    keep = values.max(axis=0) > 1e-13 * max(float(values.max(initial=0.0)), 1e-300)
    return (vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :])[..., keep]


def _root(variance: np.ndarray) -> np.ndarray:
    return np.sqrt(np.maximum(variance, 0.0))


def _correlated(one: _Side, two: _Side) -> bool:
    """Whether any needed pair of members shares correlated variables."""
    (tree, index, side), (other, other_index, other_side) = one, two
    if side == other_side:
        index, other_index = index.reshape(-1, 1), other_index.reshape(-1, 1)
    everything = not (tree.simple() and other.simple())
    for a in tree.forms():
        for b in other.forms():
            if everything:
                shared = {
                    (id(t.source), int(label)) for t in a.terms for label in np.unique(t.labels)
                }
                others = {
                    (id(t.source), int(label)) for t in b.terms for label in np.unique(t.labels)
                }
                if shared & others:
                    return True
            elif a.covariance(b, index, other_index).any():
                return True
    return False


def _pieces(vector: WideVector) -> list[tuple[np.ndarray | None, Atom, np.ndarray | None]]:
    """Mixtures of atoms, and the linear part with its scale."""
    pieces: list[tuple[np.ndarray | None, Atom, np.ndarray | None]] = [
        (mix, atom, None) for mix, atom in vector.parts
    ]
    if vector.form is not None:
        pieces.append((None, Atom((Leaf(vector.form),)), vector.scale))
    return pieces


def _vector(tree: Tree) -> WideVector:
    return tree.vector if isinstance(tree, Whole) else members_of(tree)
