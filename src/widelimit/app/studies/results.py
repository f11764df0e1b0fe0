"""What studies that compare kernels have in common: their files, figure, tables and conclusions."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..drawing.plots import canvas
from .study import Result, Table, publish

CAPTION = "Test accuracy of every kernel with its 95 % interval; one panel for each data set."
_COLOURS = {"NNGP": "tab:blue", "NTK": "tab:orange", "ridge": "black", "trained": "tab:green"}


def write(name: str, out: Path, result: Result) -> None:
    """All files of a study that compares kernels."""
    publish(out, name, result, result["rows"], plot(result["rows"]))


def tables(result: Result) -> list[Table]:
    """Accuracies of all kernels, then the claims."""
    accuracies = [
        [
            f"{one['data']} ({one['train']:,})",
            one["kernel"],
            one["kind"],
            f"{one['accuracy']:.3f} ({one['low']:.3f}–{one['high']:.3f})",
            f"{one['validation']:.3f}",
            one["settings"],
        ]
        for one in result["rows"]
    ]
    columns = ["data (training examples)", "kernel", "kind", "test accuracy (95 % interval)"]
    found: list[Table] = [([*columns, "validation", "settings"], accuracies)]
    claims = [
        [
            one["claim"] + (" (published)" if one["published"] else ""),
            one["data"],
            f"{one['difference']:+.3f} ({one['low']:+.3f} to {one['high']:+.3f})",
            one["verdict"],
        ]
        for one in result["claims"]
    ]
    if claims:
        found.append((["claim", "data", "difference (95 % interval)", "verdict"], claims))
    return found


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    best = max(result["rows"], key=lambda row: row["accuracy"])
    said = [
        f"The highest test accuracy is {best['accuracy']:.3f} ({best['low']:.3f} to "
        f"{best['high']:.3f}): {best['kernel']}, {best['kind']}, on {best['data']}."
    ]
    asked = result.get("claims", ())
    ridge = [one for one in asked if one["second"].startswith("ridge, ")]
    verdicts: dict[tuple[str, str], list[str]] = {}
    for one in asked:
        if one not in ridge:
            verdicts.setdefault((one["data"], one["verdict"]), []).append(one["claim"])
    for (data, verdict), claims in verdicts.items():
        said.append(f"{verdict[0].upper()}{verdict[1:]} ({data}): {'; '.join(claims)}.")
    if ridge:
        clear = sum(one["low"] > 0 for one in ridge)
        said.append(f"{clear} of {len(ridge)} comparisons with ridge regression are clear gains.")
    return said


def plot(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Accuracies with intervals, one panel for each data set."""
    parts = list(dict.fromkeys(one["data"] for one in rows))
    names = list(dict.fromkeys(one["kernel"] for one in rows))[::-1]
    figure, axes = canvas(len(parts), width=5.4, height=1.5 + 0.36 * len(names))
    for axis, part in zip(axes[0], parts, strict=True):
        here = [one for one in rows if one["data"] == part]
        for one in here:
            place = names.index(one["kernel"]) + {"NNGP": 0.14, "NTK": -0.14}.get(one["kind"], 0.0)
            ends = [[one["accuracy"] - one["low"]], [one["high"] - one["accuracy"]]]
            style = {"fmt": "o", "ms": 4, "capsize": 2, "color": _COLOURS[one["kind"]]}
            axis.errorbar([one["accuracy"]], [place], xerr=ends, **style)
        axis.set_yticks(range(len(names)), names if axis is axes[0, 0] else [])
        axis.set_title(f"{part}\n{here[0]['train']} training examples", fontsize=11)
        axis.set_xlabel("test accuracy, 95 % intervals")
        axis.set_ylim(-0.6, len(names) - 0.4)
        axis.grid(axis="x", alpha=0.3)
    kinds = dict.fromkeys(one["kind"] for one in rows)
    marks = [axes[0, 0].plot([], [], "o", ms=4, color=_COLOURS[kind])[0] for kind in kinds]
    figure.legend(marks, list(kinds), loc="outside lower center", ncols=len(kinds), fontsize=9)
    return figure
