"""Official archives, fetched once and believed only when their checksum agrees."""

import hashlib
import http.client
import math
import shutil
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from ..progress import Callback, Progress
from .errors import DataError
from .files import reading, writing

CHUNK = 1_000_000
TIMEOUT = 30.0  # seconds without a byte


@dataclass(frozen=True)
class RemoteFile:
    """A file on its authors' server: address, length in bytes and SHA-256."""

    url: str
    size: int
    sha256: str

    @property
    def name(self) -> str:
        """The file's name, the last part of the address."""
        return self.url.rpartition("/")[2]


CIFAR10 = RemoteFile(
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    170_498_071,
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)
IMDB = RemoteFile(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    84_125_825,
    "c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
)
GLOVE = RemoteFile(
    "https://nlp.stanford.edu/data/glove.6B.zip",
    862_182_613,
    "617afb2fe6cbd085c235baf7a465b96f4112bd7f7ccb2b2cbd649fed9cbcf2fb",
)


def fetch(
    source: RemoteFile, directory: Path | str, *, progress: bool | Callback | None = None
) -> Path:
    """Download `source` into `directory`, check it, and return its path.

    A terminal shows a bar of megabytes; a callable gets `(megabytes done, megabytes in all)`.
    A complete file that is already there is checked and kept. The file appears under its name
    only when length and checksum agree; an interrupted download leaves nothing behind.
    """
    path = Path(directory).expanduser() / source.name
    if path.is_file():
        verify(source, path)
        return path
    _check_room(source, path)
    with writing(path) as file:
        digest = _stream(source, file, Progress.make(progress, f"fetching {source.name}"))
        if digest != source.sha256:
            raise DataError(
                "A downloaded file must have the published checksum.",
                got=f"sha256 {digest} from {source.url}, expected {source.sha256}; "
                "nothing was kept",
                remedy=f"try again; if it repeats, get {source.name} elsewhere and give its "
                "directory",
            )
    return path


def verify(source: RemoteFile, path: Path | str) -> None:
    """Check that `path` is `source`, byte for byte."""
    path = Path(path)
    with reading(path), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != source.sha256:
        raise DataError(
            f"'{source.name}' must have the published checksum.",
            got=f"'{path}' with {path.stat().st_size} of {source.size} bytes and sha256 {digest}",
            remedy="the file is cut off or another one: remove it and fetch it again",
        )


def _stream(source: RemoteFile, file: BinaryIO, progress: Progress | None) -> str:
    """Copy the remote file into `file` and return its SHA-256."""
    digest, done = hashlib.sha256(), 0
    steps = range(math.ceil(source.size / CHUNK))
    with _opened(source) as response:
        for _ in progress.track(steps) if progress else steps:
            chunk = _read(source, response)
            file.write(chunk)
            digest.update(chunk)
            done += len(chunk)
    if done < source.size:
        raise _unreachable(source, f"the connection ended after {done} of {source.size} bytes")
    return digest.hexdigest()


def _opened(source: RemoteFile) -> http.client.HTTPResponse:
    try:
        return urllib.request.urlopen(source.url, timeout=TIMEOUT)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(source, str(error)) from error


def _read(source: RemoteFile, response: http.client.HTTPResponse) -> bytes:
    # Kept apart from writing: a broken connection and a full disk are both an OSError.
    try:
        return response.read(CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _unreachable(source, str(error)) from error


def _unreachable(source: RemoteFile, why: str) -> DataError:
    return DataError(
        "A download needs the network.",
        got=f"{source.url}: {why}; nothing was kept",
        remedy=f"try again, or get {source.name} in another way and give the directory that holds "
        "it (directory=... or the environment variable WIDELIMIT_DATA)",
    )


def _check_room(source: RemoteFile, path: Path) -> None:
    """Refuse before the first byte when the disk cannot hold the file."""
    place = next(p for p in path.absolute().parents if p.is_dir())
    free = shutil.disk_usage(place).free
    if free < source.size:
        raise DataError(
            "A download needs room for the whole file.",
            got=f"{free:,} bytes free in '{place}', {source.name} has {source.size:,}",
            remedy="free some space or choose a directory on another disk",
        )
