"""Networks of one kind that suit different data: the one that predicts left-out examples best.

Texts beside columns: how much the text counts. Series: whether every place has weights of its own,
or all are averaged.
"""

from typing import Any

import numpy as np

from ...engine.door import read_inputs
from ...inference import KernelKind, input_groups
from ...inference.network_kernels import chosen
from ...inference.spectrum import Spectrum
from ...sklearn.networks import WIDTH, Kind, NamedNetwork, NetworkName, candidates
from .posterior import Targets, noise_scores
from .preparation import Batch

COMPARED = 500
"""Training examples by which networks are compared."""


def alternatives(
    kind: Kind, name: NetworkName | None, batch: Batch | None, *, depth: int | None = None
) -> dict[str, NamedNetwork]:
    """Networks by what is said about the best; one alone where there is nothing to compare."""
    series = kind is Kind.SEQUENCE and batch is not None
    padded = series and batch.mask is not None and not np.all(batch.mask)
    channels = batch.x.shape[-1] if series else WIDTH
    return candidates(kind, name or "auto", depth=depth, channels=channels, padded=padded)


def choose(
    kind: Kind,
    name: NetworkName | None = None,
    *,
    depth: int | None = None,
    batch: Batch | None = None,
) -> NamedNetwork:
    """The network called `name`, or the usual one for this kind of data."""
    found = list(alternatives(kind, name, batch, depth=depth).values())
    return found[len(found) // 2] if kind is Kind.MIXED else found[0]


def best_of(
    networks: dict[str, NamedNetwork], batch: Batch, targets: Targets, dtype: Any, kind: KernelKind
) -> tuple[NamedNetwork, str | None]:
    """The best network for the first training examples, and what is said about it.

    They are compared by the leave-one-out log score, each at the noise that suits it.
    """
    if len(networks) == 1:
        return next(iter(networks.values())), None
    found = {}
    for label, choice in networks.items():
        inputs = read_inputs(choice.net, batch.x, batch.mask, dtype=dtype)
        kernels = choice.net.kernel(inputs, ntk=kind is KernelKind.NTK, progress=False)
        kernel, rows = np.asarray(chosen(kernels, kind)), np.arange(inputs.size)
        trials = noise_scores(Spectrum.of(kernel), targets, rows, input_groups(inputs))
        found[label] = max(trial.score for trial in trials)
    best = max(found, key=lambda label: found[label])
    examples = len(next(iter(batch.x)) if isinstance(batch.x, tuple) else batch.x)
    note = f"{best}: the best of {len(networks)} by leave-one-out on {examples:,} training examples"
    return networks[best], note
