"""One run at a time in a folder: a second one learns which run holds it."""

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import DataError
from .files import unwritable

try:
    import fcntl
except ImportError:  # Windows
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # pyright: ignore
else:

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_TRIES = 100  # to make a folder that another run removes at the same moment
_held: dict[Path, int] = {}  # locks of this process, and the thread that holds each


@contextmanager
def alone(place: Path | str) -> Iterator[None]:
    """Hold the lock file `place` while the block runs; the same thread may ask for it again.

    The system lets go of the lock when a process ends, however it ends: no lock is left behind.
    Folders that were made for the lock and have nothing else in them go with it.
    """
    place = Path(place).absolute()
    if _held.get(place) == threading.get_ident():
        yield
        return
    made = [folder for folder in place.parents if not os.path.exists(folder)]
    descriptor = _taken(place)
    _held[place] = threading.get_ident()
    try:
        yield
    finally:
        del _held[place]
        with suppress(OSError):
            place.unlink()  # while it is held: see `_taken`
            for folder in made:  # innermost first; one that is not empty stays
                folder.rmdir()
        os.close(descriptor)


def _taken(place: Path) -> int:
    tries = 0
    while True:
        tries += 1
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT, 0o666)
        except (FileNotFoundError, FileExistsError) as error:
            # A run that ends takes its empty folder with it, also between two calls of `mkdir`.
            if tries < _TRIES:
                continue
            raise unwritable(place.parent, error) from error
        except OSError as error:
            raise unwritable(place.parent, error) from error
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            raise DataError(
                "One run at a time writes to a place.",
                got=f"'{place.parent}', where {_holder(place)} is at work",
                remedy="wait until it has ended, or give another --out",
            ) from error
        if _still_there(place, descriptor):
            _sign(place, descriptor)
            return descriptor
        os.close(descriptor)


def _still_there(place: Path, descriptor: int) -> bool:
    """The one that held it before may have removed the file since it was opened here."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(place))
    except FileNotFoundError:
        return False


def _sign(place: Path, descriptor: int) -> None:
    """Who is at work; on a full disk not even that can be written."""
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()} {socket.gethostname()}".encode())
    except OSError as error:
        with suppress(OSError):
            place.unlink()
        os.close(descriptor)
        raise unwritable(place.parent, error) from error


def _holder(place: Path) -> str:
    with suppress(OSError, ValueError, UnicodeDecodeError):
        process, host = place.read_text("utf-8").split()
        return f"process {int(process)} on {host}"
    return "another run"
