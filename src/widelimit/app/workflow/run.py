"""One call from a file to a tested model: what `widelimit classify` and `regress` do.

Read (pandas), split (scikit-learn), fit a Pipeline of a transformer and an estimator of
`widelimit.sklearn`, test it. `Result.python` are the lines that give the same numbers.
"""

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DataError, Keep, data_root, stratified_order
from ...data.limits import require
from ...data.words import SAMPLE, glove_file
from ...errors import OptionError
from ...inference import Cholesky, FittedGP, GPPosterior, KernelKind, Solver
from ...inference.network_kernels import chosen
from ...inference.solve import Factor
from ...inference.spectrum import Spectrum
from ...sklearn import (
    ImageResizer,
    InfiniteNetworkClassifier,
    InfiniteNetworkRegressor,
    NetworkName,
    WordVectorizer,
    prepare_columns,
)
from ...sklearn.inputs import Examples
from ...sklearn.networks import Kind
from . import scores
from .baselines import Baseline, baselines
from .blocks import consider, into_store
from .kinds import SILENT, Listener, Reading, Task, split
from .model import Model, Predicted
from .python import lines_of
from .scores import Score
from .sources import Source, read_source

MOST_TRAIN = dict.fromkeys(Kind, 3000) | {Kind.TABLE: 4000, Kind.IMAGE: 1500}
"""Training examples used by default: a few minutes on two cores."""
MOST_TEST = dict.fromkeys(Kind, 1000) | {Kind.IMAGE: 500}
IMAGE_SIZE = 8
WORDS = 400
SHOWN = 2000
"""Training examples whose kernel a page shows, and that give the learning curve."""
_CURVE_PARTS, _SHORTEST_CURVE = 6, 8


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Everything one may choose; None is what suits the data."""

    network: NetworkName | None = None
    depth: int | None = None
    kernel: KernelKind = KernelKind.NNGP
    vectors: Path | None = None
    length: int | None = WORDS
    keep: Keep = Keep.FIRST
    phrase: int | None = None
    image_size: int = IMAGE_SIZE
    test: float = 0.2
    max_train: int | None = None
    max_test: int | None = None
    noise: float | None = None
    folds: int = 5
    class_weight: str | None = None
    samples: int | None = None
    solver: Solver = field(default_factory=Cholesky)
    workers: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        folds = self.folds
        for name, fits, remedy in (
            ("max_train", self.max_train is None or self.max_train >= 2, "at least 2 examples"),
            ("max_test", self.max_test is None or self.max_test >= 2, "at least 2 examples"),
            ("test", 0 < self.test < 1, "a share between 0 and 1, such as 0.2"),
            ("noise", self.noise is None or self.noise > 0, "a positive variance, or none"),
            ("folds", folds >= 2 or folds == 0, "2 or more folds, or 0 for none"),
            ("image_size", self.image_size >= 1, "a positive number of pixels"),
            ("class_weight", self.class_weight in (None, "balanced"), "'balanced', or none"),
        ):
            if not fits:
                value = getattr(self, name)
                raise OptionError(
                    f"The option {name} has no meaning with the value {value}.",
                    got=str(value),
                    remedy=f"give {remedy}",
                    option=name,
                )


@dataclass(frozen=True, eq=False)
class Result:
    """A tested model and all that a report shows of how it came about."""

    settings: Settings
    model: Model
    train: Source
    test: Source
    examples: Examples
    """The test examples as the network sees them."""
    predicted: Predicted
    score: Score
    folds: Score | None
    """The same by cross-validation inside the training part."""
    curve: list[tuple[int, np.ndarray]]
    """Scores of parts of the examples that were not learned from, by how many were."""
    kernel: np.ndarray
    """Of the first training examples."""
    eigenvalues: np.ndarray
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]
    python: str
    seconds: dict[str, float]

    @property
    def task(self) -> Task:
        """What is predicted."""
        return self.model.task

    @property
    def process(self) -> FittedGP:
        """The Gaussian process inside the model."""
        return self.model.estimator.process_

    @property
    def right(self) -> np.ndarray:
        """Which test examples are classified correctly."""
        return self.predicted.answers == self.test.y


def run(
    path: Path | str,
    task: Task,
    *,
    how: Reading | None = None,
    settings: Settings | None = None,
    kernel_folder: Path | None = None,
    listener: Listener = SILENT,
) -> Result:
    """Read, prepare, compute the kernel, choose the noise, test.

    With a `kernel_folder` the kernel is kept there tile by tile: an interrupted run goes on, and
    another run on the same examples and network reuses it.
    """
    settings = settings or Settings()
    begin = time.monotonic()
    path, how = Path(path), replace(how or Reading(), image_size=settings.image_size)
    source = read_source(path, task, how)
    train_rows, test_rows, notes = divided(source, task, settings)
    train, test = source.take(train_rows), source.take(test_rows)
    require_positions(source, settings)
    prepare = preparation(train, settings)
    notes = [*source.notes, *notes]
    dtype = np.float64 if source.kind is Kind.TABLE else np.float32
    consider(len(train), len(test), dtype, settings.solver, listener)
    columns = ", ".join(f"{role} '{name}'" for role, name in source.columns.items())
    listener.say(f"{path.name}: {len(source):,} {source.kind} examples ({columns})")
    if task is Task.CLASSIFY:
        classes = [str(label) for label in np.unique(source.y).tolist()]
        listener.say(f"classes: {', '.join(classes[:8])}{', …' if len(classes) > 8 else ''}")
    for note in (*notes, f"{len(train):,} examples to learn from, {len(test):,} to test on"):
        listener.say(note)
    store = None if kernel_folder is None else kept_kernel(kernel_folder, settings)
    estimator = _estimator(task, settings, None if store is None else str(store))
    read = time.monotonic() - begin
    model = Model.of(task, prepare, estimator, source, f"{len(train)} examples of {path.name}")
    with listener.bar(f"kernel of {len(train):,} examples"):
        _fit(model, train, store, settings, listener)
    fitted = time.monotonic() - begin - read
    listener.say(f"network {model.estimator.summary_}")
    with listener.bar("test") as advance:
        examples = model.examples(test)
        predicted = model.predict(test)
        score = scores.of_task(task, test.y, predicted.answers)
        advance(1, 3)
        kernel, posterior, y = _dense(model, train)
        folds = _cross_validated(model, posterior, y, min(settings.folds, len(train) // 2))
        advance(2, 3)
        curve = _learning_curve(model, posterior, y, kernel)
        eigenvalues = Spectrum.of(kernel).values[::-1]
        advance(3, 3)
    with listener.bar("ridge and boosting, for comparison"):
        others = baselines(task, model.examples(train), train.y, examples, test.y)
    lost = model.lost_words(source)
    if model.vectorizer is not None and model.vectorizer.place_ == SAMPLE:
        lost.append("the sample knows few words: give GloVe vectors with --vectors FILE")
    for note in lost:
        listener.say(note)
    return Result(
        settings,
        model,
        train,
        test,
        examples,
        predicted,
        score,
        folds,
        curve,
        kernel,
        eigenvalues,
        others,
        (*notes, *lost),
        lines_of(source, model, settings.seed, len(train), len(test)),
        {"read": read, "kernel and fit": fitted, "test": time.monotonic() - begin - read - fitted},
    )


def kept_kernel(folder: Path, settings: Settings) -> Path:
    """Where in a folder the tiles of a kernel are kept."""
    return folder / f"kernel_{settings.kernel.value}"


def divided(
    source: Source, task: Task, settings: Settings
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Training rows, test rows, and what was left out."""
    kind = source.kind
    most = settings.max_train or MOST_TRAIN[kind], settings.max_test or MOST_TEST[kind]
    rows = np.arange(len(source))
    if source.test is None:
        count = max(1, round(settings.test * len(rows)))
        wanted = len(rows) - count, count
        train, test = split(rows, source.y, task, settings.seed, *map(min, wanted, most))
    else:
        parts = np.setdiff1d(rows, source.test), source.test
        wanted = len(parts[0]), len(parts[1])
        train, test = (
            part
            if len(part) <= limit
            else split(part, source.y, task, settings.seed, limit, len(part) - limit)[0]
            for part, limit in zip(parts, most, strict=True)
        )
    if task is Task.CLASSIFY and (
        missing := set(map(str, source.y)) - set(map(str, source.y[train]))
    ):
        raise DataError(
            f"Class {min(missing)!r} is not among the training examples.",
            got=f"{len(missing)} classes missing in {len(train)} training examples",
            remedy="use more examples, or remove these classes",
            option="max_train",
        )
    notes = [
        f"{use} {len(used):,} of {all_of:,} {what} examples (--max-{name} {all_of} uses them all)"
        for use, used, all_of, what, name in (
            ("learning from", train, wanted[0], "training", "train"),
            ("testing on", test, wanted[1], "held-out", "test"),
        )
        if len(used) < all_of
    ]
    return train, test, notes


