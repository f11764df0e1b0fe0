"""The three functions of a layer, `(init_fn, apply_fn, kernel_fn)`."""

import functools
import itertools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .. import finite
from ..engine.inputs import outline_of
from ..errors import NetworkError, OptionError, ShapeError
from ..layers import INFINITE, Graph, Layer, Serial
from ..layers import Parallel as Streams
from ..layers.compose import is_noisy
from .kernel import Kernel, propagate, read_kernel, shaped
from .layout import Layout
from .network import Foreign, Parts, Steps, assemble, find_edges, named_axes
from .network import Parallel as Fork

Triple = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class _Function:
    """A function of a network that knows its parts."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.__name__ = type(self).__name__
        # Of `Fork`s that meet inputs, which are a tuple then.
        first = parts[0] if parts else None
        self.branches = first.branches if isinstance(first, Fork) else (parts,)
        self._made: dict[Any, tuple[Steps, list[Layout]]] = {}

    def __repr__(self) -> str:
        names = [part.name for part in self.parts]
        return f"<{self.__name__} of {', '.join(names) or 'Identity'}>"

    def network(self, ranks: Sequence[int], *, padded: bool) -> tuple[Steps, list[Layout]]:
        """The network for inputs with so many axes, and their layouts."""
        key = (tuple(ranks), padded)
        if key not in self._made:
            axes = [named_axes(branch)[0] for branch in self.branches]
            layouts = [Layout.of(*one) for one in zip(ranks, axes, strict=True)]
            self._made[key] = assemble(self.parts, layouts, padded=padded), layouts
        return self._made[key]

    def edges(self, pattern: Any, positions: tuple[int, ...]) -> Any:
        """The graphs of a batch with so many nodes, as the library has them."""
        edges = find_edges(self.parts)
        if (pattern is None) != (edges is None):
            raise OptionError(
                "pattern= is missing: stax.Aggregate sums over the graph in it."
                if pattern is None
                else "pattern= met a network without stax.Aggregate, which alone takes a graph.",
                got=f"pattern of type {type(pattern).__name__}",
                remedy="pass it to networks of graphs, and only to them",
            )
        return None if edges is None else edges(pattern, positions)

    def split(self, x: Any, name: str) -> list[Any]:
        """An input, or the inputs of several streams."""
        streams = len(self.branches)
        if streams == 1:
            return [x]
        if not isinstance(x, tuple | list) or len(x) != streams:
            raise ShapeError(
                f"'{name}' is not a tuple of {streams} inputs.",
                got=type(x).__name__,
                remedy=f"pass one for each network of the first stax.parallel, {streams}",
            )
        return list(x)

    def read(self, x: Any, name: str, constant: Any) -> list[tuple[Array, Array | None]]:
        """Every stream as (N, positions…, channels) with zeros at padding, and its mask."""
        inputs = [numbers(one) for one in self.split(x, name)]
        _, layouts = self.network([one.ndim for one in inputs], padded=False)
        pairs = zip(inputs, layouts, strict=True)
        return [_hide(layout.moved(one), constant) for one, layout in pairs]


def numbers(x: Any) -> Array:
    """Inputs in the precision that JAX is set to."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def _hide(x: Array, constant: Any) -> tuple[Array, Array | None]:
    """Zeros for the constant, and which positions are real: not all their channels hold it."""
    if constant is None:
        return x, None
    held = jnp.isnan(x) if np.isnan(constant) else x == constant
    mask = ~held.all(axis=-1)
    x = jnp.where(held, jnp.zeros((), x.dtype), x)
    if not isinstance(mask, Tracer) and bool(mask.all()):
        return x, None
    if mask.ndim == 1:
        raise ShapeError(
            "mask_constant= met inputs without positions: an example would be padding altogether.",
            got=f"inputs of shape {x.shape}",
            remedy="drop these examples, or leave mask_constant= out",
        )
    return x, mask


def _joined(found: Sequence[Any]) -> Any:
    """What several streams have, as a tuple; None where none of them has anything."""
    return None if all(one is None for one in found) else _unpacked(found)


def _unpacked(found: Sequence[Any]) -> Any:
    return found[0] if len(found) == 1 else tuple(found)


def single(steps: Steps) -> Layer | None:
    """The whole, where it is one network of the library with one output."""
    return steps[0] if len(steps) == 1 and isinstance(steps[0], Serial) else None


# --- finite networks ------------------------------------------------------------------------------


