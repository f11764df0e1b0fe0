"""The program `widelimit`: what must be in place before the library is imported.

Importing takes a second or two. Here, before it, Ctrl-C becomes one line and exit code 130.
"""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Import the command line and run it."""
    signal.signal(signal.SIGINT, _leave)
    try:
        from widelimit.app.cli import main as run
    except ImportError as missing:  # a base install has no command line, and says how to get it
        sys.exit(str(missing))
    try:
        run()
    finally:  # all is written and said: leaving takes a moment that Ctrl-C must not spoil
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _leave(*_: Any) -> None:
    """Nothing has been begun: end at once, whatever is being imported."""
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(130)


if __name__ == "__main__":
    main()
