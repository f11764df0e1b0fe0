"""Mistakes in files: one clear error each (rule, got, remedy), exit code 2, no traceback.

Everything here is refused before anything is computed.
"""

import gzip
import json
import re

import numpy as np
import pytest
from command_line import call, refused, write_flowers, write_texts

from widelimit.data import save_npz

GOOD = "text,label\n" + "a good film,1\na bad film,0\n" * 10


@pytest.fixture
def file(tmp_path):
    """Writes a file into a fresh folder."""

    def write(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_missing_file(capsys, tmp_path):
    assert "none.csv" in refused(capsys, "classify", tmp_path / "none.csv")
    assert "nowhere" in refused(capsys, "classify", tmp_path / "nowhere")


def test_cut_off_gzip(capsys, file):
    whole = gzip.compress(GOOD.encode() * 50)
    said = refused(capsys, "classify", file("t.csv.gz", whole[: len(whole) // 2]))
    assert "cut off" in said


def test_cut_off_json_line(capsys, file):
    rows = "".join(json.dumps({"text": "x", "label": i % 2}) + "\n" for i in range(20))
    assert "Line 20 of" in refused(capsys, "classify", file("t.jsonl", rows[:-9]))


def test_cut_off_npz(capsys, tmp_path):
    save_npz(
        tmp_path / "d.npz", x=np.random.default_rng(0).normal(size=(50, 4)), y=np.arange(50) % 2
    )
    whole = (tmp_path / "d.npz").read_bytes()
    (tmp_path / "d.npz").write_bytes(whole[:-60])
    refused(capsys, "classify", tmp_path / "d.npz")


def test_cut_off_row(capsys, file):
    """Where a file ends in the middle of a row, its name and its line are said."""
    for end, what in (('"half a', "opens a quote"), ("no label", "ends after 1 of 2 cells")):
        said = refused(capsys, "classify", file("t.csv", GOOD + end))
        assert re.search(rf"Line 22 of '.*t.csv'.* {what}", said), said


def test_wrong_column_names(capsys, file):
    path = file("t.csv", GOOD)
    assert "'opinion'" in refused(capsys, "classify", path, "--label", "opinion")
    assert "'words'" in refused(capsys, "classify", path, "--text", "words")
    said = refused(capsys, "classify", file("u.csv", GOOD.replace("label", "grade")))
    assert "--label" in said
    assert "'grade'" in said
    said = refused(capsys, "regress", file("u.csv", GOOD.replace("label", "grade")))
    assert "--target" in said


def test_wrong_delimiter(capsys, file):
    path = file("t.csv", GOOD.replace(",", ";"))
    said = refused(capsys, "classify", path, "--label", "label", "--delimiter", "|")
    assert "--delimiter" in said
    assert "'text;label'" in said
    assert "one character" in refused(capsys, "classify", path, "--delimiter", ";;")


def test_wrong_encoding(capsys, file):
    path = file("t.csv", (GOOD + "un café,1\n").encode("latin-1"))
    said = refused(capsys, "classify", path)
    assert "--encoding" in said
    assert "latin-1" in said
    assert "utf-16" in refused(capsys, "classify", file("u.csv", GOOD.encode("utf-16")))
    assert "klingon" in refused(capsys, "classify", path, "--encoding", "klingon")


def test_one_class_only(capsys, file):
    said = refused(capsys, "classify", file("t.csv", "text,label\n" + "a good film,1\n" * 20))
    assert "have one label" in said


def test_a_class_with_one_example(capsys, file):
    said = refused(capsys, "classify", file("t.csv", GOOD + "so so film,maybe\n"))
    assert "'maybe' has one example" in said


def test_too_few_rows(capsys, file):
    path = file("t.csv", "text,label\na good film,1\na bad film,0\n" + "a film,1\nmy film,0\n")
    assert "has 4 examples" in refused(capsys, "classify", path)
    assert "no row" in refused(capsys, "classify", file("u.csv", "text,label\n"))
    refused(capsys, "classify", file("v.csv", ""))


def test_numbers_are_no_classes(capsys, tmp_path):
    path = write_flowers(tmp_path / "f.csv")
    assert "regress" in refused(capsys, "classify", path, "--label", "height")
    said = refused(capsys, "regress", path, "--target", "species")
    assert "holds no number in row 1" in said


def test_a_word_among_numbers(capsys, file):
    rows = "a,b,label\n" + "1,2,x\n3,4,y\n" * 10 + "5,six,x\n"
    said = refused(capsys, "classify", file("t.csv", rows))
    assert "'b'" in said
    assert "'six' in row 21" in said
    assert "--skip" in said


def test_other_formats(capsys, file, tmp_path):
    assert ".xlsx" in refused(capsys, "classify", file("t.xlsx", b"PK\x03\x04"))
    save_npz(tmp_path / "d.npz", a=np.zeros(3))
    refused(capsys, "classify", tmp_path / "d.npz")
    save_npz(tmp_path / "d.npz", x=np.zeros((20, 3)), y=np.linspace(0, 1, 20))
    assert "regress" in refused(capsys, "classify", tmp_path / "d.npz")
    save_npz(tmp_path / "d.npz", x=np.zeros((20, 3)), y=np.array(["a", "b"] * 10))
    assert "classify" in refused(capsys, "regress", tmp_path / "d.npz")
    save_npz(tmp_path / "d.npz", x=np.zeros((20, 2, 2, 2, 2)), y=np.arange(20) % 2)
    assert "(20, 2, 2, 2, 2)" in refused(capsys, "classify", tmp_path / "d.npz")
    save_npz(tmp_path / "d.npz", x=np.full((20, 3), np.nan), y=np.arange(20) % 2)
    assert "finite" in refused(capsys, "classify", tmp_path / "d.npz")


def write_images(folder, per_class=6):
    image = pytest.importorskip("PIL.Image", reason="images need Pillow (extra 'cli')")
    rng = np.random.default_rng(0)
    for number, name in enumerate(("day", "night")):
        (folder / name).mkdir(parents=True)
        for i in range(per_class):
            pixels = rng.integers(0, 100, size=(6 + i, 8, 3)) + 150 * (1 - number)
            image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")
    return folder


def test_image_folders(capsys, tmp_path):
    """Images of any size are read, other files are named or left out."""
    folder = write_images(tmp_path / "pictures")
    (folder / "day" / "notes.txt").write_text("no image")
    said = refused(capsys, "classify", folder)
    assert "notes.txt" in said
    assert "--skip" in said
    common = ("--skip", "--image-size", 4, "--network", "fcn", "--depth", 1, "--out")
    found = call(
        capsys, "classify", folder, *common, tmp_path / "o", "--save", tmp_path / "m.wl", "--json"
    )
    assert json.loads(found.out)["kind"] == "image"
    found = call(
        capsys, "predict", tmp_path / "m.wl", folder, "--skip", "-o", tmp_path / "p.csv", "--json"
    )
    assert json.loads(found.out)["accuracy"]["value"] > 0.9  # bright against dark
    assert "night/0.png" in (tmp_path / "p.csv").read_text()  # files are called by their names
    assert "1 files that are no images" in found.err
    one = folder / "night" / "0.png"
    call(capsys, "predict", tmp_path / "m.wl", one, "-o", tmp_path / "p.csv")
    assert "night" in (tmp_path / "p.csv").read_text()
    texts = write_texts(tmp_path / "t.jsonl")
    assert "image" in refused(capsys, "predict", tmp_path / "m.wl", texts)


def test_image_folders_without_classes(capsys, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "class" in refused(capsys, "classify", tmp_path / "empty")
    folder = write_images(tmp_path / "one")
    for path in (folder / "night").iterdir():
        path.unlink()
    assert "night" in refused(capsys, "classify", folder)
    (folder / "night").rmdir()
    assert "two different labels" in refused(capsys, "classify", folder)
    assert "regress" not in refused(capsys, "regress", folder).split("remedy")[1]


@pytest.mark.parametrize(
    ("option", "value"),
    [("--test", 1.5), ("--folds", 1), ("--noise", -1), ("--max-train", 1), ("--depth", 0)],
)
def test_options_without_meaning(capsys, tmp_path, option, value):
    path = write_flowers(tmp_path / "f.csv", count=12)
    said = refused(capsys, "classify", path, "--label", "species", option, value)
    assert option in said


def test_networks_that_do_not_fit(capsys, tmp_path):
    path = write_flowers(tmp_path / "f.csv", count=12)
    said = refused(capsys, "classify", path, "--label", "species", "--network", "attention")
    assert "fcn" in said


def test_folders_that_are_not_there(capsys, tmp_path):
    path = write_flowers(tmp_path / "f.csv", count=12)
    refused(capsys, "classify", path, "--data-dir", tmp_path / "nowhere")
    refused(capsys, "classify", write_texts(tmp_path / "t.jsonl"), "--vectors", tmp_path / "v.txt")


def test_a_law_of_what_has_no_positions(capsys, tmp_path):
    path = write_flowers(tmp_path / "f.csv", count=12)
    assert "texts" in refused(capsys, "law", path)
    assert "no row 99" in refused(capsys, "law", path, "--row", 99)
