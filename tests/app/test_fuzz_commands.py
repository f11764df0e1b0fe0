"""Hundreds of odd command lines: an answer or one sentence, never a traceback or half a file.

Kernels are those of linear networks, by NumPy: what is tried here is everything around them.
"""

import csv
import itertools
import json
from collections import Counter

import numpy as np
import pytest
from command_line import call
from fuzzing import FEW, MANY, files, good_files, names, texts, tried
from hypothesis import strategies as st

from widelimit.app.cli import main, matrix
from widelimit.data import writing
from widelimit.inference import NetworkKernels, process
from widelimit.state import Kernels

ODD_NUMBERS = [
    "0",
    "1",
    "2",
    "-1",
    "5",
    "10",
    "0.3",
    "1.5",
    "nan",
    "inf",
    "1e999",
    "x",
    "",
    "9" * 30,
]
OPTIONS = {
    "classify": [
        *("--label", "--text", "--feature", "--split", "--encoding", "--delimiter", "--skip"),
        *("--length", "--keep", "--network", "--depth", "--kernel", "--samples", "--test"),
        *("--max-train", "--max-test", "--folds", "--noise", "--seed", "--save", "--report"),
        *("--json", "--vectors", "--data-dir", "--image-size"),
    ],
    "kernel": ["--label", "--text", "--feature", "--limit", "--kernel", "--network", "--report"],
    "predict": ["--text", "--label", "--skip", "--no-score", "--json", "--delimiter"],
    "law": ["--row", "--positions", "--heads", "--qk-std", "--network", "--json"],
    "reproduce": ["--size", "--json", "--data-dir"],
    "info": ["--json"],
}
OPTIONS["regress"] = OPTIONS["classify"]
SHARES = {"classify": 0.4, "regress": 0.2, "kernel": 0.15, "predict": 0.15, "law": 0.05}
SHARES |= {"reproduce": 0.025, "info": 0.025}
FLAGS = {"--skip", "--json", "--no-score"}
VALUES = {
    "--label": names,
    "--text": names,
    "--feature": names,
    "--split": names,
    "--encoding": st.sampled_from(["utf-8", "latin-1", "utf-16", "base64", "", "nonsense"]),
    "--delimiter": st.sampled_from([";", ",", "\\t", "", ";;", '"', "\n"]),
    "--keep": st.sampled_from(["first", "last", "middle"]),
    "--network": st.sampled_from(["linear", "fcn", "mean", "attention", "cnn", "x"]),
    "--kernel": st.sampled_from(["nngp", "ntk", "x"]),
    "--save": st.sampled_from(["m.wl", "t.csv", "/dev/null", ".", "a/b/c.wl", "out"]),
    "--report": st.sampled_from(["r.html", "t.csv", "/dev/null", ".", "out/t/predictions.csv"]),
    "--vectors": st.sampled_from(["t.csv", "t.npz", "none", ".", "v.txt"]),
    "--data-dir": st.sampled_from([".", "none", "t.csv"]),
    "--size": st.sampled_from(["small", "paper", "x"]),
}


@st.composite
def commands(draw, command):
    """A command with its file and options, most of them nearly right."""
    name, content = draw(st.one_of(good_files(), good_files(), files))
    arguments = [command]
    if command == "reproduce":
        arguments += draw(st.lists(st.sampled_from(["x", "", "scores "]), max_size=1))
    elif command == "predict":
        arguments += [draw(st.sampled_from(["model.wl"] * 4 + [name, "none"])), name]
    elif command != "info" and (command != "law" or draw(st.booleans())):
        arguments += [draw(st.sampled_from([name] * 9 + ["none", ".", "images"]))]
    if command == "kernel":
        arguments += ["-o", draw(st.sampled_from(["k.npy", "k.npz", "t.npz", "k", "k.npy/x.npy"]))]
    if command in ("classify", "regress") and draw(st.integers(0, 9)):
        arguments += ["--network", "linear"]
    if command == "law":
        arguments += ["--draws", "16", "--networks", "10", "--width", "0", "--heads", "1"]
    for option in draw(st.lists(st.sampled_from(OPTIONS[command]), max_size=3)):
        arguments.append(option)
        if option not in FLAGS:
            odd = st.one_of(st.sampled_from(ODD_NUMBERS), texts)
            arguments.append(draw(VALUES.get(option, odd)))
    return name, content, arguments


class Kept(np.ndarray):
    """A kernel that can be saved, as those from a store."""

    def save(self, path):
        with writing(path) as file:
            np.save(file, np.asarray(self))


def _flat(inputs):
    streams = _as_tuple(inputs.x)
    masks = (None,) * len(streams) if inputs.mask is None else _as_tuple(inputs.mask)
    parts = zip(streams, masks, strict=True)
    kept = [x if mask is None else x * mask[..., None] for x, mask in parts]
    return np.concatenate([x.reshape(len(x), -1) for x in kept], axis=1).astype(inputs.dtype)


