"""Files that ask for more than they should are refused before the memory is taken."""

import gzip
import io
import re
import tarfile
import tracemalloc
import zipfile

import numpy as np
import pytest

from widelimit.data import (
    DataError,
    load_npz,
    load_vectors,
    read_frame,
    read_image,
    read_images,
    read_npz,
)
from widelimit.data.files import lines, read_members
from widelimit.data.limits import ENVIRONMENT, LIMITS, allowed, limit

MEGABYTE = 1024**2
MODEST = 60 * MEGABYTE  # more than any reader needs to find out, much less than is asked for


@pytest.fixture
def modest():
    """Fails a test that takes more memory than a careful reader would."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MODEST


def npy(shape, dtype="<f8", content=b""):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": dtype, "fortran_order": False, "shape": shape}
    )
    return header.getvalue() + content


def packed(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def refused(match, function, *arguments, **options):
    with pytest.raises(DataError, match=match) as caught:
        function(*arguments, **options)
    return str(caught.value)


@pytest.mark.usefixtures("modest")
def test_an_npz_bomb(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, "bytes=20MB")
    path = packed(tmp_path / "b.npz", {"x.npy": npy((3, 10**6), "|u1", bytes(3 * 10**6))})
    assert path.stat().st_size < 10_000
    assert read_npz(path)["x"].shape == (3, 10**6)
    monkeypatch.setenv(ENVIRONMENT, "bytes=2MB")
    said = refused("2,000,000 bytes", read_npz, path)
    assert "WIDELIMIT_ALLOW=bytes=" in said


@pytest.mark.usefixtures("modest")
@pytest.mark.parametrize(
    "member",
    [
        npy((10**12,)),
        npy((10**6, 10**6, 10**6)),
        npy((10**12,), "<U0"),
        npy((10**9,), "|V0"),
        npy((-1, -1), content=bytes(8)),
        npy((2**70,)),
        npy((4,), "|O", bytes(32)),
        b"no array at all",
        b"",
    ],
    ids=range(9),
)
def test_arrays_that_say_more_than_they_hold(tmp_path, member):
    refused("b.npz", read_npz, packed(tmp_path / "b.npz", {"x.npy": member}))


def test_members_packed_in_unusual_ways(tmp_path):
    path = packed(tmp_path / "b.npz", {"x.npy": npy((1,), content=bytes(8))}, zipfile.ZIP_LZMA)
    refused("unusual", read_npz, path)


@pytest.mark.usefixtures("modest")
def test_a_gzip_bomb(tmp_path, monkeypatch):
    path = tmp_path / "t.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(bytes(MEGABYTE))
    refused("one line", read_frame, path)
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write((bytes(9999) + b"\n") * 1000)
    monkeypatch.setenv(ENVIRONMENT, "bytes=5MB")
    refused("unpacked so far", lambda: sum(map(len, lines(path))))


@pytest.mark.usefixtures("modest")
def test_a_tar_bomb(tmp_path, monkeypatch):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("top/data")
        info.size = 30 * MEGABYTE
        archive.addfile(info, io.BytesIO(bytes(info.size)))
    monkeypatch.setenv(ENVIRONMENT, "bytes=20MB")
    refused("members", read_members, path, re.compile("other"))


def test_a_million_columns(tmp_path):
    names = ",".join(f"c{i}" for i in range(10**6))
    path = tmp_path / "t.csv"
    path.write_text(f"{names}\n")
    assert "columns=1000000" in refused("20,000 columns", read_frame, path)


def test_many_rows_and_cells(tmp_path, monkeypatch):
    path = tmp_path / "t.csv"
    path.write_text("a,b\n" + "1,2\n" * 50)
    monkeypatch.setenv(ENVIRONMENT, "rows=20")
    refused("rows", read_frame, path)
    monkeypatch.setenv(ENVIRONMENT, "cells=60")
    refused("values of a table", read_frame, path)
    monkeypatch.setenv(ENVIRONMENT, "cells=100")
    assert len(read_frame(path)) == 50


@pytest.mark.usefixtures("modest")
def test_image_bombs(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    wide = tmp_path / "wide.png"
    image.new("1", (12_000, 12_000)).save(wide)
    assert wide.stat().st_size < 100_000
    refused("50,000,000 pixels", read_image, wide)
    small = tmp_path / "small.png"
    image.new("RGB", (4, 4)).save(small)
    refused("resized to 100000×100000", read_image, small, size=(100_000, 100_000))
    monkeypatch.setenv(ENVIRONMENT, "bytes=100kB")
    refused("images up to", read_images, [small] * 50, size=(64, 64))


def test_many_labels_take_no_more_than_they_should(tmp_path, modest):
    count = 200_000
    np.savez_compressed(tmp_path / "d.npz", x=np.zeros((count, 1), "u1"), y=np.arange(count) % 2)
    assert load_npz(tmp_path / "d.npz").class_names == ("0", "1")


def test_word_vectors_are_bounded(tmp_path, monkeypatch):
    path = tmp_path / "v.txt"
    path.write_text("".join(f"w{i} 1 2\n" for i in range(50)))
    monkeypatch.setenv(ENVIRONMENT, "rows=20")
    refused("rows", load_vectors, path)


def test_limits_are_raised_by_name(monkeypatch):
    monkeypatch.setenv(ENVIRONMENT, " bytes=8GB, columns=7 ")
    assert (limit("bytes"), limit("columns"), limit("line")) == (8 * 10**9, 7, LIMITS["line"][0])
    for wrong in ("bytes", "bytes=", "bytes=-1", "more=1", "bytes=1e9", "bytes=8XB"):
        with pytest.raises(DataError, match="raises no limit"):
            allowed(wrong)
