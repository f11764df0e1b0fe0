"""The three functions of a layer, `(init_fn, apply_fn, kernel_fn)`."""

import functools
from collections import namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from .. import finite
from ..engine.inputs import outline_of
from ..errors import NetworkError, OptionError, ShapeError
from ..layers import INFINITE, Graph, Layer, Serial
from ..layers.compose import is_noisy
from .kernel import Kernel, propagate, read_kernel, shaped
from .layout import Layout
from .network import (
    Foreign,
    Network,
    Parts,
    assemble,
    count_streams,
    find_neighbours,
    named_axes,
)

Triple = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]


class _Function:
    """A function of a network that knows its parts."""

    def __init__(self, parts: Parts):
        self.parts = parts
        self.__name__ = type(self).__name__
        self._made: dict[Any, tuple[Network, list[Layout]]] = {}

    def __repr__(self) -> str:
        names = [getattr(part, "name", type(part).__name__) for part in self.parts]
        return f"<{self.__name__} of {', '.join(names) or 'Identity'}>"

    @property
    def streams(self) -> int:
        """How many arrays an input is a tuple of."""
        return count_streams(self.parts)

    def network(self, ranks: Sequence[int], padded: bool) -> tuple[Network, list[Layout]]:
        """The network for inputs with so many axes, and their layouts."""
        key = (tuple(ranks), padded)
        if key not in self._made:
            if self.streams == 1:
                axes = [named_axes(self.parts)]
            else:
                axes = [named_axes(branch) for branch in self.parts[0].branches]  # type: ignore[union-attr]
            layouts = [Layout.of(*one) for one in zip(ranks, axes, strict=True)]
            self._made[key] = assemble(self.parts, layouts, padded=padded), layouts
        return self._made[key]

    def edges(self, pattern: Any, positions: tuple[int, ...]) -> Any:
        """The graphs of a batch with so many nodes, as the library has them."""
        layer = find_neighbours(self.parts)
        if pattern is None and layer is None:
            return None
        if pattern is None or layer is None:
            raise OptionError(
                "pattern= is missing: stax.Aggregate sums over the graph in it."
                if pattern is None
                else "pattern= met a network without stax.Aggregate, which alone takes a graph.",
                got="pattern=None"
                if pattern is None
                else f"pattern of type {type(pattern).__name__}",
                remedy="pass it to networks of graphs, and only to them",
            )
        return layer.edges(pattern, positions)

    def split(self, x: Any, name: str) -> list[Any]:
        """An input, or the inputs of several streams."""
        if self.streams == 1:
            return [x]
        if not isinstance(x, tuple | list) or len(x) != self.streams:
            raise ShapeError(
                f"'{name}' is not a tuple of {self.streams} inputs.",
                got=type(x).__name__,
                remedy=f"pass one for each network of the first stax.parallel, {self.streams}",
            )
        return list(x)

    def read(self, x: Any, name: str, constant: Any) -> tuple[list[Array], list[Array | None]]:
        """Every stream as (N, positions…, channels), and its mask."""
        inputs = [numbers(one) for one in self.split(x, name)]
        _, layouts = self.network([one.ndim for one in inputs], padded=False)
        found = [hide(*pair, constant) for pair in zip(inputs, layouts, strict=True)]
        return [one for one, _ in found], [mask for _, mask in found]

    def joined(self, found: list[Any]) -> Any:
        """What several streams have, as a tuple."""
        return found[0] if self.streams == 1 else tuple(found)


# --- inputs ---------------------------------------------------------------------------------------


def numbers(x: Any) -> Array:
    """Inputs in the precision that JAX is set to."""
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)


