"""Kernels compared fairly: every family tries equally many settings, validated the same way.

Families of networks share their trunks and differ in how positions are read out. A trunk (with the
way inputs are prepared for it) and the readouts are chosen by leave-one-out accuracy on a subset of
the training examples, the ridge by leave-one-out accuracy on all of them; test examples are looked
at once. NNGP and tangent kernel come from one computation and share their settings, but each has
its own ridge.
"""

from collections.abc import Callable, Mapping, Sequence
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
from .accuracy import Accuracy, Gap, evaluate, gap, linear_kernel, row, validate
from .kept_kernels import KeptKernels
from .readouts import Readouts
from .results import CAPTION, conclude, tables, write
from .study import Size, Study, tracked

KINDS = ("NNGP", "NTK")
Families = Mapping[str, Mapping[str, Layer]]
"""Kernels of a comparison by name: the readouts each may try, by what distinguishes them."""


class Trunk(NamedTuple):
    """Layers that all families share, and the view of the data they are given."""

    label: str
    view: str
    network: Layer


class FamilyGroup(NamedTuple):
    """Families that are computed together on the same trunks."""

    trunks: Sequence[Trunk]
    families: Families

    @property
    def settings(self) -> dict[str, int]:
        """How many settings every family tries: trunks × readouts."""
        return {name: len(self.trunks) * len(tried) for name, tried in self.families.items()}

    @property
    def settled(self) -> bool:
        """Whether there is nothing to choose."""
        return set(self.settings.values()) == {1}


class ContestSize(NamedTuple):
    """The data sets of a run, largest question first, and how many training examples tune.

    Settings are tuned on the first and hold for all.
    """

    parts: tuple[Any, ...]
    tuned_on: int


class Claim(NamedTuple):
    """Published, or a question of ours: the first family is better than the second."""

    first: str
    second: str
    published: bool = False

    def judged(self, found: Gap) -> dict[str, Any]:
        """The claim, the difference it is about, and whether it holds."""
        says = {
            "better": "holds",
            "worse": "does not hold: the opposite is seen",
            "no clear difference": "is not seen: no clear difference",
        }
        text = f"{self.first} better than {self.second}"
        verdict = {"verdict": says[found.verdict]}
        return {"claim": text, **self._asdict(), **found._asdict(), **verdict}


class Selection(NamedTuple):
    """A trunk, and one readout for each family."""

    trunk: Trunk
    readouts: Mapping[str, str]

    def layers(self, families: Families) -> list[Layer]:
        """The chosen readouts."""
        return [readouts[self.readouts[name]] for name, readouts in families.items()]


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
        data, net = self.views[trunk.view], Serial(trunk.network, Readouts(*readouts))
        train, test = data.train, data.test
        if examples is not None:
            train, test = beginning(train, examples), None
        options = {}
        if is_sampled(net):  # random scores are drawn once for all bands
            options["sampler"] = net.sampler(train.x, train.mask, samples=self.heads)
        return self.kept.get(net, train, test, **options)

    def validated(self, trunk: Trunk, families: Families, examples: int) -> list[dict[str, Any]]:
        """Every readout of every family on one trunk: accuracy on the first training examples."""
        labels = [(name, label) for name, readouts in families.items() for label in readouts]
        kernels = self.kernels(trunk, [families[n][label] for n, label in labels], examples)
        wanted = beginning(self.views[trunk.view].train, examples).y
        trials = []
        for (name, label), *both in zip(labels, *kernels, strict=True):
            scores = [validate(kernel, wanted).accuracy for kernel in both]
            facts = {"kernel": name, "trunk": trunk.label, "view": trunk.view, "readout": label}
            trials.append(facts | dict(zip(KINDS, scores, strict=True)))
        return trials

    def test(self, choice: Selection, families: Families) -> None:
        """Compute the chosen kernels of all examples, and test them."""
        kernels = self.kernels(choice.trunk, choice.layers(families), None)
        for name, *both in zip(families, *kernels, strict=True):
            settings = f"{choice.trunk.label}, {choice.trunk.view}; {choice.readouts[name]}"
            for kind, kernel in zip(KINDS, both, strict=True):
                self.add(name, kind, kernel, settings)

    def baseline(self, view: str) -> None:
        """Ridge regression on the inputs as one vector."""
        data = self.views[view]
        both = np.concatenate([data.x_train, data.x_test])
        self.add(f"ridge, {view}", "ridge", linear_kernel(both, len(data.y_train)), "")

    def add(self, name: str, kind: str, tested: np.ndarray | Accuracy, settings: str) -> None:
        """A line of the table, of a kernel that is yet to be tested or of what was."""
        data = next(iter(self.views.values()))
        if not isinstance(tested, Accuracy):
            tested = evaluate(tested, data.y_train, data.y_test)
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
            {"data": self.name + what, **claim.judged(gap(best[claim.first], best[claim.second]))}
            for claim in claims
            if {claim.first, claim.second} <= best.keys()
        ]


