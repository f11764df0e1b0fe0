"""Networks as plain data: what a composition consists of, said without the library.

The generator draws `Part`s, `build` makes the library's network of them, and the slow reference
reads the same `Part`s: the two have nothing else in common.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

import widelimit as wl


@dataclass(frozen=True)
class Part:
    """A layer or a combination of layers: its kind, its options, what it is made of."""

    kind: str
    options: dict[str, Any] = field(default_factory=dict)
    parts: tuple["Part", ...] = ()

    def __getitem__(self, name: str) -> Any:
        return self.options[name]

    def to(self, **changes: Any) -> "Part":
        """The same kind of part with other options."""
        return replace(self, options=self.options | changes)

    def all(self) -> Iterator["Part"]:
        """This part and all parts inside it."""
        yield self
        for part in self.parts:
            yield from part.all()

    def __str__(self) -> str:
        given = {k: v for k, v in self.options.items() if v is not None}
        inside = [str(part) for part in self.parts]
        inside += [f"{k}={_short(v)}" for k, v in given.items()]
        return f"{self.kind}({', '.join(inside)})"


def _short(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return repr(value.tolist())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# What users may hand to `Elementwise`, for which the library sums a series.
FUNCTIONS = {
    "arctan": lambda x: jnp.arctan(x) + 0.1 * x,
    "bump": lambda x: x * jnp.exp(-(x**2) / 4) + 0.3,
    "bent": lambda x: jnp.where(x > 0, x, 0.3 * x),
}


class Squares(wl.layers.ScoreMap):
    """A score map as a user writes it: `(g² + 0.1)/Σ(g² + 0.1)` over the allowed keys."""

    def __call__(self, scores: Any, allowed: Any) -> Any:
        squares = scores**2 + 0.1
        squares = squares if allowed is None else jnp.where(allowed, squares, 0)
        total = jnp.sum(squares, axis=-1, keepdims=True)
        return squares / jnp.where(total == 0, 1, total)


def activation(options: dict[str, Any]) -> wl.Layer:
    """The activation layer of this name and these arguments."""
    name, given = options["name"], options.get("given", {})
    if name == "Elementwise":
        return wl.Elementwise(FUNCTIONS[given["function"]])
    if name in ("Monomial", "Hermite"):
        return getattr(wl.layers, name)(given["degree"])
    return getattr(wl.layers, name)(**given)


def _score_map(options: dict[str, Any] | None) -> Any:
    if options is None:
        return None
    if options["name"] == "identity":
        return wl.IdentityMap()
    if options["name"] == "squares":
        return Squares()
    return wl.ElementwiseMap(activation(options))


def _offset_bias(offsets: Any) -> Any:
    """A bias that depends on the direction of the offset, for any number of axes."""
    return 0.4 * jnp.tanh(offsets[..., 0]) - 0.1 * jnp.sum(offsets**2, axis=-1)


def _positions(part: Part) -> tuple[Any, ...]:
    found: list[Any] = []
    if part["encoding"] is not None:
        found.append(wl.Decay(**part["encoding"]))
    if part.options.get("rotary") is not None:
        base, pairs = part["rotary"]
        found.append(wl.Rotary(base, pairs=pairs))
    bias = part.options.get("bias")
    if bias is not None:
        kind, value = bias
        found.append(
            wl.Alibi(value)
            if kind == "alibi"
            else wl.layers.AdditiveBias(_offset_bias if kind == "offset" else value)
        )
    return tuple(found)


def _pattern(given: tuple[str, Any] | None) -> Any:
    if given is None:
        return None
    kind, value = given
    return {"causal": lambda: wl.Causal(), "local": lambda: wl.Local(value)}.get(
        kind, lambda: wl.layers.Allowed(value)
    )()


def _weighted(part: Part) -> dict[str, Any]:
    kind = part["parameterization"]
    kind = kind if part["by_name"] else wl.layers.Parameterization(kind)
    return {"w_std": part["w_std"], "b_std": part["b_std"], "parameterization": kind}


def _attention(part: Part) -> wl.Layer:
    common = {name: part[name] for name in ("qk_std", "ov_std", "b_std")}
    common["positions"] = _positions(part) or None
    score_map = _score_map(part["map"])
    if part.kind == "attention_pool":
        return wl.AttentionPool(part["width"], heads=wl.INFINITE, score_map=score_map, **common)
    if part.kind == "cross_attention":
        return wl.CrossAttention(part["width"], heads=wl.INFINITE, score_map=score_map, **common)
    return wl.Attention(
        part["width"],
        heads=part["heads"],
        scaling=wl.Scaling(part["scaling"]),
        score_map=score_map,
        pattern=_pattern(part["pattern"]),
        kv_heads=part["kv_heads"],
        projections=wl.layers.Projections(**part["projections"]),
        dropout=part["dropout"],
        **common,
    )


def build(part: Part) -> wl.Layer:
    """The library's network."""
    inside = [build(one) for one in part.parts]
    kind, options = part.kind, part.options
    if kind == "dense":
        return wl.Dense(part["width"], **_weighted(part))
    if kind == "conv":
        shape = {name: part[name] for name in ("stride", "padding")}
        return wl.Conv(part["width"], part["window"], **shape, **_weighted(part))
    if kind == "embedding":
        return wl.Embedding(part["width"], vocabulary=part["vocabulary"], std=part["std"])
    if kind == "activation":
        return activation(options)
    if kind in ("attention", "attention_pool", "cross_attention"):
        return _attention(part)
    if kind in ("mean_pool", "sum_pool"):
        pool = wl.MeanPool if kind == "mean_pool" else wl.SumPool
        return pool(part["window"], stride=part["stride"], padding=part["padding"])
    if kind == "residual":
        return wl.Residual(inside[0], part["weight"])
    if kind == "repeat":
        return wl.Repeat(inside[0], part["times"])
    single = {
        "layer_norm": lambda: wl.LayerNorm(eps=part["eps"]),
        "dropout": lambda: wl.Dropout(part["rate"]),
        "select": lambda: wl.Select(part["index"]),
        "flatten": lambda: wl.Flatten(),
    }
    if kind in single:
        return single[kind]()
    merged = {
        "serial": wl.Serial,
        "sum": wl.Sum,
        "product": wl.Product,
        "concat": wl.Concat,
        "parallel": wl.Parallel,
    }
    return merged[kind](*inside)
