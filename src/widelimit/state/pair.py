"""The covariance and the tangent kernel of one pair of inputs, with linear maps that wait."""

import math
from collections.abc import Callable
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
    """One pending map: contributes `nngp·LκRᵀ` to κ and `ntk·LΘRᵀ + lift·LκRᵀ` to Θ.

    `left` and `right` have axes (positions…, flattened base positions); None is the identity.
    """

    left: Array | None
    right: Array | None
    nngp: Float[Array, ""]
    ntk: Float[Array, ""]
    lift: Float[Array, ""]


class Bias(eqx.Module):
    """A pending rank-one term: `nngp·l rᵀ` in κ and `ntk·l rᵀ` in Θ (l, r over positions)."""

    left: Array
    right: Array
    nngp: Float[Array, ""]
    ntk: Float[Array, ""]


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
    biases: tuple[Bias, ...] = ()
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
        pair = self.forced()
        nngp = function(pair.nngp)
        if pair.blank:
            return Pair(nngp, jnp.zeros_like(nngp), self.rank, self.full, blank=True)
        return pair.to(nngp, None if pair.ntk is None else function(pair.ntk))

    def masked(self, mask1: Array | None, mask2: Array | None) -> "Pair":
        """Zero the rows and columns of positions that are not real."""
        if mask1 is None and mask2 is None:
            return self
        dtype = self.nngp.dtype
        if self.terms is not None and all(t.left is not None for t in self.terms):

            def hidden(mask: Array | None) -> Callable[[Array], Array]:
                return lambda f: f if mask is None else f * mask[..., None].astype(dtype)

            return self.mixed(hidden(mask1), hidden(mask2))

        def keep(kernel: Array) -> Array:
            for mask, place in ((mask1, self.left), (mask2, self.right)):
                if mask is not None:
                    kernel = kernel * place(mask.astype(dtype))
            return kernel

        return self.each(keep)

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
        if self.terms is not None:
            terms = tuple(
                PendingMap(
                    t.left, t.right, scale * t.nngp, scale * t.ntk, scale * t.lift + lift * t.nngp
                )
                for t in self.terms
            )
            biases = tuple(
                Bias(b.left, b.right, scale * b.nngp, scale * b.ntk + lift * b.nngp)
                for b in self.biases
            )
            if bias is not None:
                ones = self._ones(masks)
                biases = (*biases, Bias(*ones, bias, bias if ntk_bias is None else ntk_bias))
            return Pair(self.nngp, self.ntk, self.rank, self.full, terms, biases)
        nngp = scale * self.nngp
        ntk = None
        if self.ntk is not None:
            ntk = lift * self.nngp if self.blank else scale * self.ntk + lift * self.nngp
        if bias is None:
            return self.to(nngp, ntk)
        nngp = nngp + bias
        ntk = None if ntk is None else ntk + (bias if ntk_bias is None else ntk_bias)
        return self.to(nngp, ntk).masked(*masks)

    def _ones(self, masks: tuple[Array | None, Array | None]) -> tuple[Array, Array]:
        """1 at the real positions of either input, in the shape after pending maps."""
        one, two = (
            jnp.ones(shape, self.nngp.dtype) if mask is None else mask.astype(self.nngp.dtype)
            for mask, shape in zip(masks, self._shapes(), strict=True)
        )
        return one, two

    def _shapes(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Position axes of the two inputs after pending maps."""
        assert self.terms is not None
        base, first = self.nngp.ndim // 2, self.terms[0]
        return (
            self.nngp.shape[:base] if first.left is None else first.left.shape[:-1],
            self.nngp.shape[base:] if first.right is None else first.right.shape[:-1],
        )

    def rows_scaled(self, left: Array, right: Array) -> "Pair":
        """κ_ab ← left_a κ_ab right_b and the same for Θ."""
        if self.terms is not None and all(t.left is not None for t in self.terms):
            return self.mixed(lambda f: f * left[..., None], lambda f: f * right[..., None])
        return self.each(lambda kernel: kernel * self.left(left) * self.right(right))

    def mixed(self, left: Callable[[Array], Array], right: Callable[[Array], Array]) -> "Pair":
        """κ ← L κ Rᵀ for position-linear maps given as functions of (positions…, anything)."""
        if self.terms is None:
            pair = self

            def both(kernel: Array) -> Array:
                moved = _mix_left(left, kernel, self.rank)
                return _mix_right(right, moved, self.rank)

            nngp = both(pair.nngp)
            ntk = None if pair.ntk is None else both(pair.ntk)
            return Pair(nngp, ntk, nngp.ndim // 2, True)
        base = self.nngp.ndim // 2
        shape1, shape2 = self.nngp.shape[:base], self.nngp.shape[base:]
        terms = tuple(
            PendingMap(
                left(_identity_map(shape1, self.nngp.dtype) if t.left is None else t.left),
                right(_identity_map(shape2, self.nngp.dtype) if t.right is None else t.right),
                t.nngp,
                t.ntk,
                t.lift,
            )
            for t in self.terms
        )
        biases = tuple(
            Bias(left(b.left[..., None])[..., 0], right(b.right[..., None])[..., 0], b.nngp, b.ntk)
            for b in self.biases
        )
        assert terms[0].left is not None
        return Pair(self.nngp, self.ntk, terms[0].left.ndim - 1, True, terms, biases)

    def lazily_mixed(self, left: Float[Array, "a base"], right: Float[Array, "b base2"]) -> "Pair":
        """κ ← L κ Rᵀ, kept pending, for matrices over flattened positions that stay as they are."""
        if self.terms is not None and len(self.terms) < _MOST_TERMS:
            return self.mixed(_matrix_map(left), _matrix_map(right))
        pair = self.forced()
        one, zero = jnp.ones((), pair.nngp.dtype), jnp.zeros((), pair.nngp.dtype)
        left, right = (
            matrix.reshape(*shape, matrix.shape[-1])
            for matrix, shape in (
                (left, pair.nngp.shape[: pair.rank]),
                (right, pair.nngp.shape[pair.rank :]),
            )
        )
        term = PendingMap(left, right, one, one, zero)
        return Pair(pair.nngp, pair.ntk, pair.rank, True, (term,))

    def forced(self) -> "Pair":
        """Apply whatever is pending: the kernels as plain arrays."""
        if self.terms is None:
            return self
        base = self.nngp.ndim // 2
        size1 = math.prod(self.nngp.shape[:base])
        flat = self.nngp.reshape(size1, -1)
        flat_ntk = None if self.ntk is None else self.ntk.reshape(size1, -1)
        nngp = ntk = None
        for t in self.terms:
            sides = _flat(t.left), _flat(t.right)
            moved = sandwich(sides[0], flat, sides[1])
            nngp = _plus(nngp, t.nngp * moved)
            if flat_ntk is not None:
                moved_ntk = sandwich(sides[0], flat_ntk, sides[1])
                ntk = _plus(ntk, t.ntk * moved_ntk + t.lift * moved)
        for b in self.biases:
            plane = b.left.reshape(-1, 1) * b.right.reshape(1, -1)
            nngp = _plus(nngp, b.nngp * plane)
            if ntk is not None:
                ntk = ntk + b.ntk * plane
        shape1, shape2 = self._shapes()
        shape = (*shape1, *shape2)
        assert nngp is not None
        return self.to(nngp.reshape(shape), None if ntk is None else ntk.reshape(shape))

    def diagonal(self) -> "Pair":
        """Only equal positions of the two inputs."""
        if not self.full or self.rank == 0:
            return Pair(self.forced().nngp, self.forced().ntk, self.rank, False)
        pair = self.forced()
        rank, shape = self.rank, pair.nngp.shape[: self.rank]
        require_equal_positions(shape, pair.nngp.shape[self.rank :])
        step = math.prod(pair.nngp.shape[self.rank :]) + 1

        def pick(kernel: Array) -> Array:
            # A slice: `jnp.diagonal` gathers, which takes longer to compile and to run.
            return kernel.reshape(-1)[::step].reshape(shape)

        return Pair(pick(pair.nngp), None if pair.ntk is None else pick(pair.ntk), rank, False)


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
        one, zero = jnp.ones((), base.dtype), jnp.zeros((), base.dtype)
        terms: list[PendingMap] = []
        biases: list[Bias] = []
        for pair, w in zip(pairs, weights, strict=True):
            for t in pair.terms or (PendingMap(None, None, one, one, zero),):
                terms.append(PendingMap(t.left, t.right, w * t.nngp, w * t.ntk, w * t.lift))
            biases += [Bias(b.left, b.right, w * b.nngp, w * b.ntk) for b in pair.biases]
        shapes_agree = len({t.left.shape for t in terms if t.left is not None}) <= 1
        if shapes_agree:
            return Pair(base, pairs[0].ntk, pairs[0].rank, True, tuple(terms), tuple(biases))
    plain = [pair.forced() for pair in pairs]
    nngp = ntk = None
    for pair, w in zip(plain, weights, strict=True):
        nngp = _plus(nngp, w * pair.nngp)
        ntk = None if pair.ntk is None else _plus(ntk, w * pair.ntk)
    assert nngp is not None
    return plain[0].to(nngp, ntk)


def _matrix_map(matrix: Float[Array, "a base"]) -> Callable[[Array], Array]:
    """`f ← M f` on (positions…, anything), for a matrix over flattened positions."""

    def mix(f: Array) -> Array:
        return (matrix @ f.reshape(matrix.shape[1], -1)).reshape(f.shape)

    return mix


def _identity_map(positions: tuple[int, ...], dtype: Any) -> Array:
    return jnp.eye(math.prod(positions), dtype=dtype).reshape(*positions, math.prod(positions))


def _flat(matrix: Array | None) -> Array | None:
    """(positions…, base) as a matrix."""
    return None if matrix is None else matrix.reshape(-1, matrix.shape[-1])


def _plus(accumulated: Array | None, term: Array) -> Array:
    return term if accumulated is None else accumulated + term
