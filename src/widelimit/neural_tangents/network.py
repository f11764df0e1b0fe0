"""From layers of neural-tangents to a network of the library.

A layer is a triple `(init_fn, apply_fn, kernel_fn)`; what it is made of stands on each of the three
as `parts`: layers of the library, forks and merges, layers that a user has written. `serial` puts
the parts of several triples in a row; a call makes a network of them, once for every number of axes
that inputs have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Parallel:
    """Parts side by side."""

    branches: tuple["Parts", ...]


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


Part = Wide | FanOut | Parallel | FanIn | Foreign
Parts = tuple[Part, ...]


def count_streams(parts: Parts) -> int:
    """How many inputs a network takes; more than one are a tuple."""
    return len(parts[0].branches) if parts and isinstance(parts[0], Parallel) else 1


def named_axes(parts: Parts) -> list[Axes]:
    """The axes that layers name while there are positions."""
    return _named(parts)[0]


def _named(parts: Parts) -> tuple[list[Axes], bool]:
    """And whether positions are gone at the end."""
    found: list[Axes] = []
    for part in parts:
        inner = [_named(branch) for branch in part.branches] if isinstance(part, Parallel) else []
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


@dataclass(frozen=True)
class Network:
    """Parts as networks one after another; after a fork that nothing merges, one per branch."""

    steps: tuple[Layer | Foreign, ...]
    ends: tuple[Layer, ...] | None

    @property
    def single(self) -> Layer | None:
        """The whole, where it is one network of the library."""
        alone = len(self.steps) == 1 and self.ends is None
        return self.steps[0] if alone and isinstance(self.steps[0], Layer) else None


def assemble(parts: Parts, layouts: Sequence[Layout], *, padded: bool) -> Network:
    """The network of these parts for inputs of these layouts, one for each stream."""
    made = _Assembly(list(layouts), padded, streams=len(layouts) > 1)
    for part in parts:
        made.add(part)
    return made.network()


@dataclass
class _Assembly:
    """A network on its way: finished steps, open branches, and the layout at the end of each."""

    layouts: list[Layout]
    padded: bool
    streams: bool = False
    steps: list[Layer | Foreign] = field(default_factory=list)
    open: list[list[Layer]] | None = None

    def add(self, part: Part) -> None:
        if isinstance(part, Parallel):
            self._fork(part)
        elif isinstance(part, FanIn):
            self._merge(part)
        elif self.open is not None or (self.streams and not self.steps):
            raise NetworkError(
                f"stax.{getattr(part, 'name', type(part).__name__)} met several inputs.",
                got=f"{len(self.layouts)} of them",
                remedy="put stax.parallel(…) or a FanIn layer before it",
            )
        elif isinstance(part, FanOut):
            self.open, self.layouts = [[] for _ in range(part.count)], self.layouts * part.count
        elif isinstance(part, Foreign):
            self.steps.append(part)
        else:
            (layout,) = self.layouts
            self.steps.append(part.make(layout, self.padded))
            self.layouts = [layout.after(part.kept(layout.ndim - 2))]

    def _fork(self, part: Parallel) -> None:
        if self.open is None and self.streams and not self.steps:
            self.open = [[] for _ in self.layouts]
        if self.open is None or len(self.open) != len(part.branches):
            raise NetworkError(
                "stax.parallel met another number of inputs than it has networks.",
                got=f"{len(self.layouts)} inputs, {len(part.branches)} networks",
                remedy=f"put stax.FanOut({len(part.branches)}) before it, or pass a tuple of as "
                "many inputs",
            )
        for place, (layers, parts) in enumerate(zip(self.open, part.branches, strict=True)):
            inner = _Assembly([self.layouts[place]], self.padded)
            for each in parts:
                inner.add(each)
            found = [step for step in inner.steps if isinstance(step, Layer)]
            if inner.open is not None or len(found) < len(inner.steps):
                raise NetworkError(
                    "A branch of stax.parallel ends in several outputs, or holds a layer of your "
                    "own.",
                    got="such a branch",
                    remedy="merge branches inside it; write the layer as stax.Elementwise(fn, "
                    "nngp_fn), or as a layer of widelimit",
                )
            layers += found
            self.layouts[place] = inner.layouts[0]

    def _merge(self, part: FanIn) -> None:
        if self.open is None:
            raise NetworkError(
                f"stax.{part.name} met one input.",
                got="nothing to merge",
                remedy="put stax.FanOut(n) and stax.parallel(…) before it",
            )
        layout = self.layouts[0]
        if part.axis is not None and part.axis % layout.ndim != layout.channel:
            raise NetworkError(
                f"stax.{part.name} does not join channels, the only axis that is known here.",
                got=f"axis={part.axis} where channel_axis is {layout.channel}",
                remedy=f"use axis={layout.channel}",
            )
        branches = [Serial(*layers) for layers in self.open]
        if not self.streams or self.steps:
            self.steps.append(part.merge(*branches))
        elif part.name == "FanInSum":
            self.steps += [Streams(*branches), AddStreams((1.0,) * len(branches))]
        else:
            raise NetworkError(
                f"stax.{part.name} of several inputs is not known to the library.",
                got=f"a tuple of {len(branches)} inputs",
                remedy="use FanInSum, or one input and stax.FanOut",
            )
        self.layouts, self.open = self.layouts[:1], None

    def network(self) -> Network:
        """Neighbours that are layers of the library, as one."""
        steps: list[Layer | Foreign] = []
        for step in self.steps:
            if isinstance(step, Layer) and steps and isinstance(steps[-1], Layer):
                steps[-1] = Serial(*steps[-1].parts, step)
            else:
                steps.append(Serial(step) if isinstance(step, Layer) else step)
        ends = None if self.open is None else tuple(Serial(*layers) for layers in self.open)
        return Network(tuple(steps), ends)