def hide(x: Array, layout: Layout, constant: Any) -> tuple[Array, Array | None]:
    """(N, positions…, channels) with zeros for the constant, and which positions are real.

    A position is padding where all its channels hold the constant.
    """
    x = layout.moved(x)
    if constant is None:
        return x, None
    held = jnp.isnan(x) if np.isnan(constant) else x == constant
    mask = ~held.all(axis=-1)
    x = jnp.where(held, jnp.zeros((), x.dtype), x)
    known = not isinstance(mask, Tracer)
    if known and bool(mask.all()):
        return x, None
    if mask.ndim == 1:
        raise ShapeError(
            "mask_constant= met inputs without positions: an example would be padding altogether.",
            got=f"inputs of shape {x.shape}",
            remedy="drop these examples, or leave mask_constant= out",
        )
    return x, mask


# --- finite networks ------------------------------------------------------------------------------


class InitFn(_Function):
    """`init_fn(rng, input_shape)`: the shape of outputs, and parameters."""

    def __call__(self, rng: Any, input_shape: Any, **kwargs: Any) -> tuple[Any, Any]:
        shapes = self.split(input_shape, "input_shape")
        network, layouts = self.network([len(shape) for shape in shapes], padded=False)
        sizes = [layout.ordered(shape) for shape, layout in zip(shapes, layouts, strict=True)]
        shape, layout, params = self.joined(sizes), layouts[0], []
        for step in network.steps:
            rng, key = (rng, rng) if len(network.steps) == 1 else jax.random.split(rng)
            if isinstance(step, Foreign):
                shape, own = step.init(key, layout.restored_shape(shape), **kwargs)
                layout = layout if len(shape) == layout.ndim else layout.after(len(shape) - 2)
                shape = layout.ordered(shape)
            else:
                shape, own = _draw(step, key, shape, self.streams > 1 and not params)
                layout = layout.after(len(shape) - 2)
            params.append(own)
        if network.ends is None:
            whole = layout.restored_shape(shape)
            return whole, params[0] if len(params) == 1 else tuple(params)
        several = isinstance(shape[0], tuple)
        ends = [
            _draw(end, key, shape[place] if several else shape, False)
            for place, (end, key) in enumerate(
                zip(network.ends, jax.random.split(rng, len(network.ends)), strict=True)
            )
        ]
        layouts = layouts if several else [layout] * len(ends)
        shapes = tuple(
            place.after(len(end) - 2).restored_shape(end)
            for place, (end, _) in zip(layouts, ends, strict=True)
        )
        return shapes, (*params, tuple(own for _, own in ends))


def _draw(net: Layer, key: Any, shape: Any, streams: bool) -> tuple[tuple[int, ...], Any]:
    """The shape after a network of the library, and its parameters."""
    inner = tuple(one[1:] for one in shape) if streams else shape[1:]
    params = net.init(key, inner)
    size = shape[0][0] if streams else shape[0]
    return (size, *net.outline(outline_of(net, inner)).shape), params


