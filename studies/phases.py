"""Long runs in phases: kernels in stores, solves that go on after a kill, what each phase took.

Every phase leaves its result in the output folder and is skipped when it is there. A kill at any
moment costs at most a tile, a block of a factor or a few steps of an iteration.
"""

import io
import json
import resource
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from widelimit import Engine
from widelimit.app.studies.accuracy import Accuracy, Validated
from widelimit.data.files import writing
from widelimit.inference import (
    GP,
    BlockedCholesky,
    Cholesky,
    ConjugateGradients,
    KernelKind,
    NetworkKernels,
    Solver,
    centred_one_hot,
    noise_trials,
)
from widelimit.inference.gp import GPPosterior
from widelimit.inference.network_kernels import chosen
from widelimit.inference.noise import LeaveOneOutNoise, best_trial
from widelimit.layers.base import Layer
from widelimit.scale import KernelStore, local_client

TILE = 1024
_ROWS, _SIDE = 512, 8

Sizes = Annotated[str, typer.Option(help="Training images, commas between.")]
SolverName = Annotated[str, typer.Option(help="cholesky, blocked or gradients.")]
Workers = Annotated[int, typer.Option(help="0: this process alone.")]


@dataclass
class Images:
    """Pictures as networks take them, and their classes."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def read_images(folder: Path, train: int, tests: int, side: int) -> Images:
    """The first images of `cifar10_full.npz`, made smaller, standardised by all training images.

    A store of fewer images is thus part of one of more.
    """
    from PIL import Image

    with np.load(folder / "cifar10_full.npz") as file:

        def part(split: str) -> np.ndarray:
            data, found = file[f"jpeg_{split}"], []
            for begin, end in pairwise(file[f"offsets_{split}"]):
                picture = Image.open(io.BytesIO(data[begin:end].tobytes())).convert("RGB")
                found.append(np.asarray(picture.resize((side, side), Image.Resampling.BOX)))
            return np.stack(found).astype(np.float32) / 255

        x, other = part("train"), part("test")[:tests]
        labels = (file["y_train"][:train].astype(int), file["y_test"][:tests].astype(int))
    mean, spread = x.mean(axis=(0, 1, 2)), x.std(axis=(0, 1, 2))
    return Images((x[:train] - mean) / spread, labels[0], (other - mean) / spread, labels[1])


def factor_folder(place: Path) -> Path:
    """Where the blocks of a factor are until its weights are known."""
    return place.with_suffix(".factor")


def solver_of(name: str, place: Path) -> Solver:
    """A solver that goes on after a kill; what it keeps is beside the kernels."""
    keep = place.with_suffix(".iterate")
    return {
        "cholesky": Cholesky(),
        "blocked": BlockedCholesky(
            folder=factor_folder(place), block=2 * TILE, progress=_told("blocks")
        ),
        "gradients": ConjugateGradients(keep=keep, tolerance=1e-8, progress=_told("iterations")),
    }[name]


def _told(what: str) -> Any:
    last = [time.monotonic()]

    def progress(done: int, of: float) -> None:
        if time.monotonic() - last[0] > 30:
            last[0] = time.monotonic()
            print(f"  {done} {what} ({of:g})", flush=True)

    return progress


@dataclass
class Record:
    """Seconds, memory and results of a run, in a file that is written after every phase."""

    path: Path
    known: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path.exists():
            self.known = json.loads(self.path.read_text())

    def write(self) -> None:
        with writing(self.path) as file:
            file.write(json.dumps(self.known, indent=1).encode())
        with writing(self.path.with_suffix(".md")) as file:
            file.write(self.table().encode())

    def table(self) -> str:
        """What was found and what it took, in Markdown: a line for every network, size, kernel.

        Kernels of a size extend those of the sizes before it; their seconds are those of all.
        What `net.cost` said before stands in brackets.
        """
        lines = [
            "| network | images | kernel | accuracy "
            "| kernels, s | solve, s | predict, s | GiB | disk, GB |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        taken: dict[str, float] = {}
        for name, found in self.known.items():
            network, size, *kind = name.split()
            if kind == ["kernels"]:
                taken[network] = taken.get(network, 0.0) + found["seconds"]
            if "accuracy" not in found:
                continue
            both, said = (self.known[f"{network} {size} {part}"] for part in ("kernels", "said"))
            solve = self.known[f"{network} {size} {kind[0]} solve"]
            peak = max(part["peak_gib"] for part in (both, solve, found))
            lines.append(
                f"| {network} | {int(size):,} | {kind[0].upper()} | {found['accuracy']:.4f} "
                f"({found['low']:.4f}–{found['high']:.4f}) "
                f"| {taken[network]:,.0f} ({said['kernels']:,.0f}) "
                f"| {solve['seconds']:,.0f} ({said['solve']:,.0f}) | {found['seconds']:,.0f} "
                f"| {peak:.1f} | {both['disk_gb']:.1f} ({said['disk']:.1f}) |"
            )
        return "\n".join(lines) + "\n"

    @contextmanager
    def phase(self, name: str) -> Iterator[dict[str, Any]]:
        """What a phase finds goes into its entry; seconds of runs that were killed are lost."""
        print(name, flush=True)
        both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)  # children count when they end

        def used() -> float:
            return sum(sum(resource.getrusage(who)[:2]) for who in both)

        begin, processor = time.monotonic(), used()
        entry = self.known.setdefault(name, {})
        yield entry
        peak = [resource.getrusage(who).ru_maxrss / 2**20 for who in both]
        entry["seconds"] = entry.get("seconds", 0.0) + time.monotonic() - begin
        entry["processor_seconds"] = entry.get("processor_seconds", 0.0) + used() - processor
        entry["peak_gib"], entry["peak_gib_of_a_worker"] = peak
        self.write()


@dataclass
class Run:
    """One network on all images: its stores, its solves and its predictions."""

    name: str
    net: Layer
    images: Images
    out: Path
    record: Record
    solver: str
    workers: int

    def kernels(self, size: int) -> None:
        """Both kernels of the first images, and of the tests with them, into stores that grow."""
        grown = [KernelStore.exists(self.place(part)) for part in ("train", "test")]
        if all(grown) and KernelStore(self.place("train")).shape[0] > size:
            return  # and so this size is done
        x, tests = self.images.x_train[:size], len(self.images.x_test)
        said = self.record.known.setdefault(f"{self.name} {size} said", {})
        if not said:
            cost = self.net.cost(x[:512], examples=size, tests=tests)
            said |= {"kernels": cost.seconds, "solve": cost.factorising, "disk": cost.disk / 1e9}
            said["cost"] = str(cost)
        with self.record.phase(f"{self.name} {size} kernels") as entry:
            with local_client(self.workers) if self.workers else nullcontext() as client:
                options = {"tile": TILE, "client": client}
                self.net.kernel_into(self.place("train"), x, **options)
                self.net.kernel_into(self.place("test"), self.images.x_test, x, **options)
            folders = [self.place("train"), self.place("test")]
            files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
            entry["disk_gb"] = sum(path.stat().st_size for path in files) / 1e9

    def place(self, part: str) -> Path:
        """Where kernels are."""
        return self.out / f"{self.name}_{part}"

    def tested(self, size: int, kind: KernelKind, output: int | None = None) -> Accuracy:
        """Which test images are classified correctly after learning from the first `size`.

        `output`: of networks beside one another, the one whose kernel it is.
        """
        part = kind.value if output is None else f"{kind.value}-{output}"
        done, name = self.place(f"{part}_{size}_correct.npy"), f"{self.name} {size} {part}"
        entry = self.record.known.setdefault(f"{name} noise", {})
        if done.exists():
            return Accuracy(Validated(entry["noise"], entry["score"]), np.load(done))

        sides = ("train", "test")
        stored = {one: chosen(KernelStore(self.place(one)).kernels, kind) for one in sides}

        def values(side: str, begin: int, end: int, columns: int) -> np.ndarray:
            block = stored[side][begin:end, :columns]
            return np.float64(block if output is None else block[..., output, output])

        labels = self.images.y_train[:size]
        targets, classes = centred_one_hot(labels)
        if not entry:  # chosen on the first images, the same for every size
            with self.record.phase(f"{name} noise") as entry:
                some = min(size, LeaveOneOutNoise().examples)
                block = values("train", 0, some, some)
                trial = best_trial(noise_trials(block, targets[:some], labels=labels[:some]))
                entry |= {"noise": trial.noise, "score": trial.score}
        with self.record.phase(f"{name} solve"):
            weights = self.place(f"{part}_{size}.npy")
            if not weights.exists():
                if output is None:
                    solver = solver_of(self.solver, self.place(f"{part}_{size}"))
                    engine = Engine(dtype=np.float32, store=self.place("train"))
                    gp = GP(self.net, kind=kind, noise=entry["noise"], engine=engine, solver=solver)
                    data = NetworkKernels.make(self.net, self.images.x_train[:size], engine=engine)
                    posterior = gp.condition(data, targets).posterior
                else:
                    parts = [values("train", i, i + TILE, size) for i in range(0, size, TILE)]
                    kernel = np.concatenate(parts)[:size]
                    posterior = GPPosterior.condition(kernel, targets, noise=entry["noise"])
                with writing(weights) as file:
                    np.save(file, posterior.weights)
            # A factor of 50,000 images is 10 GB, and predictions need the weights alone.
            shutil.rmtree(factor_folder(self.place(f"{part}_{size}")), ignore_errors=True)
        with self.record.phase(f"{name} predict") as found:
            solved, tests = np.load(weights), len(self.images.y_test)
            parts = [values("test", i, i + _ROWS, size) @ solved for i in range(0, tests, _ROWS)]
            mean = np.concatenate(parts)
            correct = classes[mean.argmax(axis=1)] == self.images.y_test
            result = Accuracy(Validated(entry["noise"], entry["score"]), correct)
            low, high = result.interval
            found |= {"accuracy": result.accuracy, "low": low, "high": high}
            with writing(done) as file:
                np.save(file, correct)
        print(f"  accuracy {result.accuracy:.4f} ({low:.4f} to {high:.4f})", flush=True)
        return result


@dataclass
class Study:
    """Several networks on the same images, at several sizes, in one output folder."""

    folder: Path
    out: Path
    sizes: str
    tests: int
    solver: str
    workers: int

    def __post_init__(self) -> None:
        self.out.mkdir(parents=True, exist_ok=True)
        self.counts = sorted(int(size) for size in self.sizes.split(","))
        self.record = Record(self.out / "record.json")
        self.images = read_images(self.folder, self.counts[-1], self.tests, _SIDE)

    def learned(
        self, name: str, net: Layer, size: int, outputs: Sequence[int | None] = (None,)
    ) -> list[dict[KernelKind, Accuracy]]:
        """Kernels by workers, then all solves and predictions by this process."""
        facts = (self.images, self.out, self.record, self.solver, self.workers)
        run = Run(name, net, *facts)
        run.kernels(size)
        return [{kind: run.tested(size, kind, one) for kind in KernelKind} for one in outputs]
