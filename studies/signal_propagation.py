"""Signal propagation with depth: which parts of a transformer keep positions apart.

A deep encoder on real sentences, read layer by layer: attention alone, with residual connections,
with layer normalisation, with the identity in place of softmax, with few heads. And a phase diagram
over the residual weight and the scale of the scores.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.data import load_sample_texts, save_figure
from widelimit.engine import propagation
from widelimit.engine.propagation import Quantity
from widelimit.layers.attention.heads import INFINITE
from widelimit.layers.attention.layer import Attention
from widelimit.layers.attention.scores import IdentityMap, Scaling
from widelimit.layers.base import Layer
from widelimit.layers.blocks import Mlp, Norm, TransformerEncoder
from widelimit.layers.branches import Residual
from widelimit.layers.compose import Repeat, Serial
from widelimit.layers.dense import Dense
from widelimit.progress import Callback

_WIDTH = 64
_DASHES = ("-", "--", "-.", ":")


def ablations(depth: int) -> dict[str, Layer]:
    """One encoder, and what happens to it when a part is taken away or changed."""
    linear: dict[str, Any] = {"scaling": Scaling.LINEAR}

    def encoder(**options: Any) -> Layer:
        return Serial(Dense(_WIDTH), TransformerEncoder(_WIDTH, depth=depth, **options))

    bare = Serial(Attention(_WIDTH, **linear), Mlp(_WIDTH))
    return {
        "pre-norm, 1/d softmax": encoder(**linear),
        "post-norm, 1/d softmax": encoder(norm=Norm.POST, **linear),
        "no norm, 1/d softmax": encoder(norm=Norm.NONE, **linear),
        "no residual, 1/d softmax": Serial(Dense(_WIDTH), Repeat(bare, depth)),
        "pre-norm, 1/d identity": encoder(score_map=IdentityMap(), **linear),
        "pre-norm, 1/√d softmax, infinite heads": encoder(heads=INFINITE),
        "pre-norm, 1/√d softmax, 1 head": encoder(heads=1),
    }


def residual_network(weight: float, qk_std: float, depth: int) -> Layer:
    """Residual attention `√α f + √(1−α) Attn(f)`, `depth` times."""
    attention = Attention(_WIDTH, scaling=Scaling.LINEAR, qk_std=qk_std)
    return Serial(Dense(_WIDTH), Repeat(Residual(attention, weight), depth))


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `signal.json`, a profile of every ablation and a phase diagram into `out`."""
    depth, examples, steps = {"small": (4, 4, 7), "large": (12, 8, 13)}[Size(size).at_most_large]
    texts = load_sample_texts(length=12)
    assert texts.mask_train is not None
    full = np.flatnonzero(texts.mask_train.all(axis=1))[:examples]
    x = texts.x_train[full].astype(np.float32)
    result: dict[str, Any] = {"depth": depth, "profiles": {}}
    networks = ablations(depth)
    profiles = {}
    for name, net in tracked(list(networks.items()), progress):
        profile = propagation.signal(net, x, samples=16, replicates=4)
        profiles[name] = profile
        result["profiles"][name] = {
            quantity.value: [None if np.isnan(v) else float(v) for v in profile[quantity]]
            for quantity in Quantity
        }
    save_figure(_plot_profiles(profiles), out / "signal_by_depth.png")
    weights, scales = np.linspace(0, 0.9, steps), np.geomspace(1, 300, steps)
    grid = propagation.phase_diagram(
        lambda a, s: residual_network(a, s, 8), weights, scales, x, quantity=Quantity.POSITIONS
    )
    figure, axes = canvas(width=5.5, height=4.4)
    mesh = axes[0, 0].pcolormesh(scales, weights, grid)
    axes[0, 0].set(xscale="log", xlabel="score scale qk_std", ylabel="residual weight α")
    figure.colorbar(mesh, ax=axes[0, 0], label=Quantity.POSITIONS.value)
    save_figure(figure, out / "phase_diagram.png")
    result["phase_diagram"] = {
        "residual_weight": weights.tolist(),
        "qk_std": scales.tolist(),
        "correlation_of_positions": grid.tolist(),
    }
    publish(out, "signal", result)
    return result


def _plot_profiles(profiles: dict[str, propagation.SignalProfile]) -> Any:
    shown = (Quantity.VARIANCE, Quantity.POSITIONS, Quantity.INPUTS, Quantity.TANGENT)
    figure, axes = canvas(2, rows=2, width=5.0, height=3.4)
    for axis, quantity in zip(axes.flat, shown, strict=True):
        for (name, profile), dashes in zip(profiles.items(), itertools.cycle(_DASHES)):
            values = profile[quantity]
            # Networks differ in how many layers make a block: compare at equal relative depth.
            depth = np.linspace(0, 1, len(values))
            axis.plot(depth, values, lw=2, linestyle=dashes, label=name)
        axis.set_title(quantity.value)
        axis.set_xlabel("relative depth")
        if quantity in (Quantity.VARIANCE, Quantity.TANGENT):
            axis.set_yscale("symlog", linthresh=1e-2)
    handles = axes[0, 0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=2, fontsize=11, handlelength=4)
    return figure


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    ends = {
        name: (profile["correlation of positions"][-1], profile["variance"][-1])
        for name, profile in result["profiles"].items()
    }
    said = [
        f"{name}: positions end at a correlation of {correlation:.3f}, the variance at {value:.3g}."
        for name, (correlation, value) in ends.items()
        if correlation is not None
    ]
    return [*said, "A correlation of 1 is rank collapse: every position carries the same vector."]


STUDY = Study(
    "signal",
    "Signal propagation with depth",
    "Which parts of a transformer keep positions apart, layer by layer; a phase diagram.",
    run,
    {
        "signal_by_depth": "Four quantities of the kernel from the input (0) to the last "
        "layer (1), one line for each variant of the encoder.",
        "phase_diagram": "Correlation of positions after eight residual attention layers, by "
        "residual weight and by the scale of the scores: 1 (yellow) is rank "
        "collapse.",
    },
    conclude,
)
