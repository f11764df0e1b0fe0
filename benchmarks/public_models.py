"""Public models through `lift`: a verdict for each, beside the model itself at two widths.

    python benchmarks/public_models.py [names…] [--draws 200] [--write docs/public-models.md]

needs torch, transformers, vit-pytorch, x-transformers, timm and einops, in an environment of their
own. For every model that lifts, second moments of outputs over random weights are compared with the
lifted kernel, at a width and at twice that width.
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

import numpy as np
import torch
from public_torch import MODELS

import widelimit as wl
from widelimit.errors import WidelimitError


@dataclass(frozen=True)
class Verdict:
    """What became of a model."""

    name: str
    library: str
    lifts: bool
    words: str
    """Deviations from the limit, or why it is refused."""

    def row(self) -> str:
        """A line of the table."""
        word = "lifts" if self.lifts else "refused"
        return f"| {self.name} | {self.library} | {word} | {self.words} |"


def inputs(kind: tuple[int, ...] | int, rng: np.random.Generator) -> np.ndarray:
    """Two examples: tokens where the kind is a number of them, otherwise arrays of a shape."""
    if isinstance(kind, int):
        return rng.integers(3, 40, (2, kind))
    return rng.standard_normal((2, *kind)).astype(np.float32)


def moments(make: Callable[[int], Any], x: np.ndarray, width: int, draws: int) -> np.ndarray:
    """Products of outputs, averaged over output channels, for every draw of the weights."""
    tensor = torch.as_tensor(x)
    found = []
    for seed in range(draws):
        torch.manual_seed(seed)
        with torch.no_grad():
            y = first(make(width)(tensor)).double().numpy()
        y = y.reshape(len(x), -1, y.shape[-1])
        found.append(np.einsum("iac,jac->ij", y, y) / y[0].size)
    return np.array(found)


def first(output: Any) -> torch.Tensor:
    """The tensor of interest: the first one of several."""
    if isinstance(output, torch.Tensor):
        return output
    return next(iter(output.values() if hasattr(output, "values") else output))


def kernel(net: Any, x: np.ndarray) -> np.ndarray:
    """The lifted kernel, averaged over output positions."""
    found = np.asarray(net.kernel(x, ntk=False, samples=512).nngp)
    while found.ndim > 2:
        half = (found.ndim - 2) // 2
        found = np.diagonal(found, axis1=2, axis2=2 + half).mean(axis=-1)
    return found


def judge(name: str, library: str, make: Any, kind: Any, draws: int) -> Verdict:
    """Lift a model, and compare it with itself."""
    x = inputs(kind, np.random.default_rng(0))
    words = []
    for width in (32, 64):
        torch.manual_seed(0)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                net = wl.lift(make(width), x, biases="own")
                expected = kernel(net, x)
        except WidelimitError as error:
            return Verdict(name, library, False, " ".join(str(error).split()))
        drawn = moments(make, x, width, draws)
        error = drawn.std(axis=0, ddof=1) / np.sqrt(draws)
        gap = np.abs(drawn.mean(axis=0) - expected)
        size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
        words.append(f"width {width}: {(gap / size).max():.3f} (z {(gap / error).max():.1f})")
    return Verdict(name, library, True, ", ".join(words))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    rows = ["| model | library | verdict | relative distance from the limit, or why not |"]
    rows.append("|---|---|---|---|")
    for name, (library, make, kind) in MODELS.items():
        if given.names and name not in given.names:
            continue
        start = time.process_time()
        verdict = judge(name, library, make, kind, given.draws)
        rows.append(verdict.row())
        print(rows[-1], f"{time.process_time() - start:.0f} s", flush=True)
    if given.write:
        given.write.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    sys.exit(main())
