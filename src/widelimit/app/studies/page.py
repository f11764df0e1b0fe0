"""The page of a study: what it says, its figures, what it was run with, its tables."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..report import Report
from .study import Result, Size, Study, Table

_MOST_COLUMNS = 8  # of a table that fits on a page


def write_page(study: Study, size: Size, folder: Path, seconds: float, result: Result) -> Path:
    """Write `report.html` into the folder that has the files of the study."""
    report = Report(study.title, study.description)
    if notice := sample_notice(result):
        report.warning(notice)
    report.numbers({"size": size.value, "in all": f"{seconds:.0f} s"})
    report.section("Conclusion").bullets(study.conclude(result))
    report.section("Figures")
    for number, (name, caption) in enumerate(study.captions.items(), 1):
        report.figure(folder / f"{name}.png", f"Figure {number}. {caption}")
    report.section("Settings").table(("", ""), [("size", size.value), *settings(result)])
    if study.published:
        report.text(study.published)
    report.section("Results")
    for columns, rows in (study.tables or plain_tables)(result):
        report.table(columns, rows)
    others = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    files = (path for path in others if path.suffix not in (".png", ".html"))
    report.section("Data").text(f"Beside this page: {', '.join(path.name for path in files)}")
    report.heading("The command").command()
    return report.write(folder / "report.html")


def settings(result: Result) -> list[tuple[str, Any]]:
    """What a study was run with: its single numbers, and its data sets with their sizes."""
    single = [
        (k.replace("_", " "), v) for k, v in result.items() if isinstance(v, int | float | str)
    ]
    sets = {row["data"]: row for row in result.get("rows", ()) if {"data", "test"} <= row.keys()}
    return single + [
        (name, f"{one['train']:,} training examples, {one['test']:,} to test")
        for name, one in sets.items()
    ]


def plain_tables(result: Result) -> list[Table]:
    """The numbers of a study that writes no table of its own: by width, by heads, by row."""
    found = []
    for name, part in (("", result), *result.items()):
        rows = {str(i): row for i, row in enumerate(part, 1)} if name == "rows" else part
        if isinstance(rows, Mapping):
            groups: dict[str, Any] = {key: one for key, one in rows.items() if _has_numbers(one)}
            found += [_table(groups)] if len(groups) > 1 else []
    return found


def _table(groups: Mapping[str, Mapping[str, Any]]) -> Table:
    """A line for each group; one for each quantity where these are more. Errors stand beside."""
    import pandas as pd

    single = int | float | str
    plain = [{k: v for k, v in one.items() if isinstance(v, single)} for one in groups.values()]
    frame = pd.DataFrame(plain, index=list(groups), dtype=object)
    frame = frame.where(frame.notna(), "")
    for error in [name for name in frame if name.endswith(("_se", "_error"))]:
        if (of := error.rpartition("_")[0]) in frame:
            pairs = zip(frame[of], frame.pop(error), strict=True)
            frame[of] = [f"{v:.4g} ± {e:.1g}" if "" not in (v, e) else v for v, e in pairs]
    frame = frame.map(lambda value: f"{value:.4g}" if isinstance(value, float) else str(value))
    frame.columns = frame.columns.str.replace("_", " ")
    if frame.shape[1] > max(_MOST_COLUMNS, len(frame)):
        frame = frame.T
    return ["", *frame], frame.reset_index().to_numpy().tolist()


def _has_numbers(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, int | float) for v in value.values())


def sample_notice(result: Result) -> str:
    """A warning where a study ran on the sample inside the package; else nothing."""
    names = dict.fromkeys(str(row.get("data", "")) for row in result.get("rows", ()))
    if not any("sample" in name for name in names):
        return ""
    images = any(name.startswith("CIFAR") for name in names)
    what = (
        "four of the ten classes of CIFAR-10: 160 training and 80 test photographs"
        if images
        else "400 training and 200 test sentences"
    )
    return (
        f"NOT THE REAL DATA. This ran on the sample that ships with the package – {what}. Its "
        "accuracies say little, and are not comparable with published ones. Give the folder that "
        "holds the data set with --data-dir."
    )
