import gzip
import json
import tarfile

import pytest

from widelimit.data import DataError, load_imdb

REVIEWS = {
    "train/neg/0_2.txt": "dull",
    "train/neg/10_1.txt": "poor",
    "train/neg/9_1.txt": "weak",
    "train/pos/0_9.txt": "fine, naïve<br />but good",
    "test/neg/3_4.txt": "bad",
    "test/pos/4_10.txt": "great",
    "train/unsup/0_0.txt": "unlabelled",
    "train/labeledBow.feat": "1 2:3",
    "README": "about",
}


@pytest.fixture
def folder(tmp_path):
    for name, text in REVIEWS.items():
        path = tmp_path / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "aclImdb"


def same(frame):
    assert frame.columns.tolist() == ["split", "label", "text"]
    assert frame.values.tolist() == [
        ["train", "negative", "dull"],
        ["train", "negative", "weak"],
        ["train", "negative", "poor"],
        ["train", "positive", "fine, naïve<br />but good"],
        ["test", "negative", "bad"],
        ["test", "positive", "great"],
    ]


def test_official_folder_and_archive(folder, tmp_path):
    same(load_imdb(tmp_path))
    same(load_imdb(folder))
    archive = tmp_path / "elsewhere" / "aclImdb_v1.tar.gz"
    archive.parent.mkdir()
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname="aclImdb")
    same(load_imdb(archive.parent))


def test_missing_half(folder, tmp_path):
    (folder / "test" / "pos" / "4_10.txt").unlink()
    with pytest.raises(DataError, match=r"aclImdb' has not both.* test negative, train"):
        load_imdb(tmp_path)


def test_wrong_encoding(folder, tmp_path):
    (folder / "test" / "pos" / "4_10.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match=r"4_10.txt' .*byte 3"):
        load_imdb(tmp_path)


def test_empty_review(folder, tmp_path):
    (folder / "train" / "neg" / "0_2.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"0_2.txt' .*empty"):
        load_imdb(tmp_path)


@pytest.mark.parametrize("labels", [(0, 1), ("neg", "pos")])
def test_tables(tmp_path, labels):
    rows = [
        {"split": part, "label": labels[i], "text": f"{part} {i}"}
        for part in ("train", "test")
        for i in (1, 0)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "imdb.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    table = "split,label,text\n" + "".join(",".join(map(str, row.values())) + "\n" for row in rows)
    (tmp_path / "other.csv").write_text(table)
    for path in (tmp_path, tmp_path / "other.csv"):
        frame = load_imdb(path)
        assert frame["text"].tolist() == ["train 1", "train 0", "test 1", "test 0"]
        assert frame["label"].tolist() == ["positive", "negative"] * 2


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("split,label,text\ntrain,1,a\ntest,5,b\n", r"'label' of .*imdb.csv' holds 5 in row 2"),
        ("split,label,text\ntrain,1,a\ntest,0,\n", r"'text' of .*imdb.csv' holds nan in row 2"),
        ("split,label,text\ntrain,1,a\ntrain,0,b\n", r"has not both sentiments in both"),
        ("split,label\ntrain,1\n", r"imdb.csv' has no column 'text'"),
    ],
)
def test_odd_tables(tmp_path, table, said):
    (tmp_path / "imdb.csv").write_text(table)
    with pytest.raises(DataError, match=said):
        load_imdb(tmp_path)


def test_nothing_found_says_how_to_go_on(tmp_path):
    with pytest.raises(DataError, match=r"IMDb is not.*WIDELIMIT_DATA.*stanford"):
        load_imdb(tmp_path)


def test_real_files(real_data):
    frame = load_imdb(real_data)
    counts = frame.groupby(["split", "label"]).size().to_dict()
    assert counts == {
        ("train", "negative"): 2500,
        ("train", "positive"): 2500,
        ("test", "negative"): 1250,
        ("test", "positive"): 1250,
    }
