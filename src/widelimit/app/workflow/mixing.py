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
from .kinds import Kind
from .networks import NamedNetwork, choose, is_series
from .posterior import Targets, noise_scores
from .preparation import Batch

COMPARED = 500
"""Training examples by which networks are compared."""

SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def alternatives(choice: NamedNetwork, kind: Kind, batch: Batch) -> dict[str, NamedNetwork]:
    """Networks by what is said about the best; one alone where there is nothing to compare."""
    options: dict[str, Any] = {"depth": choice.depth, "batch": batch}
    if kind is Kind.MIXED:
        return {
            f"the text counts {share:.0%}, the columns {1 - share:.0%}": choose(
                kind, choice.name, share=share, **options
            )
            for share in SHARES
        }
    whole = batch.mask is None or bool(np.all(batch.mask))
    if is_series(kind, batch) and whole:
        averaged = choose(kind, choice.name, averaged=True, **options)
        return {"every place of a series by itself": choice, "the average over places": averaged}
    return {"": choice}


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
