"""One call from a file to a tested model: what `widelimit classify` and `regress` do."""

import math
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...data import DataError, Keep, find_vectors, stratified_order
from ...data.limits import require
from ...engine.door import read_inputs
from ...engine.inputs import Inputs
from ...errors import WidelimitError
from ...inference import (
    GP,
    Cholesky,
    Engine,
    FittedClassifier,
    FittedGP,
    KernelKind,
    NetworkKernels,
    Solver,
    count_repeats,
)
from ...inference.amplitude import amplify
from ...sklearn.networks import NamedNetwork, NetworkName
from .affordable import consider
from .baselines import Baseline, baselines
from .blocks import compute
from .examples import Examples, LabelledFile
from .kinds import SILENT, Kind, Listener, Task
from .mixing import COMPARED, alternatives, best_of
from .model import Model
from .posterior import BEGINNING, Outcome, Targets, evaluate
from .preparation import (
    ArrayPreparation,
    Batch,
    MixedPreparation,
    Preparation,
    TablePreparation,
    TextPreparation,
)
from .solving import solved
from .sources import Reading, read_source

MOST_TRAIN = dict.fromkeys(Kind, 3000) | {Kind.TABLE: 4000, Kind.IMAGE: 1500}
"""Training examples used by default: a few minutes on two cores."""
MOST_TEST = dict.fromkeys(Kind, 1000) | {Kind.IMAGE: 500}
IMAGE_SIZE = 8
WORDS = 400


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
    samples: int | None = None
    solver: Solver = field(default_factory=Cholesky)
    workers: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_train", "max_test"):
            value = getattr(self, name)
            if value is not None and value < 2:
                raise _option(name, value, "at least 2 examples")
        if not 0 < self.test < 1:
            raise _option("test", self.test, "a share between 0 and 1, such as 0.2")
        if self.noise is not None and not self.noise > 0:
            raise _option("noise", self.noise, "a positive variance, or none to have it chosen")
        if self.folds < 0 or self.folds == 1:
            raise _option("folds", self.folds, "2 or more folds, or 0 for none")
        if self.image_size < 1:
            raise _option("image_size", self.image_size, "a positive number of pixels")


def _option(name: str, value: object, remedy: str) -> WidelimitError:
    option = name.replace("_", "-")
    return WidelimitError(
        f"--{option} has no meaning with this value.", got=str(value), remedy=f"give {remedy}"
    )


@dataclass(frozen=True, eq=False)
class Result:
    """A tested model and all that a report shows of how it came about."""

    source: LabelledFile
    choice: NamedNetwork
    settings: Settings
    model: Model
    examples: Examples
    """The examples used, those of `train` first."""
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    batch: Batch
    data: NetworkKernels
    kernel: np.ndarray
    """Of the training examples; with another solver than `Cholesky`, of the first of them."""
    outcome: Outcome
    baselines: tuple[Baseline, ...]
    """What simpler methods reach on the same test part."""
    notes: tuple[str, ...]
    seconds: dict[str, float]

    @property
    def tested(self) -> Examples:
        """The test examples."""
        return self.examples.take(self.test)

    @property
    def truth(self) -> np.ndarray:
        """Their labels or targets."""
        return self.y[self.test]