def choose(group: FamilyGroup, trials: Sequence[dict[str, Any]]) -> Selection:
    """For each trunk the best readout of every family; then the trunk with the best mean of them.

    One trunk for all families of a group: they are compared by their readouts.
    """
    if group.settled:
        return Selection(group.trunks[0], {n: next(iter(r)) for n, r in group.families.items()})

    def score(trial: Mapping[str, Any]) -> float:
        return float(np.mean([trial[kind] for kind in KINDS]))

    def best(trunk: Trunk, name: str) -> Mapping[str, Any]:
        here = (name, trunk.label, trunk.view)
        mine = [t for t in trials if (t["kernel"], t["trunk"], t["view"]) == here]
        return max(mine, key=score)

    def together(trunk: Trunk) -> float:
        return float(np.mean([score(best(trunk, name)) for name in group.families]))

    trunk = max(group.trunks, key=together)
    return Selection(trunk, {name: best(trunk, name)["readout"] for name in group.families})


def contest(
    name: str,
    title: str,
    description: str,
    *,
    groups: Callable[[], Sequence[FamilyGroup]],
    scales: Mapping[Size, ContestSize],
    arena: Callable[..., Arena],
    baselines: Sequence[str],
    claims: Sequence[Claim],
    published: str = "",
) -> Study:
    """A study that tunes on the first data set of a size and tests on all.

    The parts of a size are made by `arena(size, part, out)`. `baselines` are the views on which
    ridge regression is done; that every kernel beats it is claimed too.
    """
    file = name.replace("-", "_")

    def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
        known, scale = groups(), scales[size]
        require_equal_effort(known)
        names = [name for group in known for name in group.families]
        asked = [*claims, *(Claim(n, f"ridge, {view}") for n in names for view in baselines)]
        places = [arena(size, part, out) for part in scale.parts]
        trials: list[dict[str, Any]] = []
        result: dict[str, Any] = {}
        unsettled = [group for group in known if not group.settled]
        tuning = [(places[0], group, trunk) for group in unsettled for trunk in group.trunks]
        testing = [(place, group, None) for place in places for group in known]
        for place, group, trunk in tracked([*tuning, *testing], progress):
            if trunk is not None:
                trials += place.validated(trunk, group.families, scale.tuned_on)
                continue
            if group is known[0]:
                for view in baselines:
                    place.baseline(view)
            place.test(choose(group, trials), group.families)
            result = {  # written after every step
                "rows": [line for done in places for line in done.rows],
                "claims": [claim for done in places for claim in done.check(asked)],
                "tuned_on": scale.tuned_on,
                "tuning": trials,
            }
            write(file, out, result)
        return result

    def cost(size: Size) -> str:
        """What one setting of every family takes, measured on random examples."""
        lines = []
        for part in scales[size].parts:
            x = np.random.default_rng(0).normal(size=(64, *part.shape)).astype(np.float32)
            for group in groups():
                layers = [next(iter(readouts.values())) for readouts in group.families.values()]
                net = Serial(group.trunks[-1].network, Readouts(*layers))
                told = net.cost(x, examples=part.train, tests=part.test)
                lines.append(f"{', '.join(group.families)}: {told}")
        return "\n".join(lines)

    return Study(
        name, title, description, run, {file: CAPTION}, conclude, tables, cost, published=published
    )


def require_equal_effort(groups: Sequence[FamilyGroup]) -> None:
    """Raise unless all families try equally many settings."""
    counts = {name: count for group in groups for name, count in group.settings.items()}
    if len(set(counts.values())) > 1:
        raise WidelimitError(
            "The kernels of a comparison are tuned with different effort.",
            got=", ".join(f"{name}: {count} settings" for name, count in counts.items()),
            remedy="give every family equally many readouts and trunks",
        )


def beginning(part: Labelled, count: int) -> Labelled:
    """The first examples: subsets are stratified, so their beginnings are."""
    return part.take(np.arange(min(count, len(part))))
