"""`widelimit kernel` and `estimate`: the kernel matrix of a file's examples, and what it takes."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from ...data import save_npz
from ...data.locks import alone
from ...engine.inputs import Inputs
from ...errors import WidelimitError
from ...inference import KernelKind, NetworkKernels
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
_SAMPLE = 2000  # examples that an estimate looks at


@dataclass(frozen=True, kw_only=True)
class MatrixOptions(o.KernelOptions):
    """Where the kernel goes, and of how many examples."""

    out: Path = o.option(..., ".npy: one kernel; .npz: both, with the labels.", "--out", "-o")
    limit: int | None = o.option(None, "Only this many examples, from the first on.", min=1)
    workers: o.Workers = None
    report: o.Page = None
    open_page: o.Open = False
    as_json: o.Json = False


@o.taking(MatrixOptions)
def kernel(options: MatrixOptions) -> None:
    """Compute the kernel matrix of all examples in a file, in the order of the file."""
    use_data_dir(options.data_dir)
    out, which = options.out, options.kernel
    if out.suffix not in (".npy", ".npz"):
        raise WidelimitError(
            f"'{out}' is neither a .npy nor an .npz file by its name.",
            got=f"the ending {out.suffix!r}",
            remedy="choose .npy for one kernel, .npz for both kernels and the labels",
            option="out",
        )
    wanted = options.report or (out.with_suffix(".html") if options.open_page else None)
    store = out.with_name(f"{out.name}.store")
    ready({"--out": out, "--report": wanted}, [options.file, options.vectors], store=store)
    screen, begin = Screen(), time.monotonic()
    source, _ = _read(options, options.limit)
    for note in source.notes:
        screen.say(note)
    shape, choice, inputs, kernels = _prepared(source, options, screen)
    both = out.suffix == ".npz"
    kinds = tuple(KernelKind) if both else (which,)
    with alone(out.with_name(f".{out.name}.lock")):
        found = compute(
            kernels, inputs, kinds, store=store, workers=options.workers, listener=screen
        )
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
        _page(source, choice, shape, arrays[which], which, seconds).write(wanted)
        screen.say(f"report: {wanted}")
        numbers["report"] = str(wanted)
        show(wanted, options.open_page)
    if options.as_json:
        print_json(numbers)


@dataclass(frozen=True, kw_only=True)
class EstimateOptions(o.KernelOptions):
    """For how many examples, and whose work."""

    examples: int | None = o.option(None, "Number of examples, if not those of the file.", min=1)
    tests: int = o.option(0, "Number of test examples.", min=0)
    workers: list[int] | None = o.option(
        None, "Number of single-threaded workers; give it several times.", min=1
    )
    as_json: o.Json = False


@o.taking(EstimateOptions)
def estimate(options: EstimateOptions) -> None:
    """Say what the kernel of a file's examples takes on this machine: time, memory, disk."""
    use_data_dir(options.data_dir)
    screen = Screen()
    few, count = _read(options, _SAMPLE)
    _, choice, inputs, kernels = _prepared(few, options, screen)
    cost = choice.net.cost(
        inputs,
        examples=options.examples or count,
        tests=options.tests,
        sampler=kernels.sampler,
        ntk=options.kernel is KernelKind.NTK,
    )
    screen.say(str(cost))
    shared = {str(count): cost.with_workers(count).seconds for count in options.workers or ()}
    for workers, seconds in shared.items():
        screen.say(f"with {workers} workers: {seconds:,.0f} s")
    if options.as_json:
        names = ("examples", "tests", "pairs", "rate", "seconds", "disk", "memory", "dense")
        numbers = {name: getattr(cost, name) for name in names}
        print_json(numbers | {"solve_seconds": cost.factorising, "workers": shared})


def _read(options: o.KernelOptions, most: int | None) -> tuple[Source, int]:
    """The first examples of the file, and how many it has."""
    source = read_source(options.file, Task.CLASSIFY, options.reading(), labels_needed=False)
    if most is None or most >= len(source):
        return source, len(source)
    return source.take(np.arange(most)), len(source)


def _prepared(
    source: Source, options: o.KernelOptions, screen: Screen
) -> tuple[Any, NamedNetwork, Inputs, NetworkKernels]:
    """The shape of an example, the network that suits it, its inputs and its kernels."""
    settings = options.settings()
    examples = examples_of(source, settings)
    choice = network_of(examples, settings)
    screen.say(f"network '{choice.name}': {choice.summary}")
    shape = jax.tree.map(lambda x: x.shape[1:], examples.x)
    return shape, choice, *kernels_of(choice, examples, settings)


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
        names = classes.tolist()
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
