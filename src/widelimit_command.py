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
    except ImportError as missing:
        _without_extras(str(missing))
        return
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


def _without_extras(missing: str) -> None:
    """A base install says what is there and how to get the other commands."""
    if sys.argv[1:] != ["info"]:
        sys.exit(missing)
    from widelimit.app.about import facts, print_facts

    print_facts(facts())
    print(f"\nOnly `info` works here. {missing}")


def _leave(*_: Any) -> None:
    """Nothing has been begun: end at once, whatever is being imported."""
    sys.stderr.write("interrupted\n")
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
