"""`widelimit kernel`: the kernel matrix of a file's examples, to a file."""

import shutil
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ...data import Keep, save_npz
from ...data.locks import alone
from ...errors import WidelimitError
from ...inference import KernelKind
from ..drawing import canvas, diagram, plot_kernel, plot_spectrum
from ..report import Report
from ..workflow import Choice, Settings, Source, Task, choose, read_source
from ..workflow.blocks import compute
from ..workflow.posterior import Spectrum
from ..workflow.preparation import Batch
from ..workflow.run import IMAGE_SIZE, WORDS, network_data, prepare, sized
from . import options as o
from .outputs import ready, show, use_data_dir, use_limits
from .screen import Screen, print_json

_MOST_EIGENVALUES = 2000  # examples whose spectrum a page shows


def kernel(
    file: Annotated[
        Path, typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder of images.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help=".npy: one kernel; .npz: both, with the labels.",
        ),
    ],
    text: o.Text = None,
    label: o.Label = None,
    feature: o.Features = None,
    encoding: o.Encoding = "utf-8",
    delimiter: o.Delimiter = None,
    skip: o.Skip = False,
    vectors: o.Vectors = None,
    length: o.Length = WORDS,
    keep: o.Keep = Keep.FIRST,
    image_size: o.ImageSize = IMAGE_SIZE,
    data_dir: o.DataDir = None,
    allow: o.Allow = None,
    network: o.Network = None,
    depth: o.Depth = None,
    which: Annotated[
        KernelKind,
        typer.Option("--kernel", help="Which kernel a .npy file holds."),
    ] = KernelKind.NNGP,
    samples: o.Samples = None,
    limit: Annotated[
        int | None, typer.Option(help="Only this many examples, from the first on.", min=1)
    ] = None,
    workers: o.Workers = None,
    seed: o.Seed = 0,
    report: o.Page = None,
    open_page: o.Open = False,
    as_json: o.Json = False,
) -> None:
    """Compute the kernel matrix of all examples in a file, in the order of the file."""
    use_data_dir(data_dir)
    use_limits(allow)
    if out.suffix not in (".npy", ".npz"):
        raise WidelimitError(
            "A kernel is written to a .npy or an .npz file.",
            got=f"--out {out}",
            remedy="choose .npy for one kernel, .npz for both kernels and the labels",
        )
    wanted = report or (out.with_suffix(".html") if open_page else None)
    ready({"--out": out, "--report": wanted}, [file, vectors])
    screen, begin = Screen(), time.monotonic()
    settings = Settings(
        network=network,
        depth=depth,
        kernel=which,
        vectors=vectors,
        length=length,
        keep=keep,
        image_size=image_size,
        samples=samples,
        seed=seed,
    )
    how = o.reading(text, label, feature, None, encoding, delimiter, skip)
    source = read_source(file, Task.CLASSIFY, sized(file, how, settings), labels_needed=False)
    examples = source.examples
    if limit is not None and limit < len(examples):
        examples = examples.take(np.arange(limit))
    preparation, notes = prepare(examples, file, settings, source.columns.get("text"))
    choice = choose(examples.kind, network, depth=depth)
    for note in (*source.notes, *notes, *preparation.notes(examples)):
        screen.say(note)
    screen.say(f"network '{choice.name}': {choice.summary}")
    batch = preparation(examples)
    inputs, data = network_data(choice, preparation, batch, len(examples), settings)
    both = out.suffix == ".npz"
    kinds = tuple(KernelKind) if both else (which,)
    store = out.with_name(f"{out.name}.store")
    with alone(out.with_name(f".{out.name}.lock")):
        kernels = compute(data, inputs, kinds, store=store, workers=workers, listener=screen)
        arrays = _written(out, kernels, store)
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
        shown = arrays[which] if which in arrays else next(iter(arrays.values()))
        page = _page(source, choice, batch, shown, which, seconds)
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
    source: Source,
    choice: Choice,
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
    svg = diagram(choice.net, batch.x.shape[1:], title=f"network '{choice.name}'")
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
