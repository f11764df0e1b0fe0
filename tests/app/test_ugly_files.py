"""Fifty files as people have them: each is read, or ends in one sentence that says what helps.

Most go through the reading stage alone, which is fast; a few are learned from and predicted.
"""

import contextlib
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
    "excel_hint": ("t.csv", lines(HEAD, PLAIN, ";", above="sep=;\n"), {}, None),
    "decimal_commas": (
        "t.csv", lines(HEAD, rows(comma(A), comma(B, 2), KINDS), ";"), {}, None,
    ),
    "quoted_decimal_commas": (
        "t.csv", lines(HEAD, rows([f'"{a}"' for a in comma(A, 2)], range(N), KINDS)), {},
        None,
    ),
    "thousands": (
        "t.csv", lines(HEAD, rows([f'"{1e5 * (2 + a):,.2f}"' for a in A], B, KINDS)), {}, None,
    ),
    "percent_and_money": (
        "t.csv", lines(HEAD, rows([f"{a:.1f}%" for a in A], [f"${b:.2f}" for b in B], KINDS)), {},
        None,
    ),
    "windows_line_ends": ("t.csv", lines(HEAD, PLAIN, end="\r\n"), {}, None),
    "byte_order_mark": ("t.csv", lines(HEAD, PLAIN).encode("utf-8-sig"), {}, None),
    "latin_1_named": (
        "t.csv", lines("größe,b,label", PLAIN).encode("latin-1"), {"encoding": "latin-1"}, None,
    ),
    "utf_16_named": ("t.csv", lines(HEAD, PLAIN).encode("utf-16"), {"encoding": "utf-16"}, None),
    "gzipped_semicolons": ("t.csv.gz", gzip.compress(lines(HEAD, PLAIN, ";").encode()), {}, None),
    "delimiters_at_line_ends": ("t.csv", lines(HEAD + ",", [(*r, "") for r in PLAIN]), {}, "empty"),
    "blank_lines": ("t.csv", lines(HEAD, PLAIN).replace("\n", "\n\n"), {}, None),
    "spaces_around": ("t.csv", lines("a , b , label", PLAIN, " , "), {}, None),
    # --- missing values ---
    "missing_numbers": ("t.csv", lines(HEAD, rows(with_holes(A, ""), B, KINDS)), {}, None),
    "missing_by_many_names": (
        "t.csv",
        lines(HEAD, rows([("NA", "?", "nan", "null", "-")[i % 5] if i % 3 == 0 else a
                          for i, a in enumerate(A)], B, KINDS)),
        {}, None,
    ),
    "missing_categories": (
        "t.csv", lines("city,b,label", rows(with_holes(CITY, "NA"), B, KINDS)), {}, None,
    ),
    "missing_keys": (
        "t.jsonl",
        json_lines(*({"a": a, "label": k} | ({"b": a} if a > 0 else {})
                     for a, k in zip(A, KINDS, strict=True))),
        {}, None,
    ),
    "nulls": (
        "t.jsonl",
        json_lines(*({"a": None if i % 4 == 0 else float(a), "label": KINDS[i]}
                     for i, a in enumerate(A))),
        {}, None,
    ),
    "rows_left_out": (
        "t.csv", lines(HEAD, rows(with_holes(A, ""), B, KINDS)), {"skip": True}, "left out: 5 of",
    ),
    "labels_left_out": (
        "t.csv", lines(HEAD, rows(A, B, with_holes(KINDS, ""))), {"skip": True}, "left out: 5 of",
    ),
    "mistakes_left_out": (
        "t.csv", lines(HEAD, rows(with_holes(A, "broken", 10), B, KINDS)), {"skip": True},
        "left out: 3 of",
    ),
    "ragged_rows_left_out": (
        "t.csv", lines(HEAD, PLAIN) + "1,2\n1,2,3,4\n", {"skip": True}, None,
    ),
    # --- identifiers, constants, kinds of columns ---
    "identifiers": (
        "t.csv",
        lines("PassengerId,name,a,label", rows(range(N), [f"n{i}" for i in range(N)], A, KINDS)),
        {}, r"left out: 'PassengerId' \(a different name.*'name' \(a different",
    ),
    "index_without_name": ("t.csv", lines(",a,label", rows(range(N), A, KINDS)), {}, None),
    "counted_rows": ("t.csv", lines("t,a,label", rows(range(N), A, KINDS)), {}, "--drop t"),
    "constant": ("t.csv", lines(HEAD, rows(A, [7] * N, KINDS)), {}, r"'b' \(the same in every row"),
    "empty_column": ("t.csv", lines(HEAD, rows(A, [""] * N, KINDS)), {}, r"'b' \(empty"),
    "too_many_words": (
        "t.csv", lines(HEAD, rows(A, [f"w{i // 2}{i % 2 and 'x'}" for i in range(N - 1)] + ["w00"],
                                  KINDS)), {}, r"'b' \(too many different words",
    ),
    "lists": (
        "t.jsonl", json_lines(*({"a": float(a), "tags": ["x"], "label": k}
                                for a, k in zip(A, KINDS, strict=True))), {}, r"'tags' \(lists",
    ),
    "booleans": (
        "t.csv", lines(HEAD, rows(A, ["yes" if b > 0 else "no" for b in B], KINDS)), {}, None,
    ),
    "json_booleans": (
        "t.jsonl", json_lines(*({"a": bool(a > 0), "b": float(b), "label": k}
                                for a, b, k in PLAIN)), {}, None,
    ),
    "dates": ("t.csv", lines("day,b,label", rows(DAYS, B, KINDS)), {}, None),
    "german_dates": (
        "t.csv",
        lines("day,b,label", rows([".".join(reversed(d.split("-"))) for d in DAYS], B, KINDS), ";"),
        {}, None,
    ),
    "ambiguous_dates": (
        "t.csv",
        lines("day,b,label", rows([f"{1 + i % 12}/{1 + i % 11}/2023" for i in range(N)], B, KINDS)),
        {}, None,
    ),
    "text_and_numbers": ("t.csv", lines("text,b,label", rows(WORDS, B, KINDS)), {}, None),
    "two_texts": (
        "t.csv", lines("title,text,label", rows(WORDS, WORDS, KINDS)), {}, r"'title' \(another",
    ),
}  # fmt: skip

