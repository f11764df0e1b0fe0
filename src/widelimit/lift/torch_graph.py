"""torch models: their exported program, read operator by operator.

Constants are computed, movements of entries are followed entry by entry, functions of single
entries are composed, weights and tables become parts. What is left is read region by region.
"""

from __future__ import annotations

from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import fx  # pyright: ignore[reportMissingImports]

from ..layers import Rearrange
from .initialisers import InitialReading
from .layout import rearranging
from .parts import Add, Multiply, PartNode, in_order, made
from .torch_export import batch_of, constants_of, export, place_of, refusal
from .torch_functions import pointwise
from .torch_laws import DrawnPart, DrawnWeights, decide
from .torch_operators import OPERATORS, added_table, weighted
from .torch_regions import Region, normalisation
from .torch_values import Aligner, Held, Known, Layout

_MOVES = {
    "view", "reshape", "_unsafe_view", "permute", "transpose", "t", "unsqueeze", "squeeze",
    "expand", "slice", "select", "split", "split_with_sizes", "chunk", "unbind", "cat", "stack",
    "flatten", "unflatten", "flip", "roll", "index_select", "index", "repeat", "movedim", "narrow",
    "unfold", "pixel_unshuffle", "pixel_shuffle", "swapaxes", "concat", "concatenate", "expand_as",
    "view_as", "reshape_as", "tile", "repeat_interleave", "channel_shuffle", "numpy_T", "mT",
    "unsafe_split", "unsafe_chunk", "tensor_split", "broadcast_to", "adjoint", "rot90", "T",
}  # fmt: skip
_SAME = {
    "clone", "contiguous", "to", "_to_copy", "alias", "detach", "detach_", "lift_fresh_copy",
    "type_as", "float", "double", "lift_fresh", "identity", "positive", "resolve_conj",
}  # fmt: skip
_BESIDE = {"_assert_tensor_metadata", "_assert_async", "sym_size", "_assert_scalar"}


