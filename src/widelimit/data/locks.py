"""One run at a time in a folder: a second one is told so."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import MissingExtraError
from .errors import DataError
from .files import unwritable

_PATIENCE = 0.5  # seconds for a run that is just ending
_TRIES = 100  # to make a folder that another run removes at the same moment


@contextmanager
def alone(place: Path | str) -> Iterator[None]:
    """Hold the lock file `place` while the block runs; the same thread may ask for it again.

    The system lets go of the lock when a process ends, however it ends: no lock is left behind.
    Folders that were made for the lock and have nothing else in them go with it.
    """
    place = Path(place).absolute()
    made = [folder for folder in place.parents if not folder.exists()]
    lock = _taken(place)
    try:
        yield
    finally:
        with suppress(OSError):
            if lock.lock_counter == 1:
                place.unlink()  # while it is held: who opened it before looks again
                for folder in made:  # innermost first; one that is not empty stays
                    folder.rmdir()
        lock.release()


def _taken(place: Path) -> Any:
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise MissingExtraError("filelock", "cli") from error
    for tries in range(_TRIES):
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lock = FileLock(place, timeout=_PATIENCE, is_singleton=True)
            lock.acquire()
        except (FileNotFoundError, FileExistsError) as error:
            # A run that ends takes its empty folder with it, also between two calls of `mkdir`.
            if tries + 1 == _TRIES:
                raise unwritable(place.parent, error) from error
        except Timeout as error:
            raise DataError(
                f"Another run is at work in '{place.parent}'.",
                got=f"its lock '{place.name}'",
                remedy="wait until it has ended, or choose another place",
                option="out",
            ) from error
        except OSError as error:
            raise unwritable(place.parent, error) from error
        else:
            return lock
    raise AssertionError
