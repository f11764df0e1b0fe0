"""Public models through `lift` and `trace`: a verdict for each, beside the model at two widths.

    python benchmarks/public_models.py torch|jax|jax_lift [names…] [--draws 200] [--seconds 600]
                                       [--again]
    python benchmarks/public_models.py table

`torch` and `jax_lift` go through `lift`, `jax` through `trace`. The script
needs torch, transformers, vit-pytorch, x-transformers, timm, einops, flax and dm-haiku, in an
environment of their own. Second moments of outputs over random weights are compared with the limit
that keeps biases, at width 32 and at 128. Each verdict is stored in benchmarks/results as it is
found, and a model that has one is passed over unless `--again`; `table` writes them all to the top
of docs/your-model.md.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import widelimit as wl
from widelimit.errors import WidelimitError

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "your-model.md"
BEGIN, END = "<!-- models: benchmarks/public_models.py -->", "<!-- end of models -->"
HEAD = [
    "| model | library | through | verdict | away from the limit, or why not |",
    "|" + "---|" * 5,
]
WIDTHS = (32, 128)
WAYS = {"torch": "lift", "jax": "trace", "jax_lift": "lift"}
SAMPLES = 256
AGREES = 3.5
"""Standard errors that the wider model may be away from its limit."""

ROUNDING = 1e-5
"""Share of the limit that single precision may cost, where nothing is random after a LayerNorm."""


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


def averaged(found: Any) -> np.ndarray:
    """Covariances (2, 2, places…, places…) at equal places, averaged over them: (2, 2)."""
    found = np.asarray(found)
    while found.ndim > 2:
        half = (found.ndim - 2) // 2
        found = np.diagonal(found, axis1=2, axis2=2 + half).mean(axis=-1)
    return found


# ---- torch -----------------------------------------------------------------------------------


def kernel_of(model: Any, x: np.ndarray) -> tuple[Any, Any]:
    """The lifted kernel with the model's own biases, and its standard error."""
    found = wl.lift(model, x, biases="own").kernel(x, ntk=False, samples=SAMPLES)
    return found.nngp, found.nngp_error


def torch_lifted(make: Callable[[int], Any], x: np.ndarray, width: int) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    return kernel_of(make(width), x)


def torch_moments(
    make: Callable[[int], Any], x: np.ndarray, width: int, seeds: range
) -> np.ndarray:
    """Products of outputs for every draw of the weights."""
    import torch

    found = []
    for seed in seeds:
        torch.manual_seed(seed)
        with torch.no_grad():
            y: Any = make(width)(torch.as_tensor(x))
        if not isinstance(y, torch.Tensor):  # the first of several
            y = next(iter(y.values() if hasattr(y, "values") else y))
        found.append(products(y.double().numpy()))
    return np.array(found)


# ---- JAX -------------------------------------------------------------------------------------


def jax_lifted(make: Callable[[int, Any], Any], x: np.ndarray, width: int) -> tuple[Any, Any]:
    return kernel_of(make(width, jax.random.key(0)), x)


def traced(make: Callable[[int, Any], Any], x: np.ndarray, width: int) -> tuple[Any, Any]:
    """The covariance of outputs with the model's own biases, and its standard error."""
    found = wl.trace(make, x, biases="own", width=width).limit(draws=SAMPLES).covariance()
    return found.value, found.error


def jax_moments(
    make: Callable[[int, Any], Any], x: np.ndarray, width: int, seeds: range
) -> np.ndarray:
    """Products of outputs for every draw of the weights."""

    def outputs(key: Any) -> Any:
        return jax.vmap(lambda example: make(width, key)(example))(jnp.asarray(x))

    keys = jax.random.split(jax.random.key(seeds.start), len(seeds))
    return np.array([products(np.asarray(y, float)) for y in jax.jit(jax.vmap(outputs))(keys)])


# ---- verdicts --------------------------------------------------------------------------------


READERS = {
    "torch": (torch_lifted, torch_moments),
    "jax": (traced, jax_moments),
    "jax_lift": (jax_lifted, jax_moments),
}


def judge(packages: str, make: Any, kind: Any, draws: int) -> dict[str, Any]:
    """Read a model and compare its limit with the model itself, or say what stands in the way."""
    x = inputs(kind)
    read, moments = READERS[packages]
    rows = []
    try:
        for width in WIDTHS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected, noise = read(make, x, width)
            expected = averaged(expected)
            noise = 0.0 if noise is None else averaged(noise)
            found = compare(moments(make, x, width, range(draws)), expected, noise)
            if found["z"] > AGREES:
                # Products have long tails: what looks far off is drawn anew, and more often.
                again = range(draws, 5 * draws)
                found = compare(moments(make, x, width, again), expected, noise)
            rows.append({"width": width, **found})
    except WidelimitError as error:
        return {"verdict": "refused", "why": " ".join(str(error).split()), "rows": rows}
    except ImportError as error:
        return {"verdict": "not here", "why": str(error)}
    except Exception as error:
        traceback.print_exc()
        return {"verdict": "fails", "why": f"{type(error).__name__}: {error}", "rows": rows}
    narrow, wide = rows
    closer = wide["gap"] - narrow["gap"] < 2 * np.hypot(wide["error"], narrow["error"])
    return {"verdict": "agrees" if closer and wide["z"] < AGREES else "differs", "rows": rows}


