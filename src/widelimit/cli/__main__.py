"""`python -m widelimit.cli`."""

from widelimit.cli import main

main()
