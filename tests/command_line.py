"""Commands run in the test's own process, and small files for them."""

import csv
import json

import numpy as np
import pytest

from widelimit.app.cli import main

WORDS = ("good", "great", "fine", "bad", "awful", "poor", "film", "story", "actors", "the")


def call(capsys, *arguments, code=0):
    """Run a command in this process: its standard output and standard error."""
    with pytest.raises(SystemExit) as leaving:
        main([str(argument) for argument in arguments])
    found = capsys.readouterr()
    assert leaving.value.code == code, found.err
    assert "Traceback" not in found.err
    return found


def refused(capsys, *arguments):
    """A mistake: exit code 2, and the three parts of an error on standard error."""
    found = call(capsys, *arguments, code=2)
    for part in ("error: ", "got: ", "remedy: "):
        assert part in found.err
    assert not found.out
    return found.err


def rows_of_flowers(count, seed=0):
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % 2
    size = rng.normal(size=count) + 2.5 * kinds
    colour = np.where(rng.random(count) < 0.2 + 0.6 * kinds, "red", "blue")
    return kinds, size, rng.normal(size=count), colour


def write_flowers(path, count=40, seed=0):
    kinds, size, noise, colour = rows_of_flowers(count, seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["size", "noise", "colour", "species", "height", "id"])
        for i in range(count):
            name = ("iris", "rose")[kinds[i]]
            writer.writerow([size[i], noise[i], colour[i], name, 3 * size[i] + noise[i], f"n{i}"])
    return path


def write_texts(path, count=40, **extra):
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for i in range(count):
            mood = WORDS[:3] if i % 2 else WORDS[3:6]
            words = [*rng.choice(WORDS[6:], 3), rng.choice(mood)]
            row = {"text": " ".join(words), "label": "pos" if i % 2 else "neg", **extra}
            file.write(json.dumps(row) + "\n")
    return path


def write_vectors(path):
    rng = np.random.default_rng(2)
    table = rng.normal(size=(len(WORDS), 8))
    table[:3] += 2.0
    table[3:6] -= 2.0
    with path.open("w") as file:
        for word, row in zip(WORDS, table, strict=True):
            file.write(f"{word} {' '.join(f'{v:.4f}' for v in row)}\n")
    return path
