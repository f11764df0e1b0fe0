"""Tables by pandas: what its readers give, and one sentence for everything they cannot read."""

import gzip
import json
import os

import numpy as np
import pandas as pd
import pytest

from widelimit.data import DataError, Holds, column_holds, find_leaks, read_frame
from widelimit.data.limits import ENVIRONMENT

ROWS = pd.DataFrame(
    {
        "size": [1.5, np.nan, -2.0, 3.25],
        "count": [1, 2, 3, 4],
        "city": ["north", "a, b", None, 'say "no"'],
        "day": pd.to_datetime(["2023-01-01T00:00", "2023-02-01T12:30", None, "2024-03-01T00:00"]),
        "seen": [True, False, True, True],
    }
)


def write(path, content, encoding="utf-8"):
    data = content if isinstance(content, bytes) else content.encode(encoding)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(
    "name",
    ["t.csv", "t.CSV.gz", "t.tsv", "t.jsonl", "t.jsonl.gz", "t.ndjson", "t.json", "t.parquet"],
)
def test_every_format_gives_the_same_frame(tmp_path, name):
    path = tmp_path / name
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
        ROWS.to_parquet(path)
    elif "json" in name or "ndjson" in name:
        whole = ROWS.assign(day=ROWS.day.dt.strftime("%Y-%m-%dT%H:%M:%S"))
        lined = name != "t.json"
        write(path, whole.to_json(orient="records", lines=lined, force_ascii=False))
    else:
        mark = "\t" if name == "t.tsv" else ","
        write(path, ROWS.to_csv(index=False, sep=mark, date_format="%Y-%m-%dT%H:%M:%S"))
    found = read_frame(path)
    assert found.index.tolist() == [1, 2, 3, 4]
    kinds = {name: column_holds(found[name]) for name in found}
    numbers = Holds.NUMBERS
    assert (kinds["size"], kinds["count"], kinds["day"]) == (numbers, numbers, Holds.DATES)
    assert kinds["seen"] is Holds.CATEGORIES
    np.testing.assert_array_equal(found["size"], ROWS["size"])
    assert found["city"].fillna("").tolist() == ROWS["city"].fillna("").tolist()
    same = found["day"].to_numpy() == ROWS["day"].to_numpy()
    assert same.tolist() == [True, True, False, True]


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_the_delimiter_is_found_and_the_decimal_mark_named(tmp_path, mark):
    path = write(tmp_path / "t.csv", f'a{mark}b\n"1,5"{mark}x\n"2,5"{mark}y\n')
    assert read_frame(path, decimal=",")["a"].tolist() == [1.5, 2.5]
    assert read_frame(path, delimiter=mark)["b"].tolist() == ["x", "y"]


def test_headers(tmp_path):
    path = write(tmp_path / "t.csv", "5.1,3.5,iris\n4.9,3.0,rose\n")
    with pytest.raises(DataError, match="names no columns") as caught:
        read_frame(path)
    assert caught.value.options == ("no_header",)
    found = read_frame(path, no_header=True)
    assert found.columns.tolist() == ["column 1", "column 2", "column 3"]
    assert len(found) == 2
    marked = write(tmp_path / "m.csv", "name,b\r\nx,1\r\n", "utf-8-sig")  # a spreadsheet's
    assert read_frame(marked).columns.tolist() == ["name", "b"]


def test_dates_in_other_forms_are_named(tmp_path):
    path = write(tmp_path / "t.csv", "day,a\n31.12.2023,1\n01.02.2024,2\n")
    assert column_holds(read_frame(path)["day"]) is not Holds.DATES
    days = read_frame(path, date_format="%d.%m.%Y")["day"]
    assert days.dt.month.tolist() == [12, 2]


DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}\n"
REFUSED = {
    "too many fields": ("t.csv", "a,b\n1,2\n1,2,3\n", "Line 3 of", ("delimiter", "skip")),
    "too many at once": ("t.csv", "a,b\n1,2,3\n1,2\n", "Line 2 of", ("delimiter", "skip")),
    "names twice": ("t.csv", 'a,"a"\n1,2\n', "Two columns are called 'a'", ()),
    "cut in a row": ("t.csv", "a,b,c\n1,2,3\n4,5\n\n", "Line 3 of .*t.csv', the last", ("skip",)),
    "open quote": ("t.csv", 'a,b\n1,2\n"1,2\n', "Line 3 of .*opens a quote", ("delimiter", "skip")),
    "latin 1": (
        "t.csv",
        "größe,b\n1,2\n".encode("latin-1"),
        "Line 1 of .*not written in utf-8",
        ("encoding",),
    ),
    "latin 1 below": (
        "t.csv",
        "a,b\n1,2\n1,ß\n".encode("latin-1"),
        "Line 3 of .*not written",
        ("encoding",),
    ),
    "utf 16": (
        "t.csv",
        "a,b\n1,2\n".encode("utf-16"),
        "Line 1 of .*not written in utf-8",
        ("encoding",),
    ),
    "nothing": ("t.csv", "", "has no rows", ()),
    "names alone": ("t.csv", "a,b\n", "has no rows", ()),
    "infinite": (
        "t.csv",
        "a,b\n1,2\n1e999,2\n",
        "'a' holds an infinite number in row 2",
        ("skip",),
    ),
    "Infinity": (
        "t.jsonl",
        '{"a":1.5}\n{"a":Infinity}\n',
        "'a' holds an infinite.*row 2",
        ("skip",),
    ),
    "cut off": ("t.jsonl", '{"a":1}\n{"a":\n', "Line 2 of", ()),
    "an odd line": ("t.jsonl", '{"a":1}\n{"a":1}\n{"a" 2}\n{"a":3}\n', "Line 3 of", ()),
    "no object": ("t.jsonl", '{"a":1}\n3\n', "Line 2 of .*is no JSON object", ()),
    "deep": ("t.jsonl", DEEP, "Line 1 of", ()),
    "other": ("t.xlsx", "a", "no table by its name", ()),
    "cut gzip": ("t.csv.gz", None, "cut off or damaged", ()),
    "no parquet": ("t.parquet", "a,b\n1,2\n", "cannot be read", ("delimiter", "skip")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_one_sentence(tmp_path, case):
    name, content, message, options = REFUSED[case]
    path = tmp_path / name
    if content is None:
        path.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 500)[:-20])
    else:
        write(path, content)
    with pytest.raises(DataError, match=message) as caught:
        read_frame(path)
    assert caught.value.options == options
    assert str(path.name) in str(caught.value)


