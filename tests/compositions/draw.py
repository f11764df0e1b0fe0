"""Random compositions of all layers and options, with the inputs on which mistakes show.

`draw(seed)` gives one composition. Networks are guided towards ones that have a limit (weights
before an activation, branches that end in fresh weights), not kept to them: what has none must be
refused by the library, and `accepted` draws again and counts the refusals.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from drawer import WIDTHS, Drawer, Shape
from parts import Part

import widelimit as wl

VOCABULARY = 5


@dataclass(frozen=True)
class Composition:
    """A network, two examples with their masks, and the precision."""

    seed: int
    part: Part
    x: Any  # (2, positions…, channels), tokens (2, positions…), or a tuple of two streams
    mask: Any
    dtype: Any
    # Two arrays of different lengths, `kernel(x1, x2)`, rather than one array with a mask.
    apart: bool = False

    @property
    def tokens(self) -> bool:
        return not isinstance(self.x, tuple) and self.x.dtype.kind == "i"

    @property
    def streams(self) -> list[tuple[Any, Any]]:
        """Inputs and mask of every stream; most compositions have one."""
        if isinstance(self.x, tuple):
            masks = (None, None) if self.mask is None else self.mask
            return list(zip(self.x, masks, strict=True))
        return [(self.x, self.mask)]

    @property
    def right_padded(self) -> bool:
        """Whether all padding lies behind the real positions of every axis (or there is none)."""
        return all(_is_corner(one) for _, m in self.streams if m is not None for one in m)

    def __str__(self) -> str:
        masks = [None if m is None else m.astype(int).tolist() for _, m in self.streams]
        shapes = [x.shape for x, _ in self.streams]
        how = "two arrays" if self.apart else "one array"
        text = f"seed {self.seed}: {self.part}\n  x {shapes} {self.dtype.__name__}, mask {masks}"
        return f"{text}, {how}"

    def alone(self, index: int) -> tuple[Any, ...]:
        """One example of every stream without the padding behind it."""
        return tuple(_cropped(x[index], None if m is None else m[index]) for x, m in self.streams)


def _corner(mask: np.ndarray) -> tuple[slice, ...]:
    """The smallest corner of the array that holds everything real."""
    return tuple(slice(int(axis.max()) + 1) for axis in np.nonzero(mask))


def _is_corner(mask: np.ndarray) -> bool:
    return bool(mask[_corner(mask)].all())


def _cropped(x: np.ndarray, mask: np.ndarray | None) -> np.ndarray:
    return x if mask is None else x[_corner(mask)]


# --- inputs --------------------------------------------------------------------------------------


_RELATIONS = ("copy", "zero", "opposite", "near", "near opposite", "flat")


def _vectors(d: Drawer, grid: tuple[int, ...], channels: int, dtype: Any) -> np.ndarray:
    """Two examples of tokens: new ones, and ones that repeat, oppose or nearly equal another."""
    size = int(np.prod(grid))
    rows = [d.rng.standard_normal(channels)]
    while len(rows) < 2 * size:
        other = rows[d.rng.integers(len(rows))]
        new = d.rng.standard_normal(channels)
        kind = d.one("new", "new", "new", *_RELATIONS)
        step = 10.0 ** -d.rng.integers(1, 6)
        rows.append(
            {
                "new": new,
                "copy": other.copy(),
                "zero": np.zeros(channels),
                "opposite": -other,
                "near": other + step * new,
                "near opposite": -other + step * new,
                "flat": np.full(channels, new[0]),
            }[kind]
        )
    x = np.array(rows).reshape(2, *grid, channels)
    if d.chance(0.15):  # the whole example again, opposed, or nearly so
        x[1] = d.one(1.0, -1.0) * x[0] + d.one(0.0, 1e-3, 1e-6) * x[1]
    return x.astype(dtype)


def _mask(d: Drawer, grid: tuple[int, ...]) -> np.ndarray | None:
    """None, different lengths, or holes anywhere."""
    kind = d.one(None, None, "right", "right", "right", "holes")
    if kind is None or not grid:
        return None
    if kind == "holes":
        mask = d.rng.random((2, *grid)) < 0.7
    else:
        mask = np.zeros((2, *grid), bool)
        for one in mask:
            one[tuple(slice(int(d.rng.integers(1, n + 1))) for n in grid)] = True
    for one in mask:
        if not one.any():
            one[(0,) * len(grid)] = True
    return mask


def draw(seed: int, attempt: int = 0) -> Composition:
    """The composition of this seed."""
    rng = np.random.default_rng([seed, attempt])
    d = Drawer(rng)
    dtype = d.one(np.float64, np.float64, np.float32)
    kind = d.one(*["sequence"] * 6, "image", "image", "tokens", "tokens", "vector", "streams")
    count = int(rng.integers(1, 5))
    if kind == "streams":
        return _two_streams(d, seed, dtype)
    # Long arrays with padding are cut by the library; only real positions cost the reference.
    long = kind in ("sequence", "tokens") and d.chance(0.08)
    length = 18 if long else int(rng.integers(3, 6))
    grid = {"image": (2, 3) if d.chance(0.5) else (3, 2), "vector": ()}.get(kind, (length,))
    parts: list[Part] = []
    channels = int(rng.integers(2, 4))
    if kind == "tokens":
        channels = self_width = d.one(*WIDTHS)
        parts.append(
            Part(
                "embedding",
                {"width": self_width, "vocabulary": VOCABULARY, "std": d.number(0.7, 1.4)},
            )
        )
        x = rng.integers(0, VOCABULARY, (2, *grid))
    else:
        x = _vectors(d, grid, channels, dtype)
    shape = Shape(grid, channels, gaussian=kind == "tokens")
    mask = _mask(d, grid)
    if long:
        mask = np.arange(length) < np.array([[d.one(1, 3)], [d.one(3, 10)]])
    more, shape = d.layers(shape, count)
    parts += [*more, *d.read_out(shape)]
    return _possibly_apart(d, Composition(seed, Part("serial", {}, tuple(parts)), x, mask, dtype))


def draw_noisy_scores(seed: int) -> Composition:
    """Padding, something dropped, and above it attention whose scores are drawn."""
    d = Drawer(np.random.default_rng([seed, 1_000]))
    grid, channels = (d.one(3, 4, 5),), d.one(2, 3)
    x = _vectors(d, grid, channels, np.float64)
    lengths = d.rng.permutation([d.one(1, 2), d.one(2, 3)])
    first, shape = d.dense(Shape(grid, channels))
    noise, shape = d.noise(shape)
    scores, shape = d.attention(shape, scores="drawn")
    if scores["encoding"] is None:  # else padding has no variance to begin with
        scores = scores.to(projections=scores["projections"] | {"qk_b_std": d.number(0.3, 1.2)})
    whole = {"window": None, "stride": None, "padding": "valid"}
    end = d.one(Part("mean_pool", whole), Part("select", {"index": -1}))
    parts = (first, *noise, scores, *d.one((), (end,), (end,)))
    mask = np.arange(grid[0]) < lengths[:, None]
    return Composition(seed, Part("serial", {}, parts), x, mask, np.float64)


def _possibly_apart(d: Drawer, c: Composition) -> Composition:
    """Some examples with padding at the right come as two arrays instead."""
    lengths = {tuple(x.shape for x in c.alone(i)) for i in (0, 1)} if c.right_padded else ()
    return replace(c, apart=len(lengths) == 2 and d.chance(0.3))


def _two_streams(d: Drawer, seed: int, dtype: Any) -> Composition:
    """Two sequences, a network on either, cross-attention, and more."""
    grids = [(d.one(2, 3),), (d.one(3, 4),)]
    channels = [2, 3]
    x = tuple(_vectors(d, g, c, dtype) for g, c in zip(grids, channels, strict=True))
    mask = tuple(_mask(d, g) for g in grids)
    heads, shapes = [], []
    for g, c in zip(grids, channels, strict=True):
        parts, shape = d.layers(Shape(g, c), d.one(0, 1, 2))
        heads.append(Part("serial", {}, tuple(parts)))
        shapes.append(shape)
    cross, after = d.queried("cross_attention", shapes[1])
    after = replace(after, grid=shapes[0].grid)
    more, after = d.layers(after, d.one(0, 1))
    parts = (Part("parallel", {}, tuple(heads)), cross, *more, *d.read_out(after))
    mask = None if all(m is None for m in mask) else mask
    return _possibly_apart(d, Composition(seed, Part("serial", {}, parts), x, mask, dtype))


MOST_ATTEMPTS = 40


def accepted(seed: int, run: Callable[[Composition], Any]) -> tuple[Composition, Any, list[str]]:
    """The first composition of a seed that the library takes, what `run` gives, and refusals."""
    refusals = []
    for attempt in range(MOST_ATTEMPTS):
        composition = draw(seed, attempt)
        try:
            return composition, run(composition), refusals
        except wl.WidelimitError as error:
            refusals.append(str(error))
    raise AssertionError(f"seed {seed}: {MOST_ATTEMPTS} refusals, the last: {refusals[-1]}")
