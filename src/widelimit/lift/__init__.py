"""From models made of known parts to the same networks in layers, on the fast engine."""

from ..programs.biases import Biases
from .door import lift
from .initialisers import Deviations
from .values import LiftWarning

__all__ = ["Biases", "Deviations", "LiftWarning", "lift"]
