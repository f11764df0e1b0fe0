"""Operators that have no reading one by one: read together, by what they do to random numbers.

A region is everything that was computed from a few tensors of known meaning. It is run on random
numbers in their place and compared with what parts do: normalisation, attention.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch import fx  # pyright: ignore[reportMissingImports]

from .parts import Normalise, PartNode
from .torch_values import BATCH, Aligner, Held


@dataclass(frozen=True, eq=False)
class Region:
    """A tensor that was computed by `steps` from `sources`, tensors of known meaning."""

    out: Any
    shape: tuple[int, ...]
    sources: dict[Any, Held]
    steps: tuple[Any, ...]
    known: dict[Any, Any]
    names: dict[Any, Any]
    """Other names of steps: what a program inside the program returns."""
    where: str
    """The first step that has no reading of its own."""

    @property
    def nodes(self) -> list[PartNode]:
        """The parts that the sources come from."""
        return list({id(held.node): held.node for held in self.sources.values()}.values())


@dataclass
class Scores:
    """What softmax was applied to, recorded while a region runs."""

    found: list[Any] = field(default_factory=list)


def run(
    region: Region,
    outputs: dict[int, Any],
    aligner: Aligner,
    scores: Scores | None = None,
) -> Any:
    """The region's tensor where parts give `outputs` (batch, positions, channels), by their id."""
    values, names = dict(region.known), region.names
    for node, held in region.sources.items():
        entries = outputs[id(held.node)].reshape(-1)[aligner.canonical(held)]
        values[node] = entries if held.function is None else held.function(entries)
    for step in region.steps:
        args, kwargs = fx.node.map_arg((step.args, step.kwargs), lambda n: values[names.get(n, n)])
        values[step] = _step(step.target, args, kwargs, scores)
    return values[region.out]


def _step(target: Any, args: Any, kwargs: Any, scores: Scores | None) -> Any:
    name = getattr(target, "_schema", None) and target._schema.name.split("::")[-1]
    if scores is not None and name in ("softmax", "_softmax"):
        scores.found.append((args[0], args[1]))
    if scores is not None and name == "scaled_dot_product_attention":
        return _attended(scores, *args, **kwargs)
    if name in ("view", "_unsafe_view"):
        return args[0].reshape(args[1])
    return target(*args, **kwargs)


def _attended(
    scores: Scores,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Scaled dot-product attention, whose scores are recorded."""
    if dropout_p:
        raise NotImplementedError("attention weights that are dropped at random")
    if enable_gqa:
        times = query.shape[-3] // key.shape[-3]
        key, value = (a.repeat_interleave(times, -3) for a in (key, value))
    found = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        allowed = torch.ones(found.shape[-2:], dtype=torch.bool).tril()
        found = found.masked_fill(~allowed, float("-inf"))
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        found = found.masked_fill(~attn_mask, float("-inf"))
    elif attn_mask is not None:
        found = found + attn_mask
    scores.found.append((found, -1))
    return torch.softmax(found, dim=-1) @ value


def normalisation(region: Region, aligner: Aligner) -> tuple[Held, Normalise] | None:
    """The normalisation over the last axis that a region is, and what it normalises."""
    nodes = region.nodes
    source = next((h for h in region.sources.values() if h.shape == region.shape), None)
    if len(nodes) != 1 or source is None or source.function is not None or not region.shape:
        return None
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH, nodes[0].count, max(nodes[0].channels, 1))
    drawn = torch.randn(shape, generator=generator, dtype=torch.float32) + 0.3

    def on(scale: float) -> tuple[Any, Any]:
        with torch.no_grad():
            given = {id(nodes[0]): drawn * scale}
            x = given[id(nodes[0])].reshape(-1)[aligner.canonical(source)]
            return x.double(), run(region, given, aligner).double()

    try:
        x, y = on(1.0)
    except (RuntimeError, NotImplementedError):
        return None
    if y.shape != x.shape or x.shape[-1] < 2:
        return None
    for centred in (True, False):

        def length(z: Any, centred: bool = centred) -> tuple[Any, Any]:
            z = z - z.mean(-1, keepdim=True) if centred else z
            return z, (z**2).mean(-1, keepdim=True)

        moved, square = length(x)
        if not torch.allclose(y * square.sqrt(), moved, rtol=2e-3, atol=2e-3):
            continue
        small, answer = on(1e-4)
        moved, square = length(small)
        gain = (answer * moved).sum(-1) / (moved**2).sum(-1)
        eps = max(float((gain**-2 - square[..., 0]).mean()), 0.0)
        eps = float(f"{eps:.2g}") if eps > 1e-11 else 0.0
        if torch.allclose(answer, moved / (square + eps).sqrt(), rtol=2e-3, atol=1e-4):
            return source, Normalise(centred, eps)
    return None
