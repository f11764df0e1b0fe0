"""Where data is: a directory given by the user, the environment variable, or the cache."""

import os
from collections.abc import Sequence
from contextvars import ContextVar
from pathlib import Path

from .download import RemoteFile, fetch
from .errors import MissingDataError

ENVIRONMENT = "WIDELIMIT_DATA"
CHOSEN: ContextVar[Path | None] = ContextVar("the data directory of a command", default=None)


def data_root(directory: Path | str | None = None) -> Path:
    """`directory`, else the directory in `WIDELIMIT_DATA`, else the user's cache directory."""
    place = directory or CHOSEN.get() or os.environ.get(ENVIRONMENT)
    return Path(place).expanduser() if place else cache_folder()


def cache_folder() -> Path:
    """This package's folder in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "widelimit"


def locate(
    title: str,
    names: Sequence[str],
    directory: Path | str | None = None,
    *,
    source: RemoteFile,
    download: bool = False,
) -> Path:
    """The first of `names` below the data root; the root itself if it is a file.

    A name may look inside a folder to recognise it: `./train` stands for the root itself.
    `download=True` fetches `source` into the root when nothing is there.
    """
    root = data_root(directory)
    if root.is_file():
        return root
    for name in names:
        if (root / name).exists():
            return root / name.partition("/")[0]
    if download:
        return fetch(source, root)
    raise MissingDataError(
        f"{title} is not on this disk.",
        got=f"none of {', '.join(names)} in '{root}'",
        remedy="name the directory that holds one of them, for instance in the environment "
        f"variable {ENVIRONMENT}, or pass download=True to fetch {source.url}",
    )