def compare(drawn: np.ndarray, expected: np.ndarray, noise: Any) -> dict[str, Any]:
    """The largest deviation of second moments from the limit, in shares of it and in errors."""
    size = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    error = np.sqrt(
        drawn.var(axis=0, ddof=1) / len(drawn) + np.square(noise) + np.square(ROUNDING * size)
    )
    gap = np.abs(drawn.mean(axis=0) - expected)
    at = np.unravel_index(np.argmax(gap / size), gap.shape)
    return {
        "draws": len(drawn),
        "gap": float((gap / size)[at]),
        "error": float((error / size)[at]),
        "z": float((gap / error).max()),
        "limit": expected.tolist(),
        "drawn": drawn.mean(axis=0).tolist(),
    }


def row(name: str, library: str, way: str, found: dict[str, Any]) -> str:
    """A line of the table."""
    words = found.get("why") or ", ".join(
        f"width {at['width']}: {at['gap']:.3f} ± {at['error']:.3f} (z {at['z']:.1f})"
        for at in found["rows"]
    )
    words = words.replace("|", "/")
    return f"| {name} | {library} | `{way}` | {found['verdict']} | {words} |"


def table() -> list[str]:
    """All stored verdicts as lines, those that agree first."""
    lines, words = [], []
    plural = {"agrees": "agree", "differs": "differ", "fails": "fail"}
    for packages, way in WAYS.items():
        found = stored(packages)
        counts = Counter(found[name]["verdict"] for name in found)
        library = packages.partition("_")[0].replace("jax", "JAX")
        words.append(
            f"{len(found)} of {library} through `{way}`: "
            + ", ".join(
                f"{many} {plural.get(verdict, verdict)}" for verdict, many in counts.most_common()
            )
        )
        ordered = sorted(found, key=lambda name: found[name]["verdict"] != "agrees")
        lines += [row(name, found[name]["library"], way, found[name]) for name in ordered]
    return ["; ".join(words) + ".", "", *HEAD, *lines]


def stored(packages: str) -> dict[str, Any]:
    """The verdicts on torch's or JAX's models so far."""
    path = results(packages)
    return json.loads(path.read_text()) if path.exists() else {}


def store(packages: str, name: str, found: dict[str, Any]) -> None:
    """Keep a verdict."""
    rows = stored(packages) | {name: found}
    results(packages).write_text(json.dumps(rows, indent=1) + "\n")


def results(packages: str) -> Path:
    return HERE / "results" / f"public_models_{packages}.json"


def give_up(packages: str, name: str, library: str, seconds: int) -> None:
    """Note that a model takes too long, and start anew with the next: a model may hang in C."""
    why = f"no answer within {seconds} s"
    store(packages, name, {"library": library, "verdict": "too slow", "why": why, "rows": []})
    arguments = [word for word in sys.argv if word != "--again"]
    os.execv(sys.executable, [sys.executable, *arguments])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=[*WAYS, "table"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=600, help="at most, for each model")
    parser.add_argument("--again", action="store_true", help="also models that have a verdict")
    given = parser.parse_args()
    if given.what == "table":
        before, rest = PAGE.read_text().split(BEGIN)
        PAGE.write_text("\n".join([before + BEGIN, "", *table(), "", END + rest.split(END)[1]]))
        return
    if given.what == "torch":
        from public_torch import MODELS
    else:
        from public_jax import MODELS
    way = WAYS[given.what]

    if given.again:
        left = {k: v for k, v in stored(given.what).items() if given.names and k not in given.names}
        results(given.what).write_text(json.dumps(left, indent=1) + "\n")
    for name, (library, make, kind) in MODELS.items():
        if (given.names and name not in given.names) or name in stored(given.what):
            continue
        start = time.process_time()
        late = threading.Timer(given.seconds, give_up, (given.what, name, library, given.seconds))
        late.daemon = True
        late.start()
        found = judge(given.what, make, kind, given.draws)
        late.cancel()
        print(row(name, library, way, found), f"{time.process_time() - start:.0f} s", flush=True)
        if found["verdict"] != "not here":
            store(given.what, name, {"library": library, **found})


if __name__ == "__main__":
    sys.exit(main())
