"""What is installed here: versions, devices, extras, and where data is looked for."""

import importlib.metadata
import platform

import jax

from .. import __version__
from ..data import data_root

_EXTRAS = ("optax", "blackjax", "scikit-learn", "matplotlib", "rich", "typer", "pillow")


def facts() -> dict[str, str]:
    """By name; a base install answers too."""
    return {
        "widelimit": __version__,
        "jax": jax.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "devices": ", ".join(str(device) for device in jax.devices()),
        "data": f"{data_root()}{'' if data_root().exists() else ' (not there yet)'}",
        "extras": ", ".join(f"{name} {_version(name)}" for name in _EXTRAS),
    }


def print_facts(found: dict[str, str]) -> None:
    """One to a line."""
    for name, value in found.items():
        print(f"{name:10} {value}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"
