"""Fifty files as people have them: each is read, or ends in one sentence that says what helps.

Most go through the reading stage alone, which is fast; a few are learned from and predicted.
"""

import csv
import gzip
import json
import re

import numpy as np
import pytest
from command_line import call, refused, write_vectors

from widelimit.app.workflow import Kind, Reading, Task, read_source
from widelimit.data import DataError
from widelimit.data.limits import ENVIRONMENT

N = 24
RNG = np.random.default_rng(0)
A, B = RNG.normal(size=(2, N))
KINDS = ["iris" if a > 0 else "rose" for a in A]
CITY = [("north", "south", "east")[i % 3] for i in range(N)]
DAYS = [f"2024-{1 + i // 4:02}-{1 + 5 * (i % 4):02}" for i in range(N)]
WORDS = [f"a {'good' if a > 0 else 'bad'} film with story number {i}" for i, a in enumerate(A)]


def rows(*columns):
    return list(zip(*columns, strict=True))


def lines(head, body, mark=",", end="\n", above=""):
    return above + "".join(mark.join(map(str, row)) + end for row in [head.split(","), *body])


def comma(values, digits=3):
    return [f"{value:.{digits}f}".replace(".", ",") for value in values]


def with_holes(values, hole, every=5):
    return [hole if i % every == 2 else value for i, value in enumerate(values)]


PLAIN = rows(A, B, KINDS)
HEAD = "a,b,label"


def json_lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


