"""The tangent kernel of any function at given parameters, in bounded memory.

    Θ(x, x')_{o,o'} = Σ_p ∂f_o(x)/∂p · ∂f_o'(x')/∂p

Two ways to the same numbers. *Jacobians*: take ∂f/∂p of a block of examples and contract, which
costs P·O² per pair for P parameters and O outputs. *Products*: push each row of a Jacobian through
f as a tangent, which costs O passes through f per pair and no memory for Jacobians. Which one is
cheaper follows from the cost of f.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from ..compilation import compiled
from ..engine.phases import precision
from ..errors import NumericalError, OptionError, ShapeError, WidelimitError
from ..layers.readings import DEFAULT_MEMORY
from ..options import choice, whole
from ..progress import Callback, Progress

# A pass through f moves activations about; the contraction is one large matrix product.
_PASS_PENALTY = 2.0
# Examples a tile takes from either side at most.
_MOST_ROWS = 256
# Operations of the functions met before: counting them takes longer than a small kernel.
_pass_costs: dict[Any, float] = {}


class NtkMethod(Enum):
    """How an empirical tangent kernel is computed."""

    AUTO = "auto"
    JACOBIANS = "jacobians"
    PRODUCTS = "products"


Shape = tuple[int, ...]


class Axes(NamedTuple):
    """What happens to each of f's output axes (without the batch axis): averaged, shared, kept."""

    rank: int
    averaged: tuple[int, ...]
    shared: tuple[int, ...]

    @classmethod
    def make(cls, rank: int, trace: Any, diagonal: Any) -> "Axes":
        """From axes of f's output, counted with the batch axis 0."""
        averaged, shared = (
            cls._read(value, rank, name)
            for value, name in ((trace, "trace_axes"), (diagonal, "diagonal_axes"))
        )
        if set(averaged) & set(shared):
            raise ShapeError(
                "An output axis is both averaged over and kept.",
                got=f"trace_axes={trace!r}, diagonal_axes={diagonal!r}",
                remedy="name each axis in one of the two",
            )
        return cls(rank, averaged, shared)

    @staticmethod
    def _read(axes: Any, rank: int, name: str) -> tuple[int, ...]:
        axes = (axes,) if isinstance(axes, int) else tuple(axes)
        positive = [axis + rank + 1 if axis < 0 else axis for axis in axes]
        if any(not 1 <= axis <= rank for axis in positive) or len(set(positive)) < len(positive):
            raise ShapeError(
                f"{name}= names no output axes of f(params, x), whose axis 0 is the batch.",
                got=f"{name}={axes!r} for an output with {rank + 1} axes",
                remedy="give distinct axes from 1 on, or negative ones; () for none",
            )
        return tuple(axis - 1 for axis in positive)

    @property
    def kept(self) -> tuple[int, ...]:
        """Axes that appear for both inputs."""
        gone = (*self.averaged, *self.shared)
        return tuple(axis for axis in range(self.rank) if axis not in gone)

    def sizes(self, outputs: Shape) -> tuple[int, int, int]:
        """How many outputs are averaged, shared and kept."""
        groups = (self.averaged, self.shared, self.kept)
        one, two, three = (math.prod(outputs[axis] for axis in group) for group in groups)
        return one, two, three

    def group(self, rows: Array) -> Array:
        """(N, outputs…, anything…) as (N, averaged, shared, kept, anything)."""
        order = (*self.averaged, *self.shared, *self.kept)
        tail = range(1 + self.rank, rows.ndim)
        moved = jnp.transpose(rows, (0, *(1 + axis for axis in order), *tail))
        return moved.reshape(rows.shape[0], *self.sizes(rows.shape[1 : 1 + self.rank]), -1)

    def arrange(self, kernel: Any, outputs1: Shape, outputs2: Shape) -> Any:
        """A result (N1, N2, shared, kept, kept') with the axes as the caller knows them."""
        shared = [outputs1[axis] for axis in self.shared]
        ends = [[outputs[axis] for axis in self.kept] for outputs in (outputs1, outputs2)]
        full = kernel.reshape(*kernel.shape[:2], *shared, *ends[0], *ends[1])
        # The first input's axes in their own order, shared ones among them; then the second's.
        places = (*self.shared, *self.kept)
        first = sorted(range(len(places)), key=lambda i: places[i])
        second = range(len(places), len(places) + len(self.kept))
        return full.transpose(0, 1, *(2 + i for i in first), *(2 + i for i in second))


