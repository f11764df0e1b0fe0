"""`widelimit info`: versions, devices, where data is looked for."""

from ..about import facts, print_facts
from . import options as o
from .screen import print_json


def info(as_json: o.Json = False) -> None:
    """Versions, devices, extras, and where data is looked for."""
    if as_json:
        print_json(facts())
    else:
        print_facts(facts())
