"""`widelimit kernel`: the kernel matrix of a file's examples, to a file."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer

from ...data import save_npz
from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import KernelKind
from ...inference.spectrum import Spectrum
from ...sklearn.networks import NamedNetwork
from ..drawing.diagram import diagram
from ..drawing.plots import canvas, plot_kernel, plot_spectrum
from ..report import Report
from ..workflow import Source, Task, read_source
from ..workflow.blocks import compute
from ..workflow.unlabelled import examples_of, kernels_of, network_of
from . import options as o
from .outputs import ready, show, use_data_dir
from .screen import Screen, print_json

_MOST_EIGENVALUES = 2000  # examples whose spectrum a page shows
_MOST_CLASSES = 12  # by which examples are sorted and named in a picture


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
    use_data_dir(data.data_dir)
    if out.suffix not in (".npy", ".npz"):
        raise WidelimitError(
            f"'{out}' is neither a .npy nor an .npz file by its name.",
            got=f"the ending {out.suffix!r}",
            remedy="choose .npy for one kernel, .npz for both kernels and the labels",
            option="out",
        )
    wanted = report or (out.with_suffix(".html") if open_page else None)
    store = out.with_name(f"{out.name}.store")
    ready({"--out": out, "--report": wanted}, [file, data.vectors], store=store)
    screen, begin = Screen(), time.monotonic()
    settings = o.settings(data, net)
    source = read_source(file, Task.CLASSIFY, data.reading(), labels_needed=False)
    if limit is not None and limit < len(source):
        source = source.take(np.arange(limit))
    for note in source.notes:
        screen.say(note)
    examples = examples_of(source, settings)
    choice = network_of(examples, settings)
    screen.say(f"network '{choice.name}': {choice.summary}")
    inputs, kernels = kernels_of(choice, examples, settings)
    both = out.suffix == ".npz"
    kinds = tuple(KernelKind) if both else (net.kernel,)
    with alone(out.with_name(f".{out.name}.lock")):
        found = compute(kernels, inputs, kinds, store=store, workers=workers, listener=screen)
        arrays = _written(out, found, store)
        if both:
            labels = {} if source.y is None else {"y": _plain(source.y)}
            named = {kind.value: array for kind, array in arrays.items()}
            save_npz(out, **named, **labels, names=np.array(source.names))
            if wanted is not None:  # the page is drawn when the files are gone
                arrays = {kind: np.array(array) for kind, array in arrays.items()}
        shutil.rmtree(store)
    seconds = time.monotonic() - begin
    screen.say(f"{len(source):,} × {len(source):,} in {seconds:.0f} s: {out}")
    numbers: dict[str, Any] = {
        "examples": len(source),
        "network": str(choice.name),
        "kernels": [kind.value for kind in kinds],
        "file": str(out),
        "seconds": seconds,
    }
    if wanted is not None:
        shape = jax.tree.map(lambda x: x.shape[1:], examples.x)
        page = _page(source, choice, shape, arrays[net.kernel], net.kernel, seconds)
        page.write(wanted)
        screen.say(f"report: {wanted}")
        numbers["report"] = str(wanted)
        show(wanted, open_page)
    if as_json:
        print_json(numbers)


def _plain(y: np.ndarray) -> np.ndarray:
    """Labels without Python objects, which no file should hold."""
    return y.astype(str) if y.dtype.kind == "O" else y


def _written(
    out: Path, kernels: dict[KernelKind, Any], store: Path
) -> dict[KernelKind, np.ndarray]:
    """Each kernel in a .npy file, mapped: `out` itself, or neighbours to pack into an .npz file."""
    paths = {kind: out if out.suffix == ".npy" else store / f"{kind.value}.npy" for kind in kernels}
    for kind, kernel in kernels.items():
        kernel.save(paths[kind])
    return {kind: np.load(path, mmap_mode="r") for kind, path in paths.items()}


def _page(
    source: Source,
    choice: NamedNetwork,
    shape: Any,
    kernel: np.ndarray,
    which: KernelKind,
    seconds: float,
) -> Report:
    size = len(kernel)
    part = np.asarray(kernel[:_MOST_EIGENVALUES, :_MOST_EIGENVALUES], np.float64)
    values = Spectrum.of(part).values[::-1]
    figure, axes = canvas(2, width=5.2, height=4.2)
    names, groups = (), None
    if source.y is not None:
        classes, groups = np.unique(source.y, return_inverse=True)
        names = tuple(classes.tolist()) if len(classes) <= _MOST_CLASSES else ()
    plot_kernel(axes[0, 0], kernel, groups, names)
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
    drawing = diagram(choice.net, shape, title=f"network '{choice.name}'")
    return (
        Report(f"Kernel of {source.path.name}", f"Network '{choice.name}': {choice.summary}.")
        .section("The network")
        .diagram(drawing, "Every layer is infinitely wide.", facts)
        .section("The kernel")
        .figure(
            figure,
            "Left: correlations between examples, sorted by label where there is one. Right: "
            f"eigenvalues (of the first {len(part):,} examples).",
        )
        .section("The command")
        .command()
    )
