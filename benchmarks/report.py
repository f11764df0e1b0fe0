"""Results as a line, as a Markdown table, and as a picture."""

from pathlib import Path
from typing import Any

import numpy as np

_OURS, _OTHER = "#4878a8", "#c8a060"


def line(row: dict[str, Any]) -> str:
    """One row on a terminal."""
    if "failed" in row:
        return f"{row['title']}: failed, {row['failed']}"
    ratio = f"{row['refused']}"[:60] if "refused" in row else factor(row["ratio"])
    return f"{row['title']}: {duration(row['ours'])} per {row['unit']}, {ratio}"


def factor(ratio: float) -> str:
    """Three digits."""
    return f"{ratio:,.0f}×" if ratio >= 100 else f"{ratio:.3g}×"


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.1e} s"


def markdown(result: dict[str, Any], stem: str) -> str:
    """The table, what the machine can do, and how time grows."""
    most = result["limits"]
    lines = [
        f"# Speed, {result['date']}",
        "",
        f"Made by `make bench` on {result['machine']} (load before the end: {result['load']:.1f}). "
        f"In the same run the machine reached {most['products'] / 1e9:.0f} GFlop/s in matrix "
        f"products, {most['elementwise'] / 1e9:.0f} GFlop/s in polynomials, and "
        f"{most['bandwidth'] / 1e9:.1f} GB/s in copies.",
        "",
        "Medians of alternating calls, float32 unless noted, NNGP and NTK. Times are per entry of "
        "the N×N matrix, because the slower side runs fewer examples. *Difference* is the largest "
        "relative difference from the other library in double precision, of distinct inputs and of "
        "inputs with themselves; in brackets, that of its own single precision. *Limit* is the "
        "least time that arithmetic allows over the time taken. *Ratio* is of times on the clock, "
        "then of least processor times, which hardly feel other load. *First* is the first call, "
        "compilation included.",
        "",
        "| workload | N, ours / other | ours | other | ratio | goal | difference | limit "
        "| memory, ours / other | first, ours / other |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_table_row(row) for row in result["rows"]]
    others = {r["peer_name"] for r in result["rows"]} - {"neural-tangents"}
    if others:
        lines += [
            "",
            f"*Other* is neural-tangents 0.6.5; in (g) and (h), {', '.join(sorted(others))}.",
        ]
    runs: dict[str, list[str]] = {}
    for row in result["rows"]:
        if "run" in row:
            at = row["run"]
            run = f"on {at['date']} on {at['machine']} (load {at['load']:.1f})"
            runs.setdefault(run, []).append(row["title"].split()[0])
    for run, names in runs.items():
        lines += ["", f"Measured in a run of their own {run}: {', '.join(names)}."]
    for row in result["rows"]:
        if "failed" in row or "refused" in row:
            reason = row.get("failed") or f"{row['peer_name']}: {row['refused']}"
            lines += ["", f"{row['title']}: {reason}"]
    grown = result["growth"]
    if grown:
        powers = ", ".join(f"{name} {item['exponent']:.2f}" for name, item in grown.items())
        slowest = max(max(item["compilation"]) for item in grown.values())
        lines += ["", f"Time grows as these powers of the sizes: {powers}."]
        lines[-1] += f" Compilation of these networks took at most {slowest:.1f} s."
    return "\n".join([*lines, "", f"![Ratios and growth]({stem}.png)", ""])


def _table_row(row: dict[str, Any]) -> str:
    compared = "ratio" in row
    differences = [
        ", ".join(f"{value:.0e}" for value in row[key])
        for key in ("difference", "peer_difference")
        if key in row
    ]
    cells = [
        row["title"],
        f"{row['size']} / {row['peer_size']}",
        duration(row["ours"]) if "ours" in row else "failed",
        duration(row["peer"]) if compared else "–",
        f"**{factor(row['ratio'])}**, {factor(row['cpu_ratio'])}" if compared else "–",
        factor(row["target"]),
        " (".join(differences) + ")" * (len(differences) - 1) or "–",
        f"{100 * row['limit']:.0f} %" if "limit" in row else "–",
        " / ".join(f"{row[k] / 2**20:.0f} MB" for k in ("memory", "peer_memory") if k in row),
        " / ".join(f"{row[k]:.1f} s" for k in ("first_call", "peer_first_call") if k in row),
    ]
    return "| " + " | ".join(cells) + " |"


def picture(result: dict[str, Any], path: Path) -> None:
    """Ratios and memory on the left, growth on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(13, 7.5), layout="constrained")
    grid = figure.add_gridspec(3, 3)
    ratios, memory = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[:, 1])
    compared = [row for row in result["rows"] if "ratio" in row][::-1]
    places = range(len(compared))
    ratios.barh(places, [row["ratio"] for row in compared], color=_OURS)
    ratios.plot([row["target"] for row in compared], places, "k|", ms=14, mew=2, label="goal")
    for place, row in zip(places, compared, strict=True):
        end = max(row["ratio"], row["target"])
        ratios.text(end, place, f"  {factor(row['ratio'])}", va="center", fontsize=8)
    titles = [row["title"].replace(", ", ",\n", 1) for row in compared]
    ratios.set_yticks(places, titles, fontsize=8)
    ratios.set(xscale="log", title="Times faster")
    ratios.margins(x=0.3)
    ratios.axvline(1, color="grey", lw=0.8)
    for side, key, shift, colour in (
        ("ours", "memory", 0.2, _OURS),
        ("other", "peer_memory", -0.2, _OTHER),
    ):
        sizes = [row[key] / 2**20 for row in compared]
        memory.barh([place + shift for place in places], sizes, 0.4, label=side, color=colour)
    memory.set_yticks(places, [""] * len(compared))
    memory.set(title="Peak memory, MB, at the sizes of the table")
    for axes in (ratios, memory):
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.04), ncols=2, frameon=False)
    for place, (name, item) in enumerate(result["growth"].items()):
        axes = figure.add_subplot(grid[place, 2])
        sizes, seconds = np.asarray(item["sizes"]), np.asarray(item["seconds"])
        middle = np.exp(np.mean(np.log(sizes))), np.exp(np.mean(np.log(seconds)))
        fit = middle[1] * (sizes / middle[0]) ** item["exponent"]
        axes.loglog(sizes, seconds, "o", color=_OURS)
        axes.loglog(sizes, fit, "-", color=_OURS, lw=1, label=f"power {item['exponent']:.2f}")
        axes.loglog(sizes, item["compilation"], "x:", color="grey", lw=0.8, label="compilation")
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set_title(f"Seconds by {name}", fontsize=10)
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=110)
    plt.close(figure)