def preparation(train: Source, settings: Settings) -> Any:
    """What makes arrays of the examples, not yet fitted; None where nothing is to do."""
    if train.kind in (Kind.TABLE, Kind.TEXT, Kind.MIXED) and train.frame is not None:
        text = train.columns.get("text")
        vectorizer = None if text is None else word_vectorizer(train, settings)
        return prepare_columns(train.x, text=text, vectorizer=vectorizer)
    if train.kind is Kind.IMAGE and train.mask is None:
        return ImageResizer(settings.image_size)
    require("bytes", train.x.size * 8, "the examples as floating-point numbers")
    return None


def word_vectorizer(source: Source, settings: Settings) -> WordVectorizer:
    """Vectors from the file that was named, else found near the data."""
    beside = source.path if source.path.is_dir() else source.path.parent
    vectors = settings.vectors
    if vectors is None and glove_file(data_root()) is None:  # else those of the data directory
        vectors = glove_file(beside)
    return WordVectorizer(
        None if vectors is None else str(vectors),
        length=settings.length,
        keep=settings.keep.value,
        phrase=settings.phrase,
    )


def _estimator(task: Task, settings: Settings, store: str | None) -> Any:
    options: dict[str, Any] = {
        "network": "auto" if settings.network is None else str(settings.network),
        "kind": settings.kernel.value,
        "depth": settings.depth,
        "noise": settings.noise,
        "samples": settings.samples,
        "solver": settings.solver,
        "store": store,
        "random_state": settings.seed,
    }
    if task is Task.REGRESS:
        return InfiniteNetworkRegressor(**options)
    return InfiniteNetworkClassifier(class_weight=settings.class_weight, **options)


