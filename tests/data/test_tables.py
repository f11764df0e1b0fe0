import gzip
import json

import numpy as np
import pytest

from widelimit.data import (
    DataError,
    LabelNames,
    load_scored_texts,
    load_texts,
    load_texts_split,
    read_table,
)

ROWS = [("a fine film", "good"), ('she said "no", twice', "bad"), ("line\nbreak", "good")]
CSV = 'text,mood\na fine film,good\n"she said ""no"", twice",bad\n\n"line\nbreak",good\n'
TSV = 'text\tmood\na fine film\tgood\n"she said ""no"", twice"\tbad\n"line\nbreak"\tgood\n'
JSONL = "".join(json.dumps({"text": t, "mood": m}) + "\n" for t, m in ROWS)


def write(tmp_path, name, content, encoding="utf-8"):
    path = tmp_path / name
    data = content.encode(encoding)
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", CSV),
        ("a.CSV.gz", CSV),
        ("a.tsv", TSV),
        ("a.jsonl", JSONL),
        ("a.jsonl.gz", JSONL),
        ("a.ndjson", JSONL + "\n"),
    ],
)
def test_all_formats_give_the_same_texts(tmp_path, name, content):
    path = write(tmp_path, name, content)
    data = load_texts(path, label="mood")
    assert data.texts == tuple(text for text, _ in ROWS)
    assert data.class_names == ("bad", "good")
    assert data.y.tolist() == [1, 0, 1]
    assert data.y.dtype == np.int64


def test_spreadsheet_mark_and_windows_line_ends(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\r\nfine,1\r\npoor,0\r\n", "utf-8-sig")
    assert load_texts(path).texts == ("fine", "poor")


def test_wrong_column_lists_those_found(tmp_path):
    with pytest.raises(DataError, match=r"column 'label'.*'text', 'mood'"):
        load_texts(write(tmp_path, "a.csv", CSV))
    with pytest.raises(DataError, match=r"'text' must hold a text.* line 2 of"):
        load_texts(write(tmp_path, "a.jsonl", '{"text":"a","mood":1}\n{"mood":0}\n'), label="mood")


def test_delimiters_are_recognised_and_named_when_wrong(tmp_path):
    path = write(tmp_path, "a.csv", "text;label\na, b;1\nb;0\n")
    assert load_texts(path).texts == ("a, b", "b")
    assert load_texts(path, delimiter=";").texts == ("a, b", "b")
    path = write(tmp_path, "b.csv", "text;label\na;1\nb;0\n")
    with pytest.raises(DataError, match="delimiter=';'"):
        load_texts(path, delimiter="|")
    assert read_table(path).notes == ("columns are separated by ';' (--delimiter names another)",)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_empty_texts_name_their_lines(tmp_path, name):
    texts = ["fine", "", "  ", "poor"]
    content = {
        "a.csv": "text,label\n" + "".join(f'"{t}",{i % 2}\n' for i, t in enumerate(texts)),
        "a.jsonl": "\n" + "".join(f'{{"text":"{t}","label":1}}\n' for t in texts),
    }[name]
    with pytest.raises(DataError, match=r"empty or missing text at line 3, line 4 of"):
        load_texts(write(tmp_path, name, content))


def test_text_that_is_no_text(tmp_path):
    path = write(tmp_path, "a.jsonl", '{"text":null,"label":1}\n{"text":3,"label":0}\n')
    with pytest.raises(DataError, match="line 1, line 2"):
        load_texts(path)


def test_many_bad_lines_are_counted(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\n" + ',""\n' * 20)
    with pytest.raises(DataError, match="line 6 and 15 more"):
        load_texts(path)


def test_labels_are_compared_as_text(tmp_path):
    rows = '{"text":"a","label":1}\n{"text":"b","label":0.0}\n{"text":"c","label":" 10 "}\n'
    data = load_texts(write(tmp_path, "a.jsonl", rows))
    assert data.class_names == ("0", "1", "10")
    assert data.y.tolist() == [1, 0, 2]
    rows = '{"text":"a","label":true}\n{"text":"b","label":false}\n'
    assert load_texts(write(tmp_path, "b.jsonl", rows)).class_names == ("false", "true")


@pytest.mark.parametrize("label", ["null", "[1]", '""', "NaN"])
def test_missing_labels(tmp_path, label):
    path = write(tmp_path, "a.jsonl", f'{{"text":"a","label":{label}}}\n{{"text":"b","label":1}}\n')
    with pytest.raises(DataError, match=r"a label in every row.*line 1 of"):
        load_texts(path)


def test_unknown_label_at_prediction_time(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\na,good\nb,mixed\n")
    with pytest.raises(DataError, match=r"known ones: bad, good\. Got: 'mixed' \(example 1\)"):
        load_texts(path, names=LabelNames(("bad", "good")))
    assert load_texts(path, names=LabelNames(("mixed", "good", "bad"))).y.tolist() == [1, 0]


def test_one_label_is_no_classification(tmp_path):
    with pytest.raises(DataError, match=r"two different labels.*only '1'"):
        load_texts(write(tmp_path, "a.csv", "text,label\na,1\nb,1\n"))


def test_label_names_round_trip():
    names = LabelNames.fit(["10", "9", "9"])
    assert names.names == ("9", "10")
    assert names.decode(names.encode(["10", "9"])) == ("10", "9")
    assert LabelNames.fit(["10", "9", "x"]).names == ("10", "9", "x")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", JSONL[:-10], "cut off or damaged .*last line, 3"),
        ("a.csv", CSV[:-8], "well-quoted rows.*line 5.*unexpected end"),
        ("a.csv", "text,label\nfine,1\npoor", "2 columns.*1 at line 3.*cut off"),
        ("a.csv", 'text,label\n"x"y,1\n', "line 2"),
        ("a.jsonl", '{"text": oops}\n{"text":"a"}\n', "one JSON object per line.*line 1"),
        ("a.jsonl", '[{"text":"a"}]\n', "line 1 .*a list"),
        ("a.csv", "", "must have rows"),
        ("a.csv", "text,label\n", "must have rows"),
        ("a.jsonl", "\n\n", "must have rows"),
        ("a.csv", "text,text\na,b\n", "must differ.*'text'"),
        ("a.xlsx", "text", "name ends in .csv"),
    ],
)
def test_broken_tables(tmp_path, name, content, message):
    with pytest.raises(DataError, match=message):
        load_texts(write(tmp_path, name, content))


def test_cut_off_gzip_table(tmp_path):
    path = write(tmp_path, "a.jsonl.gz", JSONL * 50)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match="cut off or damaged"):
        load_texts(path, label="mood")