# Name, content, options, and what is said of a file that pandas reads as it is meant.
FILES = {
    # --- separators, encodings, decimals ---
    "semicolons": ("t.csv", lines(HEAD, PLAIN, ";"), {}, None),
    "bars": ("t.csv", lines(HEAD, PLAIN, "|"), {}, None),
    "tabs_in_csv": ("t.csv", lines(HEAD, PLAIN, "\t"), {}, None),
    "commas_in_tsv": ("t.tsv", lines(HEAD, PLAIN), {}, None),
    "quoted_decimal_commas": (
        "t.csv",
        lines(HEAD, rows([f'"{a}"' for a in comma(A, 2)], range(N), KINDS)),
        {},
        r"'a' \(too many different words",
    ),
    "thousands": (
        "t.csv",
        lines(HEAD, rows([f'"{1e5 * (2 + a):,.2f}"' for a in A], B, KINDS)),
        {},
        r"left out: 'a' \(a different name",
    ),
    "windows_line_ends": ("t.csv", lines(HEAD, PLAIN, end="\r\n"), {}, None),
    "byte_order_mark": ("t.csv", lines(HEAD, PLAIN).encode("utf-8-sig"), {}, None),
    "latin_1_named": (
        "t.csv",
        lines("größe,b,label", PLAIN).encode("latin-1"),
        {"encoding": "latin-1"},
        None,
    ),
    "utf_16_named": ("t.csv", lines(HEAD, PLAIN).encode("utf-16"), {"encoding": "utf-16"}, None),
    "gzipped_semicolons": ("t.csv.gz", gzip.compress(lines(HEAD, PLAIN, ";").encode()), {}, None),
    "delimiters_at_line_ends": ("t.csv", lines(HEAD + ",", [(*r, "") for r in PLAIN]), {}, "empty"),
    "blank_lines": ("t.csv", lines(HEAD, PLAIN).replace("\n", "\n\n"), {}, None),
    "spaces_around": ("t.csv", lines("a , b , label", PLAIN, " , "), {}, None),
    # --- missing values ---
    "missing_numbers": (
        "t.csv",
        lines(HEAD, rows(with_holes(A, ""), B, KINDS)),
        {},
        r"'a' 5 \(20.8%\)",
    ),
    "missing_categories": (
        "t.csv",
        lines("city,b,label", rows(with_holes(CITY, "NA"), B, KINDS)),
        {},
        r"'city' 5 \(20.8%\)",
    ),
    "missing_keys": (
        "t.jsonl",
        json_lines(
            *(
                {"a": a, "label": k} | ({"b": a} if a > 0 else {})
                for a, k in zip(A, KINDS, strict=True)
            )
        ),
        {},
        r"'b' 13 \(54.2%\)",
    ),
    "nulls": (
        "t.jsonl",
        json_lines(
            *({"a": None if i % 4 == 0 else float(a), "label": KINDS[i]} for i, a in enumerate(A))
        ),
        {},
        r"'a' 6 \(25.0%\)",
    ),
    "rows_left_out": (
        "t.csv",
        lines(HEAD, rows(with_holes(A, ""), B, KINDS)),
        {"skip": True},
        "left out: 5 of",
    ),
    "labels_left_out": (
        "t.csv",
        lines(HEAD, rows(A, B, with_holes(KINDS, ""))),
        {"skip": True},
        "left out: 5 of",
    ),
    "mistakes_left_out": (
        "t.csv",
        lines(HEAD, rows(with_holes(A, "broken", 10), B, KINDS)),
        {"skip": True},
        "left out: 3 of",
    ),
    "ragged_rows_left_out": (
        "t.csv",
        lines(HEAD, PLAIN) + "1,2\n1,2,3,4\n",
        {"skip": True},
        "left out: 1 of 25 incomplete",
    ),
    # --- identifiers, constants, kinds of columns ---
    "identifiers": (
        "t.csv",
        lines("PassengerId,name,a,label", rows(range(N), [f"n{i}" for i in range(N)], A, KINDS)),
        {},
        r"left out: 'name' \(a different.*--drop PassengerId",
    ),
    "index_without_name": (
        "t.csv",
        lines(",a,label", rows(range(N), A, KINDS)),
        {},
        "--drop Unnamed: 0",
    ),
    "counted_rows": ("t.csv", lines("t,a,label", rows(range(N), A, KINDS)), {}, "--drop t"),
    "constant": ("t.csv", lines(HEAD, rows(A, [7] * N, KINDS)), {}, r"'b' \(the same in every row"),
    "empty_column": ("t.csv", lines(HEAD, rows(A, [""] * N, KINDS)), {}, r"'b' \(empty"),
    "too_many_words": (
        "t.csv",
        lines(HEAD, rows(A, [f"w{i // 2}{i % 2 and 'x'}" for i in range(N - 1)] + ["w00"], KINDS)),
        {},
        r"'b' \(too many different words",
    ),
    "lists": (
        "t.jsonl",
        json_lines(
            *({"a": float(a), "tags": ["x"], "label": k} for a, k in zip(A, KINDS, strict=True))
        ),
        {},
        r"'tags' \(lists",
    ),
    "booleans": (
        "t.csv",
        lines(HEAD, rows(A, ["yes" if b > 0 else "no" for b in B], KINDS)),
        {},
        None,
    ),
    "json_booleans": (
        "t.jsonl",
        json_lines(*({"a": bool(a > 0), "b": float(b), "label": k} for a, b, k in PLAIN)),
        {},
        "alone predicts",
    ),
    "dates": ("t.csv", lines("day,b,label", rows(DAYS, B, KINDS)), {}, None),
    "german_dates": (
        "t.csv",
        lines("day,b,label", rows([".".join(reversed(d.split("-"))) for d in DAYS], B, KINDS), ";"),
        {},
        r"left out: 'day' \(a different",
    ),
    "ambiguous_dates": (
        "t.csv",
        lines("day,b,label", rows([f"{1 + i % 12}/{1 + i % 11}/2023" for i in range(N)], B, KINDS)),
        {},
        r"left out: 'day' \(a different",
    ),
    "text_and_numbers": ("t.csv", lines("text,b,label", rows(WORDS, B, KINDS)), {}, None),
    "two_texts": (
        "t.csv",
        lines("title,text,label", rows(WORDS, WORDS, KINDS)),
        {},
        r"'title' \(another",
    ),
    "only_identifiers": (
        "t.csv",
        lines("id,label", rows(range(N), KINDS)),
        {},
        "'id' counts the rows",
    ),
}
COLUMNS = {
    "quoted_decimal_commas": ["b"],
    "thousands": ["b"],
    "latin_1_named": ["größe", "b"],
    "missing_categories": ["city", "b"],
    "nulls": ["a"],
    "identifiers": ["PassengerId", "a"],
    "index_without_name": ["Unnamed: 0", "a"],
    "counted_rows": ["t", "a"],
    **{case: ["a"] for case in ("constant", "empty_column", "too_many_words", "lists")},
    "dates": ["day", "b"],
    "german_dates": ["b"],
    "ambiguous_dates": ["b"],
    "text_and_numbers": ["text", "b"],
    "two_texts": ["text"],
    "only_identifiers": ["id"],
}
"""What a model sees, where it is not the columns a and b."""

