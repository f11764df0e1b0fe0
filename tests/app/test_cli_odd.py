"""Odd files, names and terminals: a command ends well or with one sentence, never a traceback."""

import json
import os
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from command_line import call, refused, write_flowers, write_texts, write_vectors
from matplotlib.figure import Figure

from widelimit.app.cli import ending, learn, main
from widelimit.app.cli.screen import harmless, print_json
from widelimit.data import save_npz

LINEAR = ("--network", "linear")


@pytest.fixture
def undrawn(monkeypatch):
    """Reports whose figures stay empty: to draw them takes most of a command's time."""
    monkeypatch.setattr(Figure, "savefig", lambda *_, **__: None)


def strict(text):
    """JSON as the standard has it: without NaN."""

    def wrong(name):
        raise AssertionError(name)

    return json.loads(text, parse_constant=wrong)


def table(path, rows, head="a,b,label"):
    path.write_text(head + "\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


# --- numbers --------------------------------------------------------------------------------------


def test_scores_that_are_not_defined_are_null(capsys, tmp_path):
    """All targets of the test part are equal: R² has no meaning."""
    rows = [(i, i % 3, 7 if i < 5 else i, "test" if i < 5 else "train") for i in range(20)]
    file = table(tmp_path / "t.csv", rows, "a,b,target,split")
    found = call(capsys, "regress", file, "--out", tmp_path / "out", "--json", *LINEAR)
    assert strict(found.out)["r2"]["value"] is None
    print_json({"a": np.float32("nan"), "b": [float("inf"), np.array([1.0, np.nan])]})
    assert strict(capsys.readouterr().out) == {"a": None, "b": [None, [1.0, None]]}


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_tiny_tables(capsys, tmp_path, task):
    file = table(tmp_path / "t.csv", [(i, i % 3, i % 2) for i in range(10)])
    found = call(capsys, task, file, "--out", tmp_path / "out", "--json", *LINEAR)
    assert strict(found.out)["train"] == 8
    few = ("--max-train", 2, "--max-test", 2, "--out", tmp_path / "few", "--json")
    assert strict(call(capsys, task, file, *few, *LINEAR).out)["learning_curve"] == []


@pytest.mark.parametrize("command", ["classify", "kernel", "law"])
def test_negative_and_huge_seeds(capsys, tmp_path, command):
    file = write_flowers(tmp_path / "t.csv")
    for seed in (-1, 2**63, "x", 10**400):
        assert "--seed" in call(capsys, command, file, "--seed", seed, code=2).err


def test_huge_numbers_and_deep_nesting_in_json_lines(capsys, tmp_path):
    good = "".join(json.dumps({"text": "a b", "label": i % 2}) + "\n" for i in range(20))
    path = tmp_path / "t.jsonl"
    for odd in (
        '{"text": "a", "label": ' + "1" * 5000 + "}",
        '{"text": ' + "[" * 100_000 + "]" * 100_000 + ', "label": 1}',
        '{"text": "\\ud800", "label": 1}',
        '{"text": "a", "label": [1]}',
        '{"text": "a", "label": {"b": 1}}',
        '{"text": "a", "label": null}',
        '{"text": 5, "label": 1}',
        '{"\\ud800": 5, "label": 1}',
        "NaN",
        "\x00",
    ):
        path.write_text(good + odd + "\n")
        # Read as it is meant, or one sentence: pandas decides.
        with pytest.raises(SystemExit) as leaving:
            main(["classify", str(path), "--out", str(tmp_path / "odd"), *map(str, LINEAR)])
        said = capsys.readouterr().err
        assert leaving.value.code in (0, 2), (odd[:40], said)
        assert "Traceback" not in said
    numbers = [{"a": i, "b": 10**400 if i == 3 else i, "label": i % 2} for i in range(20)]
    path.write_text("".join(json.dumps(row) + "\n" for row in numbers))
    refused(capsys, "regress", path, "--label", "b")
    call(capsys, "classify", path, "--out", tmp_path / "out", *LINEAR, code=2)


# --- names and characters -------------------------------------------------------------------------


def test_labels_that_look_like_formulas_or_commands(capsys, tmp_path):
    names = (r"$\frac$", "$x$", "\x1b[31mred\x1b[0m", "a\x9bb", "😀 \t b", "[bold]x[/bold]", "_^{")
    rows = [(i, i % 5, f'"{names[i % len(names)]}"') for i in range(70)]
    file = table(tmp_path / "t.csv", rows)
    found = call(capsys, "classify", file, "--out", tmp_path / "out", "--json", *LINEAR)
    assert strict(found.out)["classes"] == sorted(name.strip() for name in names)
    assert "\x1b" not in found.out + found.err
    assert "\x9b" not in found.out + found.err
    assert r"\x1b[31mred" in found.err
    assert "[bold]x[/bold]" in found.err


def test_escapes_of_files_do_not_reach_the_terminal(capsys, tmp_path):
    file = tmp_path / "t\x1b[2J.csv"
    table(file, [(1, 2, 3)], "a,b\x1b]0;title\x07,c")
    said = refused(capsys, "classify", file, "--label", "d\x1b[1m")
    assert "\x1b" not in said
    assert "\x07" not in said
    assert harmless("a\tb\nc\r\x7f\u202e\ud800é") == "a\tb\nc\\r\\x7f\\u202e\\ud800é"


@pytest.mark.usefixtures("undrawn")
def test_odd_file_names(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (b"\xff.csv", b"-.csv", b" .csv", b"a\nb.csv", "ä😀.csv".encode()):
        path = os.fsdecode(name)
        try:
            write_flowers(tmp_path / path)
        except OSError:
            pytest.skip("the file system knows no such names")
        found = call(capsys, "classify", f"./{path}", "--label", "species", "--json", *LINEAR)
        assert strict(found.out)["accuracy"]["value"] > 0.5
        assert (tmp_path / strict(found.out)["files"]["report"]).exists() or b"\xff" in name


def test_terminals_that_know_ascii_only():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    run = (sys.executable, "-m", "widelimit_command")
    found = subprocess.run([*run, "reproduce"], env=environment, capture_output=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert b"modified-attention" in found.stdout
    assert r"\u221a" in found.stdout.decode("ascii")  # √


# --- arrays and vectors ---------------------------------------------------------------------------


def test_odd_members_of_npz_files(capsys, tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    odd = (
        {"x": x},
        {"x": 3.0, "y": y},
        {"x": x, "y": 1},
        {"x": x, "y": y[:, None]},
        {"x": x, "y": y + 1j},
        {"x": x, "y": np.array(["2020-01-01"] * 20, "M8[D]")},
        {"x": x.astype("c16"), "y": y},
        {"x": x, "y": y, "class_names": np.array([["a", "b"]])},
        {"x": x, "y": y, "class_names": np.array(["a", "a"])},
        {"x": x, "y": y, "class_names": np.array(["a"])},
        {"x": x, "y": y, "mask": np.ones(20)},
        {"x": x, "y": np.zeros(20, [("a", "i4")])},
        {"x": x[:0], "y": y[:0]},
        {"x": x, "y": np.arange(20)},
        {"x_train": x, "y_train": y, "x_test": x[:, :2], "y_test": y},
        {"x_train": x, "y_train": y, "x_test": x, "y_test": y.astype(float)},
        {"x": np.zeros((20, 2, 2, 2, 2)), "y": y},
        {"x": np.full((20, 3), np.nan), "y": y},
    )
    for arrays in odd:
        save_npz(tmp_path / "d.npz", **arrays)
        refused(capsys, "classify", tmp_path / "d.npz", "--out", tmp_path / "out")
    save_npz(tmp_path / "d.npz", x=x, mask=np.ones(7, bool))
    refused(capsys, "kernel", tmp_path / "d.npz", "-o", tmp_path / "k.npy")


def test_a_zip_with_other_things_is_no_npz_file(capsys, tmp_path):
    with zipfile.ZipFile(tmp_path / "d.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    refused(capsys, "classify", tmp_path / "d.npz")


@pytest.mark.usefixtures("undrawn")
def test_vectors_of_one_word(capsys, tmp_path):
    file, vectors = write_texts(tmp_path / "t.jsonl"), tmp_path / "v.txt"
    vectors.write_text("good 0.5 1.5 -1\n")
    options = ("--vectors", vectors, "--out", tmp_path / "out", *LINEAR)
    call(capsys, "classify", file, *options)
    for odd in ("good 1", "good", "5 0", "good nan", "good 1e60 2", "² ²", "", "9" * 99):
        vectors.write_text(odd + "\n")
        call_or_refuse(capsys, "classify", file, *options)
    write_vectors(vectors)
    vectors.write_bytes(vectors.read_bytes() + b"\xff\xfe 1 2")
    refused(capsys, "classify", file, *options)


def call_or_refuse(capsys, *arguments):
    with pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    said = capsys.readouterr().err
    assert leaving.value.code in (0, 2), said
    return said


# --- the last resort ------------------------------------------------------------------------------


def test_a_bug_is_one_sentence_and_its_place_can_be_seen(capsys, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("the \x1b[1m cause\nmore")

    monkeypatch.setattr(learn, "run", broken)
    file = write_flowers(tmp_path / "t.csv")
    said = call(capsys, "classify", file, "--out", tmp_path / "o", code=1).err
    assert "RuntimeError: the \\x1b[1m cause" in said
    assert ending.TRACEBACK in said
    monkeypatch.setenv(ending.TRACEBACK, "1")
    with pytest.raises(SystemExit):
        main(["classify", str(file), "--out", str(tmp_path / "o")])
    assert "in broken" in capsys.readouterr().err


def test_too_little_memory_is_no_bug(capsys, tmp_path, monkeypatch):
    def large(*_, **__):
        raise MemoryError("Unable to allocate 12 TiB")

    monkeypatch.setattr(learn, "run", large)
    said = refused(capsys, "classify", write_flowers(tmp_path / "t.csv"), "--out", tmp_path / "o")
    assert "12 TiB" in said


def test_large_images_are_refused_before_they_are_read(capsys, tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(6):
            image.new("RGB", (9, 9), (i, i, 40 * i)).save(tmp_path / "images" / name / f"{i}.png")
    options = ("--out", tmp_path / "out", "--image-size")
    assert "pixels" in refused(capsys, "classify", tmp_path / "images", *options, 100_000)
    said = refused(capsys, "classify", tmp_path / "images", *options, 80)
    assert "WIDELIMIT_ALLOW=positions=6400" in said
