"""`widelimit kernel`: the kernel matrix of a file's examples, to a file."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ...data import save_npz
from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import KernelKind
from ...inference.spectrum import Spectrum
from ..drawing import canvas, diagram, plot_kernel, plot_spectrum
from ..report import Report
from ..workflow import LabelledFile, NamedNetwork, Task, choose, read_source
from ..workflow.blocks import compute
from ..workflow.preparation import Batch
from ..workflow.run import network_data, prepare, sized
from . import options as o
from .outputs import ready, show
from .screen import Screen, print_json

_MOST_EIGENVALUES = 2000  # examples whose spectrum a page shows


@o.with_groups
def kernel(
    file: o.File,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help=".npy: one kernel; .npz: both, with the labels.",
        ),
    ],
    data: o.DataOptions,
    net: o.NetworkOptions,
    limit: Annotated[
        int | None, typer.Option(help="Only this many examples, from the first on.", min=1)
    ] = None,
    workers: o.Workers = None,
    report: o.Page = None,
    open_page: o.Open = False,
    as_json: o.Json = False,
) -> None:
    """Compute the kernel matrix of all examples in a file, in the order of the file."""
    data.take_effect()
    if out.suffix not in (".npy", ".npz"):
        raise WidelimitError(
            "A kernel is written to a .npy or an .npz file.",
            got=f"--out {out}",
            remedy="choose .npy for one kernel, .npz for both kernels and the labels",
        )
    wanted = report or (out.with_suffix(".html") if open_page else None)
    store = out.with_name(f"{out.name}.store")
    ready({"--out": out, "--report": wanted}, [file, data.vectors], store=store)
    screen, begin = Screen(), time.monotonic()
    settings = o.settings(data, net)
    how = sized(file, data.reading(), settings)
    source = read_source(file, Task.CLASSIFY, how, labels_needed=False)
    examples = source.examples
    if limit is not None and limit < len(examples):
        examples = examples.take(np.arange(limit))
    preparation, notes = prepare(examples, file, settings, source.columns.get("text"))
    for note in (*source.notes, *notes, *preparation.notes(examples)):
        screen.say(note)
    batch = preparation(examples)
    choice = choose(examples.kind, net.network, depth=net.depth, batch=batch)
    screen.say(f"network '{choice.name}': {choice.summary}")
    inputs, kernels = network_data(choice, preparation, batch, len(examples), settings)
    both = out.suffix == ".npz"
    kinds = tuple(KernelKind) if both else (net.kernel,)
    with alone(out.with_name(f".{out.name}.lock")):
        found = compute(kernels, inputs, kinds, store=store, workers=workers, listener=screen)
        arrays = _written(out, found, store)
        if both:
            labels = {"y": source.y[: len(examples)]} if len(source.y) else {}
            named = {kind.value: array for kind, array in arrays.items()}
            save_npz(out, **named, **labels, names=np.array(examples.names))
            if wanted is not None:  # the page is drawn when the files are gone
                arrays = {kind: np.array(array) for kind, array in arrays.items()}
        shutil.rmtree(store)
    seconds = time.monotonic() - begin
    screen.say(f"{len(examples):,} × {len(examples):,} in {seconds:.0f} s: {out}")
    numbers: dict[str, Any] = {
        "examples": len(examples),
        "network": str(choice.name),
        "kernels": [kind.value for kind in kinds],
        "file": str(out),
        "seconds": seconds,
    }
    if wanted is not None:
        page = _page(source, choice, batch, arrays[net.kernel], net.kernel, seconds)
        page.write(wanted)
        screen.say(f"report: {wanted}")
        numbers["report"] = str(wanted)
        show(wanted, open_page)
    if as_json:
        print_json(numbers)


def _written(
    out: Path, kernels: dict[KernelKind, Any], store: Path
) -> dict[KernelKind, np.ndarray]:
    """Each kernel in a .npy file, mapped: `out` itself, or neighbours to pack into an .npz file."""
    paths = {kind: out if out.suffix == ".npy" else store / f"{kind.value}.npy" for kind in kernels}
    for kind, kernel in kernels.items():
        kernel.save(paths[kind])
    return {kind: np.load(path, mmap_mode="r") for kind, path in paths.items()}


def _page(
    source: LabelledFile,
    choice: NamedNetwork,
    batch: Batch,
    kernel: np.ndarray,
    which: KernelKind,
    seconds: float,
) -> Report:
    size = len(kernel)
    part = np.asarray(kernel[:_MOST_EIGENVALUES, :_MOST_EIGENVALUES], np.float64)
    values = Spectrum.of(part).values[::-1]
    figure, axes = canvas(2, width=5.2, height=4.2)
    groups = source.y[:size] if len(source.y) else None
    plot_kernel(axes[0, 0], kernel, groups, source.class_names)
    plot_spectrum(axes[0, 1], values, None)
    diagonal = np.diagonal(part)
    share = values / values.sum()
    rank = float(np.exp(-np.sum(share[share > 0] * np.log(share[share > 0]))))
    facts = [
        ("kernel", which.value.upper()),
        ("examples", size),
        ("mean variance", float(diagonal.mean())),
        ("smallest variance", float(diagonal.min())),
        ("largest variance", float(diagonal.max())),
        ("effective rank exp(entropy)", rank),
        ("seconds", round(seconds, 1)),
    ]
    svg = diagram(choice.net, batch.shape, title=f"network '{choice.name}'")
    return (
        Report(f"Kernel of {source.path.name}", f"Network '{choice.name}': {choice.summary}.")
        .section("The network")
        .diagram(svg, "Every layer is infinitely wide.", facts)
        .section("The kernel")
        .figure(
            figure,
            "Left: correlations between examples, sorted by label where there is one. Right: "
            f"eigenvalues (of the first {len(part):,} examples).",
        )
        .section("The command")
        .command()
    )
