"""The covariance and the tangent kernel of one pair of inputs, with linear maps that wait."""

import functools
import math
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float

from ..errors import ShapeError

# --- matrix products of pairs, for tiles of pairs ---
#
# In a tile `A κ` has one `A` for every row of pairs. Mapped as usual, all κ of that row become one
# wide matrix, which takes a transposed copy of κ before the product and another one after it. On a
# processor it is twice as fast to repeat `A`, which is small, and to multiply pair by pair.

Product = Callable[[Array, Array], Array]


def _pairwise(contracted: int) -> Product:
    """The product over the last axis of one matrix and an axis of the other (−2 or −1)."""

    def plain(a: Array, b: Array) -> Array:
        lead = tuple(range(a.ndim - 2))
        axes = (a.ndim - 1,), (b.ndim + contracted,)
        return jax.lax.dot_general(a, b, (axes, (lead, lead)))

    @custom_vmap
    def repeated(a: Array, b: Array) -> Array:
        return plain(a, b)

    @repeated.def_vmap
    def _(size: int, batched: list[bool], a: Array, b: Array) -> tuple[Array, bool]:
        a, b = (
            x if already else jnp.broadcast_to(x, (size, *x.shape))
            for x, already in zip((a, b), batched, strict=True)
        )
        return repeated(a, b), True

    @jax.custom_jvp
    def product(a: Array, b: Array) -> Array:
        if a.shape[-2] == 1:  # vectors have nothing to transpose
            return plain(a, b)
        # Accelerators like wide matrices. Which one it is, is known when the program is lowered.
        return jax.lax.platform_dependent(a, b, cpu=repeated, default=plain)

    @product.defjvp
    def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
        (a, b), (da, db) = primals, tangents
        return product(a, b), plain(da, b) + plain(a, db)

    return product


_times: Product = _pairwise(-2)
_times_transposed: Product = _pairwise(-1)


def sandwich(
    left: Float[Array, "a s"] | None, kernel: Float[Array, "s t"], right: Float[Array, "b t"] | None
) -> Array:
    """`L κ Rᵀ`, the smaller side first; None is the identity."""
    if left is None:
        return kernel if right is None else _times_transposed(kernel, right)
    if right is None:
        return _times(left, kernel)
    if left.shape[0] > right.shape[0]:
        return _times(left, _times_transposed(kernel, right))
    return _times_transposed(_times(left, kernel), right)


# Beyond this many pending maps, applying them all costs more than applying them early.
_MOST_TERMS = 2


class PendingMap(eqx.Module):
    """One pending map: contributes `nngp·LKRᵀ` to κ and `ntk·LΘRᵀ + lift·LKRᵀ` to Θ.

    K is the κ that stands below the maps or, of a `constant` (a bias), 1. `left` and `right` have
    axes (positions…, flattened base positions); None is the identity.
    """

    left: Array | None
    right: Array | None
    nngp: Float[Array, ""]
    ntk: Float[Array, ""]
    lift: Float[Array, ""]
    constant: bool = eqx.field(static=True, default=False)

    def affine(self, scale: Array, lift: Array) -> "PendingMap":
        """Its contributions to scale·κ, and to scale·Θ + lift·κ."""
        more = scale * self.lift + lift * self.nngp
        return replace(self, nngp=scale * self.nngp, ntk=scale * self.ntk, lift=more)


def _mix_left(mix: Callable[[Array], Array], kernel: Array, rank: int) -> Array:
    """Apply a position-linear map to the first `rank` axes of (positions…, positions'…)."""
    rest = kernel.shape[rank:]
    mixed = mix(kernel.reshape(*kernel.shape[:rank], -1))
    return mixed.reshape(*mixed.shape[:-1], *rest)


def _mix_right(mix: Callable[[Array], Array], kernel: Array, rank: int) -> Array:
    """Apply a position-linear map to the last `rank` axes of (positions…, positions'…)."""
    lead = kernel.shape[: kernel.ndim - rank]
    rows = kernel.reshape(-1, *kernel.shape[kernel.ndim - rank :])
    mixed = jax.vmap(lambda row: mix(row[..., None])[..., 0])(rows)
    return mixed.reshape(*lead, *mixed.shape[1:])


