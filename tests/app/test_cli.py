"""The command line as a user meets it: what commands print, write and refuse."""

import csv
import dataclasses
import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout

import numpy as np
import pytest
from command_line import call, refused, write_flowers, write_texts, write_vectors

import widelimit
import widelimit_command
from widelimit.app.cli import main, studies
from widelimit.data import Keep, save_npz
from widelimit.inference import KernelKind


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """A classifier of flowers: its folder, file, model and numbers."""
    folder = tmp_path_factory.mktemp("flowers")
    file = write_flowers(folder / "flowers.csv")
    arguments = ["classify", file, "--label", "species"]
    arguments += ["--feature", "size", "--feature", "noise", "--feature", "colour"]
    arguments += ["--out", folder / "out", "--save", folder / "model.wl", "--json"]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    assert leaving.value.code == 0, err.getvalue()
    return folder, json.loads(out.getvalue()), err.getvalue()


def test_classify_a_table(learned):
    folder, numbers, said = learned
    assert numbers["kind"] == "table"
    assert numbers["network"] == "fcn"
    assert (numbers["train"], numbers["test"]) == (32, 8)
    low, value, high = (numbers["accuracy"][key] for key in ("low", "value", "high"))
    assert low < value <= high
    assert value >= 0.75  # two and a half standard deviations apart
    assert numbers["cross_validated"]["value"] >= 0.75
    assert "accuracy" in said  # people read standard error
    with (folder / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8
    chances = [[float(row["p(iris)"]), float(row["p(rose)"])] for row in rows]
    np.testing.assert_allclose(np.sum(chances, axis=1), 1, atol=1e-5)
    right = np.mean([row["label"] == row["prediction"] for row in rows])
    assert right == value
    assert (folder / "out" / "report.html").stat().st_size > 50_000


def test_predict_new_rows(learned, capsys, tmp_path):
    folder, _, _ = learned
    new = write_flowers(tmp_path / "new.csv", seed=5)
    found = call(capsys, "predict", folder / "model.wl", new, "-o", tmp_path / "p.csv", "--json")
    numbers = json.loads(found.out)
    assert numbers["examples"] == 40
    assert numbers["accuracy"]["value"] > 0.75
    with (tmp_path / "p.csv").open() as file:
        assert [row["example"] for row in csv.DictReader(file)][:2] == ["row 1", "row 2"]


def test_prediction_repeats_the_held_out_one(learned, capsys, tmp_path):
    """A saved model says of the held-out rows what it said when it was tested."""
    folder, _, _ = learned
    call(capsys, "predict", folder / "model.wl", folder / "flowers.csv", "-o", tmp_path / "p.csv")
    with (tmp_path / "p.csv").open() as file:
        again = {row["example"]: float(row["p(rose)"]) for row in csv.DictReader(file)}
    with (folder / "out" / "predictions.csv").open() as file:
        for row in csv.DictReader(file):
            assert again[row["example"]] == pytest.approx(float(row["p(rose)"]), abs=2e-6)


def test_rows_without_labels_are_predicted(learned, capsys, tmp_path):
    folder, _, _ = learned
    (tmp_path / "new.csv").write_text("size,noise,colour\n2.5,0.1,red\n-1.0,0.2,green\n")
    found = call(capsys, "predict", folder / "model.wl", tmp_path / "new.csv", "--json")
    assert "accuracy" not in json.loads(found.out)
    assert "new in 'colour': green" in found.err
    with (tmp_path / "new.predictions.csv").open() as file:
        assert [row["prediction"] for row in csv.DictReader(file)] == ["rose", "iris"]


def test_unknown_labels_at_prediction(learned, capsys, tmp_path):
    folder, _, _ = learned
    new = tmp_path / "new.csv"
    new.write_text("size,noise,colour,species\n2.5,0.1,red,tulip\n")
    said = refused(capsys, "predict", folder / "model.wl", new)
    assert "tulip" in said
    assert "--no-score" in said
    call(capsys, "predict", folder / "model.wl", new, "--no-score")


def test_missing_columns_at_prediction(learned, capsys, tmp_path):
    folder, _, _ = learned
    (tmp_path / "new.csv").write_text("size,colour\n2.5,red\n")
    assert "'noise'" in refused(capsys, "predict", folder / "model.wl", tmp_path / "new.csv")


def test_what_is_no_model(learned, capsys, tmp_path):
    folder, _, _ = learned
    file = folder / "flowers.csv"
    assert "model" in refused(capsys, "predict", file, file)
    assert "no file" in refused(capsys, "predict", tmp_path / "none.wl", file)
    whole = (folder / "model.wl").read_bytes()
    (tmp_path / "half.wl").write_bytes(whole[: len(whole) // 2])
    refused(capsys, "predict", tmp_path / "half.wl", file)


def test_other_data_than_the_model_was_trained_on(learned, capsys, tmp_path):
    folder, _, _ = learned
    save_npz(tmp_path / "x.npz", x=np.zeros((3, 4)))
    said = refused(capsys, "predict", folder / "model.wl", tmp_path / "x.npz")
    assert "table" in said


def test_regress(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_flowers(tmp_path / "flowers.csv")
    found = call(
        capsys, "regress", "flowers.csv", "--target", "height", "--feature", "size",
        "--feature", "noise", "--feature", "colour", "--save", "m.wl", "--json",
    )  # fmt: skip
    numbers = json.loads(found.out)
    assert numbers["r2"]["value"] > 0.9  # the height is linear in what is given
    assert (tmp_path / "out" / "flowers" / "report.html").exists()
    call(capsys, "predict", "m.wl", "flowers.csv", "-o", "p.csv")
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    truth, guess, std = (
        np.array([float(r[k]) for r in rows]) for k in ("target", "prediction", "std")
    )
    assert np.mean(np.abs(truth - guess) < 4 * std) > 0.95
    assert np.corrcoef(truth, guess)[0, 1] > 0.95


@pytest.mark.parametrize("network", ["linear", pytest.param("attention", marks=pytest.mark.slow)])
def test_classify_texts_and_go_on(capsys, tmp_path, network):
    file, vectors = write_texts(tmp_path / "t.jsonl"), write_vectors(tmp_path / "v.txt")
    same = ("classify", file, "--vectors", vectors, "--out", tmp_path / "o", "--json")
    same += ("--network", network)
    first = json.loads(call(capsys, *same, "--save", tmp_path / "m.wl").out)
    assert first["kind"] == "text"
    assert first["accuracy"]["value"] >= 0.75
    again = call(capsys, *same)
    assert "earlier run" in again.err  # the kernel is on disk
    assert json.loads(again.out)["accuracy"] == first["accuracy"]
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert ("Where the network looks" in page) == (network == "attention")
    # Unknown words and empty texts stand for an average text, or are left out.
    asked = tmp_path / "asked.jsonl"
    asked.write_text('{"text": "great film"}\n{"text": "zzzz"}\n')
    found = call(capsys, "predict", tmp_path / "m.wl", asked)
    assert "1 texts have no word" in found.err
    asked.write_text('{"text": "great film"}\n{"text": "  "}\n')
    found = call(capsys, "predict", tmp_path / "m.wl", asked, "--skip", "--json")
    assert json.loads(found.out)["examples"] == 1
    asked.write_text('{"words": "great film"}\n')
    assert "'text'" in refused(capsys, "predict", tmp_path / "m.wl", asked)


def test_kernel_to_npy_and_npz(capsys, tmp_path):
    file = write_flowers(tmp_path / "f.csv", count=12)
    call(
        capsys, "kernel", file, "-o", tmp_path / "k.npz", "--feature", "size", "--label", "species"
    )
    both = np.load(tmp_path / "k.npz")
    assert both["nngp"].shape == both["ntk"].shape == (12, 12)
    assert both["y"].tolist() == ["iris", "rose"] * 6
    for kind in KernelKind:
        out = tmp_path / f"{kind.value}.npy"
        arguments = ("--feature", "size", "--kernel", kind.value, "--report", tmp_path / "k.html")
        call(capsys, "kernel", file, "-o", out, *arguments)
        np.testing.assert_allclose(np.load(out), both[kind.value], rtol=1e-10)
    assert sorted(p.name for p in tmp_path.glob("k.*")) == ["k.html", "k.npz"]
    assert "k.txt" in refused(capsys, "kernel", file, "-o", tmp_path / "k.txt")


def test_long_texts_are_read_from_the_end_that_is_kept(capsys, tmp_path):
    """Texts that differ in their first word alone are one text to those who read the last."""
    file = tmp_path / "t.csv"
    file.write_text("text,label\ngood the film,a\nbad the film,b\n")
    kernels = {}
    for keep in Keep:
        out = tmp_path / f"{keep}.npy"
        options = ("--length", 2, "--keep", keep.value, "--network", "linear")
        call(capsys, "kernel", file, "-o", out, *options)
        kernels[keep] = np.load(out)
    np.testing.assert_allclose(kernels[Keep.LAST], kernels[Keep.LAST][0, 0], rtol=1e-6)
    first = kernels[Keep.FIRST]
    assert first[0, 1] < 0.99 * first[0, 0]


@pytest.mark.slow
def test_law(capsys, tmp_path):
    common = ("--draws", 64, "--networks", 50, "--width", 8, "--positions", 3, "--json")
    found = call(capsys, "law", *common, "--heads", 1, "--report", tmp_path / "l.html")
    (one,) = json.loads(found.out)["laws"]
    assert one["excess_kurtosis"] > 0.1  # one head is far from Gaussian
    assert one["quantiles_in_std"]["0.999"] > one["gaussian_quantiles"]["0.999"]
    page = (tmp_path / "l.html").read_text(encoding="utf-8")
    assert 'class="network"' in page
    assert "at width 8" in page
    assert "heads" in refused(capsys, "law", "--heads", 0)
    for name, number in (("heads", 10**9), ("heads", 10**30), ("heads", 10**5), ("draws", 10**14)):
        assert name in refused(capsys, "law", f"--{name}", number)
    assert "10,000,000,000 networks" in refused(capsys, "law", "--heads", 1, "--networks", 10**10)


def test_studies_are_listed(capsys):
    found = call(capsys, "reproduce")
    for name in ("width", "heads", "scores", "low-rank", "relu", "single-head", "cifar10"):
        assert name in found.out
    assert "width" in json.loads(call(capsys, "reproduce", "--json").out)


def test_a_study_writes_data_figure_and_page(capsys, tmp_path):
    found = call(capsys, "reproduce", "scores", "--out", tmp_path, "--json")
    assert json.loads(found.out)
    written = {path.suffix for path in (tmp_path / "scores").iterdir()}
    assert {".png", ".json", ".html"} <= written
    page = (tmp_path / "scores" / "report.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page
    assert "Figure 1." in page
    assert "Conclusion" in page
    assert "Settings" in page


def test_a_published_size_is_not_started_unasked(capsys, tmp_path, monkeypatch):
    runs = []
    study = dataclasses.replace(
        studies.STUDIES["scores"],
        run=lambda size, out, progress: runs.append(out.mkdir(parents=True, exist_ok=True)) or {},
        cost=lambda size: "nine hours",
        published="Known is the number of steps.",
        captions={},
        conclude=lambda result: [],
    )
    monkeypatch.setitem(studies.STUDIES, "scores", study)
    arguments = ("reproduce", "scores", "--size", "paper", "--out", tmp_path)
    said = call(capsys, *arguments, code=2).err
    assert said.index("Known is the number of steps.") < said.index("nine hours")
    assert "--yes" in said
    assert not runs
    call(capsys, *arguments, "--yes")
    assert len(runs) == 1
    assert "Known is the number" in (tmp_path / "scores" / "report.html").read_text()


def test_an_unknown_study(capsys):
    said = refused(capsys, "reproduce", "nonsense")
    assert "nonsense" in said
    assert "width" in said


def test_info_as_json(capsys):
    facts = json.loads(call(capsys, "info", "--json").out)
    assert facts["widelimit"]
    assert "matplotlib" in facts["extras"]


@pytest.mark.parametrize("command", ["info", "classify"])
def test_a_base_install_answers(capsys, monkeypatch, command):
    """Without typer and rich: what is there, and how to get the rest."""
    for name in [name for name in sys.modules if name.startswith("widelimit.app.cli")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)
    monkeypatch.setattr(sys, "argv", ["widelimit", command])
    monkeypatch.setattr(widelimit_command.signal, "signal", lambda *_: None)
    if command == "info":
        widelimit_command.main()
        said = capsys.readouterr().out
        assert "devices" in said
    else:
        with pytest.raises(SystemExit) as ended:
            widelimit_command.main()
        said = str(ended.value)
    assert "pip install 'widelimit[cli]'" in said


@pytest.mark.slow
def test_as_a_program_of_its_own(tmp_path):
    """Imports, entry point, and exit codes as a shell sees them."""
    program = [sys.executable, "-m", "widelimit_command"]
    done = subprocess.run([*program, "info", "--json"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["widelimit"]
    wrong = [*program, "classify", str(tmp_path / "none.csv")]
    done = subprocess.run(wrong, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_interrupt(capsys, monkeypatch):
    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "_list_studies", stop)
    assert "kept" in call(capsys, "reproduce", code=130).err


def test_options_and_completion(capsys):
    assert "--show-completion" in call(capsys, "--help").out
    assert "--max-train" in call(capsys, "classify", "--help").out
    assert "No such option" in call(capsys, "classify", "x.csv", "--nonsense", code=2).err


def test_an_estimate_before_starting(capsys, tmp_path):
    file = write_flowers(tmp_path / "flowers.csv")
    arguments = ("--feature", "size", "--examples", "100000", "--workers", "64", "--json")
    numbers = json.loads(call(capsys, "estimate", file, *arguments).out)
    assert numbers["pairs"] == 100_000 * 100_001 // 2
    assert numbers["disk"] == numbers["pairs"] * 8
    assert 0 < numbers["workers"]["64"] < numbers["seconds"]


def test_words_as_labels_of_arrays(capsys, tmp_path):
    x = np.random.default_rng(0).normal(size=(40, 3))
    y = np.where(x[:, 0] > 0, "plus", "minus")
    save_npz(tmp_path / "d.npz", x=x, y=y)
    common = ("--network", "linear", "--folds", 0, "--out", tmp_path / "o", "--json")
    model = tmp_path / "m.wl"
    found = call(capsys, "classify", tmp_path / "d.npz", *common, "--save", model)
    assert json.loads(found.out)["classes"] == ["minus", "plus"]
    found = call(capsys, "predict", model, tmp_path / "d.npz", "-o", tmp_path / "p.csv", "--json")
    assert json.loads(found.out)["accuracy"]["value"] > 0.8
    with (tmp_path / "p.csv").open() as written:
        assert [row["label"] for row in csv.DictReader(written)] == y.tolist()
    np.savez(tmp_path / "o.npz", x=x, y=y.astype(object))
    said = refused(capsys, "classify", tmp_path / "o.npz", "--out", tmp_path / "o")
    assert "'y.npy'" in said
    assert "dtype is not object" in said


def test_layers_that_stand_in_their_room_are_named():
    with pytest.raises(AttributeError, match=r"there is widelimit\.layers\.Sin"):
        widelimit.Sin  # noqa: B018
