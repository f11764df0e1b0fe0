"""The lines of Python on a page give the numbers of the page."""

import contextlib
import io
import json

import numpy as np
import pytest
from command_line import write_flowers, write_texts

from widelimit.app.workflow import NetworkName, Reading, Settings, Task, run
from widelimit.data import save_npz


def printed(lines):
    """What a program prints, as a number."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(lines, "page", "exec"), {})
    return float(said.getvalue())


def table(folder):
    return write_flowers(folder / "t.csv"), Task.CLASSIFY, Reading(label="species"), Settings()


def numbers(folder):
    how = Reading(label="height", weight="weight", delimiter=";")
    path = folder / "t.csv"
    lines = write_flowers(path).read_text().splitlines()
    more = ["weight", *(str(1 + i % 3) for i in range(40))]
    rows = (f"{line},{end}".replace(",", ";") for line, end in zip(lines, more, strict=True))
    path.write_text("\n".join(rows))
    return path, Task.REGRESS, how, Settings(seed=3)


def part(folder):
    """A column `split`, more examples than are used, and a network by name."""
    path = write_flowers(folder / "t.csv", count=60)
    rows = path.read_text().splitlines()
    split = ["split", *("test" if i % 3 == 0 else "train" for i in range(60))]
    path.write_text("\n".join(f"{a},{b}" for a, b in zip(rows, split, strict=True)))
    settings = Settings(network=NetworkName.LINEAR, max_train=20, max_test=10, noise=0.1)
    return path, Task.CLASSIFY, Reading(label="species"), settings


def texts(folder):
    settings = Settings(network=NetworkName.MEAN, length=3, class_weight="balanced")
    return write_texts(folder / "t.jsonl"), Task.CLASSIFY, Reading(), settings


def reviews(folder):
    """A folder as IMDb's: a file for every review, in folders by part and sentiment."""
    write_texts(folder / "t.jsonl")
    for number, line in enumerate((folder / "t.jsonl").read_text().splitlines()):
        row, part = json.loads(line), "test" if number % 4 == 0 else "train"
        row["label"] = "pos" if number % 3 == 0 else "neg"
        place = folder / "reviews" / part / row["label"] / f"{number}_5.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(row["text"])
    settings = Settings(network=NetworkName.MEAN, length=3, max_train=20)
    return folder / "reviews", Task.CLASSIFY, Reading(), settings


def sequences(folder):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5, 6)), np.arange(40) % 2
    x[..., 0] += y[:, None]
    mask = np.arange(5) < rng.integers(2, 6, size=(40, 1))
    save_npz(folder / "t.npz", x=x, y=y, mask=mask)
    return folder / "t.npz", Task.CLASSIFY, Reading(), Settings(network=NetworkName.MEAN)


def counts(folder):
    """Whole numbers as targets, with gaps between them."""
    x = np.random.default_rng(0).normal(size=(60, 3))
    save_npz(folder / "t.npz", x=x, y=np.rint(np.exp(2 * x[:, 0])).astype(int))
    return folder / "t.npz", Task.REGRESS, Reading(), Settings(network=NetworkName.LINEAR)


def parts(folder):
    """Named classes, a test part, and a mask for one of the two."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(50, 5, 6)), np.arange(50) % 2
    x[..., 0] += y[:, None]
    mask = np.arange(5) < rng.integers(2, 6, size=(50, 1))
    held = {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}
    save_npz(folder / "t.npz", **held, mask_test=mask[30:], class_names=np.array(["low", "high"]))
    return folder / "t.npz", Task.CLASSIFY, Reading(), Settings(network=NetworkName.MEAN)


def images(folder):
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(24):
        place = folder / "images" / ("dark", "light")[number % 2]
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 130, size=(6, 6, 3)) + 100 * (number % 2)
        Image.fromarray(pixels.astype(np.uint8)).save(place / f"{number}.png")
    settings = Settings(network=NetworkName.FCN, image_size=4)
    return folder / "images", Task.CLASSIFY, Reading(), settings


CASES = (table, numbers, part, texts, reviews, sequences, counts, parts, images)


@pytest.mark.parametrize("make", CASES)
def test_the_lines_give_the_score(make, tmp_path):
    path, task, how, settings = make(tmp_path)
    result = run(path, task, how=how, settings=settings)
    assert printed(result.python) == pytest.approx(result.score.value, abs=1e-12)
    lines = result.python.splitlines()
    assert len([line for line in lines if line and "import" not in line]) <= 14
