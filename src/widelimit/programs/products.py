"""Rules of contractions: MatMul, dot products, mixtures over finite axes, sums over the width.

Outer products with two width axes are the gradients of weight matrices, and matrices made of
activations, `kᵀ v` of linear attention. What the latter do to a vector is
`(Σ_i k_i v_iᵀ)ᵀ q = Σ_i (k_i·q) v_i`. Convolutions are contractions of patches of positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import NumericalError
from ..printing import counted
from .entrywise import leading_power
from .gaussian import Form, correlated
from .layout import Layout, numbered
from .matrices import Outer, OuterProduct, Use, WideMatrix
from .refusals import RefusedError
from .scalars import DotGroup, WideScalar
from .steps import Step
from .thresholds import NO_MEAN, PLAIN_MEAN
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine

MOST_COEFFICIENTS = 1 << 27  # of a mixture: a gigabyte


Pairs = tuple[tuple[int, int], ...]
"""Axes of the left side, each with one of the right side."""


@dataclass(frozen=True)
class Meeting:
    """Entries of both sides behind every result, (results, terms); -1 on both: nothing."""

    entries: tuple[np.ndarray, np.ndarray]
    shape: tuple[int, ...]
    """Of the results."""
    places: tuple[dict[int, int], dict[int, int]]
    """Where the axes of either side are among the results'."""

    @classmethod
    def of(cls, rows: np.ndarray, columns: np.ndarray, shape: Any, places: Any) -> Meeting:
        """Of entries that broadcast to (…, terms)."""
        nothing = (rows < 0) | (columns < 0)
        terms = nothing.shape[-1]
        left, right = (np.where(nothing, -1, side).reshape(-1, terms) for side in (rows, columns))
        return cls((left, right), tuple(shape), places)


@dataclass(frozen=True)
class Contraction:
    """Which axes two arrays sum over together, and which they keep in common."""

    contract: Pairs
    batch: Pairs
    meet: Callable[[np.ndarray, np.ndarray], Meeting]
    """What meets what, by the numbers of both sides' entries in the sides' shapes."""


