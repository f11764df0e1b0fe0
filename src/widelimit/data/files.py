"""Read files with errors a person can act on; write them whole or not at all."""

import errno
import gzip
import io
import lzma
import os
import re
import secrets
import stat
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from .errors import DataError
from .limits import limit, require

GZIP_MAGIC, ZIP_MAGIC = b"\x1f\x8b", b"PK\x03\x04"
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
DAMAGE = (
    EOFError,
    zlib.error,
    gzip.BadGzipFile,
    tarfile.TarError,
    zipfile.BadZipFile,
    lzma.LZMAError,
    RuntimeError,  # zip files with a password or an unknown way of packing
)


def damaged(path: Path, why: str) -> DataError:
    """The error for a file that is cut off or broken."""
    return DataError(
        f"'{path}' is cut off or damaged.",
        got=why,
        remedy="copy or download the file again and compare its size with the original",
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while `path` is read into a `DataError` that names the file."""
    try:
        yield
    except DAMAGE as error:
        raise damaged(path, str(error) or type(error).__name__) from error
    except FileNotFoundError as error:
        raise DataError(
            f"There is no file '{path}'.",
            got="nothing there",
            remedy="check the path; relative paths start at the current directory",
        ) from error
    except OSError as error:
        raise DataError(
            f"'{path}' cannot be read.",
            got=str(error.strerror or error),
            remedy="give the path of a regular file that you may read",
        ) from error


def require_file(path: Path) -> None:
    """Refuse what is no regular file before it is opened: a pipe would keep its reader waiting."""
    with reading(path):
        found = path.stat()
    if what := _no_file(found.st_mode):
        raise DataError(
            f"'{path}' is {what}, not a file.",
            got=what,
            remedy="give the path of a regular file that you may read",
        )
    require("bytes", found.st_size, f"'{path}'")


def _no_file(mode: int) -> str:
    """What a path is if it is no regular file."""
    if stat.S_ISREG(mode):
        return ""
    return "a folder" if stat.S_ISDIR(mode) else "a device, pipe or socket"


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file that appears as `path` only once it is complete.

    The bytes go to a temporary neighbour that is renamed at the end. When anything fails (a full
    disk, an interrupt, an error of the caller) the neighbour is removed and `path` is untouched.
    An `OSError` inside the block counts as a failed write: read other files under `reading`.
    """
    path = output(path)
    part = path.with_name(f".{path.name[:40]}.{secrets.token_hex(4)}.part")
    _begun.add(part)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as error:
        raise unwritable(path, error) from error
    finally:
        with suppress(OSError):  # also where the parent is no folder: nothing was begun
            part.unlink(missing_ok=True)
        _begun.discard(part)


_begun: set[Path] = set()  # temporary neighbours of this process


def abandon() -> None:
    """Remove what is half written, before a process ends without unwinding."""
    for part in tuple(_begun):
        with suppress(OSError):
            part.unlink(missing_ok=True)


def output(path: str | os.PathLike[str]) -> Path:
    """The path a file is written to: behind a link, and not in place of a folder or a device."""
    path = Path(path)
    try:
        path = path.resolve() if path.is_symlink() else path
        mode = path.lstat().st_mode if os.path.lexists(path) else stat.S_IFREG
    except (OSError, RuntimeError, ValueError) as error:  # such as a ring of links
        raise unwritable(path, error) from error
    if what := _no_file(mode):
        raise DataError(
            f"'{path}' cannot be written: it is {what}.",
            got=what,
            remedy="give the name of a file to write",
        )
    return path


def unwritable(path: Path, error: Exception, kept: str = "nothing was kept") -> DataError:
    """The error for a file that could not be written; `kept` says what is left of it."""
    code = getattr(error, "errno", None)
    full = code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return DataError(
        f"'{path}' could not be written.",
        got=f"{getattr(error, 'strerror', None) or error}; {kept}",
        remedy="free some space or choose a directory on another disk"
        if full
        else "choose a directory that you may write to",
    )


def write_text(path: Path | str, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all; bytes that are no text become `\\udcff`."""
    with writing(path) as file:
        file.write(text.encode("utf-8", "backslashreplace"))


def save_figure(figure: Any, path: Path | str, *, dpi: int = 150) -> None:
    """Write a Matplotlib figure in the format of the name (`.png`, `.pdf`, `.svg` …)."""
    path = Path(path)
    form = path.suffix[1:].lower() or "png"
    with writing(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a box is drawn instead
        figure.savefig(file, format=form, dpi=dpi)


def lines(
    path: Path | str, *, encoding: str = "utf-8", member: str = ""
) -> Generator[str, None, None]:
    """The lines of a text file with their line ends, one at a time.

    Plain and gzip files are told apart by their first bytes; in a zip file `member` is read.
    """
    path = Path(path)
    most, done, size = limit("line"), 0, 0
    # Spreadsheet programs put a byte-order mark before UTF-8; it is no part of the text.
    plain = encoding.lower().replace("_", "-") in ("utf-8", "utf8")
    with reading(path), path.open("rb") as raw:
        start = raw.read(4)
        raw.seek(0)
        try:
            with (
                _unpacked(path, raw, start, member) as stream,
                io.TextIOWrapper(stream, "utf-8-sig" if plain else encoding, newline="") as text,
            ):
                while line := text.readline(most + 1):
                    size += len(line)
                    require("line", len(line), f"line {done + 1} of '{path}'")
                    require("bytes", size, f"'{path}', unpacked so far")
                    yield line
                    done += 1
        except UnicodeError as error:
            inside = isinstance(error, UnicodeDecodeError)
            before = error.object[: error.start].count(b"\n") if inside else 0
            remedy = "name its encoding, 'latin-1' or 'cp1252' if it came from an old program"
            if start.startswith(UTF16_MARKS):
                remedy = "it starts like UTF-16: name 'utf-16', or save it as UTF-8"
            raise DataError(
                f"Line {done + before + 1} of '{path}' is not written in {encoding}.",
                got="other bytes",
                remedy=remedy,
                option="encoding",
            ) from error
        except LookupError as error:
            raise DataError(
                f"Python knows no encoding {encoding!r}.",
                got=str(error),
                remedy="name one such as 'utf-8', 'latin-1' or 'utf-16'",
                option="encoding",
            ) from error


def read_members(path: Path | str, pattern: re.Pattern[str]) -> dict[str, bytes]:
    """Files of a folder, or of a tar archive with one top folder, whose inner path matches.

    Archives are read in place: nothing is extracted, so nothing can be half extracted.
    """
    path = Path(path)
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        names = [name for name in names if pattern.fullmatch(name)]
        require("bytes", sum((path / name).stat().st_size for name in names), f"'{path}'")
        with reading(path):
            return {name: (path / name).read_bytes() for name in names}
    found, total = {}, 0
    with reading(path), tarfile.open(path) as archive:
        for entry in archive:
            total += entry.size  # also of what is passed over: it is unpacked on the way
            require("bytes", total, f"the members of '{path}'")
            name = "/".join(PurePosixPath(entry.name).parts[1:])
            content = archive.extractfile(entry) if pattern.fullmatch(name) else None
            if content is not None:
                found[name] = content.read()
    return found


def _unpacked(path: Path, raw: BinaryIO, start: bytes, member: str) -> BinaryIO:
    if start.startswith(GZIP_MAGIC):
        return gzip.open(raw)  # pyright: ignore[reportReturnType]
    if not start.startswith(ZIP_MAGIC):
        return raw
    archive = zipfile.ZipFile(raw)
    if member not in archive.namelist():
        raise DataError(
            f"The archive '{path}' has no member {member!r}.",
            got=", ".join(archive.namelist()),
            remedy="name one of its members",
        )
    return archive.open(member)  # pyright: ignore[reportReturnType]
