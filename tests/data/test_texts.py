"""Labelled texts from the columns of a table."""

import json

import pytest

from widelimit.data import DataError, load_texts, load_texts_split
from widelimit.data.labels import class_names, class_numbers

ROWS = [("a fine film", "good"), ('she said "no", twice', "bad"), ("line\nbreak", "good")]
CSV = 'text,mood\na fine film,good\n"she said ""no"", twice",bad\n\n"line\nbreak",good\n'
JSONL = "".join(json.dumps({"text": t, "mood": m}) + "\n" for t, m in ROWS)


@pytest.mark.parametrize(("name", "content"), [("a.csv", CSV), ("a.jsonl", JSONL)])
def test_texts_and_labels(tmp_path, name, content):
    (tmp_path / name).write_text(content)
    data = load_texts(tmp_path / name, label="mood")
    assert data.texts == tuple(text for text, _ in ROWS)
    assert (data.class_names, data.y.tolist()) == (("bad", "good"), [1, 0, 1])
    with pytest.raises(DataError, match=r"no column 'label'.*'text', 'mood'"):
        load_texts(tmp_path / name)


def test_numbers_are_labels(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text":"a","label":1}\n{"text":"b","label":0.0}\n{"text":"c","label":10}\n')
    assert load_texts(path).class_names == ("0", "1", "10")
    path.write_text('{"text":"a","label":" x "}\n{"text":"b","label":"y"}\n')
    assert load_texts(path).class_names == ("x", "y")


@pytest.mark.parametrize("column", ["text", "label"])
@pytest.mark.parametrize("gap", ["", "  "])
def test_gaps_name_their_rows(tmp_path, column, gap):
    row = {"text": "a film", "label": "good"}
    rows = [row, row | {column: gap}, row | {"label": "bad"}, row | {column: None}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(one) + "\n" for one in rows))
    with pytest.raises(DataError, match=f"Column '{column}' lacks .* in row 2, row 4"):
        load_texts(tmp_path / "a.jsonl")


def test_split_column(tmp_path):
    content = "text,label,split\na,1,train\nb,0,test\nc,0,train\nd,1,test\n"
    (tmp_path / "a.csv").write_text(content)
    data = load_texts_split(tmp_path / "a.csv")
    assert (data.texts_train, data.texts_test) == (("a", "c"), ("b", "d"))
    assert (data.y_train.tolist(), data.y_test.tolist()) == ([1, 0], [0, 1])
    (tmp_path / "b.csv").write_text(content.replace("test", "dev"))
    with pytest.raises(DataError, match="'dev', 'train'"):
        load_texts_split(tmp_path / "b.csv")


def test_names_and_numbers_of_classes():
    assert class_names(["10", "9", "9"]) == ("9", "10")
    assert class_numbers(["10", "9"], ("9", "10")).tolist() == [1, 0]
    assert class_names(["10", "9", "x"]) == ("10", "9", "x")
    with pytest.raises(DataError, match="two different labels"):
        class_names(["1", "1"])
    with pytest.raises(DataError, match=r"known ones: good\. Got: 'bad'"):
        class_numbers(["good", "bad"], ("good",))
