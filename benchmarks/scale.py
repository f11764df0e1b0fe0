"""What a person with a cluster relies on: workers, estimates, factors on disk, iterations.

python benchmarks/scale.py [workers] [growth] [estimate] [factor] [solvers] [--quick]

Prints one line of JSON for every measurement. Images are those of CIFAR-10 where WIDELIMIT_DATA has
them, else the sample of the package and changed copies of it. Times on the clock mean something on
a quiet machine only; processor time stands beside them.
"""

import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from worker import peak_memory

import widelimit as wl
from widelimit.data import MissingDataError, downsample, load_cifar10, load_sample_images
from widelimit.inference import BlockedCholesky, Cholesky, ConjugateGradients, Jitter
from widelimit.scale import local_client

sys.path.insert(0, str(Path(__file__).parent.parent))
from studies.phases import read_images

NOISE = 0.05
_WARM = 600  # examples that have tiles of every shape


def images(count: int) -> np.ndarray:
    """Images of 8×8 pixels, standardised."""
    full = Path(os.environ.get("WIDELIMIT_DATA", "."))
    if count > 8_000 and (full / "cifar10_full.npz").exists():
        return read_images(full, count, 1, 8).x_train
    try:
        x = np.asarray(load_cifar10().x_train, np.float32)
    except MissingDataError:
        x = np.asarray(load_sample_images().train.x, np.float32)
    x = np.asarray(downsample(x, (8, 8)), np.float32)
    rng = np.random.default_rng(0)
    while len(x) < count:
        x = np.concatenate([x, x * (1 + 0.1 * rng.standard_normal(x.shape).astype(np.float32))])
    return (x[:count] - x.mean()) / x.std()


def networks() -> dict[str, wl.Layer]:
    """A convolution with attention over all pairs of positions, and a network of rows."""
    attention = wl.Attention(64, scaling=wl.Scaling.LINEAR)
    first = (wl.Conv(64, 3), wl.Relu())
    rows = (wl.Flatten(), wl.Dense(64), wl.Relu(), wl.Dense(64), wl.Relu(), wl.Dense(1))
    return {
        "attention": wl.Serial(*first, attention, wl.MeanPool(), wl.Dense(1)),
        "dense": wl.Serial(*rows),
    }


def timed(work: Callable[[], Any]) -> tuple[Any, float, float]:
    """What it gives, seconds on the clock, and seconds of this process."""
    begin, used = time.perf_counter(), time.process_time()
    found = work()
    return found, time.perf_counter() - begin, time.process_time() - used


def told(name: str, **facts: Any) -> None:
    """One line."""
    print(json.dumps({"name": name, **facts}, default=float), flush=True)


def workers(folder: Path, quick: bool) -> None:
    """Two single-threaded workers against one, both compiled before the clock starts."""
    net, x = networks()["attention"], images(256 if quick else 1536)
    seconds = {}
    for count in (1, 2):
        with local_client(count) as client:
            net.kernel_into(folder / f"warm{count}", x, client=client, progress=False)
            work = folder / f"timed{count}", x
            _, seconds[count], _ = timed(
                lambda work=work, client=client: net.kernel_into(
                    *work, client=client, progress=False
                )
            )
    told("workers", examples=len(x), seconds=seconds, speedup=seconds[1] / seconds[2])


def growth(folder: Path, quick: bool) -> None:
    """Time and memory of a stored kernel by the number of examples, and what storing it costs.

    One process for each size; memory is above that of the process after a small kernel. Images are
    read here: a reader's peak would hide what the kernel takes.
    """
    sizes = (100, 200, 400) if quick else (750, 1500, 3000, 6000)
    x = images(sizes[-1])[:, ::2, ::2]
    context = multiprocessing.get_context("spawn")
    used = {}
    for size in sizes:
        places = [folder / f"growth{size}", *([None] if size == sizes[-1] else [])]
        for place in places:
            with context.Pool(1) as pool:
                seconds, megabytes = pool.apply(_grown, (x[:size], place))
            used[size, place is not None] = seconds
            facts = {"examples": size, "stored": place is not None}
            told("growth", **facts, processor=seconds, megabytes=megabytes)
    times = [used[size, True] for size in sizes]
    power = float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
    overhead = used[sizes[-1], True] / used[sizes[-1], False] - 1
    told("growth", power=power, overhead=overhead, kernel_megabytes=8 * sizes[-1] ** 2 / 2e6)


def _grown(x: np.ndarray, place: Path | None) -> tuple[float, float]:
    """Processor seconds and megabytes of a kernel on 16 positions, compiled before."""
    net = networks()["attention"]

    def kernel(x: np.ndarray, where: Path | None) -> None:
        if where is None:  # every tile is dropped: nothing is kept
            net.kernel_into(lambda *tile: None, x, memory=2**28, progress=False)
        else:
            net.kernel_into(where, x, memory=2**28, progress=False)

    kernel(x[:_WARM], None if place is None else place.with_suffix(".warm"))
    before = peak_memory()
    _, _, seconds = timed(lambda: kernel(x, place))
    return seconds, (peak_memory() - before) / 2**20


