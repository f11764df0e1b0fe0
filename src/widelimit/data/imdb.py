"""IMDb: film reviews, negative or positive (Maas et al., ACL 2011)."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np

from .datasets import LabelledTexts, TextDataset
from .download import IMDB
from .errors import DataError
from .files import read_members
from .places import locate
from .texts import load_texts_split

IMDB_CLASSES = ("negative", "positive")
FOLDERS = {"neg": 0, "pos": 1}
TABLES = tuple(f"imdb{kind}{gz}" for kind in (".jsonl", ".csv") for gz in ("", ".gz"))
FORMS = ("aclImdb", IMDB.name, *TABLES, "./train/pos")
REVIEW = re.compile(r"(?P<part>train|test)/(?P<folder>neg|pos)/(?P<number>\d+)_\d+\.txt")


def load_imdb(directory: Path | str | None = None, *, download: bool = False) -> TextDataset:
    """IMDb reviews with labels 0 (negative) and 1 (positive), from whichever form is found.

    Reads the official folder `aclImdb` or its archive, and tables `imdb.jsonl`, `imdb.csv`
    (`.gz` too) with the columns `split` (`train` or `test`), `label` (0 or 1) and `text`.
    Searched for as in `load_cifar10`.
    """
    path = locate("IMDb", FORMS, directory, source=IMDB, download=download)
    if path.is_dir() or ".tar" in path.name:
        return _from_reviews(path)
    data = load_texts_split(path)
    if data.class_names not in (("0", "1"), ("neg", "pos"), IMDB_CLASSES):
        raise DataError(
            "IMDb labels are 0 and 1 (or neg and pos, negative and positive).",
            got=f"{', '.join(data.class_names)} in '{path}'",
            remedy="use load_texts_split for a table with other labels",
        )
    return replace(data, class_names=IMDB_CLASSES)


def _from_reviews(path: Path) -> TextDataset:
    """One file per review, `train/pos/12_9.txt`: in order of folder and number."""
    reviews = {"train": [], "test": []}
    for name, content in read_members(path, REVIEW).items():
        found = REVIEW.fullmatch(name)
        assert found is not None
        entry = (FOLDERS[found["folder"]], int(found["number"]), _text(content, path / name))
        reviews[found["part"]].append(entry)
    return TextDataset.join(
        _labelled(reviews["train"], path / "train"), _labelled(reviews["test"], path / "test")
    )


def _labelled(entries: list[tuple[int, int, str]], path: Path) -> LabelledTexts:
    entries = sorted(entries)
    y = np.array([label for label, _, _ in entries], dtype=np.int64)
    if set(y.tolist()) != {0, 1}:
        raise DataError(
            "IMDb has reviews in the folders neg and pos of both train and test.",
            got=f"{len(y)} reviews in '{path}', not of both kinds",
            remedy=f"unpack or download {IMDB.name} again",
        )
    return LabelledTexts(tuple(text for _, _, text in entries), y, IMDB_CLASSES)


def _text(content: bytes, path: Path) -> str:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            "IMDb reviews are written in UTF-8.",
            got=f"'{path}' ({error.reason} at byte {error.start})",
            remedy=f"use the official files ({IMDB.url})",
        ) from error
    if not text.strip():
        raise DataError(
            "No IMDb review is empty.",
            got=f"'{path}'",
            remedy=f"unpack or download {IMDB.name} again",
        )
    return text