def test_wrong_encoding_of_a_table(tmp_path):
    path = write(tmp_path, "a.csv", "text,label\nfine,1\ncafé,0\n", "latin-1")
    with pytest.raises(DataError, match=r"line 3 .*not utf-8"):
        load_texts(path)
    assert load_texts(path, encoding="latin-1").texts == ("fine", "café")


def test_numbers_for_regression(tmp_path):
    path = write(tmp_path, "a.csv", "text,stars,length\na,2.5,1\nb,-1e1,2\n")
    data = load_scored_texts(path, target="stars")
    assert data.y.tolist() == [2.5, -10.0]
    assert data.class_names == ()
    np.testing.assert_array_equal(read_table(path).numbers("length", "stars"), [[1, 2.5], [2, -10]])


@pytest.mark.parametrize("value", ["many", "", "nan", "inf"])
def test_targets_that_are_no_numbers(tmp_path, value):
    path = write(tmp_path, "a.csv", f"text,stars\na,1\nb,{value}\n")
    with pytest.raises(DataError, match=r"finite number in every row.*line 3"):
        load_scored_texts(path, target="stars")


def test_split_column(tmp_path):
    content = "text,label,split\na,1,train\nb,0,test\nc,0,train\nd,1,test\n"
    data = load_texts_split(write(tmp_path, "a.csv", content))
    assert (data.texts_train, data.texts_test) == (("a", "c"), ("b", "d"))
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0], [0, 1])
    with pytest.raises(DataError, match="'dev', 'train'"):
        load_texts_split(write(tmp_path, "b.csv", content.replace("test", "dev")))