class InitFn(_Function):
    """`init_fn(rng, input_shape)`: the shape of outputs, and parameters."""

    def __call__(self, rng: Any, input_shape: Any) -> tuple[Any, Any]:
        shapes = self.split(input_shape, "input_shape")
        steps, layouts = self.network([len(shape) for shape in shapes], padded=False)
        shapes = [layout.ordered(one) for one, layout in zip(shapes, layouts, strict=True)]
        params = []
        for step, key in zip(steps, _keys(rng, len(steps)), strict=True):
            if isinstance(step, Foreign):
                shape, own = step.init(key, shapes[0])
                shapes = [shape]
            else:
                shapes = _copied(shapes, step)
                inner = _unpacked([shape[1:] for shape in shapes])
                own = step.init(key, inner)
                ends = step.outline(outline_of(step, inner))
                ends = ends if isinstance(ends, tuple) else (ends,)
                shapes = [(shapes[0][0], *end.shape) for end in ends]
            params.append(own)
        pairs = zip(shapes, itertools.cycle(layouts), strict=False)
        return _unpacked([layout.restored_shape(one) for one, layout in pairs]), _unpacked(params)


def _copied(states: list[Any], step: Layer | Foreign) -> list[Any]:
    """What enters a step: before outputs that nothing merges, the one input for each of them."""
    if isinstance(step, Streams) and len(states) == 1:
        return states * len(step.parts)
    return states


def _keys(rng: Any, count: int) -> list[Any]:
    """One for each step; that of a single one is the key itself."""
    return [rng] * count if rng is None or count == 1 else list(jax.random.split(rng, count))


class ApplyFn(_Function):
    """`apply_fn(params, inputs, mask_constant=None, rng=None)`: outputs of the finite network."""

    def __call__(
        self,
        params: Any,
        inputs: Any,
        *,
        mask_constant: Any = None,
        rng: Any = None,
        pattern: Any = None,
        **kwargs: Any,
    ) -> Any:
        states, masks = map(list, zip(*self.read(inputs, "inputs", mask_constant), strict=True))
        padded = any(mask is not None for mask in masks)
        steps, layouts = self.network([one.ndim for one in states], padded=padded)
        edges = self.edges(pattern, states[0].shape[1:-1])
        whole = single(steps)
        if whole is None and (padded or edges is not None):
            raise NetworkError(
                "mask_constant= or pattern= met a network with a layer of your own, or with "
                "several outputs.",
                got=repr(self),
                remedy="write the layer as stax.Elementwise, and merge the outputs",
            )
        if rng is None and any(isinstance(s, Layer) and is_noisy(s) for s in steps):
            raise OptionError(
                "apply_fn of a network with Dropout in mode 'train' got no rng.",
                got="rng=None",
                remedy="pass rng=, or build the network with Dropout(rate, mode='test')",
            )
        if whole is not None and edges is not None:
            steps, params = (Serial(Graph(), *whole.parts),), ((), *params)
            states, masks = [*states, edges], [*masks, None]
        given = (params,) if len(steps) == 1 else params
        for step, own, key in zip(steps, given, _keys(rng, len(steps)), strict=True):
            if isinstance(step, Foreign):
                states = [step.apply(own, states[0], rng=key, **kwargs)]
            else:
                states = _copied(states, step)
                found = step.apply(own, _unpacked(states), _joined(masks), key=key)
                states = list(found) if isinstance(found, tuple) else [found]
            masks = [None]
        pairs = zip(states, itertools.cycle(layouts), strict=False)
        return _unpacked([layout.restored(one) for one, layout in pairs])


# --- infinite networks ----------------------------------------------------------------------------

_FAST = {"nngp", "ntk"}
_FIELDS = [name for name in Kernel.__dataclass_fields__ if name != "facts"]