def linear_kernel(one, two=None):
    """`x·x'/d + 1`, which the engine would take seconds to compile for every new shape."""
    with np.errstate(all="ignore"):  # as in the engine: what overflows is found later
        first, second = _flat(one), _flat(one if two is None else two)
        width = min(first.shape[1], second.shape[1])  # of examples of different lengths
        kernel = first[:, :width] @ second[:, :width].T / width + np.asarray(1.0, one.dtype)
        return (kernel + kernel.T) / 2 if two is None else kernel


def linear_kernels(data, inputs, kinds, *, store, **_):
    """For the command `kernel`."""
    store.mkdir(parents=True)
    return {kind: linear_kernel(inputs).view(Kept) for kind in kinds}


def _both(kernel):
    return Kernels(kernel, kernel)


LINEAR_KERNELS = {
    "train": lambda self, *, ntk: _both(linear_kernel(self.inputs)),
    "_kernel": lambda self, one, two, ntk: _both(linear_kernel(one, two)),
    "diagonal": lambda self, other, kind: np.diagonal(linear_kernel(other)).astype(np.float64),
}


def _as_tuple(streams):
    return streams if isinstance(streams, tuple) else (streams,)


@pytest.fixture
def fuzz(tmp_path, monkeypatch, capsys):
    """Runs many command lines, each in a folder of its own."""
    monkeypatch.setattr(matrix, "compute", linear_kernels)
    for name in LINEAR_KERNELS:
        monkeypatch.setattr(NetworkKernels, name, LINEAR_KERNELS[name])
    monkeypatch.setattr(process, "_scalable", lambda net: False)  # these kernels have no amplitude
    monkeypatch.setenv("COLUMNS", "400")
    counter, ends, model = itertools.count(), [], _model(tmp_path, capsys)

    def run(file):
        name, content, arguments = file
        folder = tmp_path / str(next(counter))
        folder.mkdir()
        (folder / name).write_bytes(content)
        (folder / "v.txt").write_text("good 1 2 3\nbad 3 1 2\nfilm 0 0 1\n")
        (folder / "model.wl").write_bytes(model)
        (folder / "images" / "a").mkdir(parents=True)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            patch.setenv("WIDELIMIT_DATA", str(folder))
            with pytest.raises(SystemExit) as leaving:
                main(arguments)
        code = leaving.value.code or 0
        check(folder, content, name, arguments, code, capsys)
        ends.append((arguments[0], code))

    def many(count):
        shares = {command: int(share * count) for command, share in SHARES.items()}
        tries = sum(tried(n, commands(command), run) for command, n in shares.items() if n)
        return tries, ends

    return many


def _model(folder, capsys):
    """A model of a small table."""
    file = folder / "train.csv"
    file.write_text("b,label\n" + "red,good\nblue,bad film\n$g$,good\n" * 6)
    options = ("--network", "linear", "--save", folder / "m.wl", "--out", folder / "train")
    call(capsys, "classify", file, "--feature", "b", *options)
    return (folder / "m.wl").read_bytes()


def check(folder, content, name, arguments, code, capsys):
    """What must hold of every command line."""
    out, err = capsys.readouterr()
    said = f"{arguments}\n{err}"
    assert code in (0, 2), said
    assert "Traceback" not in err, said
    assert "\x1b[31m" not in out + err, said
    assert (folder / name).read_bytes() == content, said  # the input is as it was
    assert not [p for p in folder.rglob("*") if ".part" in p.name or ".lock" in p.name], said
    if code == 2:
        assert not out, said
        assert "error" in err.lower(), said
        return
    if "--json" in arguments:
        found = json.loads(out, parse_constant=lambda constant: pytest.fail(f"{constant}: {said}"))
        assert 0 <= found.get("accuracy", {"value": 0})["value"] <= 1, said
    if arguments[0] in ("classify", "regress"):
        (written,) = folder.rglob("predictions.csv")
        with written.open(encoding="utf-8", newline="") as file:
            rows = list(csv.reader(file))
        assert len(rows) > 1, said
        assert all(len(row) == len(rows[0]) for row in rows), said
        chances = [i for i, name in enumerate(rows[0]) if name.startswith(("p(", "probability"))]
        assert not any(row[i] == "nan" for row in rows for i in chances), said
        if b"nan" not in content:  # which may be the name of a class, or stand in a column
            assert not any("nan" in row[1:] for row in rows), said


def test_odd_commands(fuzz):
    _, ends = fuzz(FEW // 2)
    assert {code for _, code in ends} == {0, 2}


@pytest.mark.slow
def test_many_odd_commands(fuzz):
    different, ends = fuzz(MANY + 100)  # some are drawn twice
    assert different >= 500
    done = Counter(command for command, code in ends if code == 0)
    assert all(done[command] for command in SHARES), done
