"""Public models through `lift` and `trace`: a verdict for each, beside the model at two widths.

    python benchmarks/public_models.py [names…] [--only torch|jax] [--draws 200] [--write]

needs torch, transformers, vit-pytorch, x-transformers, timm, einops, flax and dm-haiku, in an
environment of their own. Second moments of outputs over random weights are compared with the limit
that keeps biases, at a width and at a larger one. `--write` puts the rows into the table at the top
of docs/your-model.md, in place of those of the same models.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import widelimit as wl
from widelimit.errors import WidelimitError

PAGE = Path(__file__).parents[1] / "docs" / "your-model.md"
BEGIN, END = "<!-- models: benchmarks/public_models.py -->", "<!-- end of models -->"
HEAD = [
    "| model | library | through | verdict | away from the limit, or why not |",
    "|" + "---|" * 5,
]
WIDTHS = {"lift": (32, 64), "trace": (32, 128)}


@dataclass(frozen=True)
class Verdict:
    """What became of a model; `words` are deviations from the limit, or why it is refused."""

    name: str
    library: str
    way: str
    works: bool
    words: str

    def row(self) -> str:
        """A line of the table."""
        word = "works" if self.works else "refused"
        return f"| {self.name} | {self.library} | `{self.way}` | {word} | {self.words} |"


def inputs(kind: tuple[int, ...] | int) -> np.ndarray:
    """Two examples: tokens where the kind is a number of them, otherwise arrays of a shape."""
    rng = np.random.default_rng(0)
    if isinstance(kind, int):
        return rng.integers(3, 40, (2, kind))
    return rng.standard_normal((2, *kind)).astype(np.float32)


def products(y: np.ndarray) -> np.ndarray:
    """Products of two examples' outputs, averaged over all others: (2, 2)."""
    flat = y.reshape(len(y), -1)
    return flat @ flat.T / flat.shape[1]


# ---- torch -----------------------------------------------------------------------------------


def lifted(make: Callable[[int], Any], x: np.ndarray, width: int) -> np.ndarray:
    """The lifted kernel with the model's own biases, averaged over output positions."""
    import torch

    torch.manual_seed(0)
    found = np.asarray(wl.lift(make(width), x, biases="own").kernel(x, ntk=False, samples=256).nngp)
    while found.ndim > 2:
        half = (found.ndim - 2) // 2
        found = np.diagonal(found, axis1=2, axis2=2 + half).mean(axis=-1)
    return found


def torch_moments(make: Callable[[int], Any], x: np.ndarray, width: int, draws: int) -> np.ndarray:
    """Products of outputs for every draw of the weights."""
    import torch

    found = []
    for seed in range(draws):
        torch.manual_seed(seed)
        with torch.no_grad():
            y: Any = make(width)(torch.as_tensor(x))
        if not isinstance(y, torch.Tensor):  # the first of several
            y = next(iter(y.values() if hasattr(y, "values") else y))
        found.append(products(y.double().numpy()))
    return np.array(found)


# ---- JAX -------------------------------------------------------------------------------------


def traced(make: Callable[[int, Any], Any], x: np.ndarray, width: int) -> np.ndarray:
    """The covariance of outputs with the model's own biases, averaged over outputs."""
    found = np.asarray(
        wl.trace(make, x, biases="own", width=width).limit(draws=256).covariance().value
    )
    while found.ndim > 2:
        half = (found.ndim - 2) // 2
        found = np.diagonal(found, axis1=2, axis2=2 + half).mean(axis=-1)
    return found


def jax_moments(
    make: Callable[[int, Any], Any], x: np.ndarray, width: int, draws: int
) -> np.ndarray:
    """Products of outputs for every draw of the weights."""

    def outputs(key: Any) -> Any:
        return jax.vmap(lambda example: make(width, key)(example))(jnp.asarray(x))

    keys = jax.random.split(jax.random.key(0), draws)
    return np.array([products(np.asarray(y, float)) for y in jax.jit(jax.vmap(outputs))(keys)])


# ---- verdicts --------------------------------------------------------------------------------


def judge(name: str, library: str, way: str, make: Any, kind: Any, draws: int) -> Verdict:
    """Read a model, and compare its limit with the model itself."""
    x = inputs(kind)
    read, moments = (lifted, torch_moments) if way == "lift" else (traced, jax_moments)
    words = []
    for width in WIDTHS[way]:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = read(make, x, width)
        except WidelimitError as error:
            return Verdict(
                name, library, way, False, " ".join(str(error).split()).replace("|", "/")
            )
        drawn = moments(make, x, width, draws)
        error = drawn.std(axis=0, ddof=1) / np.sqrt(draws)
        gap = np.abs(drawn.mean(axis=0) - expected)
        size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        words.append(f"width {width}: {(gap / size).max():.3f} (z {(gap / error).max():.1f})")
    return Verdict(name, library, way, True, ", ".join(words))


def written(rows: dict[str, str]) -> None:
    """The table with these rows, by the models' names and ways."""
    before, rest = PAGE.read_text().split(BEGIN)
    table, after = rest.split(END)
    old = {key(row): row for row in table.strip().splitlines()[2:]}
    lines = [*HEAD, *(old | rows).values()]
    PAGE.write_text("\n".join([before + BEGIN, "", *lines, "", END + after]))


def key(row: str) -> str:
    """Which model a row is about."""
    return "|".join(row.split("|")[1:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--only", choices=["torch", "jax"])
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    lists = []
    if given.only != "jax":
        from public_torch import MODELS as TORCH

        lists.append(("lift", TORCH))
    if given.only != "torch":
        from public_jax import MODELS as JAX

        lists.append(("trace", JAX))
    for way, models in lists:
        for name, (library, make, kind) in models.items():
            if given.names and name not in given.names:
                continue
            start = time.process_time()
            row = judge(name, library, way, make, kind, given.draws).row()
            print(row, f"{time.process_time() - start:.0f} s", flush=True)
            if given.write:
                written({key(row): row})


if __name__ == "__main__":
    sys.exit(main())