def _fit(
    model: Model, train: Source, store: Path | None, settings: Settings, listener: Listener
) -> None:
    """Fit the pipeline; the kernel of another run in its place is replaced."""
    if store is None:
        model.fit(train)
        return

    def work(client: Any) -> None:
        model.estimator._client = client
        try:
            model.fit(train)
        finally:
            model.estimator._client = None

    into_store(store, settings.workers, listener, work)


def _dense(model: Model, train: Source) -> tuple[np.ndarray, GPPosterior, np.ndarray]:
    """The kernel of the first training examples, an exact posterior and its labels.

    The kernel is that of the factor if there is one, `K = LLᵀ − noise`; other solvers have an exact
    posterior of the first examples.
    """
    process, y = model.estimator.process_, model.kept(train)
    posterior, gp = process.posterior, process.gp
    noise = np.broadcast_to(np.asarray(gp.noise), (len(y),))[:SHOWN]
    if isinstance(posterior, GPPosterior) and isinstance(posterior.factor, Factor):
        lower = posterior.factor.lower[:SHOWN, :SHOWN]
        kernel = lower @ lower.T
        kernel[np.diag_indices_from(kernel)] -= noise + posterior.jitter
        return kernel, posterior, y
    if train.weights is not None:
        train = train.take(np.flatnonzero(train.weights > 0))
    # `process.data` may hold landmarks, in another order
    first = model.examples(train).take(slice(0, SHOWN))
    some, ntk = process.data.read(first.x, first.mask), gp.kind is KernelKind.NTK
    kernel = np.asarray(chosen(process.data.corner(some, ntk=ntk), gp.kind), np.float64)
    targets = model.targets(y)[:SHOWN]
    return kernel, GPPosterior.condition(kernel, targets, noise=noise), y[:SHOWN]


def _cross_validated(
    model: Model, posterior: GPPosterior, y: np.ndarray, folds: int
) -> Score | None:
    """Every training example predicted by a posterior that has not seen its fold."""
    if folds < 2:
        return None
    groups = np.empty(len(y), int)
    groups[_mixed(model, y, key=1)] = np.arange(len(y)) % folds
    left_out = posterior.with_groups(groups).leave_one_out.mean
    return scores.of_task(model.task, y, model.answers(left_out))


def _mixed(model: Model, y: np.ndarray, key: int = 0) -> np.ndarray:
    """An order that mixes the classes."""
    if model.task is Task.CLASSIFY:
        y = np.unique(y, return_inverse=True)[1]
    return stratified_order(y, key=key)


def _learning_curve(
    model: Model, posterior: GPPosterior, y: np.ndarray, kernel: np.ndarray
) -> list[tuple[int, np.ndarray]]:
    """Scores on parts of the training examples that were not learned from, by how many were.

    Blocks of one kernel with one noise: the first N/2, N/4, … in an order that mixes the classes.
    """
    if len(kernel) < 4 * _SHORTEST_CURVE:
        return []
    order = _mixed(model, y)
    order = order[order < len(kernel)]
    noise = np.broadcast_to(np.asarray(model.estimator.process_.gp.noise), (len(y),))
    curve = []
    for size in [len(order) // 2**k for k in reversed(range(1, _CURVE_PARTS))]:
        if size < _SHORTEST_CURVE:
            continue
        seen, rest = order[:size], order[size:]
        targets = posterior.targets[seen]
        part = GPPosterior.condition(kernel[np.ix_(seen, seen)], targets, noise=noise[seen])
        answers = model.answers(part.mean(kernel[np.ix_(rest, seen)]))
        parts = np.array_split(np.arange(len(rest)), min(5, len(rest) // 4))
        found = [scores.value_of(model.task, y[rest][p], answers[p]) for p in parts]
        curve.append((size, np.array(found)))
    return curve


def require_positions(source: Source, settings: Settings) -> None:
    """Networks that look at pairs of positions take only so many of them."""
    plain = (NetworkName.LINEAR, NetworkName.FCN, NetworkName.MEAN)
    if source.kind not in (Kind.SEQUENCE, Kind.IMAGE) or settings.network in plain:
        return
    shape = np.shape(source.x)[1:-1]
    if source.kind is Kind.IMAGE and source.mask is None:
        shape = tuple(min(side, settings.image_size) for side in shape)
    require("positions", math.prod(shape), f"examples of shape {shape}")
