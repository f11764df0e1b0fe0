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


def same(data):
    assert data.texts_train == ("dull", "weak", "poor", "fine, naïve<br />but good")
    assert data.y_train.tolist() == [0, 0, 0, 1]
    assert data.texts_test == ("bad", "great")
    assert data.y_test.tolist() == [0, 1]
    assert data.class_names == ("negative", "positive")


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
    with pytest.raises(DataError, match=r"1 reviews in .*test', not of both kinds"):
        load_imdb(tmp_path)


def test_wrong_encoding(folder, tmp_path):
    (folder / "test" / "pos" / "4_10.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(DataError, match=r"UTF-8.*4_10.txt' .*byte 3"):
        load_imdb(tmp_path)


def test_empty_review(folder, tmp_path):
    (folder / "train" / "neg" / "0_2.txt").write_text(" \n")
    with pytest.raises(DataError, match=r"empty.*0_2.txt"):
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
        data = load_imdb(path)
        assert data.texts_train == ("train 1", "train 0")
        assert data.y_train.tolist() == [1, 0]
        assert data.class_names == ("negative", "positive")


def test_table_with_other_labels(tmp_path):
    (tmp_path / "imdb.csv").write_text("split,label,text\ntrain,1,a\ntest,5,b\n")
    with pytest.raises(DataError, match=r"labels are 0 and 1.*1, 5"):
        load_imdb(tmp_path)


def test_nothing_found_says_how_to_go_on(tmp_path):
    with pytest.raises(DataError, match=r"IMDb is not.*WIDELIMIT_DATA.*stanford"):
        load_imdb(tmp_path)


def test_real_files(real_data):
    data = load_imdb(real_data)
    assert (len(data.texts_train), len(data.texts_test)) == (5000, 2500)
    assert (data.y_train.sum(), data.y_test.sum()) == (2500, 1250)
