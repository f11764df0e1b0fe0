"""Official archives, fetched once by pooch and believed only when their checksum agrees."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from ..progress import Callback, Progress
from .errors import DataError
from .files import unwritable

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
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
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
    """Download `source` into `directory` by pooch, check it, and return its path.

    A terminal shows a bar of megabytes; a callable gets `(megabytes done, megabytes in all)`.
    A file that is already there is kept if its checksum agrees, and fetched again if not. The file
    appears under its name only when its checksum agrees; an interrupted download leaves nothing.
    """
    try:
        import pooch
        from requests.exceptions import RequestException
    except ImportError as error:
        raise MissingExtraError("pooch", "cli") from error
    path = Path(directory).expanduser() / source.name
    shown = Progress.make(progress, f"fetching {source.name}")
    bar: Any = _Bar(source, shown) if shown else False
    downloader = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT)
    logging.getLogger("pooch").setLevel(logging.WARNING)
    try:
        options = {"fname": path.name, "path": path.parent, "downloader": downloader}
        pooch.retrieve(source.url, f"sha256:{source.sha256}", **options)
    except (RequestException, ValueError) as error:  # the second one: another checksum
        raise DataError(
            f"{source.name} could not be fetched.",
            got=f"{source.url}: {error}; nothing was kept",
            remedy=f"try again, or get {source.name} in another way and name its directory, for "
            "instance in the environment variable WIDELIMIT_DATA",
        ) from error
    except OSError as error:
        raise unwritable(path, error) from error
    return path


class _Bar:
    """What pooch tells of a download: one step for every chunk."""

    total: int

    def __init__(self, source: RemoteFile, progress: Progress):
        self.steps = iter(progress.track(range(-(-source.size // CHUNK))))
        next(self.steps)

    def update(self, count: int) -> None:
        next(self.steps, None)  # a step is reported when the next one is asked for

    def reset(self) -> None:
        self.steps = iter(())

    def close(self) -> None:
        pass
