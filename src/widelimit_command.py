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
    except ImportError as missing:
        _without_extras(str(missing))
    else:
        run()


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
    os._exit(130)


if __name__ == "__main__":
    main()
