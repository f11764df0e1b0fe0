"""torch models through `torch.export`: the program that a module is on inputs of one shape."""

from __future__ import annotations

import contextlib
import re
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from ..errors import NetworkError


def place_of(node: Any) -> str:
    """Module path, class and source line of a node."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    words = []
    if stack:
        path, kind = stack[-1][0], stack[-1][1]
        name = kind if isinstance(kind, str) else kind.__name__
        words.append(f"module '{path or 'the model itself'}' ({name.split('.')[-1]})")
    lines = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    if lines:
        file, line = lines[-1]
        words.append(f"{file.rsplit('/', 1)[-1]}:{line}")
    target = getattr(node.target, "__name__", str(node.target))
    return f"'{target.split('.')[0]}' in " + ", ".join(words) if words else f"'{target}'"


def batch_of(x: np.ndarray, count: int) -> Any:
    """Examples of the shape and kind of x, as a tensor."""
    kind = np.int64 if x.dtype.kind in "iu" else np.float32
    return torch.as_tensor(np.zeros((count, *x.shape[1:]), kind))


def export(model: Any, batch: Any) -> Any:
    """The exported program; what torch raises is said in one sentence."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    batch = batch.to(dtype) if batch.is_floating_point() else batch
    with _plain_call(model), warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(model, (batch,), strict=False)
        except Exception as error:  # whatever the model's code or torch raises
            raise _not_exported(model, batch, error) from error


def _not_exported(model: Any, batch: Any, error: Exception) -> NetworkError:
    """One sentence: the first line of the message, and the model's own line that it came from."""
    own = ("/torch/", "/widelimit/", "/contextlib.py")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.endswith(".py")]
    users = [f for f in frames if not any(part in f.filename for part in own)]
    message = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    said = f"{type(error).__name__}: {message[:200]}"
    line = f" at {users[-1].filename.rsplit('/', 1)[-1]}:{users[-1].lineno}" if users else ""
    shape, kind = tuple(batch.shape), str(batch.dtype).removeprefix("torch.")
    return NetworkError(
        f"{type(model).__name__} does not run on two examples of x as one fixed program.",
        got=f"{said}{line}, with an input of shape {shape} and kind {kind}",
        remedy="pass x of the shape and kind that model(x) takes, and let no branch of the code "
        "depend on numbers of x",
    )


@contextlib.contextmanager
def _plain_call(model: Any) -> Iterator[None]:
    """Calls without a cache of keys and values, which is an output of its own."""
    configs = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    caching = [c for c in configs.values() if getattr(c, "use_cache", None) is True]
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for config in caching:
            config.use_cache = True


def constants_of(program: Any) -> dict[str, Any]:
    """Parameters, buffers and constants by the name of their placeholder."""
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    state = program.state_dict
    found = {name: state.get(path, program.constants.get(path)) for name, path in named.items()}
    for name, path in signature.inputs_to_lifted_tensor_constants.items():
        found[name] = program.constants[path]
    return {name: tensor.detach() for name, tensor in found.items() if tensor is not None}