def estimate(folder: Path, quick: bool) -> None:
    """What `net.cost` says against what the kernel takes, compiling included in both."""
    import jax

    for name, net in networks().items():
        base = (64, 128, 256) if name == "attention" else (500, 1000, 2000)
        for size in base if quick else [4 * n for n in base]:
            x = images(size)
            jax.clear_caches()
            cost = net.cost(x[:256], examples=size)
            jax.clear_caches()
            place = folder / f"{name}{size}"
            _, seconds, used = timed(
                lambda net=net, x=x, place=place: net.kernel_into(place, x, progress=False)
            )
            ratio = cost.seconds / seconds
            facts = {"network": name, "examples": size, "estimated": cost.seconds}
            told("estimate", **facts, seconds=seconds, processor=used, ratio=ratio)


def _of_all(client: Any) -> int:
    """Bytes that the workers have had at most, together."""
    return sum(client.run(peak_memory).values())


def factor(folder: Path, quick: bool) -> None:
    """Out-of-core Cholesky by two workers against that of `dask.array`, with the memory of both."""
    import dask.array as da
    import zarr

    size, block = (1024, 256) if quick else (6144, 1024)
    rng = np.random.default_rng(0)
    half = rng.standard_normal((size, 64))
    kernel = half @ half.T / 64
    place = str(folder / "kernel.zarr")
    stored = zarr.create_array(place, shape=kernel.shape, chunks=(block, block), dtype="f8")
    stored[:] = kernel + NOISE * np.eye(size)

    found = {}
    with local_client(2) as client:
        before = _of_all(client)
        work = da.linalg.cholesky(da.from_zarr(place), lower=True)
        _, seconds, _ = timed(lambda: da.to_zarr(work, str(folder / "dask.zarr")))
        found["dask"] = {"seconds": seconds, "megabytes": (_of_all(client) - before) / 2**20}
    with local_client(2) as client:
        before = _of_all(client)
        solver = BlockedCholesky(folder=folder / "factor", block=block)
        opened = _Opened(place, size), np.full(size, 0.0)
        made, seconds, _ = timed(lambda: solver.factor(*opened, Jitter(), client))
        found["ours"] = {"seconds": seconds, "megabytes": (_of_all(client) - before) / 2**20}
    right = rng.standard_normal((size, 1))
    exact = kernel @ made.solve(right) + NOISE * made.solve(right)
    error = float(np.abs(exact - right).max())
    told("factor", size=size, block=block, error=error, factor_megabytes=8 * size**2 / 2e6, **found)


class _Opened:
    """A dense Zarr array, indexed as stored kernels are."""

    def __init__(self, place: str, size: int):
        self.place, self.shape = place, (size, size)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def store(self) -> Any:
        """What the order of examples is asked for: their own."""
        return type("Order", (), {"members": ([np.arange(len(self))],)})

    def diagonal(self) -> np.ndarray:
        """In blocks."""
        step = 1024
        parts = [self[i : i + step, i : i + step] for i in range(0, len(self), step)]
        return np.concatenate([np.diagonal(part) for part in parts])

    def __getitem__(self, index: Any) -> np.ndarray:
        import zarr

        pair = index if isinstance(index, tuple) else (index, slice(None))
        rows, columns = (np.arange(len(self))[part] for part in pair)
        return np.asarray(zarr.open_array(self.place, mode="r").oindex[rows, columns])


def solvers(folder: Path, quick: bool) -> None:
    """All exact solvers over one stored kernel in double precision: do they agree, and how long?

    Ten columns of targets, and the variances of a hundred tests. What `net.cost` says of a solve by
    all cores stands beside them; `OPENBLAS_NUM_THREADS=1` and one core make times comparable.
    """
    tests = 100
    for size in (300,) if quick else (2000, 4000, 8000, 20000):
        x = images(size + tests).astype(np.float64)
        y = np.sign(x[:size].reshape(size, -1)[:, :10])
        net = networks()["dense"]
        engine = wl.Engine(dtype=np.float64, store=folder / f"solvers{size}")
        cost = net.cost(x[:256], examples=size)
        net.kernel_into(engine.store, x[:size], ntk=False, progress=False)
        exact = None
        told("factorising", examples=size, said=cost.factorising)
        for solver in (Cholesky(), BlockedCholesky(), ConjugateGradients()):
            gp = wl.GP(net, noise=NOISE, engine=engine, solver=solver)
            model, fitting, used = timed(lambda gp=gp, x=x, y=y, size=size: gp.fit(x[:size], y))
            found, predicting, later = timed(lambda m=model, x=x, size=size: m.predict(x[size:]))
            exact = found if exact is None else exact
            pairs = ((found.mean, exact.mean), (found.std, exact.std))
            error = max(float(np.abs(one - two).max() / np.abs(two).max()) for one, two in pairs)
            seconds = {"fit": fitting, "fit_processor": used}
            seconds |= {"predict": predicting, "predict_processor": later}
            told(type(solver).__name__, examples=size, **seconds, error=error)


PARTS = {
    "workers": workers,
    "growth": growth,
    "estimate": estimate,
    "factor": factor,
    "solvers": solvers,
}

if __name__ == "__main__":
    chosen = [name for name in sys.argv[1:] if name in PARTS] or list(PARTS)
    print(f"load before: {os.getloadavg()[0]:.1f}", file=sys.stderr)
    for part in chosen:
        with tempfile.TemporaryDirectory() as place:
            PARTS[part](Path(place), "--quick" in sys.argv)
