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

from ...data import DataError, Keep, data_root, find_vectors, stratified_order
from ...data.limits import require
from ...data.words import glove_file
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
from .blocks import at_work, consider, replacing
from .kinds import SILENT, Listener, Task, split
from .model import Model, Predicted
from .python import Lines
from .scores import Score
from .sources import Reading, Source, read_source

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
        for name in ("max_train", "max_test"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise _meaningless(name, value, "at least 2 examples")
        if not 0 < self.test < 1:
            raise _meaningless("test", self.test, "a share between 0 and 1, such as 0.2")
        if self.noise is not None and not self.noise > 0:
            raise _meaningless("noise", self.noise, "a positive variance, or none")
        if self.folds < 0 or self.folds == 1:
            raise _meaningless("folds", self.folds, "2 or more folds, or 0 for none")
        if self.image_size < 1:
            raise _meaningless("image_size", self.image_size, "a positive number of pixels")
        if self.class_weight not in (None, "balanced"):
            raise _meaningless("class_weight", self.class_weight, "'balanced', or none")


def _meaningless(name: str, value: object, remedy: str) -> OptionError:
    return OptionError(
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
    _require_every_class(source, train, task)
    require_positions(source, settings)
    prepare = preparation(train, settings)
    notes = [*source.notes, *notes, *vector_notes(prepare)]
    consider(len(train), len(test), _dtype(source), settings.solver, listener)
    _describe(source, task, notes, len(train), len(test), listener)
    store = None if kernel_folder is None else kept_kernel(kernel_folder, settings)
    estimator = _estimator(task, settings, None if store is None else str(store))
    read = time.monotonic() - begin
    model = Model.of(task, prepare, estimator, source, f"{len(train)} examples of {path.name}")
    with listener.bar(f"kernel of {len(train):,} examples"):
        _fit(model, train, store, settings, listener)
    fitted = time.monotonic() - begin - read
    process = model.estimator.process_
    listener.say(f"network {model.estimator.summary_}")
    with listener.bar("test") as advance:
        examples = model.examples(test)
        predicted = model.predict(test)
        score = scored(task, test.y, predicted.answers)
        advance(1, 3)
        counted = train if train.weights is None else train.take(np.flatnonzero(train.weights > 0))
        kernel = training_kernel(process, model.examples(counted))
        posterior, y = _dense(model, train, kernel)
        folds = _cross_validated(model, posterior, y, min(settings.folds, len(train) // 2))
        advance(2, 3)
        curve = _learning_curve(model, posterior, y, kernel)
        eigenvalues = Spectrum.of(kernel).values[::-1]
        advance(3, 3)
    with listener.bar("ridge and boosting, for comparison"):
        others = baselines(task, model.examples(train), train.y, examples, test.y)
    lost = model.lost_words(source)
    for note in lost:
        listener.say(note)
    notes += lost
    lines = Lines(source, how, settings.image_size, settings.seed, model, len(train), len(test))
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
        tuple(notes),
        str(lines),
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


def vector_notes(prepare: Any) -> list[str]:
    """Where word vectors come from."""
    steps = [step for _, step, _ in getattr(prepare, "transformers", ())]
    vectorizer = next((one for one in steps if isinstance(one, WordVectorizer)), None)
    if vectorizer is None:
        return []
    place: Any = vectorizer.vectors
    found = find_vectors(place)
    notes = [f"word vectors: {len(found.vectors):,} words from {found.place}"]
    if found.sample:
        notes.append("the sample knows few words: give GloVe vectors with --vectors FILE")
    return notes


def _dtype(source: Source) -> type:
    return np.float64 if source.kind is Kind.TABLE else np.float32


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
    with at_work(store, settings.workers, listener) as client:
        model.estimator._client = client
        try:
            replacing(store, listener, lambda: model.fit(train))
        finally:
            model.estimator._client = None


def scored(task: Task, truth: np.ndarray, answers: np.ndarray) -> Score:
    """Accuracy of classes or R² of numbers."""
    if task is Task.CLASSIFY:
        return scores.accuracy(answers == truth)
    return scores.r_squared(truth, answers)


def training_kernel(process: FittedGP, train: Examples) -> np.ndarray:
    """Of the first training examples: from the factor if there is one, `K = LLᵀ − noise`."""
    posterior = process.posterior
    if isinstance(posterior, GPPosterior) and isinstance(posterior.factor, Factor):
        lower = posterior.factor.lower[:SHOWN, :SHOWN]
        kernel = lower @ lower.T
        noise = np.broadcast_to(np.asarray(process.gp.noise), (len(posterior),))[: len(kernel)]
        kernel[np.diag_indices_from(kernel)] -= noise + posterior.jitter
        return kernel
    first = train.take(slice(0, SHOWN))  # `process.data` may hold landmarks, in another order
    some, ntk = process.data.read(first.x, first.mask), process.gp.kind is KernelKind.NTK
    return np.asarray(chosen(process.data.corner(some, ntk=ntk), process.gp.kind), np.float64)


def _dense(model: Model, train: Source, kernel: np.ndarray) -> tuple[GPPosterior, np.ndarray]:
    """The exact posterior and its labels; of another solver's, that of the first examples."""
    process, y = model.estimator.process_, model.kept(train)
    posterior = process.posterior
    if isinstance(posterior, GPPosterior) and isinstance(posterior.factor, Factor):
        return posterior, y
    noise = np.broadcast_to(np.asarray(process.gp.noise), (len(y),))[: len(kernel)]
    targets = model.targets(y)[: len(kernel)]
    return GPPosterior.condition(kernel, targets, noise=noise), y[: len(kernel)]


def _cross_validated(
    model: Model, posterior: GPPosterior, y: np.ndarray, folds: int
) -> Score | None:
    """Every training example predicted by a posterior that has not seen its fold."""
    if folds < 2:
        return None
    groups = np.empty(len(y), int)
    groups[stratified_order(_order_by(model, y), key=1)] = np.arange(len(y)) % folds
    left_out = posterior.with_groups(groups).leave_one_out.mean
    return scored(model.task, y, model.answers(left_out))


def _order_by(model: Model, y: np.ndarray) -> np.ndarray:
    """Class numbers, or the targets themselves."""
    return y if model.task is Task.REGRESS else np.unique(y, return_inverse=True)[1]


def _learning_curve(
    model: Model, posterior: GPPosterior, y: np.ndarray, kernel: np.ndarray
) -> list[tuple[int, np.ndarray]]:
    """Scores on parts of the training examples that were not learned from, by how many were.

    Blocks of one kernel with one noise: the first N/2, N/4, … in an order that mixes the classes.
    """
    from sklearn.metrics import accuracy_score, r2_score

    if len(kernel) < 4 * _SHORTEST_CURVE:
        return []
    order = stratified_order(_order_by(model, y))
    order = order[order < len(kernel)]
    noise = np.broadcast_to(np.asarray(model.estimator.process_.gp.noise), (len(y),))

    def metric(truth: np.ndarray, answers: np.ndarray) -> float:
        if model.task is Task.CLASSIFY:
            return float(accuracy_score(truth, answers))
        unit = float(np.abs(y).max()) or 1.0  # squares of extreme numbers do not fit
        return float(r2_score(truth / unit, answers / unit))

    curve = []
    for size in [len(order) // 2**k for k in reversed(range(1, _CURVE_PARTS))]:
        if size < _SHORTEST_CURVE:
            continue
        seen, rest = order[:size], order[size:]
        targets = posterior.targets[seen]
        part = GPPosterior.condition(kernel[np.ix_(seen, seen)], targets, noise=noise[seen])
        answers = model.answers(part.mean(kernel[np.ix_(rest, seen)]))
        parts = np.array_split(np.arange(len(rest)), min(5, len(rest) // 4))
        curve.append((size, np.array([metric(y[rest][p], answers[p]) for p in parts])))
    return curve


def _describe(
    source: Source, task: Task, notes: list[str], train: int, test: int, listener: Listener
) -> None:
    """Tell the user what is about to happen."""
    columns = ", ".join(f"{role} '{name}'" for role, name in source.columns.items())
    listener.say(f"{source.path.name}: {len(source):,} {source.kind} examples ({columns})")
    if task is Task.CLASSIFY:
        classes = [str(label) for label in np.unique(source.y).tolist()]
        listener.say(f"classes: {', '.join(classes[:8])}{', …' if len(classes) > 8 else ''}")
    for note in notes:
        listener.say(note)
    listener.say(f"{train:,} examples to learn from, {test:,} to test on")


def _require_every_class(source: Source, train: Source, task: Task) -> None:
    if task is Task.REGRESS:
        return
    missing = sorted(set(map(str, source.y)) - set(map(str, train.y)))
    if missing:
        raise DataError(
            f"Class {missing[0]!r} is not among the training examples.",
            got=f"{len(missing)} classes missing in {len(train)} training examples",
            remedy="use more examples, or remove these classes",
            option="max_train",
        )


def require_positions(source: Source, settings: Settings) -> None:
    """Networks that look at pairs of positions take only so many of them."""
    plain = (NetworkName.LINEAR, NetworkName.FCN, NetworkName.MEAN)
    if source.kind not in (Kind.SEQUENCE, Kind.IMAGE) or settings.network in plain:
        return
    shape = np.shape(source.x)[1:-1]
    if source.kind is Kind.IMAGE and source.mask is None:
        shape = tuple(min(side, settings.image_size) for side in shape)
    require("positions", math.prod(shape), f"examples of shape {shape}")
