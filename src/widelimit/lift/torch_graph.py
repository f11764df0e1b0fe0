"""torch models: their exported program, read operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]
from torch import fx  # pyright: ignore[reportMissingImports]

from .operators import Builder
from .parts import PartNode
from .torch_export import batch_of, constants_of, export, place_of
from .torch_functions import jax_function, on_numpy, pointwise
from .values import Computed, Held, Known, Layout, alike, refusal

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
_EXAMPLES = 2

UNTIE = (
    "give each place its own weights, e.g. model.lm_head.weight = "
    "nn.Parameter(torch.randn_like(w) * w.std()) with w = model.lm_head.weight"
)


def read_module(model: Any, x: np.ndarray) -> tuple[PartNode, Layout]:
    """The last part of a module, whose output is the model's, and what its input means."""
    batch = batch_of(x, _EXAMPLES)
    program = export(model, batch)
    tokens = not batch.is_floating_point()
    layout = Layout(tuple(batch.shape[1:]), tokens=tokens, batch=_EXAMPLES)
    constants = constants_of(program)
    inputs = [
        Known(constants[node.name]) if node.name in constants else layout.input()
        for node in program.graph.nodes
        if node.op == "placeholder"
    ]
    count = sum(isinstance(value, Held) for value in inputs)
    if count != 1:
        raise refusal(f"The model takes {count} inputs", "its forward", "wrap it for one")
    reader = _Reader(layout)
    return reader.build.output(reader.run(program.graph_module, inputs)), layout


class _Torch:
    """What reading asks of torch."""

    on_numpy, in_jax = staticmethod(on_numpy), staticmethod(jax_function)

    def array(self, numbers: np.ndarray) -> Any:
        return torch.as_tensor(numbers, dtype=torch.float32)

    def numbers(self, array: Any) -> np.ndarray:
        return array.detach().double().numpy()

    def slopes(
        self, function: Callable[[list[Any]], Any], arrays: list[Any]
    ) -> list[list[np.ndarray]]:
        leaves = [array.requires_grad_() for array in arrays]
        found = [
            torch.autograd.grad(one, leaves, retain_graph=True, allow_unused=True)
            for one in function(leaves)
        ]
        zeros = [torch.zeros_like(array) for array in arrays]
        return [
            [(z if s is None else s).numpy() for s, z in zip(each, zeros, strict=True)]
            for each in found
        ]