def read_module(model: Any, x: Any, reading: InitialReading) -> tuple[PartNode, Rearrange | None]:
    """The last part of a module, whose output is the model's, and the order of its input."""
    batch = batch_of(x)
    program = export(model, batch)
    layout = Layout(tuple(batch.shape), tokens=not batch.is_floating_point())
    reader = Reader(layout)
    constants = constants_of(program)
    inputs = [
        Known(constants[node.name]) if node.name in constants else layout.input()
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    users = [held for held in inputs if isinstance(held, Held)]
    if len(users) != 1:
        raise refusal(f"The model takes {len(users)} inputs", "its forward", "wrap it for one")
    outputs = reader.run(program.graph_module, inputs)
    node = reader.output(outputs)
    nodes = in_order(node)
    depth = sum(len(getattr(each.part, "arrays", ())) == 4 for each in nodes)
    decide(nodes, reading, depth)
    if layout.order is None or layout.tokens:
        return node, None
    return node, rearranging(layout.shape, layout.order, layout.source)


class Reader:
    """One operator after another."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.aligner = Aligner(layout)

    def run(self, module: Any, inputs: list[Any]) -> list[Any]:
        """What a program returns, on these inputs."""
        values: dict[Any, Any] = {}
        given = iter(inputs)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = Known(getattr(module, node.target))
            elif node.op == "output":
                flat = torch.utils._pytree.tree_leaves(node.args[0])
                return [values[each] for each in flat if isinstance(each, fx.Node)]
            else:
                values[node] = self.step(node, values)
        raise AssertionError("a program ends in its output")

    def output(self, outputs: list[Any]) -> PartNode:
        """The part whose output is the model's first one."""
        where = "the model's output"
        value = next((v for v in outputs if not isinstance(v, Known)), None)
        if value is None:
            raise refusal("The output does not depend on the input", where)
        if not isinstance(value, Held):
            raise refusal(
                "The output is no known part of a network",
                getattr(value, "where", where),
                "return what the last weights give, such as logits instead of probabilities",
            )
        held = self.aligner.activated(self.aligner.known(value, -1, where), where)
        channels = torch.arange(held.node.channels)
        _, _, channel = self.aligner.coordinates(held)
        # Channels stand last, or elsewhere as in images.
        for axis in range(len(held.shape) - 1, 0, -1):
            along = channel.movedim(axis, -1)
            if along.shape[-1] == len(channels) and (along == channels).all():
                return self.aligner.rows(held, where, axis).node
        return self.aligner.rows(held, where).node

    # ---- one operator --------------------------------------------------------------------------

    def step(self, node: Any, values: dict[Any, Any]) -> Any:
        """What an operator gives."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        flat = torch.utils._pytree.tree_leaves(
            (args, kwargs), is_leaf=lambda v: isinstance(v, Known | Held | Region)
        )
        schema = getattr(node.target, "_schema", None)
        name = schema.name.split("::")[-1] if schema else getattr(node.target, "__name__", "")
        where = place_of(node)
        if name in _BESIDE:
            return None
        live = [v for v in flat if isinstance(v, Held | Region)]
        if node.target in _INNER:
            skipped = _INNER[node.target]
            inner, *given = args[skipped:]
            found = self.run(inner.tensor, [v if not _plain(v) else Known(v) for v in given])
            return tuple(found)
        if not live:
            return self.computed(node, args, kwargs, where)
        if name == "getitem" and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        if name in _SAME and not isinstance(args[0], Region):
            return args[0]
        held = [v for v in live if isinstance(v, Held)]
        if len(held) == len(live):
            found = self.read(node, name.rstrip("_"), args, kwargs, held, where)
            if found is not None:
                return found
        if name == "embedding":
            raise refusal("A table is looked up by indices that are computed from the input", where)
        found = weighted(self, name, args, kwargs, where)
        return self.region(node, values, where) if found is None else found

    def read(
        self, node: Any, name: str, args: Any, kwargs: Any, live: list[Held], where: str
    ) -> Any:
        """An operator on tensors of known meaning; None where it has no reading by itself."""
        if name in _MOVES:
            return self.moved(node.target, name, args, kwargs, live, where)
        reader = OPERATORS.get(name)
        if reader is not None:
            return reader(self, args, kwargs, where)
        if torch.Tag.pointwise in getattr(node.target, "tags", ()):
            return self.entrywise(node.target, name, args, kwargs, where)
        return None

    def computed(self, node: Any, args: Any, kwargs: Any, where: str) -> Any:
        """Constants of constants."""
        plain = _unwrapped((args, kwargs))
        target = node.target
        name = getattr(getattr(target, "_schema", None), "name", "").split("::")[-1]
        with torch.no_grad():
            if name in ("view", "_unsafe_view"):
                found = plain[0][0].reshape(plain[0][1])
            else:
                found = target(*plain[0], **plain[1])
        if isinstance(found, tuple | list):
            return [Known(each) for each in found]
        return Known(found)

    def moved(
        self, target: Any, name: str, args: Any, kwargs: Any, live: list[Held], where: str
    ) -> Any:
        """Entries at other places; None where different arrays or constants are put together."""
        if name in ("cat", "stack", "concat", "concatenate"):
            parts = [p for p in args[0] if not isinstance(p, Known) or p.tensor.numel()]
            if any(isinstance(p, Known) for p in parts):
                return OPERATORS["token"](self, (parts, *args[1:]), kwargs, where)
            args = (parts, *args[1:])
        first = live[0]
        if any(h.node is not first.node or h.function is not first.function for h in live):
            return None

        def index(value: Any) -> Any:
            return value.index if isinstance(value, Held) else _plain_value(value)

        leaf = lambda v: isinstance(v, Known | Held)  # noqa: E731
        given = torch.utils._pytree.tree_map(index, (args, kwargs), is_leaf=leaf)
        if name in ("view", "_unsafe_view"):
            found = given[0][0].reshape(given[0][1])
        else:
            found = target(*given[0], **given[1])
        if isinstance(found, tuple | list):
            return [Held(first.node, each, first.function) for each in found]
        return Held(first.node, found, first.function)

    def entrywise(self, target: Any, name: str, args: Any, kwargs: Any, where: str) -> Any:
        """A function of every entry, a sum or product of two arrays, or a table that is added."""
        held = [a for a in args if isinstance(a, Held)]
        if any(isinstance(v, Held | Known) for v in kwargs.values()):
            return None
        numbers = [a.number if isinstance(a, Known) else a for a in args]
        arrays = [a for a in args if isinstance(a, Known) and a.number is None]
        first = held[0]
        if arrays:
            if name in ("add", "sub") and len(held) == 1 and not kwargs:
                return added_table(self, first, arrays[0], where)
            return None
        same = all(h.node is first.node and h.shape == first.shape for h in held)
        if same and all((h.index == first.index).all() for h in held):
            shape = torch.broadcast_shapes(
                *(tuple(a.tensor.shape) for a in args if isinstance(a, Known)), first.shape
            )
            if shape != first.shape:
                first = Held(first.node, first.index.expand(shape), first.function)
            inner = [(h.function or _identity) if isinstance(h, Held) else None for h in args]
            plain = tuple(None if isinstance(n, Held) else n for n in numbers)
            return Held(first.node, first.index, pointwise(target, plain, kwargs, inner))
        if len(held) != 2 or len(args) != 2 or kwargs or name not in ("add", "sub", "mul"):
            return None
        one, two = held
        two = two.then(lambda x: x * -1.0) if name == "sub" else two
        if name == "mul" and torch.broadcast_shapes(one.shape, two.shape) != one.shape:
            return None
        if one.node is two.node and one.shape != two.shape:
            return None
        if not self.alike(one, two):
            return None
        one, two = self.aligner.same_place(one, two, where)
        part = Multiply() if name == "mul" else Add()
        return Held(made(part, one.node, two.node, where=where), self.aligner.canonical(one))

    def alike(self, one: Held, two: Held) -> bool:
        """Whether two tensors could be branches of one network."""
        return one.shape == two.shape and one.shape != ()

    # ---- regions -------------------------------------------------------------------------------

    def region(self, node: Any, values: dict[Any, Any], where: str) -> Any:
        """An operator without a reading of its own: part of a region."""
        sources: dict[Any, Held] = {}
        steps: dict[Any, None] = {}
        known: dict[Any, Any] = {}
        names: dict[Any, Any] = {}
        first = where
        for each in node.all_input_nodes:
            value = values[each]
            if isinstance(value, Region):
                sources |= value.sources
                steps |= dict.fromkeys(value.steps)
                known |= value.known
                names |= value.names
                if value.out is not each:
                    names[each] = value.out
                first = value.where
            elif isinstance(value, Held):
                sources[each] = value
            elif isinstance(value, Known):
                known[each] = value.tensor
            elif isinstance(value, list | tuple) and all(isinstance(v, Known) for v in value):
                known[each] = [v.tensor for v in value]
            elif isinstance(value, list | tuple) and value and isinstance(value[0], Region):
                continue
            else:
                raise refusal(f"{node.target} has no reading", where)
        steps[node] = None
        for held in sources.values():
            if held.node is self.layout.source and self.layout.order is None:
                self.aligner.known(held, -1, where)
        shape = node.meta["val"]
        shape = tuple(shape.shape) if hasattr(shape, "shape") else ()
        found = Region(node, shape, sources, tuple(steps), known, names, first)
        norm = normalisation(found, self.aligner)
        if norm is None:
            return found
        source, part = norm
        rows = self.aligner.rows(source, where, flatten=False)
        return rows.to(made(part, rows.node, where=where), rows.node.channels)

    def linear(self, held: Held, weights: Any, bias: Any, where: str) -> Held:
        """Weights (inputs, outputs) on the last axis."""
        rows = self.aligner.rows(held, where)
        drawn = DrawnWeights.of(weights, bias, where)
        node = made(DrawnPart.linear(drawn), rows.node, where=where, channels=weights.shape[1])
        return rows.to(node, weights.shape[1])


def _identity(x: Any) -> Any:
    return x


def _plain(value: Any) -> bool:
    return not isinstance(value, Known | Held | Region)


def _plain_value(value: Any) -> Any:
    return value.tensor if isinstance(value, Known) else value


def _unwrapped(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(_plain_value, tree, is_leaf=lambda v: isinstance(v, Known))


def _inner() -> dict[Any, int]:
    """Operators that hold a program of their own, and how many arguments come before it."""
    found = {}
    for name, skipped in (("wrap_with_set_grad_enabled", 1), ("wrap_with_autocast", 4)):
        operator = getattr(torch.ops.higher_order, name, None)
        if operator is not None:
            found[operator] = skipped
    return found


_INNER: dict[Any, int] = _inner()