@pytest.mark.parametrize("lined", [True, False])
def test_objects_with_other_names_are_counted_before_a_table_is_made(tmp_path, monkeypatch, lined):
    rows = [json.dumps({f"c{i}": i}) for i in range(20)]
    content = "\n".join(rows) if lined else f"[{','.join(rows)}]"
    path = write(tmp_path / ("t.jsonl" if lined else "t.json"), content)
    assert read_frame(path).shape == (20, 20)
    monkeypatch.setattr(pd, "DataFrame", None)  # it is not called
    for allow in ("columns=10", "cells=100"):
        monkeypatch.setenv(ENVIRONMENT, allow)
        with pytest.raises(DataError, match=f"WIDELIMIT_ALLOW={allow[:5]}"):
            read_frame(path)


def test_unknown_encodings_and_missing_files(tmp_path):
    path = write(tmp_path / "t.csv", "a,b\n1,2\n")
    with pytest.raises(DataError, match="knows no encoding 'klingon'"):
        read_frame(path, encoding="klingon")
    with pytest.raises(DataError, match="no file"):
        read_frame(tmp_path / "other.csv")
    with pytest.raises(DataError, match="is a folder"):
        read_frame(tmp_path)
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(DataError, match="pipe or socket, not a file"):
        read_frame(tmp_path / "pipe.csv")
    skipped = write(tmp_path / "s.csv", "a,b\n1,2\n1,2,3\n4,5\n")
    assert read_frame(skipped, skip=True)["a"].tolist() == [1, 4]


@pytest.mark.parametrize(
    ("allow", "content", "message"),
    [
        ("bytes=100", "a,b\n" + "1,2\n" * 50, "WIDELIMIT_ALLOW=bytes="),
        ("rows=20", "a,b\n" + "1,2\n" * 50, "WIDELIMIT_ALLOW=rows="),
        ("cells=60", "a,b\n" + "1,2\n" * 50, "WIDELIMIT_ALLOW=cells="),
        ("line=50", "a,b\n" + "1," + "2" * 100, "WIDELIMIT_ALLOW=line="),
        ("columns=2", "a,b,c\n1,2,3\n", "WIDELIMIT_ALLOW=columns="),
    ],
)
@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz"])
def test_files_are_measured_first(tmp_path, monkeypatch, allow, content, message, name):
    path = write(tmp_path / name, content)
    monkeypatch.setenv(ENVIRONMENT, allow)
    monkeypatch.setattr(pd, "read_csv", None)  # it is not called
    with pytest.raises(DataError, match=message):
        read_frame(path)


# --- what columns are -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        ([1.0, 2.0, np.nan] * 10, Holds.NUMBERS),
        ([1, 2, 3] * 10, Holds.NUMBERS),
        ([True, False, True] * 10, Holds.CATEGORIES),
        ([True, False, None] * 10, Holds.CATEGORIES),
        (["a", "b", None] * 10, Holds.CATEGORIES),
        (pd.Categorical(["a", "b", "c"] * 10), Holds.CATEGORIES),
        (pd.date_range("2020", periods=30), Holds.DATES),
        ([f"a film of {i} words or more" for i in range(30)], Holds.TEXTS),
        ([f"n{i}" for i in range(30)], Holds.NAMES),
        ([f"n{i // 2}" for i in range(60)], Holds.WORDS),
        ([7] * 30, Holds.ONE_VALUE),
        ([None] * 30, Holds.NOTHING),
        ([[1, 2]] * 30, Holds.LISTS),
    ],
)
def test_dtypes_say_what_a_column_is(values, holds):
    assert column_holds(pd.Series(values)) is holds


def test_leaks_are_named():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(60, 3)), columns=["a", "b", "c"])
    frame["alive"] = rng.choice(["yes", "no"], 60)
    frame["survived"] = (frame.alive == "yes").astype(int)
    frame["id"] = range(60)  # tells every row, and nothing about others
    assert find_leaks(frame, "survived") == ["'alive' alone predicts 'survived' perfectly"]
    assert find_leaks(frame.drop(columns="alive"), "survived") == []
    noisy = frame.assign(survived=np.where(frame.index == 3, 1 - frame.survived, frame.survived))
    assert find_leaks(noisy, "survived") == []
    numbers = frame[["a", "b", "c"]].assign(y=frame.a + 2 * frame.b)
    assert find_leaks(numbers, "y") == ["'a', 'b' together add up to 'y'"]
    assert find_leaks(numbers.assign(y=numbers.y + 1e-3 * frame.c**2), "y") == []
    line = numbers.assign(euros=3 * numbers.y + 1)
    assert find_leaks(line, "y") == ["'euros' alone predicts 'y' perfectly"]


def test_lists_of_rows_and_numbers_as_names(tmp_path):
    path = write(tmp_path / "t.json", json.dumps([{"1": 2, "b": "x"}, {"1": 3, "b": None}]))
    assert read_frame(path).columns.tolist() == ["1", "b"]
