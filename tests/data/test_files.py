import errno
import gzip
import io
import re
import resource
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from widelimit.data import DataError, read_npz, save_npz, writing
from widelimit.data.files import lines, read_members


def listing(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_lines_reads_plain_and_gzip_whatever_the_name(tmp_path, pack):
    path = tmp_path / "words"
    path.write_bytes(pack("naïve\nfilm\r\nlast".encode()))
    assert list(lines(path)) == ["naïve\n", "film\r\n", "last"]


def test_lines_drops_the_mark_of_spreadsheet_programs(tmp_path):
    path = tmp_path / "words"
    path.write_bytes("text\n".encode("utf-8-sig"))
    assert list(lines(path)) == ["text\n"]


def test_lines_reads_a_member_of_a_zip(tmp_path):
    path = tmp_path / "words.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.txt", "one\n")
        archive.writestr("b.txt", "two\n")
    assert list(lines(path, member="b.txt")) == ["two\n"]
    with pytest.raises(DataError, match=r"no member 'c.txt'.*a.txt, b.txt"):
        list(lines(path, member="c.txt"))


@pytest.mark.parametrize("before", [3, 5000])
def test_wrong_encoding_names_the_line(tmp_path, before):
    path = tmp_path / "words.txt"
    path.write_bytes(b"good line\n" * before + "café\n".encode("latin-1") + b"more\n")
    with pytest.raises(DataError, match=rf"Line {before + 1} .*not written in utf-8.*latin-1"):
        list(lines(path))
    assert list(lines(path, encoding="latin-1"))[before] == "café\n"


def test_utf16_is_recognised(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes("one\ntwo\n".encode("utf-16"))
    with pytest.raises(DataError, match="starts like UTF-16"):
        list(lines(path))
    assert list(lines(path, encoding="utf-16")) == ["one\n", "two\n"]


def test_utf16_without_its_mark_and_unknown_encodings(tmp_path):
    path = tmp_path / "words.txt"
    path.write_bytes(b"one\n")
    with pytest.raises(DataError, match="utf-16"):
        list(lines(path, encoding="utf-16"))
    with pytest.raises(DataError, match="no encoding 'utf-9'"):
        list(lines(path, encoding="utf-9"))


def test_cut_off_gzip(tmp_path):
    path = tmp_path / "words.txt.gz"
    whole = gzip.compress(np.random.default_rng(0).bytes(5000).hex().encode())
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"words.txt.gz' is cut off or damaged"):
        list(lines(path))


def test_damaged_gzip(tmp_path):
    path = tmp_path / "words.txt.gz"
    whole = bytearray(gzip.compress(b"some words\n" * 100))
    whole[-6] ^= 0xFF  # in the checksum
    path.write_bytes(bytes(whole))
    with pytest.raises(DataError, match="cut off or damaged"):
        list(lines(path))


def test_missing_file_and_folder_in_its_place(tmp_path):
    with pytest.raises(DataError, match="no file"):
        list(lines(tmp_path / "nowhere.txt"))
    with pytest.raises(DataError, match="regular file"):
        list(lines(tmp_path))


def test_members_of_folder_and_archive_agree(tmp_path):
    folder = tmp_path / "top"
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "1.txt").write_bytes(b"one")
    (folder / "in" / "2.md").write_bytes(b"two")
    archive = tmp_path / "top.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(folder, arcname="top")
    pattern = re.compile(r"in/\d\.txt")
    assert read_members(folder, pattern) == {"in/1.txt": b"one"}
    assert read_members(archive, pattern) == {"in/1.txt": b"one"}
    archive.write_bytes(archive.read_bytes()[:-40])
    with pytest.raises(DataError, match="cut off or damaged"):
        read_members(archive, pattern)


def test_writing_replaces_only_when_complete(tmp_path):
    path = tmp_path / "new" / "out.bin"
    with writing(path) as file:
        file.write(b"first")

    def interrupted():
        with writing(path) as file:
            file.write(b"sec")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"first"
    assert listing(path.parent) == ["out.bin"]


def test_a_write_that_the_system_refuses_leaves_nothing(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(DataError, match=r"could not be written.*another disk"):
            save_npz(tmp_path / "big.npz", x=np.random.default_rng(0).random(1 << 16))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert listing(tmp_path) == []


def test_full_disk(tmp_path):
    with (
        pytest.raises(DataError, match=r"No space left.*nothing was kept.*free some space"),
        writing(tmp_path / "out"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert listing(tmp_path) == []


def test_no_directory_to_write_to(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(DataError, match="may write to"), writing(tmp_path / "file" / "out"):
        pass


def test_npz_round_trip_and_missing_arrays(tmp_path):
    save_npz(tmp_path / "a.npz", x=np.arange(3), words=np.array(["é", "b"]))
    arrays = read_npz(tmp_path / "a.npz", "x")
    assert arrays["words"].tolist() == ["é", "b"]
    with pytest.raises(DataError, match=r"lacks the arrays y.*Got: x"):
        read_npz(tmp_path / "a.npz", "x", "y")


@pytest.mark.parametrize("keep", [0, 100, 900])
def test_cut_off_npz(tmp_path, keep):
    path = tmp_path / "a.npz"
    save_npz(path, x=np.random.default_rng(0).random(200))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="cut off or damaged"):
        read_npz(path)


def test_npz_with_a_flipped_byte(tmp_path):
    path = tmp_path / "a.npz"
    save_npz(path, x=np.random.default_rng(0).random(200))
    content = bytearray(path.read_bytes())
    content[600] ^= 0xFF
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match="cut off or damaged"):
        read_npz(path)


def test_npz_with_objects_is_never_unpickled(tmp_path):
    buffer = io.BytesIO()
    np.savez(buffer, x=np.array([{"a": 1}], dtype=object))
    (tmp_path / "a.npz").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="no plain array"):
        read_npz(tmp_path / "a.npz")
