"""`widelimit estimate`: what the kernel of a file's examples would take, before it is computed."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from ...data import Keep
from ...inference import KernelKind
from ..workflow import Settings, Task, choose, read_source
from ..workflow.run import IMAGE_SIZE, WORDS, network_data, prepare, sized
from . import options as o
from .outputs import use_data_dir
from .screen import Screen, print_json

_SAMPLE = 2000  # examples that are looked at


def estimate(
    file: Annotated[
        Path, typer.Argument(help="CSV, TSV or JSONL (also .gz), .npz, or a folder of images.")
    ],
    examples: Annotated[
        int | None, typer.Option(help="Number of examples like those of the file.", min=1)
    ] = None,
    tests: Annotated[int, typer.Option(help="Number of test examples.", min=0)] = 0,
    workers: Annotated[
        list[int] | None,
        typer.Option(help="Number of single-threaded workers; give it several times.", min=1),
    ] = None,
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
    network: o.Network = None,
    depth: o.Depth = None,
    which: Annotated[
        KernelKind, typer.Option("--kernel", help="Which kernel; ntk comes with both.")
    ] = KernelKind.NNGP,
    samples: o.Samples = None,
    seed: o.Seed = 0,
    as_json: o.Json = False,
) -> None:
    """Say what the kernel of a file's examples takes on this machine: time, memory, disk."""
    use_data_dir(data_dir)
    screen = Screen()
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
    found = source.examples
    few = found.take(np.arange(min(_SAMPLE, len(found))))
    preparation, _ = prepare(few, file, settings, source.columns.get("text"))
    choice = choose(found.kind, network, depth=depth)
    screen.say(f"network '{choice.name}': {choice.summary}")
    inputs, data = network_data(choice, preparation, preparation(few), len(few), settings)
    cost = choice.net.cost(
        inputs,
        examples=examples or len(found),
        tests=tests,
        sampler=data.sampler,
        ntk=which is KernelKind.NTK,
    )
    screen.say(str(cost))
    shared = {count: cost.with_workers(count).seconds for count in workers or ()}
    for count, seconds in shared.items():
        screen.say(f"with {count} workers: {seconds:,.0f} s")
    if as_json:
        numbers = {name: getattr(cost, name) for name in ("examples", "tests", "pairs", "rate")}
        numbers |= {"seconds": cost.seconds, "solve_seconds": cost.factorising}
        numbers |= {"disk": cost.disk, "memory": cost.memory, "dense": cost.dense}
        print_json(numbers | {"workers": {str(k): v for k, v in shared.items()}})
