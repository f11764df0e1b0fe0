"""From layers of neural-tangents to networks of the library.

A layer is a triple `(init_fn, apply_fn, kernel_fn)`; what it is made of stands on each of the three
as `parts`: layers of the library, forks and merges, layers that a user has written. `serial` puts
the parts of several triples in a row; a call makes a network of them, once for every number of axes
that inputs have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import NetworkError
from ..layers import AddStreams, Layer, Serial
from ..layers import Parallel as Streams
from .layout import Layout

Axes = tuple[int | None, int | None]
"""`batch_axis` and `channel_axis`; None where a layer does not care."""


@dataclass(frozen=True)
class Wide:
    """A layer of the library."""

    name: str
    make: Callable[[Layout, bool], Layer]
    """From the layout of its input, and whether there is padding."""
    axes: Axes = (None, None)
    kept: Callable[[int], int] = lambda positions: positions
    """How many position axes are left."""
    edges: Callable[[Any, tuple[int, ...]], Any] | None = None
    """Of a sum over neighbours in a graph, which comes with each call: the library's edges, from a
    pattern in the format of the layer and the number of nodes."""


@dataclass(frozen=True)
class FanOut:
    """The input, several times."""

    count: int
    name = "FanOut"


@dataclass(frozen=True)
class Parallel:
    """Parts side by side."""

    branches: tuple["Parts", ...]
    name = "parallel"


@dataclass(frozen=True)
class FanIn:
    """What came from several branches becomes one."""

    name: str
    merge: Callable[..., Layer]
    axis: int | None = None
    """Along which axis, where that matters; only channels are known."""


@dataclass(frozen=True)
class Foreign:
    """A user's own layer: functions, of which the kernel's maps a `Kernel` to a `Kernel`."""

    init: Callable[..., Any]
    apply: Callable[..., Any]
    kernel: Callable[..., Any]
    name = "layer"


Part = Wide | FanOut | Parallel | FanIn | Foreign
Parts = tuple[Part, ...]
Steps = tuple[Layer | Foreign, ...]
"""Networks of the library and a user's layers, one after another. The last one is `Streams` where
nothing merges several outputs."""


def named_axes(parts: Parts) -> tuple[list[Axes], bool]:
    """The axes that layers name while there are positions, and whether all of these are gone."""
    found: list[Axes] = []
    for part in parts:
        inner = (
            [named_axes(branch) for branch in part.branches] if isinstance(part, Parallel) else []
        )
        if isinstance(part, Wide):
            inner = [([part.axes], part.kept(1) == 0)]
        found += [axes for named, _ in inner for axes in named]
        if any(gone for _, gone in inner):
            return found, True
    return found, False


def find_edges(parts: Parts) -> Callable[[Any, tuple[int, ...]], Any] | None:
    """`edges` of the first layer that needs a graph."""
    for part in parts:
        inner = part.branches if isinstance(part, Parallel) else ()
        for found in (getattr(part, "edges", None), *map(find_edges, inner)):
            if found is not None:
                return found
    return None


def assemble(parts: Parts, layouts: Sequence[Layout], *, padded: bool) -> Steps:
    """What these parts are for inputs of these layouts, one for each stream."""
    made = _Assembly(parts, layouts, padded)
    steps: list[Layer | Foreign] = [
        Serial(*step) if isinstance(step, list) else step for step in made.steps
    ]
    if made.open is not None:
        ends = [Serial(*layers) for layers in made.open]
        steps.append(Streams(*ends) if len(ends) > 1 else ends[0])
    return tuple(steps) or (Serial(),)


class _Assembly:
    """Finished steps, branches that are open, and the layout at the end of each."""

    def __init__(self, parts: Parts, layouts: Sequence[Layout], padded: bool):
        self.layouts, self.padded = list(layouts), padded
        self.steps: list[list[Layer] | Foreign] = []
        self.streams = len(self.layouts) > 1
        """Whether branches begin at several inputs."""
        self.open: list[list[Layer]] | None = [[] for _ in layouts] if self.streams else None
        for part in parts:
            self._add(part)

    def _add(self, part: Part) -> None:
        count = len(self.open or ())  # of branches: a single input is none
        fits = (count > 0) == isinstance(part, FanIn)
        if isinstance(part, Parallel):
            fits = count == len(part.branches)
        if not fits:
            raise NetworkError(
                f"stax.{part.name} does not take {count or 1} input{'s' * (count > 1)}.",
                got=f"{count or 1} from what stands before it",
                remedy="put stax.FanOut(n) before n networks in stax.parallel(…), or pass a tuple "
                "of n inputs, and put a FanIn layer behind them",
            )
        if isinstance(part, Parallel):
            self._fork(part)
        elif isinstance(part, FanIn):
            self._merge(part)
        elif isinstance(part, FanOut):
            self.open, self.layouts = [[] for _ in range(part.count)], self.layouts * part.count
        elif isinstance(part, Wide):
            (layout,) = self.layouts
            self._append(part.make(layout, self.padded))
            self.layouts = [layout.after(part.kept(layout.ndim - 2))]
        elif self.layouts[0].order != tuple(range(self.layouts[0].ndim)):
            raise NetworkError(
                "A layer of your own met inputs whose axes are not (N, positions…, channels).",
                got=f"batch_axis {self.layouts[0].batch}, channel_axis {self.layouts[0].channel}",
                remedy="move the axes of inputs, and leave batch_axis= and channel_axis= out",
            )
        else:
            self.steps.append(part)

    def _append(self, *layers: Layer) -> None:
        """Neighbours that are layers of the library are one network."""
        if not self.steps or not isinstance(self.steps[-1], list):
            self.steps.append([])
        self.steps[-1] += layers  # type: ignore[operator]

    def _fork(self, part: Parallel) -> None:
        assert self.open is not None
        for place, (layers, parts) in enumerate(zip(self.open, part.branches, strict=True)):
            inner = _Assembly(parts, [self.layouts[place]], self.padded)
            if inner.open is not None or any(isinstance(step, Foreign) for step in inner.steps):
                raise NetworkError(
                    "A branch of stax.parallel ends in several outputs, or holds a layer of your "
                    "own.",
                    got="such a branch",
                    remedy="merge branches inside it; write the layer as stax.Elementwise(fn, "
                    "nngp_fn), or as a layer of widelimit",
                )
            layers += [layer for step in inner.steps for layer in step]  # type: ignore[union-attr]
            self.layouts[place] = inner.layouts[0]

    def _merge(self, part: FanIn) -> None:
        assert self.open is not None
        layout = self.layouts[0]
        if part.axis is not None and part.axis % layout.ndim != layout.channel:
            raise NetworkError(
                f"stax.{part.name} does not join channels, the only axis that is known here.",
                got=f"axis={part.axis} where channel_axis is {layout.channel}",
                remedy=f"use axis={layout.channel}",
            )
        branches = [Serial(*layers) for layers in self.open]
        if not self.streams:
            self._append(part.merge(*branches))
        elif part.name == "FanInSum":
            self._append(Streams(*branches), AddStreams((1.0,) * len(branches)))
        else:
            raise NetworkError(
                f"stax.{part.name} of several inputs is not known to the library.",
                got=f"a tuple of {len(branches)} inputs",
                remedy="use FanInSum, or one input and stax.FanOut",
            )
        self.layouts, self.open, self.streams = self.layouts[:1], None, False