REGRESS = {"regress": True}
REFUSED = {
    "missing_labels": ("t.csv", lines(HEAD, rows(A, B, with_holes(KINDS, ""))), {},
                       ("'label' must hold a label", "line 4", "skip=True")),
    "missing_targets": ("t.csv", lines("a,b,y", rows(A, B, with_holes(A, ""))), REGRESS,
                        ("'y' must hold a finite number", "nothing at line 4", "skip=True")),
    "a_word_among_numbers": ("t.csv", lines(HEAD, rows(with_holes(A, "n.a.b", 12), B, KINDS)), {},
                             ("'a' must hold a finite number", "'n.a.b' at line 4", "skip=True")),
    "decimal_mark_named_wrongly": (
        "t.csv", lines(HEAD, rows(comma(A, 2), B.round(), KINDS), ";"),
        {"decimal": ".", "features": ("a",), "regress": True, "label": "a"},
        ("different columns",)),
    "decimal_marks_of_both_kinds": (
        "t.csv", lines("a,b,y", rows(A, B, [*comma(A[:3], 2), *A[3:].round(2)]), ";"), REGRESS,
        ("'y' must hold a finite number", "line 2", "decimal=','")),
    "infinite_numbers": ("t.csv", lines(HEAD, rows(with_holes(A, "inf", 9), B, KINDS)), {},
                         ("'a' must hold a finite number", "'inf' at line 4")),
    "cut_off": ("t.csv", lines(HEAD, PLAIN) + "1.0", {}, ("3 columns", "line 26", "skip=True")),
    "open_quote": ("t.csv", lines(HEAD, PLAIN) + '"1.0,2,x', {}, ("well-quoted", "line 26")),
    "no_header": ("t.csv", lines("5.1,3.5,iris", PLAIN), {},
                  ("names its columns", "'5.1'", "names above it")),
    "a_title_above": ("t.csv", lines(HEAD, PLAIN, above="Flowers of 2024\n"), {},
                      ("columns of the first line", "lines stand above")),
    "names_twice": ("t.csv", lines("a,a,label", PLAIN), {}, ("must differ", "'a'", "rename")),
    "delimiter_named_wrongly": ("t.csv", lines(HEAD, PLAIN, ";"),
                                {"delimiter": "|", "label": "label"}, ("delimiter=';'",)),
    "not_utf_8": ("t.csv", lines("größe,b,label", PLAIN).encode("latin-1"), {},
                  ("line 1", "encoding='latin-1'")),
    "utf_16": ("t.csv", lines(HEAD, PLAIN).encode("utf-16"), {}, ("encoding='utf-16'",)),
    "one_class": ("t.csv", lines(HEAD, rows(A, B, ["iris"] * N)), {},
                  ("two different labels", "only 'iris'", "label column")),
    "one_column": ("t.csv", lines("label", rows(KINDS)), {}, ("a column of texts", "no column")),
    "only_identifiers": ("t.csv", lines("id,label", rows(range(N), KINDS)), {},
                         ("'id' (a different name or number in every row)", "--feature")),
    "one_row": ("t.csv", lines(HEAD, PLAIN[:1]), {}, ("at least 10 examples", "1 in")),
    "few_rows": ("t.csv", lines(HEAD, PLAIN[:7]), {}, ("at least 10 examples", "7 in")),
    "no_rows": ("t.csv", "a,b,label\n", {}, ("must have rows",)),
    "nothing": ("t.csv", "", {}, ("must have rows",)),
    "label_not_named": ("t.csv", lines("a,b,kind", PLAIN), {}, ("--label", "'kind'")),
    "labels_all_different": ("t.csv", lines(HEAD, rows(A, B, A)), {},
                             ("Classes are few", "regress")),
    "no_row_complete": (
        "t.csv", lines(HEAD, rows(["", 1.5] * (N // 2), [2.5, ""] * (N // 2), KINDS)),
        {"skip": True}, ("Some rows must be complete", "leave --skip away", "--drop")),
    "too_many_cells": ("t.csv", lines(HEAD, PLAIN), {"allow": "cells=30"}, ("--allow cells=",)),
    "lists_named_as_feature": (
        "t.jsonl", json_lines(*({"a": [1], "label": k} for k in KINDS)), {"features": ("a",)},
        ("one number, date or word", "--drop a")),
}  # fmt: skip
assert len(FILES) + len(REFUSED) >= 50


def write(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("case", [*FILES, *REFUSED])
def test_ugly_files_are_read_or_end_in_a_sentence(tmp_path, case, monkeypatch):
    """What pandas cannot read is the user's to convert: the error says so."""
    name, content, options, _ = (FILES | REFUSED)[case]
    options = dict(options)
    task = Task.REGRESS if options.pop("regress", False) else Task.CLASSIFY
    monkeypatch.setenv(ENVIRONMENT, options.pop("allow", ""))
    found = None
    with contextlib.suppress(DataError):  # no other error
        found = read_source(write(tmp_path, name, content), task, Reading(**options))
    assert found is None or len(found) == len(found.x) == len(found.y) >= 10


AS_MEANT = [
    *("semicolons", "bars", "tabs_in_csv", "windows_line_ends", "byte_order_mark", "blank_lines"),
    *("latin_1_named", "utf_16_named", "gzipped_semicolons", "missing_numbers", "nulls", "dates"),
    *("missing_categories", "missing_keys", "rows_left_out", "labels_left_out", "counted_rows"),
    *("mistakes_left_out", "constant", "empty_column", "lists", "booleans", "json_booleans"),
    *("text_and_numbers", "two_texts"),
]


@pytest.mark.parametrize("case", AS_MEANT)
def test_common_files_are_read_as_they_are_meant(tmp_path, case):
    name, content, options, note = FILES[case]
    found = read_source(write(tmp_path, name, content), Task.CLASSIFY, Reading(**options))
    assert set(found.y) == {"iris", "rose"}
    assert len(found) >= 15
    said = " | ".join(found.notes)
    if note is None:
        assert "left out" not in said
    else:
        assert re.search(note, said), said


SENTENCES = {
    "missing_labels": ("'label' is empty in row 3", "skip="),
    "missing_targets": ("'y' is empty in row 3", "skip="),
    "a_word_among_numbers": ("'a' holds 'n.a.b' in row 3", "skip="),
    "infinite_numbers": ("'a' holds an infinite number in row 3",),
    "no_header": ("names no columns", "no_header="),
    "not_utf_8": ("encoding=",),
    "utf_16": ("encoding=",),
    "one_class": ("one label", "'iris'"),
    "few_rows": ("7 examples",),
    "no_rows": ("no rows",),
    "nothing": ("no rows",),
    "label_not_named": ("label=", "'kind'"),
    "labels_all_different": ("no classes", "regress"),
    "no_row_complete": ("lacks something", "drop="),
    "too_many_cells": ("cells",),
}


@pytest.mark.parametrize("case", SENTENCES)
def test_mistakes_are_named_with_what_helps(tmp_path, case, monkeypatch):
    name, content, options, _ = REFUSED[case]
    options = dict(options)
    task = Task.REGRESS if options.pop("regress", False) else Task.CLASSIFY
    monkeypatch.setenv(ENVIRONMENT, options.pop("allow", ""))
    with pytest.raises(DataError) as caught:
        read_source(write(tmp_path, name, content), task, Reading(**options))
    for word in SENTENCES[case]:
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