class _Reader:
    """One operator after another."""

    def __init__(self, layout: Layout):
        self.build = Builder(layout, _Torch())

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

    def step(self, node: Any, values: dict[Any, Any]) -> Any:
        """What an operator gives."""
        args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: values[n])
        target, where = node.target, place_of(node)
        name = _name(target)
        if name in _BESIDE:
            return None
        if target in _INNER:
            inner, *given = args[_INNER[target] :]
            return tuple(self.run(inner.array, [v if _live(v) else _known(v) for v in given]))
        live = [v for v in _leaves((args, kwargs)) if isinstance(v, Held | Computed)]
        if not live:
            return _constant(target, name, args, kwargs)
        if name == "getitem" and isinstance(args[0], list | tuple):
            return args[0][args[1]]
        if name in _SAME and isinstance(args[0], Held):
            return args[0]
        name = name.rstrip("_")
        if all(isinstance(v, Held) for v in live) or name in (*_WEIGHTS, "embedding"):
            found = self.read(target, name, args, kwargs, where)
            if found is not None:
                return found
        return self.computed(node, name, args, kwargs, live, where)

    def read(self, target: Any, name: str, args: Any, kwargs: Any, where: str) -> Any:
        """An operator on arrays of known meaning; None where it has no reading by itself."""
        if name in _MOVES:
            return self.moved(target, name, args, kwargs, where)
        if name in _OPERATORS:
            return _OPERATORS[name](self.build, _arguments(target, args, kwargs), where)
        if torch.Tag.pointwise not in getattr(target, "tags", ()):
            return None
        if any(isinstance(v, Held | Known) for v in kwargs.values()):
            return None

        def compose(functions: list[Any]) -> Any:
            given = iter(functions)
            inner = [next(given) if isinstance(a, Held) else None for a in args]
            plain = tuple(a.number if isinstance(a, Known) else a for a in args)
            return pointwise(target, plain, kwargs, inner)

        # With options such as alpha, sums are other functions.
        return self.build.entrywise("" if kwargs else name, args, compose, where)

    def moved(self, target: Any, name: str, args: Any, kwargs: Any, where: str) -> Any:
        """Entries at other places; None where different arrays are put together."""
        if name in ("cat", "concat", "concatenate"):
            axis = args[1] if len(args) > 1 else kwargs.get("dim", 0)
            return self.build.joined(args[0], axis, where)
        if name == "index" and isinstance(args[0], Known) and len(args[1]) == 1:
            return self.build.embedding(args[0].numbers, args[1][0], where)
        held = [v for v in _leaves(args[0]) if isinstance(v, Held)]
        others = [v for v in _leaves((args[1:], kwargs)) if isinstance(v, Held)]
        if others or len(held) != len(_leaves(args[0])) or not alike(held):
            return None

        def index(value: Any) -> Any:
            if isinstance(value, Held):
                return torch.as_tensor(np.ascontiguousarray(value.index))
            return value.array if isinstance(value, Known) else value

        found = _called(target, name, *_mapped(index, (args, kwargs)))
        if isinstance(found, tuple | list):
            return [held[0].moved(lambda _, each=each: each.numpy()) for each in found]
        return held[0].moved(lambda _: found.numpy())

    def computed(
        self, node: Any, name: str, args: Any, kwargs: Any, live: list[Any], where: str
    ) -> Any:
        """An operator without a reading of its own."""
        shape = getattr(node.meta["val"], "shape", ())
        if name == "scaled_dot_product_attention":
            return self.attended(where, *args, **kwargs)
        target = node.target
        if name in ("softmax", "_softmax"):
            axis = _arguments(target, args, kwargs)["dim"] % len(shape)
            name = "softmax" if axis == len(shape) - 1 else f"softmax over axis {axis}"

        def call(*arrays: Any) -> Any:
            given = iter(arrays)

            def one(value: Any) -> Any:
                if isinstance(value, Held | Computed):
                    return next(given)
                return value.array if isinstance(value, Known) else value

            return _called(target, name, *_mapped(one, (args, kwargs)))

        return self.build.computed(name, call, live, shape, where)

    def attended(
        self,
        where: str,
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Computed:
        """Scaled dot-product attention, as scores, their softmax and what it weighs."""
        if dropout_p:
            raise refusal("Attention weights are dropped at random", where, "model.eval()")
        masks = () if attn_mask is None or isinstance(attn_mask, Known) else (attn_mask,)
        groups = query.shape[-3] // key.shape[-3] if enable_gqa else 1

        def scores(q: Any, k: Any, *mask: Any) -> Any:
            added = mask[0] if mask else getattr(attn_mask, "array", None)
            k = k.repeat_interleave(groups, -3) if enable_gqa else k
            found = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
            if is_causal:
                added = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
            if added is None:
                return found
            if added.dtype == torch.bool:
                return found.masked_fill(~added, float("-inf"))
            return found + added

        def weighed(weights: Any, v: Any) -> Any:
            return weights @ (v.repeat_interleave(groups, -3) if enable_gqa else v)

        shape = (*query.shape[:-1], key.shape[-2])
        before = Computed(scores, (query, key, *masks), shape, where, "scores")
        weights = Computed(lambda s: torch.softmax(s, -1), (before,), shape, where, "softmax")
        after = (*query.shape[:-1], value.shape[-1])
        return Computed(weighed, (weights, value), after, where, "attended")


# ---- trees of arguments --------------------------------------------------------------------------


def _live(value: Any) -> bool:
    return isinstance(value, Known | Held | Computed)


def _known(value: Any) -> Known:
    return Known(value)


def _leaves(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree, is_leaf=_live)


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    return torch.utils._pytree.tree_map(function, tree, is_leaf=_live)


def _name(target: Any) -> str:
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema else getattr(target, "__name__", "")


def _called(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    """An operator on tensors; views of what is laid out otherwise are copies."""
    if name in ("view", "_unsafe_view"):
        return args[0].reshape(args[1])
    return target(*args, **kwargs)


def _constant(target: Any, name: str, args: Any, kwargs: Any) -> Any:
    """Constants of constants."""
    plain = _mapped(lambda v: v.array if isinstance(v, Known) else v, (args, kwargs))
    with torch.no_grad():
        found = _called(target, name, *plain)
    return [Known(each) for each in found] if isinstance(found, tuple | list) else Known(found)


def _arguments(target: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by the names of the operator's schema, with their defaults."""
    schema = {each.name: each.default_value for each in target._schema.arguments}
    return schema | dict(zip(schema, args, strict=False)) | kwargs


def _inner() -> dict[Any, int]:
    """Operators that hold a program of their own, and how many arguments come before it."""
    found = {}
    for name, skipped in (("wrap_with_set_grad_enabled", 1), ("wrap_with_autocast", 4)):
        operator = getattr(torch.ops.higher_order, name, None)
        if operator is not None:
            found[operator] = skipped
    return found


_INNER: dict[Any, int] = _inner()


# ---- operators that make parts -------------------------------------------------------------------


def _numbers(value: Any) -> np.ndarray | None:
    return None if value is None else value.numbers


def _linear(build: Builder, given: dict[str, Any], where: str) -> Any:
    """`linear`, `addmm`, `mm` and `matmul` with constant weights."""
    if "weight" in given:
        value, weight, bias = given["input"], given["weight"], given["bias"]
    elif "mat1" in given:
        value, weight, bias = given["mat1"], given["mat2"], given["self"]
    else:
        value, weight, bias = given["self"], given.get("mat2", given.get("other")), None
    plain = given.get("beta", 1) == 1 and given.get("alpha", 1) == 1
    if not isinstance(weight, Known) or not isinstance(bias, Known | None):
        return None
    if not plain or isinstance(value, Known) or len(weight.shape) != 2:
        return None
    matrix = weight.numbers.T if "weight" in given else weight.numbers
    return build.linear(value, matrix, _numbers(bias), where)


def _conv(build: Builder, given: dict[str, Any], where: str) -> Any:
    weight, bias, held = given["weight"], given.get("bias"), given["input"]
    if not isinstance(weight, Known) or not isinstance(bias, Known | None):
        return None
    if given.get("transposed"):
        raise refusal("A convolution is transposed", where, "use plain convolutions")
    rank, pads = len(weight.shape) - 2, given["padding"]
    return build.conv(
        held,
        weight.numbers,
        _numbers(bias),
        where,
        stride=_each(given["stride"], rank),
        pads=pads.upper() if isinstance(pads, str) else [(p, p) for p in _each(pads, rank)],
        groups=given["groups"],
        dilation=_each(given["dilation"], rank),
    )


def _each(value: Any, rank: int) -> tuple[int, ...]:
    values = [value] if isinstance(value, int) else list(value)
    return tuple(int(v) for v in (values * rank if len(values) == 1 else values))


def _embedding(build: Builder, given: dict[str, Any], where: str) -> Any:
    if not isinstance(given["weight"], Known):
        return None
    table, tokens = given["weight"].numbers, given["indices"]
    return build.embedding(table, tokens, where, given["padding_idx"])


def _norm(*, centred: bool) -> Callable[..., Any]:
    def read(build: Builder, given: dict[str, Any], where: str) -> Any:
        if len(given["normalized_shape"]) > 1:
            raise refusal("A normalisation is over several axes", where, "normalise channels")
        eps = torch.finfo(torch.float32).eps if given["eps"] is None else given["eps"]
        gain, shift = given["weight"], given.get("bias")
        return build.normalise(
            given["input"], centred=centred, eps=float(eps), gain=gain, shift=shift, where=where
        )

    return read


def _batch_norm(build: Builder, given: dict[str, Any], where: str) -> Any:
    """In evaluation, the affine map that running means and variances make."""
    if given["training"] or given["running_var"] is None:
        raise refusal("BatchNorm mixes the examples of a batch", where, "model.eval()")
    expected = {"weight": 1.0, "running_var": 1.0, "bias": 0.0, "running_mean": 0.0}
    gain, variance, bias, mean = (
        number if given[name] is None else given[name].number for name, number in expected.items()
    )
    if None in (gain, variance, bias, mean) or bias or mean:
        raise refusal("BatchNorm has been trained", where, "lift a freshly initialised model")
    scale = float(gain / np.sqrt(variance + given["eps"]))
    return given["input"].then(lambda x: x * scale)


def _dropout(build: Builder, given: dict[str, Any], where: str) -> Any:
    held, rate = given["input"], given["p"]
    return build.drop(held, rate, where) if given["train"] and rate else held


def _reduced(*, mean: bool) -> Callable[..., Any]:
    def read(build: Builder, given: dict[str, Any], where: str) -> Any:
        held, axes = given["self"], given.get("dim")
        if axes is None:
            raise refusal("A mean or sum is over all examples too", where, "give dim=")
        axes = [a % held.index.ndim for a in ([axes] if isinstance(axes, int) else axes)]
        return build.pooled(held, axes, keep=given["keepdim"], mean=mean, where=where)

    return read


def _windows(build: Builder, given: dict[str, Any], where: str) -> Any:
    """Means over windows."""
    held = given["self"]
    rank = held.index.ndim - 2
    window = _each(given["kernel_size"], rank)
    stride = _each(given["stride"] or window, rank)
    beyond = any(_each(given["padding"], rank)) or given["ceil_mode"]
    if beyond or given.get("divisor_override"):
        raise refusal("Windows of a pool reach beyond the edge", where, "use no padding")
    return build.windows(held, window, stride, 1 / float(np.prod(window)), where)


def _adaptive(build: Builder, given: dict[str, Any], where: str) -> Any:
    held = given["self"]
    sizes = _each(given["output_size"], held.index.ndim - 2)
    if any(size != 1 for size in sizes):
        raise refusal(f"An adaptive pool leaves {sizes} positions", where, "leave one position")
    axes = range(2, held.index.ndim)
    return build.pooled(held, list(axes), keep=True, mean=True, where=where)


def _refused(failed: str, remedy: str) -> Callable[..., Any]:
    def read(build: Builder, given: dict[str, Any], where: str) -> Any:
        raise refusal(failed, where, remedy)

    return read


_maximum = _refused("Max pooling has no closed limit", "use mean pooling (AvgPool, or a stride)")
_random = _refused("The model draws random numbers as it runs", "model.eval()")
_WEIGHTS = dict.fromkeys(("linear", "addmm", "mm", "matmul"), _linear)
_OPERATORS: dict[str, Callable[..., Any]] = {
    **_WEIGHTS,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), _conv),
    "embedding": _embedding,
    "layer_norm": _norm(centred=True),
    "rms_norm": _norm(centred=False),
    "batch_norm": _batch_norm,
    **dict.fromkeys(("dropout", "feature_dropout"), _dropout),
    "mean": _reduced(mean=True),
    "sum": _reduced(mean=False),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _windows),
    **dict.fromkeys(("adaptive_avg_pool1d", "adaptive_avg_pool2d"), _adaptive),
    **{f"{kind}max_pool{n}d": _maximum for kind in ("", "adaptive_") for n in (1, 2, 3)},
    **dict.fromkeys(("bernoulli", "rand_like", "randn_like"), _random),
}
