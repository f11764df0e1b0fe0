"""How much the text counts beside the columns: the share that predicts left-out examples best."""

from typing import Any

import numpy as np

from ...engine.door import read_inputs
from ...inference import KernelKind
from ...inference.network_kernels import chosen
from ...inference.spectrum import Spectrum
from .kinds import Kind
from .networks import NamedNetwork, choose
from .posterior import Targets, choose_noise
from .preparation import Batch

MIXING = 500
"""Training examples that choose the share."""

SHARES = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)


def mixed(
    choice: NamedNetwork, batch: Batch, targets: Targets, dtype: Any, kind: KernelKind
) -> tuple[NamedNetwork, str]:
    """The network with the best share of these training examples, and what is said about it.

    Shares are compared by the leave-one-out log score, each at the noise that suits it.
    """
    inputs = read_inputs(choice.net, batch.x, batch.mask, dtype=dtype)
    rows = np.arange(inputs.size)
    found = {}
    for share in SHARES:
        other = choose(Kind.MIXED, choice.name, depth=choice.depth, share=share)
        ntk = kind is KernelKind.NTK
        kernel = np.asarray(chosen(other.net.kernel(inputs, ntk=ntk, progress=False), kind))
        trials = choose_noise(Spectrum.of(kernel), targets, rows, float(np.diagonal(kernel).mean()))
        found[share] = max(trial.score for trial in trials), other
    best = max(found, key=lambda share: found[share][0])
    note = (
        f"the text counts {best:.0%}, the columns {1 - best:.0%}: the best of {len(SHARES)} shares "
        f"by leave-one-out on {inputs.size:,} training examples"
    )
    return found[best][1], note
