"""From models made of known parts to the same networks in layers, on the fast engine."""

from .door import lift
from .initialisers import Deviations
from .values import LiftWarning
from .writer import Biases

__all__ = ["Biases", "Deviations", "LiftWarning", "lift"]
