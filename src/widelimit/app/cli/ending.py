"""How a command ends: by a mistake of its user, by Ctrl-C, by a full machine, by a bug of ours."""

import io
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ...data.files import abandon
from ...data.places import cache_folder
from ...errors import MissingExtraError, WidelimitError
from .screen import Screen

TRACEBACK = "WIDELIMIT_TRACEBACK"
"""The environment variable that shows where an unexpected error came from."""

_PATIENCE = 1.0  # seconds that running work has to end by itself
_INTERRUPTED = (
    "interrupted; files written so far are kept, and the same command goes on with the blocks of a "
    "kernel that are done"
)


@contextmanager
def ended_well() -> Iterator[None]:
    """Turn every end of a command into its exit code and a few lines on standard error."""
    with _prompt_interrupts():
        try:
            yield
        except (WidelimitError, MissingExtraError) as error:
            Screen().wrong(error)
            sys.exit(2)
        except (KeyboardInterrupt, SystemExit) as leaving:
            if getattr(leaving, "code", 130) != 130:
                raise
            Screen().say(_INTERRUPTED)
            sys.exit(130)
        except BrokenPipeError:  # the reader of our output has left, for instance `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(141)
        except Exception as error:
            _unexpected(error)


def _unexpected(error: Exception) -> None:
    """Too little memory is the machine's matter, anything else ours: one sentence, no traceback."""
    screen = Screen()
    if isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error):
        screen.wrong(
            WidelimitError(
                "The work does not fit into the memory of this machine.",
                got=str(error).splitlines()[0] if str(error) else "not enough memory",
                remedy="use fewer examples (--max-train, --limit), smaller ones (--length, "
                "--image-size), or fewer heads and draws",
            )
        )
        sys.exit(2)
    if os.environ.get(TRACEBACK):
        traceback.print_exception(error)
        sys.exit(1)
    first = (str(error) or "no message").splitlines()[0]
    screen.say(
        f"error: a bug in widelimit, or an unforeseen situation: {type(error).__name__}: "
        f"{first[:300]} (set {TRACEBACK}=1 to see where, and please report it)"
    )
    sys.exit(1)


@contextmanager
def _prompt_interrupts() -> Iterator[None]:
    """Ctrl-C ends the program also while compiled code runs that does not listen.

    Python hears of a signal only between its own instructions. The system writes to a pipe at once;
    a thread reads it, gives the program a second to end by itself, and then ends it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    done = threading.Event()
    threading.Thread(target=_watch, args=(reader, done), daemon=True).start()
    unraisable = sys.unraisablehook

    def say_unless_interrupted(unraised: Any) -> None:
        # Ctrl-C during a clean-up, where Python can only report and forget it: the thread ends us.
        if not issubclass(unraised.exc_type, KeyboardInterrupt):
            unraisable(unraised)

    sys.unraisablehook = say_unless_interrupted
    try:
        yield
    finally:
        done.set()
        sys.unraisablehook = unraisable
        signal.set_wakeup_fd(wakeup)
        signal.signal(signal.SIGINT, before or signal.default_int_handler)
        os.close(writer)


def _watch(reader: int, done: threading.Event) -> None:
    while received := os.read(reader, 1):
        if received[0] == signal.SIGINT and not done.wait(_PATIENCE):
            abandon()
            os.write(2, f"{_INTERRUPTED}\n".encode())
            os._exit(130)
    os.close(reader)


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder, unless JAX was told where to.

    A second run of a command then starts at once. A bounded cache is locked while it is written.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder() / "compiled"))
        jax.config.update("jax_compilation_cache_max_size", 1 << 30)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def prepare_streams() -> None:
    """Terminals that cannot show a character get it as `\\u2013` instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
