"""`widelimit estimate`: what the kernel of a file's examples would take, before it is computed."""

from typing import Annotated

import numpy as np
import typer

from ...inference import KernelKind
from ..workflow import Task, read_source
from ..workflow.unlabelled import examples_of, kernels_of, network_of
from . import options as o
from .outputs import use_data_dir
from .screen import Screen, print_json

_SAMPLE = 2000  # examples that are looked at


@o.with_groups
def estimate(
    file: o.File,
    data: o.DataOptions,
    net: o.NetworkOptions,
    examples: Annotated[
        int | None, typer.Option(help="Number of examples, if not those of the file.", min=1)
    ] = None,
    tests: Annotated[int, typer.Option(help="Number of test examples.", min=0)] = 0,
    workers: Annotated[
        list[int] | None,
        typer.Option(help="Number of single-threaded workers; give it several times.", min=1),
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Say what the kernel of a file's examples takes on this machine: time, memory, disk."""
    use_data_dir(data.data_dir)
    screen = Screen()
    settings = o.settings(data, net)
    source = read_source(file, Task.CLASSIFY, data.reading(), labels_needed=False)
    few = examples_of(source.take(np.arange(min(_SAMPLE, len(source)))), settings)
    choice = network_of(few, settings)
    screen.say(f"network '{choice.name}': {choice.summary}")
    inputs, kernels = kernels_of(choice, few, settings)
    cost = choice.net.cost(
        inputs,
        examples=examples or len(source),
        tests=tests,
        sampler=kernels.sampler,
        ntk=net.kernel is KernelKind.NTK,
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