REGRESS = {"regress": True}
REFUSED = {
    "missing_labels": (
        "t.csv",
        lines(HEAD, rows(A, B, with_holes(KINDS, ""))),
        {},
        ("'label' is empty in row 3", "5 empty of 24", "skip="),
    ),
    "missing_targets": (
        "t.csv",
        lines("a,b,y", rows(A, B, with_holes(A, ""))),
        REGRESS,
        ("'y' is empty in row 3", "skip="),
    ),
    "a_word_among_numbers": (
        "t.csv",
        lines(HEAD, rows(with_holes(A, "n.a.b", 12), B, KINDS)),
        {},
        ("'a' holds 'n.a.b' in row 3", "2 such rows", "decimal=, skip=, drop="),
    ),
    "decimal_mark_named_wrongly": (
        "t.csv",
        lines(HEAD, rows(comma(A, 2), B.round(), KINDS), ";"),
        {"decimal": ".", "features": ("a",), "regress": True, "label": "a"},
        ("'a' has two parts to play", "label="),
    ),
    "decimal_marks_of_both_kinds": (
        "t.csv",
        lines("a,b,y", rows(A, B, [*comma(A[:3], 2), *A[3:].round(2)]), ";"),
        REGRESS,
        ("'y' holds no number in row 1", "'0,13'", "decimal="),
    ),
    "infinite_numbers": (
        "t.csv",
        lines(HEAD, rows(with_holes(A, "inf", 9), B, KINDS)),
        {},
        ("'a' holds an infinite number in row 3", "skip="),
    ),
    "cut_off": (
        "t.csv",
        lines(HEAD, PLAIN) + "1.0",
        {},
        ("Line 26 of", "t.csv", "ends after 1 of 3 cells", "skip="),
    ),
    "open_quote": (
        "t.csv",
        lines(HEAD, PLAIN) + '"1.0,2,x',
        {},
        ("Line 26 of", "t.csv", "opens a quote"),
    ),
    "no_header": (
        "t.csv",
        lines("5.1,3.5,iris", PLAIN),
        {},
        ("names no columns", "'5.1'", "no_header="),
    ),
    "a_title_above": (
        "t.csv",
        lines(HEAD, PLAIN, above="Flowers of 2024\n"),
        {},
        ("Line 2 of", "more cells than line 1 has names"),
    ),
    "names_twice": (
        "t.csv",
        lines("a,a,label", PLAIN),
        {},
        ("Two columns are called 'a'", "rename"),
    ),
    "delimiter_named_wrongly": (
        "t.csv",
        lines(HEAD, PLAIN, ";"),
        {"delimiter": "|", "label": "label"},
        ("no column 'label'", "'a;b;label'", "delimiter="),
    ),
    "not_utf_8": (
        "t.csv",
        lines("größe,b,label", PLAIN).encode("latin-1"),
        {},
        ("Line 1 of", "not written in utf-8", "encoding="),
    ),
    "utf_16": (
        "t.csv",
        lines(HEAD, PLAIN).encode("utf-16"),
        {},
        ("Line 1 of", "starts like UTF-16", "encoding="),
    ),
    "one_class": (
        "t.csv",
        lines(HEAD, rows(A, B, ["iris"] * N)),
        {},
        ("one label", "'iris'", "label="),
    ),
    "one_column": (
        "t.csv",
        lines("label", rows(KINDS)),
        {},
        ("No column holds", "no column beside 'label'"),
    ),
    "one_row": (
        "t.csv",
        lines(HEAD, PLAIN[:1]),
        {},
        ("No column holds", "'a' (the same in every row)"),
    ),
    "few_rows": ("t.csv", lines(HEAD, PLAIN[:7]), {}, ("7 examples", "fewer than 10")),
    "no_rows": ("t.csv", "a,b,label\n", {}, ("no rows",)),
    "nothing": ("t.csv", "", {}, ("no rows",)),
    "label_not_named": (
        "t.csv",
        lines("a,b,kind", PLAIN),
        {},
        ("No column is called 'label'", "'kind'", "label="),
    ),
    "labels_all_different": (
        "t.csv",
        lines(HEAD, rows(A, B, A)),
        {},
        ("24 different labels", "no classes", "regress"),
    ),
    "no_row_complete": (
        "t.csv",
        lines(HEAD, rows(["", 1.5] * (N // 2), [2.5, ""] * (N // 2), KINDS)),
        {"skip": True},
        ("lacks something", "keep such rows", "skip=, drop="),
    ),
    "too_many_cells": (
        "t.csv",
        lines(HEAD, PLAIN),
        {"allow": "cells=30"},
        ("WIDELIMIT_ALLOW=cells=72",),
    ),
    "lists_named_as_feature": (
        "t.jsonl",
        json_lines(*({"a": [1], "label": k} for k in KINDS)),
        {"features": ("a",)},
        ("'a' holds lists or objects", "drop="),
    ),
    "excel_hint": (
        "t.csv",
        lines(HEAD, PLAIN, ";", above="sep=;\n"),
        {},
        ("Line 2 of", "more cells than line 1 has names"),
    ),
    "decimal_commas": (
        "t.csv",
        lines(HEAD, rows(comma(A), comma(B, 2), KINDS), ";"),
        {},
        ("No column holds", "'a' (a different name in every row)", "feature="),
    ),
    "percent_and_money": (
        "t.csv",
        lines(HEAD, rows([f"{a:.1f}%" for a in A], [f"${b:.2f}" for b in B], KINDS)),
        {},
        ("No column holds", "'b' (too many different words)"),
    ),
    "missing_by_many_names": (
        "t.csv",
        lines(
            HEAD,
            rows(
                [
                    ("NA", "?", "nan", "null", "-")[i % 5] if i % 3 == 0 else a
                    for i, a in enumerate(A)
                ],
                B,
                KINDS,
            ),
        ),
        {},
        ("'a' holds '-' in row 10", "skip="),
    ),
}
assert len(FILES) + len(REFUSED) >= 50


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("case", FILES)
def test_ugly_files_are_read_as_they_are_meant(tmp_path, case):
    name, content, options, note = FILES[case]
    found = read_source(write(tmp_path, name, content), Task.CLASSIFY, Reading(**options))
    assert set(found.y) == {"iris", "rose"}
    assert len(found) == {"labels_left_out": 19, "rows_left_out": 19, "mistakes_left_out": 21}.get(
        case, N
    )
    assert list(found.x.columns) == COLUMNS.get(case, ["a", "b"])
    said = " | ".join(found.notes)
    assert re.search(note, said) if note else not said, said


@pytest.mark.parametrize("case", REFUSED)
def test_mistakes_are_named_with_what_helps(tmp_path, case, monkeypatch):
    """What pandas cannot read is the user's to convert: the error says so."""
    name, content, options, words = REFUSED[case]
    options = dict(options)
    task = Task.REGRESS if options.pop("regress", False) else Task.CLASSIFY
    monkeypatch.setenv(ENVIRONMENT, options.pop("allow", ""))
    with pytest.raises(DataError) as caught:
        read_source(write(tmp_path, name, content), task, Reading(**options))
    for word in words:
        assert word in str(caught.value)


def test_a_table_without_a_header(capsys, tmp_path):
    file = write(tmp_path, "t.csv", lines("5.1,3.5,iris", PLAIN))
    options = ("--no-header", "--label", "column 3", "--network", "linear", "--folds", 0)
    found = call(capsys, "classify", file, *options, "--out", tmp_path / "o", "--json")
    assert json.loads(found.out)["classes"] == ["iris", "rose"]


# --- from the file to predictions -----------------------------------------------------------------


def write_rooms(path, count=80, seed=0):
    """Text, numbers, a category, a date, yes and no, an id; much is missing."""
    rng = np.random.default_rng(seed)
    good = rng.random(count) < 0.5
    size = rng.normal(size=count) + good
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=";")
        writer.writerow(["id", "text", "size", "city", "seen", "lift", "label"])
        for i in range(count):
            mood = rng.choice(("good", "great", "fine") if good[i] else ("bad", "awful", "poor"))
            words = [mood, *rng.choice(("film", "story", "actors", "the"), 3)]
            writer.writerow(
                [
                    f"n{i}",
                    " ".join(words) if i % 9 else "",
                    f"{size[i]:.2f}".replace(".", ",") if i % 4 else "NA",
                    rng.choice(["north", "south"]) if i % 5 else "",
                    f"2023-{1 + i % 12:02}-{1 + i % 28:02}",
                    "yes" if rng.random() < 0.5 else "no",
                    "dear" if good[i] else "cheap",
                ]
            )
    return path


def test_text_and_columns_with_gaps_from_file_to_predictions(capsys, tmp_path):
    file, vectors = write_rooms(tmp_path / "r.csv"), write_vectors(tmp_path / "v.txt")
    comma = ("--decimal", ",")
    options = ("--vectors", vectors, "--network", "linear", "--folds", 0, "--out", tmp_path / "o")
    options = (*options, *comma)
    found = call(capsys, "classify", file, *options, "--save", tmp_path / "m.wl", "--json")
    numbers = json.loads(found.out)
    assert numbers["kind"] == "mixed"
    assert numbers["accuracy"]["value"] > 0.8
    assert set(numbers["baselines"]) >= {"ridge"}
    said = found.err
    for part in ("'id' (a different name", "'size' 20"):
        assert part in said
    page = (tmp_path / "o" / "report.html").read_text()
    for part in ("missing values", "simpler methods", "the text counts"):
        assert part in page
    with (tmp_path / "o" / "predictions.csv").open() as written:
        rows = list(csv.DictReader(written))
    assert list(rows[0])[:4] == ["example", "label", "prediction", "probability"]
    assert all(row["label"] == row["label in the file"] for row in rows)
    assert all(row["id"].startswith("n") for row in rows)
    new = write_rooms(tmp_path / "new.csv", count=12, seed=1)
    again = ("predict", tmp_path / "m.wl", new, "-o", tmp_path / "p.csv", *comma)
    found = call(capsys, *again, "--json")
    assert json.loads(found.out)["accuracy"]["value"] > 0.7
    found = call(capsys, *again, "--skip")
    assert "incomplete rows" in found.err
    unlabelled = new.read_text().replace(";dear", ";").replace(";cheap", ";")
    new.write_text(unlabelled)
    found = call(capsys, "predict", tmp_path / "m.wl", new, "-o", tmp_path / "p.csv", *comma)
    assert "not compared" in found.err


def test_a_bad_cell_in_a_file_to_predict_is_named(capsys, tmp_path):
    rows_here = rows(A, ["yes" if b > 0 else "no" for b in B], DAYS, KINDS)
    file = write(tmp_path, "t.csv", lines("a,flag,day,label", rows_here))
    common = ("--network", "linear", "--folds", 0, "--out", tmp_path / "o")
    call(capsys, "classify", file, *common, "--save", tmp_path / "m.wl")
    one = write(tmp_path, "one.csv", "a,flag,day\n0.5,yes,2024-07-01\n")
    call(capsys, "predict", tmp_path / "m.wl", one, "-o", tmp_path / "p.csv")
    for row, words in (
        ("zero,yes,2024-07-01", ("'a' holds 'zero' in row 1", "numbers")),
        ("0.5,yes,soon", ("'day' holds 'soon' in row 1", "dates")),
    ):
        bad = write(tmp_path, "bad.csv", f"a,flag,day\n{row}\n")
        said = refused(capsys, "predict", tmp_path / "m.wl", bad, "-o", tmp_path / "p.csv")
        for word in words:
            assert word in said
    missing = write(tmp_path, "missing.csv", "a,day\n0.5,2024-07-01\n")
    said = refused(capsys, "predict", tmp_path / "m.wl", missing, "-o", tmp_path / "p.csv")
    assert "column 'flag'" in said


def test_kinds_of_tables(tmp_path):
    path = write(tmp_path, "t.csv", lines("text,b,label", rows(WORDS, B, KINDS)))
    assert read_source(path, Task.CLASSIFY).kind is Kind.MIXED
    assert read_source(path, Task.CLASSIFY, Reading(drop=("b",))).kind is Kind.TEXT
    assert read_source(path, Task.CLASSIFY, Reading(features=("b",))).kind is Kind.TABLE
