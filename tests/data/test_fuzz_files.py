"""Thousands of odd and damaged files: each is read, or refused with a sentence that names it."""

from contextlib import suppress

import pytest
from fuzzing import FEW, MANY, damaged, files, tried
from hypothesis import strategies as st

from widelimit.data import (
    load_imdb,
    load_npz,
    load_npz_split,
    load_vectors,
    read_frame,
    read_image,
    read_npz,
)
from widelimit.errors import WidelimitError

READERS = {
    "t.npz": [read_npz, load_npz, load_npz_split, load_vectors],
    "t.png": [read_image],
    "": [read_frame, load_imdb, load_vectors],
}


def check(folder, name, content):
    path = folder / name
    path.write_bytes(content)
    for read in READERS.get(name, READERS[""]):
        with suppress(WidelimitError):
            read(path)


def check_vectors(folder, content):
    (folder / "v.txt").write_bytes(content)
    try:
        found = load_vectors(folder / "v.txt")
    except WidelimitError:
        return
    assert found.vectors.shape == (len(found), found.dimension)


vector_lines = st.lists(
    st.sampled_from(
        ["good 1 2", "bad 3 4", "a b 5 6", "2 2", "x", "", "y nan 1", "z 1e99 1", "² ²"]
    ),
    max_size=5,
).map(lambda lines: "\n".join(lines).encode())


def fuzz(count, folder):
    return (
        tried(count, files, lambda file: check(folder, *file)),
        tried(count, damaged(vector_lines), lambda content: check_vectors(folder, content)),
    )


def test_odd_files(tmp_path):
    assert min(fuzz(FEW, tmp_path)) >= FEW // 2


@pytest.mark.slow
def test_many_odd_files(tmp_path):
    assert sum(fuzz(MANY, tmp_path)) >= 1000
