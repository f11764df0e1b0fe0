"""From a user's file to a tested model: what stands behind the command line, for programs too.

`run(path, Task.CLASSIFY)` reads a table, an `.npz` file or a folder of images, chooses a network
for the kind of data, computes its kernel, picks the noise by leave-one-out, and tests the posterior
on held-out examples. The result holds a `Model` that can be saved.
"""

from ...sklearn.networks import NamedNetwork, NetworkName
from .attention import mean_attention, received
from .examples import Examples, LabelledFile
from .kinds import Kind, Listener, Task
from .mixing import choose
from .model import Model, load_model, read_new_examples
from .run import Result, Settings, run
from .sources import Reading, read_source

__all__ = [
    "Examples",
    "Kind",
    "LabelledFile",
    "Listener",
    "Model",
    "NamedNetwork",
    "NetworkName",
    "Reading",
    "Result",
    "Settings",
    "Task",
    "choose",
    "load_model",
    "mean_attention",
    "read_new_examples",
    "read_source",
    "received",
    "run",
]
