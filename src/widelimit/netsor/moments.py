"""Second moments of a program's limit, given the values of its scalars.

Every vector is written as a polynomial in *atoms*: Gaussian vectors (inputs, `W @ h`) and
nonlinear functions `φ(…)`. Its coefficients are numbers, or one number per draw of the scalars.
`E[Z^u Z^v]` is then a sum over monomials, and the expectation of a monomial factorises over
groups of atoms that share no correlated Gaussian. Within a group: Wick's formula, the closed
forms of φ, a grid, or sampling, in that order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from ..errors import NumericalError
from .evaluation import Evaluator
from .integration import Method, Rule, expectation, without_rounding
from .nodes import (
    Dot,
    Initial,
    Map,
    MatMul,
    Matrix,
    Node,
    Operation,
    Vector,
    VectorArithmetic,
    frontier,
    is_gaussian,
)
from .polynomials import Monomial, Polynomial, add, multiply

if TYPE_CHECKING:
    from .program import Program

Moment: TypeAlias = tuple[np.ndarray, Method]

_ZERO = (np.zeros(()), Method.CLOSED_FORM)
_ONE = (np.ones(()), Method.CLOSED_FORM)


class LimitMoments:
    """The moments of all lines of stage ≤ `stage`, given the scalars up to that stage.

    What does not depend on the newest scalars is left to `parent`, so that it is computed once.
    """

    def __init__(
        self,
        program: Program,
        integration: Rule,
        *,
        scalars: Mapping[Dot, np.ndarray] | None = None,
        stage: int = 0,
        parent: LimitMoments | None = None,
    ):
        self.program = program
        self.integration = integration
        self.evaluator = Evaluator(scalars or {})
        self.stage = stage
        self.parent = parent
        self._pairs: dict[tuple[int, int], Moment] = {}
        self._groups: dict[Monomial, Moment] = {}
        self._blocks: dict[tuple[tuple[Monomial, ...], tuple[Monomial, ...], bool], Moment] = {}
        self._polynomials: dict[int, Polynomial] = {}

    def given(self, scalars: Mapping[Dot, np.ndarray], stage: int) -> LimitMoments:
        """The moments once the scalars of the next stage are known too."""
        merged = {**self.evaluator.dots, **scalars}
        return LimitMoments(
            self.program, self.integration, scalars=merged, stage=stage, parent=self
        )

    # ---- public readings ------------------------------------------------------------------

    def second_moment(self, left: Vector, right: Vector) -> Moment:
        """`E[Z^left Z^right | scalars]`, of shape () or `(draws,)`."""
        owner = self._owner((left, right))
        if owner is not self:
            return owner.second_moment(left, right)
        key = (min(left.index, right.index), max(left.index, right.index))
        if key not in self._pairs:
            for first, second in self._missing(left, right):
                self.second_moment(first, second)
            self._pairs[key] = self._second_moment(left, right)
        return self._pairs[key]

    def mean(self, vector: Vector) -> Moment:
        """`E[Z^vector | scalars]`."""
        monomials, coefficients = self._columns(vector)
        parts = [self._monomial(m) for m in monomials]
        total = sum((c * p[0] for c, p in zip(coefficients, parts, strict=True)), np.zeros(()))
        return np.asarray(total), max((p[1] for p in parts), default=Method.CLOSED_FORM)

    def gram(self, vectors: Sequence[Vector]) -> Moment:
        """`E[Z^u Z^v | scalars]` for all u, v in `vectors`, shape `(..., m, m)`."""
        return _square([[self.second_moment(u, v) for v in vectors] for u in vectors])

    def joint(self, variables: Sequence[Vector]) -> tuple[np.ndarray, np.ndarray, Method]:
        """Mean `(..., m)`, covariance `(..., m, m)` and method for linear forms of Gaussians."""
        covariance, method = _square(
            [[self._linear_covariance(u, v) for v in variables] for u in variables]
        )
        means = np.stack(np.broadcast_arrays(*[self.mean(v)[0] for v in variables]), axis=-1)
        return means, covariance, method

    def variables(self, nodes: Iterable[Node]) -> list[Vector]:
        """The fewest Gaussians that determine `nodes`: linear forms of lines, or lines."""
        forms = {v for n in nodes for v in self._variables(n)}
        lines = {i for form in forms for m in self.polynomial(form) for i in m}
        if len(lines) < len(forms):
            forms = {v for v in self.program.nodes if v.index in lines and isinstance(v, Vector)}
        return sorted(forms, key=lambda v: v.index)

    def covariance(self, left: Node, right: Node) -> Moment:
        """Covariance of two Gaussian lines: that of the inputs, or `σ² E[Z^h Z^h']` for one W."""
        if isinstance(left, Initial) and isinstance(right, Initial) and left.group == right.group:
            group = self.program.groups[left.group]
            return np.asarray(group.covariance[left.position, right.position]), Method.CLOSED_FORM
        if isinstance(left, MatMul) and isinstance(right, MatMul) and left.matrix is right.matrix:
            value, method = self.second_moment(left.operand, right.operand)
            return left.matrix.std**2 * value, method
        return _ZERO

    def scalar_covariance(self, rows: Sequence[Dot], columns: Sequence[Dot]) -> Moment:
        """`Cov(p_k, p_l) = E[Z^{k,1} Z^{k,2} Z^{l,1} Z^{l,2}]`, shape `(..., rows, columns)`.

        The four are centred Gaussians and the two of one dot product independent, so this is
        `Cov(k1,l1) Cov(k2,l2) + Cov(k1,l2) Cov(k2,l1)`.
        """
        sides = sorted({v for d in (*rows, *columns) for v in d.sides}, key=lambda v: v.index)
        gram, method = self.gram(sides)
        k1, k2 = (np.array([sides.index(d.sides[s]) for d in rows])[:, None] for s in (0, 1))
        l1, l2 = (np.array([sides.index(d.sides[s]) for d in columns]) for s in (0, 1))
        straight = gram[..., k1, l1] * gram[..., k2, l2]
        return straight + gram[..., k1, l2] * gram[..., k2, l1], method

    # ---- polynomials ----------------------------------------------------------------------

    def polynomial(self, node: Vector) -> Polynomial:
        """The vector as a polynomial in atoms."""
        if node.index not in self._polynomials:
            if isinstance(node, VectorArithmetic):
                parts = [
                    self.polynomial(p) if isinstance(p, Vector) else {(): self.evaluator.scalar(p)}
                    for p in node.parts
                ]
                step = add if node.operation is Operation.SUM else multiply
                result = parts[0]
                for part in parts[1:]:
                    result = step(result, part)
            else:
                result = {(node.index,): np.ones(())}
            self._polynomials[node.index] = result
        return self._polynomials[node.index]

    def _columns(self, vector: Vector) -> tuple[tuple[Monomial, ...], list[np.ndarray]]:
        polynomial = self.polynomial(vector)
        return tuple(polynomial), list(polynomial.values())

    def _second_moment(self, left: Vector, right: Vector) -> Moment:
        if self._is_linear(left) and self._is_linear(right):
            covariance, method = self._linear_covariance(left, right)
            return covariance + self.mean(left)[0] * self.mean(right)[0], method
        return self._contracted(left, right, centred=False)

    def _linear_covariance(self, left: Vector, right: Vector) -> Moment:
        """`Σ_ij c_i d_j Cov(Z_i, Z_j)` of linear forms: means take no part, however large."""
        return self._contracted(left, right, centred=True)

    def _contracted(self, left: Vector, right: Vector, *, centred: bool) -> Moment:
        """`Σ_ij c_i d_j E[m_i m_j]` over the monomials of two vectors, or of their covariances."""
        rows, c = self._columns(left)
        columns, d = self._columns(right)
        block, method = self._block(rows, columns, centred=centred)
        c, d = (np.stack(np.broadcast_arrays(*parts), axis=-1) for parts in (c, d))
        value = np.einsum("...i,...ij,...j->...", c, block, d)
        size = np.einsum("...i,...ij,...j->...", np.abs(c), np.abs(block), np.abs(d))
        return without_rounding(value, size, method, square=left is right), method

    def _block(
        self, rows: tuple[Monomial, ...], columns: tuple[Monomial, ...], *, centred: bool
    ) -> Moment:
        """`E[monomial · monomial']` or covariances for all of them, as `(..., rows, columns)`."""
        owner = self._owner([self._node(i) for m in (*rows, *columns) for i in m])
        if owner is not self:
            return owner._block(rows, columns, centred=centred)
        if (rows, columns, centred) not in self._blocks:
            pair = self._pair_covariance if centred else self._pair_moment
            self._blocks[rows, columns, centred] = _square(
                [[pair(r, c) for c in columns] for r in rows]
            )
        return self._blocks[rows, columns, centred]

    def _pair_moment(self, first: Monomial, second: Monomial) -> Moment:
        return self._monomial(tuple(sorted(first + second)))

    def _pair_covariance(self, first: Monomial, second: Monomial) -> Moment:
        """The covariance of two Gaussian lines; constants have none."""
        if not first or not second:
            return _ZERO
        return self.covariance(self._node(first[0]), self._node(second[0]))

    # ---- expectations of monomials --------------------------------------------------------

    def _monomial(self, atoms: Monomial) -> Moment:
        """`E[Π atoms]`, factorised over independent groups."""
        value, method = _ONE
        for group in self._independent(atoms):
            part, part_method = self._group(group)
            value, method = value * part, max(method, part_method)
        return value, method

    def _group(self, atoms: Monomial) -> Moment:
        owner = self._owner([self._node(i) for i in atoms])
        if owner is not self:
            return owner._group(atoms)
        if atoms not in self._groups:
            if all(is_gaussian(self._node(i)) for i in atoms):
                moment = self._wick(atoms)
            else:
                moment = self._closed_form(atoms) or self._integral(atoms)
            if not np.all(np.isfinite(moment[0])):
                raise NumericalError(
                    "Moments of the limit must be finite.",
                    got=f"overflow in E[{' · '.join(self._node(i).label for i in atoms)}]",
                    remedy="lower the standard deviations, or choose functions that grow slower",
                )
            self._groups[atoms] = moment
        return self._groups[atoms]

    def _wick(self, atoms: Monomial) -> Moment:
        """`E[Z₁ Π Zⱼ] = μ₁ E[Π Zⱼ] + Σⱼ Cov(Z₁, Zⱼ) E[Π_{k≠j} Z_k]`."""
        if not atoms:
            return _ONE
        first, rest = self._node(atoms[0]), atoms[1:]
        mean = _gaussian_mean(first)
        total, method = np.zeros(()), Method.CLOSED_FORM
        if mean:
            value, method = self._wick(rest)
            total = mean * value
        for j, other in enumerate(rest):
            covariance, m1 = self.covariance(first, self._node(other))
            if not np.any(covariance):
                continue
            value, m2 = self._wick(rest[:j] + rest[j + 1 :])
            total, method = total + covariance * value, max(method, m1, m2)
        return np.asarray(total), method

    def _closed_form(self, atoms: Monomial) -> Moment | None:
        """`E[φ(u)φ(v)]`, `E[φ(u)]` or `E[Zφ(u)] = Cov(Z,u) E[φ'(u)]`, where φ has them."""
        nodes = [self._node(i) for i in atoms]
        maps = [node for node in nodes if isinstance(node, Map)]
        form = maps[0].function.closed_form
        if form is None or len(atoms) > 2 or any(len(m.operands) > 1 for m in maps):
            return None
        if any(m.function.closed_form is not form for m in maps):
            return None
        arguments = [m.vectors[0] for m in maps]
        if not all(self._is_linear(a) and self._is_centred(a) for a in arguments):
            return None
        u = arguments[0]
        q, method = self.second_moment(u, u)
        if len(nodes) == 1:
            return form.mean(q), method
        if len(maps) == 1:
            gaussian = nodes[0] if nodes[1] is maps[0] else nodes[1]
            if _gaussian_mean(gaussian):
                return None
            assert isinstance(gaussian, Vector)
            c, m = self.second_moment(gaussian, u)
            return c * form.slope(q), max(method, m)
        c, m1 = self.second_moment(u, arguments[1])
        r, m2 = self.second_moment(arguments[1], arguments[1])
        return form.pair(q, c, r), max(method, m1, m2)

    def _integral(self, atoms: Monomial) -> Moment:
        """A grid or sampling over the linear forms of Gaussians that the atoms depend on."""
        variables = self.variables([self._node(i) for i in atoms])
        means, covariance, inherited = self.joint(variables)

        def integrand(values: np.ndarray, part: slice) -> np.ndarray:
            known = {v.index: values[..., k] for k, v in enumerate(variables)}
            return math.prod(
                (self.evaluator.coordinates(self._node(i), known, part) for i in atoms),
                start=np.ones(values.shape[:-1]),
            )

        return expectation(
            self.integration,
            covariance,
            means,
            integrand,
            draws=self.evaluator.draws,
            inherited=inherited,
        )

    def _missing(self, left: Vector, right: Vector) -> list[tuple[Vector, Vector]]:
        """The second moments `E[Z^left Z^right]` rests on that are not known yet, earliest first.

        Deep programs rest on long chains of them; taking these in order keeps the recursion flat.
        """
        found: dict[tuple[int, int], tuple[Vector, Vector]] = {}
        pending = [(left, right)]
        while pending:
            by_matrix: dict[Matrix, list[Vector]] = {}
            for gaussian in {g for vector in pending.pop() for g in frontier(vector)}:
                if isinstance(gaussian, MatMul):
                    by_matrix.setdefault(gaussian.matrix, []).append(gaussian.operand)
            for operands in by_matrix.values():
                operands.sort(key=lambda v: v.index)
                for pair in combinations_with_replacement(operands, 2):
                    key = (pair[0].index, pair[1].index)
                    if key not in found and key not in self._owner(pair)._pairs:
                        found[key] = pair
                        pending.append(pair)
        return [found[key] for key in sorted(found, key=lambda key: (key[1], key[0]))]

    # ---- structure ------------------------------------------------------------------------

    def _node(self, index: int) -> Node:
        return self.program.nodes[index]

    def _owner(self, nodes: Iterable[Node]) -> LimitMoments:
        stage = max((node.stage for node in nodes), default=0)
        owner = self
        while owner.parent is not None and stage <= owner.parent.stage:
            owner = owner.parent
        return owner

    def _is_linear(self, vector: Vector) -> bool:
        return all(
            len(m) == 0 or (len(m) == 1 and is_gaussian(self._node(m[0])))
            for m in self.polynomial(vector)
        )

    def _is_centred(self, linear: Vector) -> bool:
        return not np.any(self.mean(linear)[0])

    def _variables(self, node: Node) -> set[Vector]:
        if not isinstance(node, Vector):
            return set()
        if self._is_linear(node):
            return {node}
        return {v for operand in node.operands for v in self._variables(operand)}

    def _independent(self, atoms: Monomial) -> list[Monomial]:
        """Split atoms into groups between which all Gaussians are uncorrelated."""
        groups: list[tuple[list[int], set[int]]] = []
        for atom in atoms:
            members, support = [atom], self._support(atom)
            apart = []
            for other, other_support in groups:
                if self._linked(support, other_support):
                    members, support = other + members, support | other_support
                else:
                    apart.append((other, other_support))
            groups = [*apart, (members, support)]
        return [tuple(sorted(members)) for members, _ in groups]

    def _support(self, atom: int) -> set[int]:
        variables = self._variables(self._node(atom))
        return {i for v in variables for m in self.polynomial(v) for i in m}

    def _linked(self, first: set[int], second: set[int]) -> bool:
        return any(
            i == j or np.any(self.covariance(self._node(i), self._node(j))[0])
            for i in first
            for j in second
        )


def _gaussian_mean(node: Node) -> float:
    if isinstance(node, Initial):
        return float(node.program.groups[node.group].mean[node.position])
    return 0.0


def _square(rows: list[list[Moment]]) -> Moment:
    """A table of moments of shape () or (draws,) as one array `(..., rows, columns)`."""
    flat = [moment for row in rows for moment in row]
    stacked = np.stack(np.broadcast_arrays(*[value for value, _ in flat]), axis=-1)
    table = stacked.reshape(*stacked.shape[:-1], len(rows), -1)
    return table, max(method for _, method in flat)
