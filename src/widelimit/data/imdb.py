"""IMDb: film reviews, negative or positive (Maas et al., ACL 2011)."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .download import IMDB
from .errors import DataError, some
from .files import damaged, read_members
from .frames import read_frame
from .places import locate

if TYPE_CHECKING:
    from pandas import DataFrame

SENTIMENTS = {"neg": "negative", "pos": "positive", "0": "negative", "1": "positive"}
SENTIMENTS |= {name: name for name in ("negative", "positive")}
TABLES = tuple(f"imdb{kind}{gz}" for kind in (".jsonl", ".csv") for gz in ("", ".gz"))
FORMS = ("aclImdb", IMDB.name, *TABLES, "./train/pos")
REVIEW = re.compile(r"(?P<split>train|test)/(?P<folder>neg|pos)/(?P<number>\d+)_\d+\.txt")


def load_imdb(directory: Path | str | None = None, *, download: bool = False) -> "DataFrame":
    """IMDb reviews as a table, from whichever form is found.

    Its columns are `split` (train, test), `label` (negative, positive) and `text`. Reads the
    official folder `aclImdb` or its archive, and such tables as `imdb.jsonl` or `imdb.csv` (`.gz`
    too; labels may be 0 and 1). Searched for as in `load_cifar10`.
    """
    path = locate("IMDb", FORMS, directory, source=IMDB, download=download)
    return opinions(
        _reviews(path) if path.is_dir() or ".tar" in path.name else read_frame(path), path
    )


def opinions(frame: "DataFrame", path: Path) -> "DataFrame":
    """A table of texts with two sentiments and a split, which is what it should be."""
    columns = ["split", "label", "text"]
    if missing := [name for name in columns if name not in frame]:
        raise DataError(
            f"'{path}' has no column {missing[0]!r}.",
            got=", ".join(map(repr, frame.columns)),
            remedy="write the columns split (train, test), label and text",
        )
    labels: Any = frame["label"].astype(str).map(SENTIMENTS.get)
    texts: Any = frame["text"].map(lambda text: isinstance(text, str) and bool(text.strip()))
    for what, good in (("label", labels.notna()), ("text", texts)):
        if not good.all():
            odd = some(list(dict.fromkeys(repr(one) for one in frame[what][~good])))
            raise DataError(
                f"Column {what!r} of '{path}' holds {odd} in row {good.idxmin()}.",
                got=f"{int((~good).sum())} such rows",
                remedy="correct them: labels are 0 and 1 (or neg and pos), and no text is empty",
            )
    parts = {(part, label) for part, label in zip(frame["split"], labels, strict=True)}
    if len(parts) != 4 or {part for part, _ in parts} != {"train", "test"}:
        raise DataError(
            f"'{path}' has not both sentiments in both train and test.",
            got=some(sorted(f"{part} {label}" for part, label in parts)),
            remedy=f"unpack or download {IMDB.name} again, or correct the columns",
        )
    whole: Any = frame.assign(label=labels)
    return whole[columns]


def _reviews(path: Path) -> "DataFrame":
    """One file per review, `train/pos/12_9.txt`: training ones first, by folder and number."""
    import pandas as pd

    rows = []
    for name, content in read_members(path, REVIEW).items():
        found = REVIEW.fullmatch(name)
        assert found is not None
        try:
            row = (found["split"], found["folder"], content.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise damaged(path / name, f"{error.reason} at byte {error.start}") from error
        if not row[2].strip():
            raise damaged(path / name, "the review is empty")
        rows.append(((row[0] != "train", row[1], int(found["number"])), row))
    table = [row for _, row in sorted(rows)]
    return pd.DataFrame(table, columns=["split", "label", "text"], index=range(1, len(table) + 1))
