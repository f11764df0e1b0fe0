"""`widelimit info`: versions, devices, where data is looked for."""

import importlib.metadata
import platform

from ...data import data_root
from . import options as o
from .screen import print_json

_EXTRAS = ("optax", "blackjax", "diffrax", "scikit-learn", "matplotlib", "rich", "typer", "pillow")


def info(as_json: o.Json = False) -> None:
    """Versions, devices, extras, and where data is looked for."""
    import jax

    from ... import __version__

    facts = {
        "widelimit": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "data": f"{data_root()}{'' if data_root().exists() else ' (not there yet)'}",
        "extras": ", ".join(f"{name} {_version(name)}" for name in _EXTRAS),
    }
    if as_json:
        print_json(facts)
        return
    for name, value in facts.items():
        print(f"{name:10} {value}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