def contract(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`dot_general`: results come as (batch, left's, right's)."""
    pairs = [tuple(zip(*p, strict=True)) for p in step.params[0]["dimension_numbers"]]

    def meet(*sides: np.ndarray) -> Meeting:
        shape, places, blocks = [], [], []
        for side, array in enumerate(sides):
            summed, batch = ([pair[side] for pair in p] for p in pairs)
            free = [a for a in range(array.ndim) if a not in (*batch, *summed)]
            lengths = [[array.shape[a] for a in axes] for axes in (batch, free, summed)]
            shape += lengths[1] if side else [*lengths[0], *lengths[1]]
            there = (*range(len(batch)), *range(len(shape) - len(free), len(shape)))
            places.append(dict(zip((*batch, *free), there, strict=True)))
            flat = [math.prod(each) for each in lengths]
            blocks.append(array.transpose(*batch, *free, *summed).reshape(flat))
        return Meeting.of(blocks[0][:, :, None], blocks[1][:, None], shape, tuple(places))

    return [_contracted(machine, step, operands, Contraction(pairs[0], pairs[1], meet))]


def _contracted(machine: Machine, step: Step, sides: list[Any], how: Contraction) -> Any:
    """Dispatch on what meets what."""
    matrices = [value for value in sides if isinstance(value, WideMatrix | Outer)]
    if len(matrices) == 2:
        raise step.refuse(
            "Matrices act on vectors.",
            got="a product of two weight matrices, or of matrices made of activations",
            remedy="write W2 @ (W1 @ x) instead of (W2 @ W1) @ x",
        )
    if matrices:
        return _with_matrix(machine, step, sides, how)
    left, right = sides
    if isinstance(left, WideScalar) or isinstance(right, WideScalar):
        return _mixture(step, sides, how)
    axes = (left.axis, right.axis)
    if axes not in (*how.contract, *how.batch):  # both width axes are left
        met = how.meet(left.indices, right.indices)
        place, other = (met.places[k][axis] for k, axis in enumerate(axes))
        part = OuterProduct(left, right, *met.entries)
        return Outer(met.shape, (place, other), (part,), left.power + right.power)
    layout = left.layout.common(right.layout)
    left, right = left.refined(layout), right.refined(layout)
    if axes in how.contract:  # one cell's members; other cells have the same shape
        met = how.meet(first_cell(left), first_cell(right))
        return summed_products(machine, step, left, right, met.entries, met.shape)
    met = how.meet(left.indices, right.indices)
    place = met.places[0][left.axis]
    terms = (
        left.reindexed(i.reshape(met.shape), place).multiplied(
            right.reindexed(j.reshape(met.shape), place)
        )
        for i, j in zip(*(side.T for side in met.entries), strict=True)
    )
    return reduce(WideVector.plus, terms)  # `Σ_c u_c v_c` for every channel


# ---- vector with numbers --------------------------------------------------------------------


def _mixture(step: Step, sides: list[Any], how: Contraction) -> WideVector:
    """`Σ_c s_c v_c` over finite axes: a linear combination of members."""
    side = 0 if isinstance(sides[0], WideVector) else 1
    vector, number = sides[side], sides[1 - side]
    if any(pair[side] == vector.axis for pair in how.contract):
        raise step.refuse(
            "A width axis is contracted with weights or with another vector.",
            remedy="sum over channels, or contract with a parameter that grows with the width",
        )
    data = np.asarray(number.value(), float)
    met = how.meet(*map(numbered, sides))
    members, entries = met.entries[side], met.entries[1 - side]
    numbers = data.reshape(len(data), -1)[:, np.maximum(entries, 0)]
    mixed = combined(step, vector, members, numbers, met.shape, met.places[side][vector.axis])
    return replace(mixed, power=vector.power + number.power)


def combined(
    step: Step,
    vector: WideVector,
    members: np.ndarray,
    numbers: np.ndarray,
    shape: tuple[int, ...],
    axis: int,
) -> WideVector:
    """`Σ_t numbers_it v[members_it]` (-1: nothing) for every result i of a family.

    `members` (results, terms), `numbers` (draws or 1, results, terms).
    """
    require_room(step, len(numbers), len(members), vector.size)
    weights = np.zeros((len(numbers), len(members), vector.size))
    results = np.arange(len(members))
    for term, row in enumerate(members.T):
        weights[:, results, np.maximum(row, 0)] += np.where(row < 0, 0.0, numbers[..., term])
    return vector.mixed(weights, shape, axis)


def require_room(step: Step, draws: int, results: int, size: int) -> None:
    """Raise where a mixture has more coefficients than fit into memory."""
    if draws * results * size > MOST_COEFFICIENTS:
        raise step.refuse(
            f"Sums over finite axes exceed {MOST_COEFFICIENTS} coefficients.",
            got=f"{results} sums of {size} vectors, for {counted(draws, 'draw')} of the scalars",
            remedy="trace fewer examples or positions at once, or take fewer draws",
        )


# ---- matrix with vector ---------------------------------------------------------------------


def _with_matrix(machine: Machine, step: Step, sides: list[Any], how: Contraction) -> WideVector:
    """Weights, or a matrix made of activations, along one of its two width axes."""
    side = 0 if isinstance(sides[0], WideMatrix | Outer) else 1
    matrix, vector = sides[side], sides[1 - side]
    wide = [(p[side], p[1 - side]) for p in how.contract if p[side] in matrix.layouts]
    if (
        not isinstance(vector, WideVector)
        or [b for _, b in wide] != [vector.axis]
        or any(pair[side] in matrix.layouts for pair in how.batch)
    ):
        raise step.refuse(
            "A matrix acts on a vector along one of its two width axes.",
            got="another contraction of it, or one with numbers only",
            remedy="contract one width axis of weights with the channels of a vector; write linear "
            "attention as q (kᵀ v)",
        )
    axis = wide[0][0]
    layout = matrix.layouts[axis].common(vector.layout)
    if isinstance(matrix, Outer) and layout.cells > 1:
        raise step.refuse(
            "A matrix made of activations acts on channels of one kind.",
            got="channels that were concatenated",
            remedy="change the order of the products: (q kᵀ) v instead of q (kᵀ v)",
        )
    matrix, vector = matrix.refined_at(axis, layout), vector.refined(layout)
    # Cells of both width axes are among a weight matrix's slots.
    numbers = [matrix.slots if isinstance(matrix, WideMatrix) else numbered(matrix)]
    numbers.insert(1 - side, vector.indices)
    met = how.meet(*numbers)
    entries, members = met.entries[side], met.entries[1 - side]
    (other,) = set(matrix.layouts) - {axis}
    if isinstance(matrix, WideMatrix):
        terms = [matmul(machine, step, matrix, axis, vector, entries, members)]
    else:
        parts = (matrix if axis == matrix.axes[0] else matrix.swapped()).parts
        terms = [_through(machine, step, part, vector, entries, members) for part in parts]
        terms = [replace(term, power=term.power + matrix.power) for term in terms]
    # Scores with a mean are larger than those without one, by √n.
    power = leading_power(terms)
    total = reduce(WideVector.plus, [t for t in terms if t.power == power] or terms[:1])
    place, layout = met.places[side][other], matrix.layouts[other]
    return replace(total, shape=met.shape, axis=place, layout=layout)


def _through(
    machine: Machine,
    step: Step,
    part: OuterProduct,
    vector: WideVector,
    entries: np.ndarray,
    members: np.ndarray,
) -> WideVector:
    """One part, by its entries and members; the power is without the product's own."""
    left, right = part.left[entries], part.right[entries]  # (outputs, contracted, terms)
    kept = left >= 0
    queries = np.broadcast_to(members[..., None], left.shape)[kept]
    codes, which = np.unique(queries * part.u.size + left[kept], return_inverse=True)
    pairs = np.divmod(codes[:, None], part.u.size)
    scores = summed_products(machine, step, vector, part.u, pairs, (len(codes),))
    drawn = np.asarray(scores.value(), float)
    numbers = np.zeros((len(drawn), *left.shape))
    numbers[:, kept] = drawn[:, which]
    numbers = numbers.reshape(len(drawn), len(entries), -1)
    members = np.where(kept, right, -1).reshape(len(entries), -1)
    mixed = combined(step, part.v, members, numbers, (len(entries),), 0)
    return replace(mixed, power=scores.power - part.u.power)


# ---- sums over the width --------------------------------------------------------------------


def first_cell(vector: WideVector) -> np.ndarray:
    """Members counted within one cell, which the width axis has one of."""
    shape = [1 if a == vector.axis else extent for a, extent in enumerate(vector.shape)]
    return np.arange(math.prod(shape)).reshape(shape)


def summed_products(
    machine: Machine,
    step: Step,
    u: WideVector,
    v: WideVector,
    members: tuple[np.ndarray, np.ndarray],
    shape: tuple[int, ...],
) -> WideScalar:
    """`Σ_α u_α v_α`: n times a mean, or √n times a Gaussian.

    For every result a sum over terms: `members` (results, terms) of u and of v, counted within one
    cell (-1: nothing).
    """
    size, power = math.prod(shape), u.power + v.power
    there = members[0] >= 0
    pairs = np.stack([side[there] for side in members])

    def added(numbers: np.ndarray) -> np.ndarray:
        table = np.zeros((len(numbers), *there.shape))
        table[:, there] = numbers
        return table.sum(axis=-1).reshape(-1, *shape)

    if u.is_zero or v.is_zero:
        return WideScalar(shape, np.zeros((1, *shape)), power=power, fixed=True)
    unit = float(u.layout.unit)
    integrator = machine.integrator
    rows, columns = u.by_cell()[:, pairs[0]], v.by_cell()[:, pairs[1]]
    flat = rows.reshape(-1, 1), columns.reshape(-1, 1)
    # Whether members of one cell share correlated variables.
    simple, cells = u.simple() and v.simple(), (u.by_cell(), v.by_cell())
    independent = not correlated(u.forms(), v.forms(), *cells, simple=simple)
    if independent:
        products = integrator.mean(u)[:, rows] * integrator.mean(v)[:, columns]
    else:
        products = integrator.second(u, v, *flat)[..., 0, 0].reshape(-1, *rows.shape)
    if not np.isfinite(products).all():
        raise step.refuse(
            "Averages over channels are numbers.",
            got="a mean that is infinite, or none",
            remedy="keep activations where the functions of them are defined: logarithms and "
            "roots of positive arguments, no division by what may be zero",
        )
    if products.any() and np.abs(products).max() < PLAIN_MEAN:
        each = [(w, np.arange(w.size)[:, None]) for w in (u, v)]
        square, other = (integrator.second(w, w, i, i).max() for w, i in each)
        if np.abs(products).max() < NO_MEAN * np.sqrt(square * other):
            products = np.zeros_like(products)
    if products.any():
        total = unit * added(products.sum(axis=1))
        return WideScalar(shape, total, power=power + 1, rough=True)
    left, right = u, v
    turning = (any(t.source.ordered for f in w.forms() for t in f.terms) for w in (u, v))
    if not independent and all(turning):
        raise step.refuse(
            "Random scores do not turn with the channels.",
            got="a dot product of vectors that both depend on their channels' places (rotary "
            "encodings)",
            remedy="describe the network in layers: widelimit.Attention(positions=Rotary())",
        )
    if not independent:
        # Centred, though the two sides depend on each other: the products as one family.
        left = u.reindexed(rows, 0).multiplied(v.reindexed(columns, 0))
        right = left.constant_like(np.ones((1, left.size)))
        pairs = np.tile(np.arange(pairs.shape[1]), (2, 1))
    group = DotGroup(step, left, right, pairs, integrator, machine.dots)
    machine.dots.append(group)
    machine.dot_steps.append((step, u, v))
    if machine.on_tail(step):
        zero, weights = np.zeros((1, *shape)), np.zeros((1, size, group.size))
        weights[0, np.nonzero(there)[0], np.arange(group.size)] = 1.0
        return WideScalar(shape, zero, power=power + HALF, pending=((group, weights),))
    return WideScalar(shape, machine.once(lambda: added(group.values())), power=power + HALF)


# ---- new limit variables ---------------------------------------------------------------------


HALF = Fraction(1, 2)


def matmul(
    machine: Machine,
    step: Step,
    matrix: WideMatrix,
    axis: int,
    operand: WideVector,
    slots: np.ndarray,
    members: np.ndarray,
) -> WideVector:
    """New limit variables `Σ_c W[slots_oc] h[members_oc]` (-1: nothing), o = 0, …, O − 1.

    `Cov(o, o') = σ² Σ unit·E[h h']` over pairs of terms that use the same slot of the same matrix.
    """
    count = len(slots)
    zero = np.zeros((1, count))
    nothing = WideVector((count,), 0, Layout(1, 1, Fraction(1)), Fraction(0), zero)
    if matrix.is_zero or operand.is_zero:
        return nothing
    if matrix.constant is not None:
        raise step.refuse(
            "Weight matrices are random, or zero.",
            got=f"a matrix whose entries are all {matrix.constant:g}",
            remedy="draw the weights at random; sums over channels are written as sums",
        )
    weights = matrix.weights
    machine.note_use(step, matrix, axis, operand)
    used = matrix.base[axis]
    origin, uses = weights.source(used), weights.uses.setdefault(used, [])
    by_slot: dict[int, np.ndarray] = {}
    for slot in np.unique(slots[members >= 0]):
        here = (slots == slot) & (members >= 0)
        rows, columns = np.nonzero(here)
        if len(rows) != len(np.unique(rows)):
            raise step.refuse(
                "Each entry of a weight matrix meets one channel.",
                got="one matrix that is summed over several positions at once",
                remedy="sum the vectors before they are multiplied",
            )
        chosen = np.full(count, -1)
        chosen[rows] = members[rows, columns]
        by_slot[int(slot)] = chosen
    integrator = machine.integrator
    unit = float(operand.layout.unit)

    def covariance(other: WideVector, theirs: dict[int, np.ndarray]) -> np.ndarray:
        common = [slot for slot in by_slot if slot in theirs]
        total: Any = np.zeros((1, count, len(next(iter(theirs.values())))))
        if not common:
            return total
        for mine, others, slots_here in _meetings(common, by_slot, theirs):
            gram = integrator.second_once(operand, other, mine, others)
            if len(gram) > len(total):
                total = np.repeat(total, len(gram), axis=0)
            for slot in slots_here:
                a, b = by_slot[slot], theirs[slot]
                i, j = np.flatnonzero(a >= 0), np.flatnonzero(b >= 0)
                rows, columns = np.searchsorted(mine, a[i]), np.searchsorted(others, b[j])
                total[:, i[:, None], j] += gram[:, rows[:, None], columns]
        return unit * total

    own, method = integrator.measured(lambda: covariance(operand, by_slot))
    first = matrix.scale * matrix.scale * own
    if not np.isfinite(first).all():
        raise NumericalError(
            "Moments of the limit must be finite.",
            got=f"an overflow, or a function that is no number somewhere, in {step.place}",
            remedy="draw smaller weights, or check the functions' domain and growth",
        )
    begin, before = origin.extend(first), tuple(uses)
    origin.method = max(origin.method, method)

    def cross() -> np.ndarray:
        found, method = integrator.measured(
            lambda: [matrix.scale * u.scale * covariance(u.operand, u.members) for u in before]
        )
        origin.method = max(origin.method, method)
        draws = max([1, *map(len, found)])
        rows = [np.broadcast_to(np.swapaxes(c, 1, 2), (draws, *c.shape[:0:-1])) for c in found]
        return np.concatenate([np.zeros((draws, 0, count)), *rows], axis=1)

    if integrator.draws == 1:
        origin.postponed = integrator.postponed
        origin.postponed.add(origin, cross)
    else:  # random points come in the program's order
        origin.fill(cross())
    origin.rows += [frozenset(row[row >= 0].tolist()) for row in slots]
    uses.append(Use(operand, by_slot, matrix.scale))
    form = Form.members(machine.labels, origin, begin, count)
    power = operand.power + matrix.power + HALF
    return WideVector((count,), 0, nothing.layout, power, zero, form, np.ones((1, count)))


def _meetings(
    slots: list[int], ours: dict[int, np.ndarray], theirs: dict[int, np.ndarray]
) -> list[tuple[np.ndarray, np.ndarray, list[int]]]:
    """Members whose second moments are needed, each pair once: slot by slot, or all at once.

    Heads that are merged have members of their own for every slot; windows of a convolution share
    them.
    """

    def meeting(chosen: list[int]) -> tuple[np.ndarray, np.ndarray, list[int]]:
        sides = (np.unique(np.concatenate([side[k] for k in chosen])) for side in (ours, theirs))
        one, two = (members[members >= 0] for members in sides)
        return one, two, chosen

    each, together = [meeting([slot]) for slot in slots], meeting(slots)
    apart = sum(len(a) * len(b) for a, b, _ in each) < len(together[0]) * len(together[1])
    return [m for m in (each if apart else [together]) if len(m[0]) and len(m[1])]


# ---- convolutions and windows ----------------------------------------------------------------


def patch_index(shape: tuple[int, ...], window: tuple[int, ...], params: Any) -> np.ndarray:
    """For spatial axes `shape`: which entry every output position and offset reads (-1: padding).

    Result: (*outputs, *window).
    """
    index = jnp.arange(math.prod(shape)).reshape(shape)
    spread = zip(params["padding"], params["lhs_dilation"], strict=True)
    ends = [(int(low), int(high), int(base) - 1) for (low, high), base in spread]
    padded = np.asarray(jax.lax.pad(index, jnp.asarray(-1, index.dtype), ends))
    gaps = [int(gap) for gap in params["rhs_dilation"]]
    reach = [1 + (w - 1) * gap for w, gap in zip(window, gaps, strict=True)]
    patches = np.lib.stride_tricks.sliding_window_view(padded, reach)
    steps = (*(int(s) for s in params["window_strides"]), *gaps)
    return patches[tuple(slice(None, None, step) for step in steps)]


def convolve(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """`conv_general_dilated` as a contraction of patches with the kernel."""
    left, right = operands
    params = step.params[0]
    numbers = params["dimension_numbers"]
    lhs, rhs, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    groups = [int(p["feature_group_count"]) for p in step.params]
    depthwise = len(set(groups)) > 1
    grouped = groups[0] > 1 and not depthwise
    alone = isinstance(left, WideVector) and isinstance(right, WideVector)
    widths = machine.program.widths
    if (
        int(params["batch_group_count"]) != 1
        or any(isinstance(value, Outer) for value in operands)
        or set(lhs[2:]) & left.layouts.keys()
        or set(rhs[2:]) & right.layouts.keys()
        or (grouped and (lhs[1] in left.layouts or right.shape[rhs[0]] % groups[0]))
        or (depthwise and not (alone and groups == [left.layout.extent * w for w in widths]))
    ):
        raise step.refuse(
            "A convolution contracts channels with its kernel, all together or each alone.",
            got="other groups of channels, a width axis among the positions, or a matrix made of "
            "activations",
            remedy="use feature_group_count=1, or as many groups as channels; keep positions "
            "finite, and input channels finite or growing with the width, like the kernel's",
        )
    index = patch_index(
        tuple(left.shape[a] for a in lhs[2:]), tuple(right.shape[a] for a in rhs[2:]), params
    )
    index = index.reshape(*index.shape[: len(lhs) - 2], -1)
    if depthwise:
        # With m filters for each channel, results m·α, …, m·α + m − 1 are made of channel α.
        filters, ours = int(right.layout.extent / left.layout.extent), left.layout
        layout = right.layout.common(Layout(ours.major, ours.minor * filters, ours.unit))
        left = left.refined(Layout(layout.major, layout.minor // filters, layout.unit))
        repeated = np.repeat(left.indices, filters, axis=lhs[1])
        left = replace(left.reindexed(repeated, lhs[1]), layout=layout)

    def meet(left: np.ndarray, right: np.ndarray) -> Meeting:
        rows = left.transpose(lhs[0], *lhs[2:], lhs[1])
        rows = rows.reshape(len(rows), -1, rows.shape[-1])[:, np.maximum(index, 0)]
        rows = np.where(index[..., None] < 0, -1, rows)  # (batch, *outputs, offsets, features)
        columns = right.transpose(rhs[0], *rhs[2:], rhs[1])
        outs, inner = columns.shape[0], columns.shape[-1]
        # Each of the results' features sees the features of its group.
        groups = rows.shape[-1] // inner
        rows = rows.reshape(*rows.shape[:-1], groups, inner)
        rows = rows[..., np.arange(outs) // (outs // groups), :]
        rows = np.moveaxis(rows, -2, -3)  # (batch, *outputs, outs, offsets, inner)
        rows = rows.reshape(*rows.shape[:-2], -1)
        columns = np.broadcast_to(columns.reshape(outs, -1), rows.shape)
        source = {out[0]: 0, out[1]: len(out) - 1, **{a: 1 + k for k, a in enumerate(out[2:])}}
        order = (*(source[a] for a in range(len(out))), len(out))
        rows, columns = rows.transpose(order), columns.transpose(order)
        places = ({lhs[0]: out[0], lhs[1]: out[1]}, {rhs[0]: out[1]})
        return Meeting.of(rows, columns, rows.shape[:-1], places)

    pairs = () if depthwise else ((lhs[1], rhs[1]),), ((lhs[1], rhs[0]),) if depthwise else ()
    return [_contracted(machine, step, [left, right], Contraction(*pairs, meet))]


def along_width(step: Step) -> RefusedError:
    """An operation along the width that has no limit."""
    return step.refuse(
        "Channels are exchangeable: along the width there are sums, dot products and weights.",
        got=f"'{step.name}' along the width, or on weights",
        remedy="sorting, maxima, cumulative sums and Fourier transforms over channels have no "
        "limit here; apply them over positions",
    )