def empirical_ntk(
    f: Callable[[Any, Any], Array],
    params: PyTree,
    x1: PyTree,
    x2: PyTree = None,
    *,
    trace_axes: int | tuple[int, ...] = -1,
    diagonal_axes: int | tuple[int, ...] = (),
    method: NtkMethod | str = NtkMethod.AUTO,
    memory: int = DEFAULT_MEMORY,
    progress: bool | Callback | None = None,
) -> np.ndarray:
    """The tangent kernel of `f(params, x)` at `params`, for all pairs of examples.

    `f` maps a batch (N, …), an array or a tuple of arrays, to outputs (N, outputs…), each example
    by itself. Integer parameters are held fixed.

    Output axes in `trace_axes` are averaged over (the trace divided by the size, which converges to
    the infinite-width kernel), those in `diagonal_axes` appear once, all others for both inputs.
    The result has axes (N1, N2, output axes that are not averaged…, and those for both inputs
    again…). With `x2=None` it is the kernel of `x1` with itself, at half the work.

    `method` is the cheaper of two by default (see `finite.NtkMethod`); `memory` bounds the bytes in
    use; `progress` is as in `Layer.kernel`.
    """
    if not callable(f):
        raise OptionError(
            f"{f!r} is not a function of parameters and inputs.",
            got=type(f).__name__,
            remedy="pass f(params, x), for example net.apply",
        )
    method = choice(NtkMethod, method, "method")
    whole("memory", memory)
    leaves = [leaf.dtype for leaf in jax.tree.leaves(params) if eqx.is_inexact_array(leaf)]
    if not leaves:
        raise WidelimitError(
            "There are no floating-point parameters to differentiate with respect to.",
            got="parameters without any",
            remedy="pass the parameters as a pytree of float arrays, f(params, x) using them",
        )
    with precision(np.result_type(*leaves)):
        trained, fixed = eqx.partition(params, eqx.is_inexact_array)
        function = _Function(f, fixed)
        outputs = _output_shape(function, trained, x1)
        axes = Axes.make(len(outputs), trace_axes, diagonal_axes)
        method = _choose(method, function, trained, x1, axes, outputs, memory)
        block = _block(method, trained, outputs, memory)
        others = outputs if x2 is None else _output_shape(function, trained, x2)
        # NumPy knows that rows with themselves are half the work; XLA copies both sides before.
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(trained)}
        numpy = jax.default_backend() == "cpu" and dtypes <= {np.dtype("f4"), np.dtype("f8")}

        def prepare(x: PyTree, span: slice) -> Any:
            part = _part(x, span, block)
            if method is NtkMethod.PRODUCTS:
                return part
            found = _rows(function, trained, part, axes)
            return [np.asarray(array) for array in found] if numpy else found

        def combine(one: Any, two: Any) -> Any:
            if method is NtkMethod.PRODUCTS:
                return _product_tile(function, trained, one, two, axes)
            return _contract(one, two, axes.sizes(outputs), axes.sizes(others))

        columns_of = x1 if x2 is None else x2
        walk = [
            (rows, columns)
            for rows in _spans(_size(x1), block)
            for columns in _spans(_size(columns_of), block)
            if x2 is not None or columns.start >= rows.start  # half of a symmetric matrix
        ]
        bar = Progress.make(progress, "tangent kernel")
        result: np.ndarray | None = None
        one, first = None, None
        for rows, columns in bar.track(walk) if bar else walk:
            if rows != first:
                one, first = prepare(x1, rows), rows
            two = one if x2 is None and rows == columns else prepare(columns_of, columns)
            values = np.asarray(combine(one, two))
            values = values[: rows.stop - rows.start, : columns.stop - columns.start]
            if result is None:
                shape = (_size(x1), _size(columns_of), *values.shape[2:])
                result = np.empty(shape, values.dtype)
            result[rows, columns] = values
            if x2 is None and rows != columns:
                result[columns, rows] = values.transpose(1, 0, 2, 4, 3)
    assert result is not None
    if not np.isfinite(result).all():
        raise NumericalError(
            "The tangent kernel is not finite.",
            got="NaN or infinite entries",
            remedy="check that f and its gradient are finite at these parameters and inputs",
        )
    return axes.arrange(result, outputs, others)


