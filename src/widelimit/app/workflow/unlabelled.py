"""Kernels of a file's examples, without anything to predict."""

import numpy as np

from ...engine.inputs import Inputs, read_inputs
from ...inference import Engine, NetworkKernels
from ...sklearn.inputs import Examples, Scaler, arranged, is_table
from ...sklearn.networks import Kind, NamedNetwork, candidates
from .run import Settings, preparation, require_positions
from .sources import Source


def examples_of(source: Source, settings: Settings) -> Examples:
    """All examples as a network sees them, scaled by themselves."""
    require_positions(source, settings)
    prepare = preparation(source, settings)
    x = source.x if prepare is None else prepare.fit_transform(source.x)
    if is_table(x):
        examples = Examples(np.asarray(x, np.float64), None, Kind.TABLE)
    else:
        examples = arranged(x, source.mask)
    return Scaler.fit(examples, None)(examples)


def network_of(examples: Examples, settings: Settings) -> NamedNetwork:
    """The network that was named, or the usual one; texts and columns count the same."""
    assert examples.kind is not None
    found = candidates(
        examples.kind,
        "auto" if settings.network is None else settings.network,
        depth=settings.depth,
        channels=1 if isinstance(examples.x, tuple) else examples.x.shape[-1],
        padded=examples.padded,
    )
    named = list(found.values())
    return named[len(named) // 2 if examples.kind is Kind.MIXED else 0]


def kernels_of(
    network: NamedNetwork, examples: Examples, settings: Settings
) -> tuple[Inputs, NetworkKernels]:
    """The examples as inputs of the network, with heads drawn for them."""
    dtype = np.float64 if examples.kind is Kind.TABLE else np.float32
    engine = Engine(dtype=dtype, samples=settings.samples, key=settings.seed)
    inputs = read_inputs(network.net, examples.x, examples.mask, dtype=dtype)
    return inputs, NetworkKernels.make(network.net, inputs, engine=engine)