@functools.cache
def _tuple_type(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


class Get(NamedTuple):
    """What a call asks for: names in lower case, and whether it is one alone."""

    names: tuple[str, ...]
    alone: bool

    @classmethod
    def read(cls, get: Any, known: Sequence[str]) -> "Get":
        """From a name or several, all of them known; None: both kernels."""
        given = ("nngp", "ntk") if get is None else get
        names = tuple(given) if isinstance(given, tuple | list) else (given,)
        lower = tuple(name.lower() if isinstance(name, str) else "" for name in names)
        if not lower or len(set(lower)) < len(lower) or not set(lower) <= set(known):
            raise OptionError(
                "get= does not name one or more results, each of them once.",
                got=f"get={get!r}",
                remedy=f"ask for {', '.join(map(repr, known))}, or a tuple of these",
            )
        return cls(lower, isinstance(given, str))

    def answer(self, value: Callable[[str], Any], name: str = "AnalyticKernel") -> Any:
        """One value, or a named tuple of them in the order asked for."""
        if self.alone:
            return value(self.names[0])
        return _tuple_type(name, self.names)(*map(value, self.names))


class KernelFn(_Function):
    """`kernel_fn(x1_or_kernel, x2=None, get=None, …)`: kernels of the infinitely wide network.

    A `Kernel` in place of inputs goes through the network. `get` names fields of `Kernel`; None is
    the `Kernel` itself.
    """

    def __call__(
        self,
        x1_or_kernel: Any,
        x2: Any = None,
        get: Any = None,
        *,
        pattern: Any = None,
        mask_constant: Any = None,
        diagonal_batch: bool | None = None,
        diagonal_spatial: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        asked = None if get is None else Get.read(get, _FIELDS)
        x1 = x1_or_kernel
        if isinstance(x1, Kernel):
            options = {
                "x2": x2,
                "mask_constant": mask_constant,
                "diagonal_batch": diagonal_batch,
                "diagonal_spatial": diagonal_spatial,
            }
            for name, value in options.items():
                if value is not None and value is not getattr(x1, name, None):
                    raise OptionError(
                        f"{name}= is given beside a Kernel, which has its inputs already.",
                        got=f"{name} of type {type(value).__name__}",
                        remedy="kernel_fn(kernel, None, get)",
                    )
            padded = x1.mask1 is not None or x1.mask2 is not None
            steps = assemble(self.parts, [x1.layout], padded=padded)
            return self._answer(steps, [x1], asked, pattern, kwargs)
        given = [("x1", x1)] if x2 is None else [("x1", x1), ("x2", x2)]
        sides = [self.read(x, name, mask_constant) for name, x in given]
        ranks = [[x.ndim for x, _ in side] for side in sides]
        if ranks[0] != ranks[-1]:
            raise ShapeError(
                "x1 and x2 do not have the same number of axes.",
                got=f"{ranks[0]} and {ranks[1]}",
                remedy="give both the layout of the network's input",
            )
        padded = any(mask is not None for side in sides for _, mask in side)
        steps, layouts = self.network(ranks[0], padded=padded)
        whole, spatial = single(steps), bool(diagonal_spatial)
        graph = pattern is not None or find_edges(self.parts) is not None
        if asked is not None and set(asked.names) <= _FAST and whole is not None and not graph:
            batches = [
                (_unpacked([x for x, _ in side]), _joined([mask for _, mask in side]))
                for side in sides
            ]
            (one, mask), (two, mask2) = [*batches, (None, None)][:2]
            kernels = wide(whole).kernel(
                one, two, mask=mask, mask2=mask2, ntk="ntk" in asked.names, progress=False
            )
            return asked.answer(lambda name: shaped(getattr(kernels, name), 2, spatial))
        if len(layouts) > 1 and not (len(steps) == 1 and isinstance(steps[0], Streams)):
            raise OptionError(
                "A Kernel of a network that merges several inputs is not known here.",
                got=f"get={get!r}",
                remedy="ask for 'nngp' and 'ntk', and leave out forks after the merge",
            )
        alone = diagonal_batch is not False
        streams = [
            read_kernel(pairs, layout, diagonal_batch=alone, diagonal_spatial=spatial)
            for *pairs, layout in zip(*sides, layouts, strict=True)
        ]
        return self._answer(steps, streams, asked, pattern, kwargs)

    def _answer(
        self, steps: Steps, kernels: list[Kernel], asked: Get | None, pattern: Any, options: Any
    ) -> Any:
        """What the network makes of the kernels of its inputs."""
        both = pattern if isinstance(pattern, tuple | list) else (pattern, pattern)
        nodes = kernels[0].layout.ordered(kernels[0].shape1 or ())[1:-1]
        edges = self.edges(both[0], nodes), self.edges(both[0 if both[1] is None else 1], nodes)
        if pattern is not None:
            options = {**options, "pattern": pattern}
        for step in steps:
            if isinstance(step, Foreign):
                kernels = [step.kernel(kernels[0], **options)]
                continue
            ends = step.parts if isinstance(step, Streams) else (step,)
            pairs = zip(ends, _copied(kernels, step), strict=True)
            kernels = [propagate(wide(end), kernel, edges) for end, kernel in pairs]
        return _unpacked(
            [
                kernel if asked is None else asked.answer(functools.partial(getattr, kernel))
                for kernel in kernels
            ]
        )


def batch(
    kernel_fn: Any, batch_size: int = 0, device_count: int = -1, store_on_device: bool = True
) -> Any:
    """The function itself: kernels are computed in tiles that fit into memory anyway.

    Sizes need not divide the number of examples.
    """
    if not isinstance(batch_size, int) or batch_size < 0:
        raise OptionError(
            "batch_size= is no number of examples.",
            got=f"batch_size={batch_size!r}",
            remedy="pass 0 or a positive whole number",
        )
    return kernel_fn


def wide(net: Layer) -> Layer:
    """The network with infinitely many heads: the limit of neural-tangents."""
    return finite.with_heads(net, INFINITE)


def triple(*parts: Any) -> Triple:
    """The three functions of these parts."""
    return InitFn(parts), ApplyFn(parts), KernelFn(parts)


def parts_of(layer: Any) -> Parts:
    """What a triple is made of; functions of a user's own are a part of their own."""
    if isinstance(layer, tuple | list) and len(layer) >= 3 and all(map(callable, layer[:3])):
        kernel = getattr(layer[2], "parts", None)
        return (Foreign(*layer[:3]),) if kernel is None else kernel
    raise OptionError(
        "A layer is not a triple (init_fn, apply_fn, kernel_fn).",
        got=repr(layer),
        remedy="pass what stax functions return, such as stax.Dense(64)",
    )