class _Function(eqx.Module):
    """f with the parameters that are not differentiated; hashable by what does not change."""

    f: Any
    fixed: PyTree

    def __call__(self, trained: PyTree, x: PyTree) -> Array:
        return self.f(eqx.combine(trained, self.fixed), x)

    def one(self, trained: PyTree, x: PyTree) -> Array:
        """The outputs of a single example."""
        return self(trained, jax.tree.map(lambda leaf: leaf[None], x))[0]


def _size(x: PyTree) -> int:
    sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(x)}
    if len(sizes) != 1 or sizes in ({()}, {(0,)}):
        raise ShapeError(
            "The inputs do not share a first axis that runs over at least one example.",
            got=f"leading axes {sorted(sizes)}",
            remedy="pass a batch (N, …), or a tuple of batches of equal size",
        )
    return sizes.pop()[0]


def _output_shape(function: _Function, trained: PyTree, x: PyTree) -> Shape:
    size = _size(x)
    # f itself is traced, since its traces are kept from call to call.
    params = eqx.combine(trained, function.fixed)
    out = jax.eval_shape(function.f, params, jax.tree.map(jnp.asarray, x))
    if not isinstance(out, jax.ShapeDtypeStruct) or out.shape[:1] != (size,):
        raise ShapeError(
            "f(params, x) does not map a batch of N examples to one array (N, outputs…).",
            got=f"{jax.tree.map(lambda o: o.shape, out)} for {size} examples",
            remedy="return a single array whose first axis is the batch",
        )
    return out.shape[1:]


def _count(trained: PyTree) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(trained))


def _bytes(trained: PyTree) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(trained))


def _choose(
    method: NtkMethod,
    function: _Function,
    trained: PyTree,
    x: PyTree,
    axes: Axes,
    outputs: Shape,
    memory: int,
) -> NtkMethod:
    """The cheaper way, or the only one that fits."""
    if method is not NtkMethod.AUTO:
        return method
    if 4 * math.prod(outputs) * _bytes(trained) > memory:
        return NtkMethod.PRODUCTS
    _, _, kept = axes.sizes(outputs)
    contraction = 2.0 * _count(trained) * kept
    passes = _PASS_PENALTY * 2 * _pass_cost(function, trained, x)
    return NtkMethod.PRODUCTS if passes < contraction else NtkMethod.JACOBIANS


def _pass_cost(function: _Function, trained: PyTree, x: PyTree) -> float:
    """Floating-point operations of f on one example."""
    one = jax.tree.map(lambda leaf: np.asarray(leaf[0]), x)
    leaves, structure = jax.tree.flatten((trained, function.fixed, one))
    shapes = tuple((np.shape(leaf), str(jnp.asarray(leaf).dtype)) for leaf in leaves)
    key = (function.f, structure, shapes)
    try:
        found = _pass_costs.get(key)
    except TypeError:  # functions that cannot be hashed are looked at anew
        found = key = None
    if found is None:
        cost = jax.jit(lambda p, x: function.one(p, x)).lower(trained, one).cost_analysis()
        found = float((cost or {}).get("flops", 2.0 * _count(trained)))
        _pass_costs.update({} if key is None else {key: found})
    return found