def kept_kernel(folder: Path, settings: Settings) -> Path:
    """Where in a folder the tiles of a kernel are kept."""
    return folder / f"kernel_{settings.kernel.value}"


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
    path = Path(path)
    source = read_source(path, task, sized(path, how, settings))
    rows, train_size, notes = divided(source, settings)
    examples, y = source.examples.take(rows), source.y[rows]
    train, test = np.arange(train_size), np.arange(train_size, len(rows))
    _require_every_class(source, y, train)
    preparation, more = prepare(examples.take(train), path, settings, source.columns.get("text"))
    notes = [*source.notes, *notes, *more, *preparation.notes(examples)]
    consider(train_size, len(test), preparation.dtype, settings.solver, listener)
    batch = preparation(examples)
    targets, kind = Targets.of(y, task, train), settings.kernel
    some = batch.take(slice(0, min(train_size, COMPARED)))
    networks = alternatives(examples.kind, settings.network, batch, depth=settings.depth)
    choice, note = best_of(networks, some, targets, preparation.dtype, kind)
    notes += [] if note is None else [note]
    describe(source, choice, notes, train_size, len(test), listener)
    inputs, data = network_data(choice, preparation, batch, train_size, settings)
    if repeats := count_repeats(data.groups):
        notes.append(
            f"{repeats:,} of {train_size:,} training examples repeat another one; "
            "they are left out together where the noise is chosen"
        )
        listener.say(notes[-1])
    read = time.monotonic() - begin
    store = None if kernel_folder is None else kept_kernel(kernel_folder, settings)
    folds = min(settings.folds, train_size // 2)
    choices: dict[str, Any] = {"noise": settings.noise, "folds": folds, "listener": listener}
    found: FittedGP
    if isinstance(settings.solver, Cholesky):
        where = {"store": store, "workers": settings.workers, "listener": listener}
        kernel = np.asarray(compute(data, inputs, (kind,), **where)[kind])
        computed = time.monotonic() - begin - read
        outcome = evaluate(kernel, targets, train, test, groups=data.groups, **choices)
        if train_size > BEGINNING and settings.noise is None:
            notes.append(f"the noise was chosen on {BEGINNING:,} of the training examples")
        kernel = kernel[:train_size, :train_size]
        data = data.with_net(amplify(choice.net, outcome.amplitude))
        process = GP(data.net, kind=kind, noise=outcome.noise, engine=data.engine)
        found = FittedGP(process, data, outcome.posterior)
        seconds = {"kernel": computed, "fit": time.monotonic() - begin - read - computed}
    else:
        where = {"store": store, "workers": settings.workers, "solver": settings.solver}
        kernel, outcome, found = solved(data, inputs, targets, kind=kind, **where, **choices)
        data = found.data
        seconds = {"kernel and fit": time.monotonic() - begin - read}
        if train_size > len(kernel):
            notes.append(
                f"noise, folds and the kernel that is shown are of the first {len(kernel):,} "
                f"training examples"
            )
    with listener.bar("ridge and boosting, for comparison"):
        others = baselines(batch, targets, train, test)
    fitted: FittedClassifier | FittedGP = found
    if outcome.temperature is not None:
        classes = np.arange(len(source.class_names))
        fitted = FittedClassifier(found, outcome.temperature, classes)
    model = Model(
        task,
        preparation,
        fitted,
        source.class_names,
        source.columns["label"],
        targets.shift,
        targets.scale,
        f"{train_size} examples of {path.name}, network '{choice.name}'",
    )
    return Result(
        source,
        choice,
        settings,
        model,
        examples,
        y,
        train,
        test,
        batch,
        data,
        kernel,
        outcome,
        others,
        tuple(notes),
        {"read": read, **seconds},
    )


def sized(path: Path, how: Reading | None, settings: Settings) -> Reading:
    """Folders of images are read at the size they are used in."""
    how = how or Reading()
    return replace(how, image_size=settings.image_size) if path.is_dir() else how


def divided(source: LabelledFile, settings: Settings) -> tuple[np.ndarray, int, list[str]]:
    """Rows to use, training rows first, how many those are, and what was left out."""
    if source.test is None:
        order = stratified_order(source.y, key=settings.seed)
        count = max(1, round(settings.test * len(order)))
        test, train = order[:count], order[count:]
    else:  # each part in an order whose beginnings have the classes in proportion
        rest = np.setdiff1d(np.arange(len(source)), source.test)
        train, test = (
            part[stratified_order(source.y[part], key=settings.seed)]
            for part in (rest, source.test)
        )
    kind = source.examples.kind
    train, few = _capped(train, settings.max_train or MOST_TRAIN[kind], "train")
    test, fewer = _capped(test, settings.max_test or MOST_TEST[kind], "test")
    return np.concatenate([train, test]), len(train), few + fewer


def _capped(rows: np.ndarray, most: int, part: str) -> tuple[np.ndarray, list[str]]:
    """The first `most` rows of a part, and a note where there are more."""
    if len(rows) <= most:
        return rows, []
    use = {"train": "learning from", "test": "testing on"}[part]
    what = {"train": "training", "test": "held-out"}[part]
    note = (
        f"{use} {most:,} of {len(rows):,} {what} examples (--max-{part} {len(rows)} uses them all)"
    )
    return rows[:most], [note]


def prepare(
    train: Examples, path: Path, settings: Settings, column: str | None
) -> tuple[Preparation, list[str]]:
    """Fit the way from examples to arrays on the training examples."""
    if train.kind is Kind.TABLE:
        return TablePreparation.fit(train), []
    if train.kind is Kind.MIXED:
        text, notes = prepare(train.texts, path, settings, column)
        assert isinstance(text, TextPreparation)
        return MixedPreparation(text, TablePreparation.fit(train.columns)), notes
    if train.kind is not Kind.TEXT:
        return ArrayPreparation.fit(train, size=settings.image_size), []
    beside = path if path.is_dir() else path.parent
    found = find_vectors(settings.vectors, beside)
    notes = [f"word vectors: {len(found.vectors):,} words from {found.place}"]
    if found.sample:
        notes.append("the sample knows few words: give GloVe vectors with --vectors FILE")
    preparation = TextPreparation.fit(
        train,
        found.vectors,
        length=settings.length,
        keep=settings.keep,
        phrase=settings.phrase,
        column=column,
    )
    return preparation, notes


def network_data(
    choice: NamedNetwork,
    preparation: Preparation,
    batch: Batch,
    train_size: int,
    settings: Settings,
) -> tuple[Inputs, NetworkKernels]:
    """All examples as inputs of the network, and the training part with heads drawn for it."""
    looks = choice.name not in (NetworkName.LINEAR, NetworkName.FCN, NetworkName.MEAN)
    if looks:  # kernels between all pairs of positions
        shape = (batch.x[0] if isinstance(batch.x, tuple) else batch.x).shape[1:-1]
        require("positions", math.prod(shape), f"examples of shape {shape}")
    engine = Engine(dtype=preparation.dtype, samples=settings.samples, key=settings.seed)
    inputs = read_inputs(choice.net, batch.x, batch.mask, dtype=engine.dtype)
    return inputs, NetworkKernels.make(choice.net, inputs[slice(0, train_size)], engine=engine)


def describe(
    source: LabelledFile,
    choice: NamedNetwork,
    notes: list[str],
    train: int,
    test: int,
    listener: Listener,
) -> None:
    """Tell the user what is about to happen."""
    kind = source.examples.kind
    columns = ", ".join(f"{role} '{name}'" for role, name in source.columns.items())
    listener.say(f"{source.path.name}: {len(source):,} {kind} examples ({columns})")
    if source.class_names:
        shown = ", ".join(source.class_names[:8])
        listener.say(f"classes: {shown}{', …' if len(source.class_names) > 8 else ''}")
    for note in notes:
        listener.say(note)
    listener.say(f"network '{choice.name}': {choice.summary}")
    listener.say(f"{train:,} examples to learn from, {test:,} to test on")


def _require_every_class(source: LabelledFile, y: np.ndarray, train: np.ndarray) -> None:
    if not source.class_names:
        return
    missing = sorted(set(range(len(source.class_names))) - set(y[train].tolist()))
    if missing:
        names = ", ".join(repr(source.class_names[c]) for c in missing[:5])
        raise DataError(
            "The training part must hold every class.",
            got=f"none of {names} among {len(train)} training examples",
            remedy="use more examples (--max-train), or remove these classes",
        )
