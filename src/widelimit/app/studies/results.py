"""Tables of accuracies and claims as files: `.csv`, `.json`, `.md` and a figure."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...data import write_text
from ..drawing import canvas
from .study import publish

_COLOURS = {"NNGP": "tab:blue", "NTK": "tab:orange", "ridge": "black", "trained": "tab:green"}


def write(name: str, out: Path, result: Mapping[str, Any]) -> None:
    """All files of a study that compares kernels."""
    rows, claims = result["rows"], result["claims"]
    write_text(out / f"{name}.md", f"{table(rows)}\n\n{list_of_claims(claims)}\n")
    publish(out, name, result, rows, plot(rows))


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a Markdown table."""
    lines = [
        "| data (train) | kernel | kind | test accuracy | 95 % interval | validation | settings |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in rows:
        lines.append(
            f"| {one['data']} ({one['train']}) | {one['kernel']} | {one['kind']} "
            f"| {one['accuracy']:.3f} | {one['low']:.3f}–{one['high']:.3f} "
            f"| {one['validation']:.3f} | {one['settings']} |"
        )
    return "\n".join(lines)


def list_of_claims(claims: Sequence[Mapping[str, Any]]) -> str:
    """Claims as a list."""
    return "\n".join(
        f"- {one['data']}: {one['claim']}{' (published)' if one['published'] else ''} – "
        f"{one['verdict']} "
        f"({one['difference']:+.3f}, 95 % interval {one['low']:+.3f} to {one['high']:+.3f})."
        for one in claims
    )


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
