"""`python -m widelimit.app.cli`."""

from . import main

main()
