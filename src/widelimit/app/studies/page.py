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
    found: list[tuple[str, Any]] = [
        (name.replace("_", " "), value)
        for name, value in result.items()
        if isinstance(value, int | float | str)
    ]
    seen = {}
    for row in result.get("rows", ()):
        if "data" in row and "train" in row:
            seen.setdefault(row["data"], []).append(row)
    for data, rows in seen.items():
        sizes = sorted({row["train"] for row in rows})
        train = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        test = f", {rows[0]['test']:,} to test" if "test" in rows[0] else ""
        found.append((str(data), f"{train} training examples{test}"))
    return found


def plain_tables(result: Result) -> list[Table]:
    """The numbers of a study that writes no table of its own: by width, by heads, by row."""
    found = []
    for name, part in (("", result), *result.items()):
        if name == "rows" and not isinstance(part, Mapping):
            found.append(_table({str(i): row for i, row in enumerate(part, 1)}))
        elif isinstance(part, Mapping):
            groups = {key: one for key, one in part.items() if _numbers(one)}
            if len(groups) > 1:
                found.append(_table(groups))
    return found


def _table(groups: Mapping[str, Mapping[str, Any]]) -> Table:
    """A line for each group; one for each quantity where these are more. Errors stand beside."""
    columns = list(dict.fromkeys(key for one in groups.values() for key in one))
    columns = [c for c in columns if not isinstance(next(iter(groups.values())).get(c), list)]
    errors = {c: e for c in columns for e in (f"{c}_se", f"{c}_error") if e in columns}
    columns = [column for column in columns if column not in errors.values()]

    def cell(one: Mapping[str, Any], column: str) -> Any:
        value, error = one.get(column, ""), one.get(errors.get(column, ""))
        return value if error is None or value == "" else f"{value:.4g} ± {error:.1g}"

    names = [column.replace("_", " ") for column in columns]
    rows = [[name, *(cell(one, c) for c in columns)] for name, one in groups.items()]
    if len(columns) <= max(_MOST_COLUMNS, len(groups)):
        return ["", *names], rows
    head, *lines = zip(*rows, strict=True)
    return ["", *head], [[name, *line] for name, line in zip(names, lines, strict=True)]


def _numbers(value: Any) -> bool:
    """Whether these are named numbers."""
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
