"""The program `widelimit`: what must be in place before the library is imported.

Importing takes a second or two. Here, before it, Ctrl-C becomes one line and exit code 130.
"""

import os
import signal
import sys
from typing import Any

INTERRUPTED = 130


def main() -> None:
    """Import the command line and run it."""
    signal.signal(signal.SIGINT, _leave)
    try:
        from widelimit.app.cli import main as run
    except ImportError as missing:  # a base install has no command line, and says how to get it
        sys.exit(str(missing))
    try:
        run()
    except SystemExit as leaving:
        # All is written and said: leaving takes a moment, which Ctrl-C must not spoil.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if leaving.code == INTERRUPTED:
            # Python would end itself by the signal, with another exit code, where Ctrl-C came while
            # it ran a piece of source text, as dataclasses do.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(INTERRUPTED)
        raise


def _leave(*_: Any) -> None:
    """Nothing has been begun: end at once, whatever is being imported."""
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
