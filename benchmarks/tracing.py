"""How the time of a traced limit grows with tokens, inputs, depth and draws; writes a table.

python benchmarks/tracing.py [--quick]    # results/tracing.md, nothing with --quick

The model is an unmodified Equinox transformer (pre-norm, 4 heads, GELU). Seconds are those of
`trace(make, x).limit`:
three traces, alignment, and the law from `draws` draws of the scores.
"""

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

import widelimit as wl

_TABLE = Path(__file__).parent / "results" / "tracing.md"


class Block(eqx.Module):
    attention: eqx.nn.MultiheadAttention
    first: eqx.nn.LayerNorm
    second: eqx.nn.LayerNorm
    up: eqx.nn.Linear
    down: eqx.nn.Linear

    def __init__(self, width: int, key: Any):
        a, b, c = jax.random.split(key, 3)
        self.attention = eqx.nn.MultiheadAttention(4, width, key=a)
        self.first, self.second = eqx.nn.LayerNorm(width), eqx.nn.LayerNorm(width)
        self.up = eqx.nn.Linear(width, 4 * width, key=b)
        self.down = eqx.nn.Linear(4 * width, width, key=c)

    def __call__(self, x: Any) -> Any:
        h = jax.vmap(self.first)(x)
        x = x + self.attention(h, h, h)
        h = jax.vmap(self.second)(x)
        return x + jax.vmap(lambda token: self.down(jax.nn.gelu(self.up(token))))(h)


class Transformer(eqx.Module):
    embed: eqx.nn.Linear
    blocks: list[Block]
    readout: eqx.nn.Linear

    def __init__(self, width: int, key: Any, *, depth: int):
        a, b, *keys = jax.random.split(key, 2 + depth)
        self.embed = eqx.nn.Linear(4, width, key=a)
        self.blocks = [Block(width, k) for k in keys]
        self.readout = eqx.nn.Linear(width, 1, key=b)

    def __call__(self, x: Any) -> Any:
        x = jax.vmap(self.embed)(x)
        for block in self.blocks:
            x = block(x)
        return self.readout(jnp.mean(x, axis=0))


@dataclass(frozen=True)
class Case:
    tokens: int = 8
    inputs: int = 3
    depth: int = 2
    draws: int = 2048

    def measured(self) -> tuple[float, float]:
        """Seconds on the clock and of the processor."""
        shape = (self.inputs, self.tokens, 4)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        begin, processor = time.perf_counter(), time.process_time()
        law = wl.trace(lambda n, k: Transformer(n, k, depth=self.depth), x).limit(draws=self.draws)
        assert np.isfinite(law.covariance().value).all()
        return time.perf_counter() - begin, time.process_time() - processor


def cases(quick: bool) -> list[Case]:
    if quick:
        return [Case(tokens=3, inputs=2, depth=1, draws=64)]
    # Draws are computed in chunks of 256: more of them cost in proportion.
    few = Case(draws=256)
    return [
        Case(),
        few,
        *(replace(few, tokens=t) for t in (4, 16)),
        *(replace(few, inputs=n) for n in (1, 6)),
        *(replace(few, depth=d) for d in (1, 4)),
    ]


def main() -> None:
    quick = "--quick" in sys.argv[1:]
    lines = [
        "| tokens | inputs | blocks | draws | seconds | processor seconds |",
        "|---|---|---|---|---|---|",
    ]
    for case in cases(quick):
        clock, processor = case.measured()
        sizes = (case.tokens, case.inputs, case.depth, case.draws)
        lines.append(f"| {' | '.join(map(str, sizes))} | {clock:.1f} | {processor:.1f} |")
        print(lines[-1], flush=True)
    if not quick:
        _TABLE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