class Pair(eqx.Module):
    """Kernels of one pair of inputs at one layer.

    Layout: `full` arrays have axes (positions…, positions'…); otherwise only equal positions are
    kept, axes (positions…). `rank` counts the position axes of one input *after* pending maps.
    """

    nngp: Array
    ntk: Array | None
    rank: int = eqx.field(static=True)
    full: bool = eqx.field(static=True)
    terms: tuple[PendingMap, ...] | None = None
    # The arrays stand in memory: reading them many times recomputes nothing.
    settled: bool = eqx.field(static=True, default=False)
    # Θ is zero still: nothing below has parameters.
    blank: bool = eqx.field(static=True, default=False)

    def to(self, nngp: Array, ntk: Array | None) -> "Pair":
        """Plain kernels in the same layout."""
        return Pair(nngp, ntk, self.rank, self.full)

    def left(self, value: Array) -> Array:
        """Per-position values (positions…, extra…) of the first input, shaped for the kernel."""
        if not self.full:
            return value
        lead, extra = value.shape[: self.rank], value.shape[self.rank :]
        return value.reshape(*lead, *(1,) * self.rank, *extra)

    def right(self, value: Array) -> Array:
        """Per-position values (positions…, extra…) of the second input, shaped for the kernel."""
        return value.reshape(*(1,) * self.rank, *value.shape) if self.full else value

    def each(self, function: Callable[[Array], Array]) -> "Pair":
        """The same linear function on κ and on Θ."""
        pair = self.compute()
        nngp = function(pair.nngp)
        if pair.blank:
            return Pair(nngp, jnp.zeros_like(nngp), self.rank, self.full, blank=True)
        return pair.to(nngp, None if pair.ntk is None else function(pair.ntk))

    def hide_padding(self, mask1: Array | None, mask2: Array | None) -> "Pair":
        """Zero the rows and columns of positions that are not real."""
        dtype = self.nngp.dtype
        one, two = (None if mask is None else mask.astype(dtype) for mask in (mask1, mask2))
        return self.scale_positions(one, two)

    def scale_positions(self, left: Array | None, right: Array | None) -> "Pair":
        """κ_ab ← left_a κ_ab right_b and the same for Θ; None is 1."""
        if left is None and right is None:
            return self
        if self.terms is not None and all(t.left is not None for t in self.terms):
            one, two = (
                lambda f, values=values: f if values is None else f * values[..., None]
                for values in (left, right)
            )
            return self.map_positions(one, two)

        def scale(kernel: Array) -> Array:
            kernel = kernel if left is None else kernel * self.left(left)
            return kernel if right is None else kernel * self.right(right)

        return self.each(scale)

    def affine(
        self,
        *,
        scale: Array,
        lift: Array,
        bias: Array | None = None,
        ntk_bias: Array | None = None,
        masks: tuple[Array | None, Array | None] = (None, None),
    ) -> "Pair":
        """κ ← scale·κ + bias·1 and Θ ← scale·Θ + lift·κ + ntk_bias·1, with 1 at real positions."""
        lifted: Any = bias if ntk_bias is None else ntk_bias
        if self.terms is not None:
            terms = tuple(term.affine(scale, lift) for term in self.terms)
            if bias is not None:
                one, two = (
                    (jnp.ones(shape) if mask is None else mask).astype(bias.dtype)[..., None]
                    for mask, shape in zip(masks, self._shapes(), strict=True)
                )
                constant = PendingMap(one, two, bias, jnp.zeros_like(bias), lifted, constant=True)
                terms = (*terms, constant)
            return replace(self, terms=terms)
        nngp, ntk = scale * self.nngp, self.ntk
        if ntk is not None:
            ntk = lift * self.nngp if self.blank else scale * ntk + lift * self.nngp
        if bias is None:
            return self.to(nngp, ntk)
        return self.to(nngp + bias, None if ntk is None else ntk + lifted).hide_padding(*masks)

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Position axes of the two inputs after pending maps."""
        assert self.terms is not None
        half, first = self.nngp.ndim // 2, self.terms[0]
        return (
            self.nngp.shape[:half] if first.left is None else first.left.shape[:-1],
            self.nngp.shape[half:] if first.right is None else first.right.shape[:-1],
        )

    def map_positions(
        self, left: Callable[[Array], Array], right: Callable[[Array], Array]
    ) -> "Pair":
        """κ ← L κ Rᵀ for position-linear maps given as functions of (positions…, anything)."""
        if self.terms is None:
            both = self.each(
                lambda kernel: _mix_right(right, _mix_left(left, kernel, self.rank), self.rank)
            )
            return replace(both, rank=both.nngp.ndim // 2, full=True)
        half, dtype = self.nngp.ndim // 2, self.nngp.dtype
        terms = tuple(
            replace(
                term,
                left=left(_matrix_or_identity(term.left, self.nngp.shape[:half], dtype)),
                right=right(_matrix_or_identity(term.right, self.nngp.shape[half:], dtype)),
            )
            for term in self.terms
        )
        after = replace(self, full=True, terms=terms)
        return replace(after, rank=len(after._shapes()[0]))

    def map_positions_later(
        self, left: Float[Array, "a base"], right: Float[Array, "b base2"]
    ) -> "Pair":
        """κ ← L κ Rᵀ, kept pending, for matrices over flattened positions that stay as they are."""
        pending = sum(not term.constant for term in self.terms or ())
        if 0 < pending < _MOST_TERMS:
            return self.map_positions(_matrix_map(left), _matrix_map(right))
        pair = self.compute()
        shapes = pair.nngp.shape[: pair.rank], pair.nngp.shape[pair.rank :]
        left, right = (m.reshape(*s, -1) for m, s in zip((left, right), shapes, strict=True))
        return replace(pair, full=True, terms=(_pending(left, right, pair.nngp.dtype),))

    def compute(self) -> "Pair":
        """Apply whatever is pending: the kernels as plain arrays."""
        if self.terms is None:
            return self
        size = math.prod(self.nngp.shape[: self.nngp.ndim // 2])
        flat = self.nngp.reshape(size, -1)
        flat_ntk = None if self.ntk is None or self.blank else self.ntk.reshape(size, -1)
        nngp: list[Array] = []
        ntk: list[Array] = []
        for term in self.terms:
            left, right = (
                None if side is None else side.reshape(-1, side.shape[-1])
                for side in (term.left, term.right)
            )
            if term.constant and left is not None and right is not None:
                moved = left * right.T
            else:
                moved = sandwich(left, flat, right)
            nngp.append(term.nngp * moved)
            if flat_ntk is not None and not term.constant:
                ntk.append(term.ntk * sandwich(left, flat_ntk, right))
            if self.ntk is not None:
                ntk.append(term.lift * moved)
        shape = sum(self._shapes(), ())
        return self.to(_sum(nngp).reshape(shape), _sum(ntk).reshape(shape) if ntk else None)

    def diagonal(self) -> "Pair":
        """Only equal positions of the two inputs."""
        pair, rank = self.compute(), self.rank
        if not self.full or rank == 0:
            return replace(pair, full=False)
        shape, other = pair.nngp.shape[:rank], pair.nngp.shape[rank:]
        require_equal_positions(shape, other)
        step = math.prod(other) + 1
        # A slice: `jnp.diagonal` gathers, which takes longer to compile and to run.
        return replace(
            pair.each(lambda kernel: kernel.reshape(-1)[::step].reshape(shape)), full=False
        )


def require_equal_positions(one: tuple[int, ...], two: tuple[int, ...]) -> None:
    """Raise where two inputs have no equal positions to be compared at."""
    if one != two:
        raise ShapeError(
            "Flatten met inputs of different positions: it gives every position its own weights.",
            got=f"inputs with positions {one} and {two}",
            remedy="pool or select a position instead (MeanPool, Select), or bring the inputs to "
            "one length",
        )


def total(pairs: list[Pair], weights: list[Array]) -> Pair:
    """Σ weight·pair. Branches that only hold pending maps of one kernel stay pending."""
    base = pairs[0].nngp
    if all(p.nngp is base and p.full for p in pairs) and any(p.terms is not None for p in pairs):
        terms = tuple(
            term.affine(weight, jnp.zeros((), base.dtype))
            for pair, weight in zip(pairs, weights, strict=True)
            for term in pair.terms or (_pending(None, None, base.dtype),)
        )
        if len({term.left.shape[:-1] for term in terms if term.left is not None}) <= 1:
            return replace(pairs[0], terms=terms)
    plain = [pair.compute() for pair in pairs]
    parts = list(zip(weights, plain, strict=True))
    ntk = [weight * pair.ntk for weight, pair in parts if pair.ntk is not None]
    return plain[0].to(_sum([w * pair.nngp for w, pair in parts]), _sum(ntk) if ntk else None)


def _pending(left: Array | None, right: Array | None, dtype: Any) -> PendingMap:
    """A map that has just begun to wait."""
    return PendingMap(left, right, jnp.ones((), dtype), jnp.ones((), dtype), jnp.zeros((), dtype))


def _sum(parts: list[Array]) -> Array:
    return functools.reduce(operator.add, parts)


def _matrix_map(matrix: Float[Array, "a base"]) -> Callable[[Array], Array]:
    """`f ← M f` on (positions…, anything), for a matrix over flattened positions."""

    def mix(f: Array) -> Array:
        return (matrix @ f.reshape(matrix.shape[1], -1)).reshape(f.shape)

    return mix


def _matrix_or_identity(matrix: Array | None, positions: tuple[int, ...], dtype: Any) -> Array:
    """The matrix of a pending map, (positions…, flattened base positions)."""
    size = math.prod(positions)
    return jnp.eye(size, dtype=dtype).reshape(*positions, size) if matrix is None else matrix