class ApplyFn(_Function):
    """`apply_fn(params, x, rng=None, mask_constant=None)`: outputs of the finite network."""

    def __call__(
        self,
        params: Any,
        x: Any,
        rng: Any = None,
        mask_constant: Any = None,
        pattern: Any = None,
        **kwargs: Any,
    ) -> Any:
        inputs, masks = self.read(x, "x", mask_constant)
        padded = any(mask is not None for mask in masks)
        network, layouts = self.network([one.ndim for one in inputs], padded=padded)
        if padded and network.single is None:
            raise OptionError(
                "mask_constant= met a network with a layer of your own, or with several outputs.",
                got=f"mask_constant={mask_constant!r}",
                remedy="apply such networks to inputs without padding",
            )
        if rng is None and any(isinstance(s, Layer) and is_noisy(s) for s in network.steps):
            raise OptionError(
                "apply_fn of a network with Dropout in mode 'train' got no rng.",
                got="rng=None",
                remedy="pass rng=, or build the network with Dropout(rate, mode='test')",
            )
        state, mask = self.joined(inputs), self.joined(masks) if padded else None
        edges = self.edges(pattern, inputs[0].shape[1:-1])
        if edges is not None:
            return layouts[0].restored(self._on_graph(network, params, (state, edges), mask, rng))
        layout, single = layouts[0], len(network.steps) == 1 and network.ends is None
        given = (params,) if single else params
        for place, step in enumerate(network.steps):
            key = None if rng is None else (rng if single else jax.random.fold_in(rng, place))
            if isinstance(step, Foreign):
                state = step.apply(given[place], layout.restored(state), rng=key, **kwargs)
                layout = layout if state.ndim == layout.ndim else layout.after(state.ndim - 2)
                state, mask = layout.moved(state), None
            else:
                state, mask = step.apply(given[place], state, mask, key=key), None
                layout = layout.after(state.ndim - 2)
        if network.ends is None:
            return layout.restored(state)
        inner = state if isinstance(state, tuple) else (state,) * len(network.ends)
        layouts = layouts if isinstance(state, tuple) else [layout] * len(inner)
        outputs = [
            end.apply(own, one, key=rng)
            for end, own, one in zip(network.ends, params[-1], inner, strict=True)
        ]
        return tuple(
            place.after(y.ndim - 2).restored(y) for place, y in zip(layouts, outputs, strict=True)
        )

    def _on_graph(self, network: Network, params: Any, graph: Any, mask: Any, rng: Any) -> Any:
        """Outputs of a network whose inputs are nodes and edges."""
        if network.single is None:
            raise NetworkError(
                "stax.Aggregate stands beside a layer of your own, or before several outputs.",
                got=repr(self),
                remedy="write the layer as stax.Elementwise, and merge the outputs",
            )
        net = Serial(Graph(), *network.single.parts)
        return net.apply(((), *params), graph, None if mask is None else (mask, None), key=rng)


# --- infinite networks ----------------------------------------------------------------------------

_FAST = {"nngp", "ntk"}
_FIELDS = {*Kernel.__dataclass_fields__} - {"facts"}


