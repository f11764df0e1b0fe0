"""Kernels compared fairly: every family tries equally many settings, validated the same way.

Families of networks share their trunks and differ in how positions are read out. A trunk (with the
way inputs are prepared for it) and the readouts are chosen by leave-one-out accuracy on a subset of
the training examples, the ridge by leave-one-out accuracy on all of them; test examples are looked
at once. NNGP and tangent kernel come from one computation and share their settings, but each has
its own ridge.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...data import Dataset, Labelled
from ...errors import WidelimitError
from ...layers.base import Layer
from ...layers.compose import Serial, is_sampled
from ...progress import Callback
from ...state import Kernels
from .accuracy import (
    Accuracy,
    Gap,
    evaluate,
    gap,
    linear_kernel,
    row,
    validate,
)
from .kept_kernels import KeptKernels
from .readouts import Readouts
from .results import CAPTION, conclude, tables, write
from .study import Size, Study, tracked

KINDS = ("NNGP", "NTK")


@dataclass(frozen=True)
class Trunk:
    """Layers that all families share, and the view of the data they are given."""

    label: str
    view: str
    network: Layer


@dataclass(frozen=True)
class KernelFamily:
    """A kernel of the comparison: the readouts it may try, by what distinguishes them."""

    name: str
    readouts: Mapping[str, Layer]


class FamilyGroup(NamedTuple):
    """Families that are computed together on the same trunks."""

    trunks: Sequence[Trunk]
    families: Sequence[KernelFamily]

    @property
    def settled(self) -> bool:
        """Whether there is nothing to choose."""
        return len(self.trunks) == 1 and all(len(f.readouts) == 1 for f in self.families)


class ContestSize(NamedTuple):
    """The data sets of a run, largest question first, and how many training examples tune.

    Settings are tuned on the first and hold for all.
    """

    parts: tuple[Any, ...]
    tuned_on: int


class Claim(NamedTuple):
    """A statement, published or a question of ours: the first family is better than the second."""

    text: str
    first: str
    second: str
    published: bool = False


class Selection(NamedTuple):
    """A trunk, and one readout for each family."""

    trunk: Trunk
    readouts: Mapping[str, str]


def beats_ridge(names: Iterable[str], views: Sequence[str]) -> list[Claim]:
    """That every family is better than ridge regression on every view."""
    return [Claim(f"{name} beats ridge, {v}", name, f"ridge, {v}") for name in names for v in views]


def require_equal_effort(groups: Sequence[FamilyGroup]) -> None:
    """Raise unless all families try equally many settings: trunks × readouts."""
    counts = {
        family.name: len(group.trunks) * len(family.readouts)
        for group in groups
        for family in group.families
    }
    if len(set(counts.values())) > 1:
        raise WidelimitError(
            "The kernels of a comparison are tuned with different effort.",
            got=", ".join(f"{name}: {count} settings" for name, count in counts.items()),
            remedy="give every family equally many readouts and trunks",
        )


@dataclass
class Arena:
    """One data set, prepared in several ways, and what the kernels reach on it.

    `views` hold the same examples in the same order. `heads` are drawn for each layer with random
    scores, in each of eight copies.
    """

    name: str
    views: Mapping[str, Dataset]
    kept: KeptKernels
    heads: int = 16
    found: dict[tuple[str, str], Accuracy] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def kernels(self, trunk: Trunk, readouts: Sequence[Layer], examples: int | None) -> Kernels:
        """Of all examples, or of the first `examples` training examples alone."""
        data = self.views[trunk.view]
        net, test = Serial(trunk.network, Readouts(*readouts)), None
        train = data.train if examples is None else beginning(data.train, examples)
        if examples is None:
            test = data.test
        options = {}
        if is_sampled(net):  # random scores are drawn once for all bands
            options["sampler"] = net.sampler(train.x, train.mask, samples=self.heads)
        return self.kept.get(net, train, test, **options)

    def validated(
        self, trunk: Trunk, families: Sequence[KernelFamily], examples: int
    ) -> list[dict[str, Any]]:
        """Every readout of every family on one trunk: accuracy on the first training examples."""
        labels = [(family.name, label) for family in families for label in family.readouts]
        layers = [layer for family in families for layer in family.readouts.values()]
        kernels = self.kernels(trunk, layers, examples)
        wanted = beginning(self.views[trunk.view].train, examples).y
        trials = []
        for (name, label), *both in zip(labels, *kernels, strict=True):
            scores = [validate(kernel, wanted).accuracy for kernel in both]
            facts = {"kernel": name, "trunk": trunk.label, "view": trunk.view, "readout": label}
            trials.append(facts | dict(zip(KINDS, scores, strict=True)))
        return trials

    def test(self, choice: Selection, families: Sequence[KernelFamily]) -> None:
        """Compute the chosen kernels of all examples, and test them."""
        layers = [family.readouts[choice.readouts[family.name]] for family in families]
        kernels = self.kernels(choice.trunk, layers, None)
        for family, *both in zip(families, *kernels, strict=True):
            settings = f"{choice.trunk.label}, {choice.trunk.view}; {choice.readouts[family.name]}"
            for kind, kernel in zip(KINDS, both, strict=True):
                self.note(family.name, kind, kernel, settings)

    def baseline(self, view: str) -> None:
        """Ridge regression on the inputs as one vector."""
        data = self.views[view]
        both = np.concatenate([data.x_train, data.x_test])
        self.note(f"ridge, {view}", "ridge", linear_kernel(both, len(data.y_train)), "")

    def note(self, name: str, kind: str, kernel: np.ndarray, settings: str) -> None:
        """Test a kernel and add a line to the table."""
        data = next(iter(self.views.values()))
        self.add(name, kind, evaluate(kernel, data.y_train, data.y_test), settings)

    def add(self, name: str, kind: str, tested: Accuracy, settings: str) -> None:
        """A line of the table."""
        data = next(iter(self.views.values()))
        self.found[name, kind] = tested
        sizes = {"data": self.name, "train": len(data.y_train), "test": len(data.y_test)}
        self.rows.append(row(name, kind, tested, **sizes, settings=settings))

    def check(
        self, claims: Sequence[Claim], kinds: Sequence[str] = (*KINDS, "ridge"), what: str = ""
    ) -> list[dict[str, Any]]:
        """Each claim whose families were tested, on the test examples.

        Of a family's kernels the one counts that validates best: that saw no test example.
        """
        best: dict[str, Accuracy] = {}
        for (name, kind), tested in self.found.items():
            known = best.get(name)
            better = known is None or tested.validated.accuracy > known.validated.accuracy
            if kind in kinds and better:
                best[name] = tested
        return [
            {"data": self.name + what, **judged(claim, gap(best[claim.first], best[claim.second]))}
            for claim in claims
            if {claim.first, claim.second} <= best.keys()
        ]


def choose(group: FamilyGroup, trials: Sequence[dict[str, Any]]) -> Selection:
    """For each trunk the best readout of every family; then the trunk with the best mean of them.

    One trunk for all families of a group: they are compared by their readouts.
    """

    if group.settled:
        return Selection(group.trunks[0], {f.name: next(iter(f.readouts)) for f in group.families})

    def score(trial: Mapping[str, Any]) -> float:
        return float(np.mean([trial[kind] for kind in KINDS]))

    def best(trunk: Trunk, family: KernelFamily) -> Mapping[str, Any]:
        here = (family.name, trunk.label, trunk.view)
        mine = [t for t in trials if (t["kernel"], t["trunk"], t["view"]) == here]
        return max(mine, key=score)

    def together(trunk: Trunk) -> float:
        return float(np.mean([score(best(trunk, family)) for family in group.families]))

    trunk = max(group.trunks, key=together)
    return Selection(trunk, {f.name: best(trunk, f)["readout"] for f in group.families})


def contest(
    name: str,
    groups: Sequence[FamilyGroup],
    places: Sequence[Arena],
    *,
    tuned_on: int,
    baselines: Sequence[str],
    claims: Sequence[Claim],
    out: Path,
    progress: Callback | None = None,
) -> dict[str, Any]:
    """Tune in the first arena, test in all, and write what was found after every step.

    `baselines` are the views on which ridge regression is done.
    """
    require_equal_effort(groups)
    trials: list[dict[str, Any]] = []
    result: dict[str, Any] = {}
    open_ones = [group for group in groups if not group.settled]
    tuning = [(places[0], group, trunk) for group in open_ones for trunk in group.trunks]
    testing = [(place, group, None) for place in places for group in groups]
    for place, group, trunk in tracked([*tuning, *testing], progress):
        if trunk is not None:
            trials += place.validated(trunk, group.families, tuned_on)
            continue
        if group is groups[0]:
            for view in baselines:
                place.baseline(view)
        place.test(choose(group, trials), group.families)
        result = {
            "rows": [line for done in places for line in done.rows],
            "claims": [claim for done in places for claim in done.check(claims)],
            "tuned_on": tuned_on,
            "tuning": trials,
        }
        write(name, out, result)
    return result


def contest_study(
    name: str,
    title: str,
    description: str,
    *,
    groups: Callable[[], Sequence[FamilyGroup]],
    scales: Mapping[Size, ContestSize],
    arena: Callable[..., Arena],
    baselines: Sequence[str],
    claims: Callable[[], Sequence[Claim]],
    published: str,
) -> Study:
    """A contest at several sizes: the parts of a size are made by `arena(size, part, out)`."""
    file = name.replace("-", "_")

    def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
        scale = scales[Size(size)]
        return contest(
            file,
            groups(),
            [arena(Size(size), part, out) for part in scale.parts],
            tuned_on=scale.tuned_on,
            baselines=baselines,
            claims=claims(),
            out=out,
            progress=progress,
        )

    def cost(size: Size) -> str:
        """What one setting of every family takes, measured on random examples."""
        lines = []
        for part in scales[Size(size)].parts:
            x = np.random.default_rng(0).normal(size=(64, *part.shape)).astype(np.float32)
            for group in groups():
                layers = [next(iter(family.readouts.values())) for family in group.families]
                net = Serial(group.trunks[-1].network, Readouts(*layers))
                names = ", ".join(family.name for family in group.families)
                lines.append(f"{names}: {net.cost(x, examples=part.train, tests=part.test)}")
        return "\n".join(lines)

    return Study(
        name, title, description, run, {file: CAPTION}, conclude, tables, cost, published=published
    )


def judged(claim: Claim, found: Gap) -> dict[str, Any]:
    """A claim, the difference it is about, and whether it holds."""
    says = {
        "better": "holds",
        "worse": "does not hold: the opposite is seen",
        "no clear difference": "is not seen: no clear difference",
    }
    return {
        "claim": claim.text,
        "published": claim.published,
        "first": claim.first,
        "second": claim.second,
        "difference": found.difference,
        "low": found.low,
        "high": found.high,
        "verdict": says[found.verdict],
    }


def beginning(part: Labelled, count: int) -> Labelled:
    """The first examples: subsets are stratified, so their beginnings are."""
    return part.take(np.arange(min(count, len(part))))
