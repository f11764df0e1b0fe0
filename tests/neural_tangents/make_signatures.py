"""Make tests/reference/neural_tangents/signatures.json: what neural-tangents 0.6.5 takes.

In the environment that tests/reference/make_reference.py describes, from the root:

    .venv-reference/bin/python tests/neural_tangents/make_signatures.py

Every public function and class of the package, `stax` and `predict`, with kinds and defaults of its
arguments; and the functions that these return, by the names that follow a dot.
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

FILE = Path(__file__).parent.parent / "reference" / "neural_tangents" / "signatures.json"


def arguments(function: Callable[..., Any]) -> list[list[str]]:
    """Name, kind and default of every argument, in words that both libraries share."""
    return [
        [name, parameter.kind.name, _word(parameter.default)]
        for name, parameter in inspect.signature(function).parameters.items()
    ]


def _word(default: Any) -> str:
    if default is inspect.Parameter.empty:
        return ""
    name = getattr(default, "name", None)  # of enums
    if name is not None:
        return str(name)
    if callable(default):
        return "a function"
    number = isinstance(default, int | float) and not isinstance(default, bool)
    return repr(float(default)) if number else repr(default)


def listed(nt: Any) -> dict[str, Any]:
    """Public names of a library, and what they stand for."""
    found = {}
    for room, names in (("", nt), ("stax.", nt.stax), ("predict.", nt.predict)):
        for name in sorted(vars(names)):
            value = getattr(names, name)
            where = getattr(value, "__module__", None) or type(value).__module__
            public = not name.startswith("_") and not inspect.ismodule(value)
            if public and where.split(".")[0] == "neural_tangents":
                found[room + name] = value
    return found


def described(name: str, value: Any) -> Any:
    """The arguments of a function or class; of an enum its members."""
    if hasattr(value, "__members__"):
        return {member: member_value.value for member, member_value in value.__members__.items()}
    return arguments(value) if callable(value) else "an object"


def returned(nt: Any) -> dict[str, Callable[..., Any]]:
    """What functions return that scripts call."""
    init_fn, apply_fn, kernel_fn = nt.stax.Dense(1)[:3]

    def mean(fx: Any, y: Any) -> Any:
        return ((fx - y) ** 2).mean()

    k, y, key = jnp.ones((1, 1)), jnp.zeros((1, 1)), jax.random.PRNGKey(0)
    return {
        "stax.Dense.init_fn": init_fn,
        "stax.Dense.apply_fn": apply_fn,
        "stax.Dense.kernel_fn": kernel_fn,
        "empirical_nngp_fn.nngp_fn": nt.empirical_nngp_fn(apply_fn),
        "empirical_ntk_fn.ntk_fn": nt.empirical_ntk_fn(apply_fn),
        "empirical_kernel_fn.kernel_fn": nt.empirical_kernel_fn(apply_fn),
        "monte_carlo_kernel_fn.kernel_fn": nt.monte_carlo_kernel_fn(init_fn, apply_fn, key, 1),
        "predict.gp_inference.predict_fn": nt.predict.gp_inference(k, y),
        "predict.gradient_descent_mse.predict_fn": nt.predict.gradient_descent_mse(k, y),
        "predict.gradient_descent_mse_ensemble.predict_fn": (
            nt.predict.gradient_descent_mse_ensemble(kernel_fn, y, y)
        ),
        "predict.gradient_descent.predict_fn": nt.predict.gradient_descent(mean, k, y),
    }


if __name__ == "__main__":
    import neural_tangents as nt  # type: ignore[import-not-found]

    signatures = {name: described(name, value) for name, value in listed(nt).items()}
    signatures |= {name: arguments(function) for name, function in returned(nt).items()}
    rows = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in signatures.items()]
    FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