@functools.cache
def _tuple_type(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def asked(get: Any) -> tuple[str, ...] | None:
    """The names in `get`, in lower case; None: everything."""
    if get is None:
        return None
    names = tuple(get) if isinstance(get, tuple | list) else (get,)
    if not names or len(set(names)) < len(names) or not all(isinstance(n, str) for n in names):
        raise OptionError(
            "get= does not name each of one or more results once.",
            got=f"get={get!r}",
            remedy="pass 'nngp', 'ntk', or a tuple of names",
        )
    return tuple(name.lower() for name in names)


def answer(get: Any, values: Callable[[str], Any], name: str) -> Any:
    """One value for a string, a named tuple in the order asked for several."""
    names = asked(get)
    assert names is not None
    if isinstance(get, str):
        return values(names[0])
    return _tuple_type(name, names)(*map(values, names))


class KernelFn(_Function):
    """`kernel_fn(x1, x2=None, get=None, …)`: kernels of the infinitely wide network.

    `x1` may be a `Kernel`, which goes through the network. `get` names fields of `Kernel`.
    """

    def __call__(
        self,
        x1: Any,
        x2: Any = None,
        get: Any = None,
        *,
        pattern: Any = None,
        mask_constant: Any = None,
        diagonal_batch: bool | None = None,
        diagonal_spatial: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        names = asked(get)
        if names is not None and (unknown := set(names) - _FIELDS):
            raise OptionError(
                f"get= asks for {', '.join(sorted(unknown))}, which kernels do not have.",
                got=f"get={get!r}",
                remedy="ask for 'nngp', 'ntk', 'cov1', 'cov2' or another field of Kernel",
            )
        if isinstance(x1, Kernel):
            if x2 is not None:
                raise OptionError(
                    "x2= is given beside a Kernel, which has both inputs.",
                    got=f"x2 of type {type(x2).__name__}",
                    remedy="kernel_fn(kernel, None, get)",
                )
            network, _ = self._for(x1)
            return self._answer(network, x1, get, pattern, kwargs)
        sides = [self.read(x1, "x1", mask_constant)]
        sides += [] if x2 is None else [self.read(x2, "x2", mask_constant)]
        ranks = [[x.ndim for x in inputs] for inputs, _ in sides]
        if ranks[0] != ranks[-1]:
            raise ShapeError(
                "x1 and x2 do not have the same number of axes.",
                got=f"{ranks[0]} and {ranks[1]}",
                remedy="give both the layout of the network's input",
            )
        padded = any(mask is not None for _, masks in sides for mask in masks)
        network, layouts = self.network(ranks[0], padded=padded)
        spatial = bool(diagonal_spatial)
        graph = pattern is not None or find_neighbours(self.parts) is not None
        if names is not None and set(names) <= _FAST and network.single is not None and not graph:
            one, *others = ((self.joined(xs), _some(self.joined(masks))) for xs, masks in sides)
            two = others[0] if others else (None, None)
            kernels = wide(network.single).kernel(
                one[0], two[0], mask=one[1], mask2=two[1], ntk="ntk" in names, progress=False
            )
            return answer(
                get, lambda name: shaped(getattr(kernels, name), 2, spatial), "AnalyticKernel"
            )
        if self.streams > 1 and (network.steps or network.ends is None):
            raise OptionError(
                "A Kernel of a network that merges several inputs is not known here.",
                got=f"get={get!r}",
                remedy="ask for 'nngp' and 'ntk', and leave out forks after the merge",
            )
        nothing = [None] * self.streams
        (xs1, masks1), (xs2, masks2) = sides if x2 is not None else (*sides, (nothing, nothing))
        alone = diagonal_batch is not False
        streams = [
            read_kernel(a, b, masks, layout, diagonal_batch=alone, diagonal_spatial=spatial)
            for a, b, *masks, layout in zip(xs1, xs2, masks1, masks2, layouts, strict=True)
        ]
        if self.streams == 1:
            return self._answer(network, streams[0], get, pattern, kwargs)
        assert network.ends is not None
        ends = zip(network.ends, streams, strict=True)
        return tuple(_picked(propagate(wide(end), kernel), get) for end, kernel in ends)

    def _for(self, kernel: Kernel) -> tuple[Network, list[Layout]]:
        """The network for a kernel, whose layout is known."""
        padded = kernel.mask1 is not None or kernel.mask2 is not None
        layout = kernel.layout
        return assemble(self.parts, [layout], padded=padded), [layout]

    def _answer(
        self, network: Network, kernel: Kernel, get: Any, pattern: Any, options: Any
    ) -> Any:
        both = pattern if isinstance(pattern, tuple | list) else (pattern, pattern)
        assert kernel.shape1 is not None
        nodes = kernel.layout.ordered(kernel.shape1)[1:-1]
        edges = self.edges(both[0], nodes), self.edges(both[0 if both[1] is None else 1], nodes)
        if pattern is not None:
            options = {**options, "pattern": pattern}
        for step in network.steps:
            kernel = (
                step.kernel(kernel, **options)
                if isinstance(step, Foreign)
                else propagate(wide(step), kernel, edges)
            )
        if network.ends is None:
            return _picked(kernel, get)
        return tuple(_picked(propagate(wide(end), kernel, edges), get) for end in network.ends)


def wide(net: Layer) -> Layer:
    """The network with infinitely many heads: the limit of neural-tangents."""
    return finite.with_heads(net, INFINITE)


def _some(mask: Any) -> Any:
    """None where no stream has a mask."""
    return None if isinstance(mask, tuple) and all(m is None for m in mask) else mask


def _picked(kernel: Kernel, get: Any) -> Any:
    if get is None:
        return kernel
    return answer(get, lambda name: getattr(kernel, name), "AnalyticKernel")


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
