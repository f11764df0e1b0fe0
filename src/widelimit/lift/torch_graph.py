"""torch models through `torch.fx`: modules of `torch.nn` stay whole, code between them is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import fx  # pyright: ignore[reportMissingImports]

from .activations import factor, recognised
from .initialisers import InitialReading
from .parts import Scale
from .torch_glue import FUNCTIONS, POINTWISE, Attended
from .torch_parts import MODULES, pointwise
from .values import Graph, Value, refusal


def read_module(model: Any, x: Any, reading: InitialReading) -> tuple[Graph, Value]:
    """The graph of a module on a batch."""
    batch = torch.as_tensor(np.asarray(x))
    tokens = not batch.is_floating_point()
    graph = Graph(batch.shape, tokens=tokens, batch=True)
    tracer = _Tracer()
    if tracer.is_leaf_module(model, ""):
        model = torch.nn.Sequential(model)
    traced = fx.GraphModule(model, tracer.trace(model))
    reader = Reader(traced, graph, reading)
    return graph, graph.settled_value(reader.run(), "the output")


class _Tracer(fx.Tracer):
    """Leaves modules of `torch.nn` whole, and opens sequences of them."""

    def is_leaf_module(self, m: Any, module_qualified_name: str) -> bool:
        return type(m) in MODULES or super().is_leaf_module(m, module_qualified_name)


class Reader:
    """One node of the fx graph after another."""

    def __init__(self, traced: Any, graph: Graph, reading: InitialReading):
        self.traced, self.graph, self.reading = traced, graph, reading
        self.values: dict[Any, Any] = {}

    def run(self) -> Value:
        placeholders = [n for n in self.traced.graph.nodes if n.op == "placeholder"]
        if len(placeholders) != 1:
            raise refusal("A model is a function of one input.", got=f"{len(placeholders)} inputs")
        for node in self.traced.graph.nodes:
            if node.op == "output":
                output = self.value(node.args[0])
                if not isinstance(output, Value):
                    raise refusal("A model returns one tensor.", got=repr(node.args[0]))
                return output
            self.values[node] = self.step(node)
        raise AssertionError("an fx graph ends in its output")

    def value(self, argument: Any) -> Any:
        """What an argument stands for; tuples and slices are looked into."""
        return fx.node.map_arg(argument, lambda node: self.values[node])

    def step(self, node: Any) -> Any:
        where = f"{node.target} ({node.op})"
        if node.op == "placeholder":
            return self.graph.input()
        if node.op == "get_attr":
            raise refusal(
                "Parameters stand in known modules.", got=f"the tensor '{node.target}' by itself"
            )
        args, kwargs = self.value(node.args), self.value(node.kwargs)
        if node.op == "call_module":
            module = self.traced.get_submodule(node.target)
            where = f"'{node.target}' ({type(module).__name__})"
            return self.module(module, args, kwargs, where)
        if not any(isinstance(a, Value | Attended) for a in (*args, *kwargs.values())):
            raise refusal("Between known parts a model acts on tensors.", got=f"{where}")
        return self.function(_name(node.target), args, kwargs, where)

    # ---- modules -------------------------------------------------------------------------------

    def module(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], where: str) -> Any:
        read = MODULES.get(type(module))
        if read is not None:
            return read(self, module, args, kwargs, where)
        function = pointwise(module)
        if function is None:
            raise refusal("Models are made of known parts.", got=where)
        return self.activated(args[0], function, where)

    def activated(self, value: Value, function: Callable[[Any], Any], where: str) -> Value:
        """A function of every entry, which must be a known one."""

        def on_numpy(x: Any) -> np.ndarray:
            with torch.no_grad():
                return function(torch.as_tensor(np.asarray(x, np.float64))).numpy()

        slope = factor(on_numpy)
        if slope is not None:
            return value if slope == 1 else self.graph.applied(Scale(slope), value, where)
        layer = recognised(on_numpy)
        if layer is None:
            raise refusal(
                "Functions of torch are known by their values: ReLU, GELU, SiLU, tanh, ….",
                got=where,
                remedy="write the network in layers with Elementwise(function)",
            )
        return value.then(lambda x: layer.dual.fn(jnp.asarray(x)))

    # ---- functions -----------------------------------------------------------------------------

    def function(
        self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], where: str
    ) -> Value:
        read = FUNCTIONS.get(name)
        if read is not None:
            return read(self, args, kwargs, where)
        value = args[0]
        function = POINTWISE.get(name)
        others = [a for a in (*args[1:], *kwargs.values()) if isinstance(a, Value)]
        if function is None or others or not isinstance(value, Value):
            raise refusal(
                "Between known parts a model adds, multiplies, pools, picks and rearranges.",
                got=where,
            )
        return self.activated(value, lambda x: function(x, *args[1:], **kwargs), where)

    def channel_last(self, value: Value, where: str) -> Value:
        return self.graph.channel_last(self.graph.settled_value(value, where), where)


def _name(target: Any) -> str:
    return target if isinstance(target, str) else target.__name__