def _block(method: NtkMethod, trained: PyTree, outputs: Shape, memory: int) -> int:
    """How many examples a tile takes from either side: a power of two, so shapes are few."""
    rows = math.prod(outputs) if method is NtkMethod.JACOBIANS else 1
    fits = max(1, memory // (4 * rows * _bytes(trained)))
    return min(_MOST_ROWS, 1 << (fits.bit_length() - 1))


def _spans(size: int, block: int) -> list[slice]:
    return [slice(begin, min(begin + block, size)) for begin in range(0, size, block)]


def _part(x: PyTree, span: slice, block: int) -> PyTree:
    """Some examples; a short last block is filled up, unless it is the only one."""
    count = span.stop - span.start
    block = min(block, 1 << (count - 1).bit_length()) if span.start == 0 else block
    index = np.minimum(np.arange(span.start, span.start + block), span.stop - 1)
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)[index]), x)


def jacobian_kernel(f: Any, trained: PyTree, x1: PyTree, x2: PyTree, axes: Axes) -> Array:
    """The kernel of two blocks by their Jacobians: f maps (parameters, one example) to outputs."""
    firsts = [jax.tree.map(lambda leaf: leaf[0], x) for x in (x1, x1 if x2 is None else x2)]
    outputs = [jax.eval_shape(f, trained, first).shape for first in firsts]
    one = _jacobian_rows(f, trained, x1, axes)
    two = one if x2 is None else _jacobian_rows(f, trained, x2, axes)
    return axes.arrange(_contract(one, two, *map(axes.sizes, outputs)), *outputs)


def _jacobian_rows(f: Any, trained: PyTree, x: PyTree, axes: Axes) -> list[Array]:
    """Per parameter array, ∂f/∂p of a block as (shared, examples and kept, averaged and p)."""
    jacobian = jax.vmap(jax.jacrev(f), in_axes=(None, 0))(trained, x)
    rows = []
    for leaf in map(axes.group, jax.tree.leaves(jacobian)):
        examples, averaged, shared, kept, size = leaf.shape
        moved = jnp.transpose(leaf, (2, 0, 3, 1, 4))
        rows.append(moved.reshape(shared, examples * kept, averaged * size))
    return rows


def _contract(
    one: list[Any], two: list[Any], sizes1: tuple[int, int, int], sizes2: tuple[int, int, int]
) -> Float[Array | np.ndarray, "n1 n2 shared kept kept2"]:
    """Products of Jacobians, summed over the parameters; `sizes` are those of `Axes`."""
    total: Any = sum(a @ b.swapaxes(1, 2) for a, b in zip(one, two, strict=True))
    (averaged, shared, kept1), (_, _, kept2) = sizes1, sizes2
    kernel = total.reshape(shared, one[0].shape[1] // kept1, kept1, -1, kept2)
    return kernel.transpose(1, 3, 0, 2, 4) / averaged


@compiled
def _rows(function: _Function, trained: PyTree, x: PyTree, axes: Axes) -> list[Array]:
    return _jacobian_rows(function.one, trained, x, axes)


@compiled
def _product_tile(function: _Function, trained: PyTree, x1: PyTree, x2: PyTree, axes: Axes):
    """Θ(x1, x2) column by column: Jᵀ of one output of one example of x2, pushed through f at x1."""
    values, push = jax.linearize(lambda p: jax.vmap(function.one, (None, 0))(p, x1), trained)
    outputs1 = values.shape[1:]
    outputs2 = jax.eval_shape(function, trained, x2).shape[1:]
    count1, count2 = (jax.tree.leaves(x)[0].shape[0] for x in (x1, x2))
    basis = jnp.eye(math.prod(outputs2), dtype=values.dtype).reshape(-1, *outputs2)

    def columns(x: PyTree) -> Array:
        _, pull = jax.vjp(lambda p: function.one(p, x), trained)
        return jax.lax.map(lambda e: push(pull(e)[0]), basis)

    found = jax.lax.map(columns, x2)  # example of x2, its output, example of x1, its outputs…
    found = jnp.moveaxis(found, 2, 0)
    found = axes.group(found.reshape(-1, *outputs1)).reshape(count1, count2, len(basis), -1)
    found = axes.group(jnp.swapaxes(found, 2, 3).reshape(-1, *outputs2))
    sizes = (*axes.sizes(outputs1), *axes.sizes(outputs2))
    return jnp.einsum("abtsktsl->abskl", found.reshape(count1, count2, *sizes)) / sizes[0]
