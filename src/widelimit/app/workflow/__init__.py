"""From a user's file to a tested model: what stands behind the command line, for programs too.

`run(path, Task.CLASSIFY)` reads a table, an `.npz` file or a folder of images, fits a Pipeline of
`widelimit.sklearn` to a part of it, and tests it on the rest. The result holds a `Model` that can
be saved, and the lines of Python that give the same numbers.
"""

from ...sklearn.networks import Kind, NetworkName
from .attention import mean_attention, received
from .kinds import Listener, Reading, Task
from .model import Model, Predicted, load_model, read_new_examples
from .run import Result, Settings, run
from .sources import Source, read_source

__all__ = [
    "Kind",
    "Listener",
    "Model",
    "NetworkName",
    "Predicted",
    "Reading",
    "Result",
    "Settings",
    "Source",
    "Task",
    "load_model",
    "mean_attention",
    "read_new_examples",
    "read_source",
    "received",
    "run",
]
