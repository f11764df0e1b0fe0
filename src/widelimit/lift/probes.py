"""Operators that have no reading one by one: read together, by what they do to random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .parts import Normalise, PartNode
from .values import Aligner, Computed, Held, Library

_MOST = 300  # steps; neither a normalisation nor attention takes as many


def steps_of(value: Computed) -> list[Held | Computed]:
    """Everything that an array was computed from, inputs first, and the array itself."""
    found: list[Held | Computed] = []
    seen: set[int] = set()
    stack: list[tuple[Held | Computed, bool]] = [(value, False)]
    while stack:
        step, done = stack.pop()
        if done:
            found.append(step)
        elif id(step) not in seen:
            seen.add(id(step))
            stack.append((step, True))
            if isinstance(step, Computed):
                stack.extend((each, False) for each in reversed(step.inputs))
    return found


def nodes_of(value: Computed) -> list[PartNode]:
    """The parts that an array was computed from."""
    held = [step for step in steps_of(value) if isinstance(step, Held)]
    return list({id(each.node): each.node for each in held}.values())


def softmaxes_of(value: Computed) -> list[Computed]:
    """The softmaxes that an array was computed from."""
    return [s for s in steps_of(value) if isinstance(s, Computed) and s.name == "softmax"]


def evaluate(
    targets: Sequence[Held | Computed], outputs: dict[int, Any], aligner: Aligner
) -> list[Any]:
    """Arrays where parts give `outputs` (batch, positions, channels), by the parts' id."""
    values: dict[int, Any] = {}
    for target in targets:
        for step in steps_of(target) if isinstance(target, Computed) else [target]:
            if id(step) in values:
                continue
            if isinstance(step, Computed):
                found = step.call(*(values[id(each)] for each in step.inputs))
            else:
                found = outputs[id(step.node)].reshape(-1)[aligner.canonical(step)]
                found = found if step.function is None else step.function(found)
            values[id(step)] = found
    return [values[id(target)] for target in targets]


def normalisation(
    value: Computed, aligner: Aligner, library: Library
) -> tuple[Held, Normalise] | None:
    """The normalisation over the last axis that an array is, and what it normalises."""
    steps = steps_of(value)
    held = [step for step in steps if isinstance(step, Held)]
    alone = all(h.node is held[0].node for h in held)
    tokens = aligner.layout.tokens and held[0].node is aligner.layout.source
    if not alone or tokens or value.shape[-1:] < (2,) or len(steps) > _MOST:
        return None
    # Squares of entries stand beside the entries themselves.
    for source in sorted(held, key=lambda h: h.function is not None):
        if source.shape == value.shape:
            part = _normalised(source, value, aligner, library)
            if part is not None:
                return source, part
    return None


def _normalised(
    source: Held, value: Computed, aligner: Aligner, library: Library
) -> Normalise | None:
    node = source.node
    drawn = np.random.default_rng(0).standard_normal(aligner.size(node)) + 0.3

    def on(scale: float) -> tuple[np.ndarray, np.ndarray]:
        outputs = {id(node): library.array(drawn * scale)}
        x, y = evaluate((source, value), outputs, aligner)
        return library.numbers(x), library.numbers(y)

    try:
        x, y = on(1.0)
    except Exception:  # whatever a library raises on a step that it cannot run by itself
        return None
    if y.shape != x.shape:
        return None
    for centred in (True, False):

        def length(z: np.ndarray, centred: bool = centred) -> tuple[np.ndarray, np.ndarray]:
            z = z - z.mean(-1, keepdims=True) if centred else z
            return z, (z**2).mean(-1, keepdims=True)

        moved, square = length(x)
        if not np.allclose(y * np.sqrt(square), moved, rtol=2e-3, atol=2e-3):
            continue
        small, answer = on(1e-4)
        moved, square = length(small)
        gain = (answer * moved).sum(-1) / (moved**2).sum(-1)
        eps = max(float((gain**-2 - square[..., 0]).mean()), 0.0)
        eps = float(f"{eps:.2g}") if eps > 1e-11 else 0.0
        if np.allclose(answer, moved / np.sqrt(square + eps), rtol=2e-3, atol=1e-4):
            return Normalise(centred, eps)
    return None
