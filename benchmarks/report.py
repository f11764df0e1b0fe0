"""Results as a line, as a Markdown table, and as a picture."""

from pathlib import Path
from typing import Any


def line(row: dict[str, Any]) -> str:
    """One row on a terminal."""
    ratio = f"{row['ratio']:.3g}×" if "ratio" in row else row.get("refused", "")
    return f"{row['title']}: {duration(row['ours'])} per {row['unit']}, {ratio}"


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
        "relative difference between distinct inputs, then of inputs with themselves. *Limit* is "
        "the least time that arithmetic allows over the time taken. *Ratio* is of times on the "
        "clock, then of processor time, which hardly feels other load. *First* is the first call, "
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
    refused = [row for row in result["rows"] if "refused" in row]
    lines += [f"- {row['title']}: {row['refused']}" for row in refused]
    grown = result["growth"]
    if grown:
        lines += ["", "Time grows as the power of its size: "]
        lines[-1] += (
            ", ".join(f"{name} {item['exponent']:.2f}" for name, item in grown.items()) + "."
        )
    return "\n".join([*lines, "", f"![Ratios and growth]({stem}.png)", ""])


def _table_row(row: dict[str, Any]) -> str:
    compared = "ratio" in row
    differences = [row.get(key) for key in ("difference", "difference_same")]
    cells = [
        row["title"],
        f"{row['size']} / {row['peer_size']}",
        duration(row["ours"]),
        duration(row["peer"]) if compared else "refused",
        f"**{row['ratio']:.3g}×**, {row['cpu_ratio']:.3g}×" if compared else "–",
        f"{row['target']:g}×",
        ", ".join(f"{value:.0e}" for value in differences if value is not None) or "–",
        f"{100 * row['limit']:.0f} %" if "limit" in row else "–",
        " / ".join(f"{row[k] / 2**20:.0f} MB" for k in ("memory", "peer_memory") if k in row),
        " / ".join(f"{row[k]:.1f} s" for k in ("first_call", "peer_first_call") if k in row),
    ]
    return "| " + " | ".join(cells) + " |"


def picture(result: dict[str, Any], path: Path) -> None:
    """Ratios on the left, growth on the right."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.5), layout="constrained")
    compared = [row for row in result["rows"] if "ratio" in row][::-1]
    left.barh(
        [row["title"] for row in compared], [row["ratio"] for row in compared], color="#4878a8"
    )
    left.plot([row["target"] for row in compared], range(len(compared)), "k|", ms=12, label="goal")
    left.set(xscale="log", xlabel="times faster")
    left.axvline(1, color="grey", lw=0.8)
    left.legend()
    for name, item in result["growth"].items():
        label = f"{name}, exponent {item['exponent']:.2f}"
        right.loglog(item["sizes"], item["seconds"], "o-", label=label)
    right.set(xlabel="size", ylabel="seconds")
    if result["growth"]:
        right.legend()
    figure.savefig(path, dpi=110)
