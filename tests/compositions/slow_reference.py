"""The infinite-width rules for two examples, slowly, in 30 digits, sharing nothing with `src`.

There are no masks here: every example is the list of its real positions, by their coordinates, and
every kernel a matrix over two such lists. What a layer does to padding cannot go wrong, because
there is none. Kernels of a pair are those of two passes; `own` is the covariance of an example with
itself in one pass, which dropout makes another one.

Softmax at 1/√d, and scores with a bias or rotary angles, have no closed form: Gaussian scores are
drawn from their covariance, and every term of the tangent kernel is summed as it is written.
"""

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from expectations import expectation
from mpmath import mp, mpf
from parts import Part
from slow_attention import Sampling, linear_attention, read_out, sqrt_attention
from slow_state import PAIRS, Place, Side, State, Undefined, exact, mapped, zeros

# --- maps over positions -------------------------------------------------------------------------


def _tuple(value: int | tuple[int, ...], rank: int) -> Place:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _windows(side: Side, part: Part) -> tuple[Place, list[tuple[Place, list[Place | None]]]]:
    """The grid after the layer; every real output place with its places below (None: nothing)."""
    rank = len(side.grid)
    if rank == 0:
        raise Undefined("a window without positions")
    window = _tuple(part["window"], rank)
    stride = window if part["stride"] is None else _tuple(part["stride"], rank)
    padding, real = part["padding"], set(side.places)
    if padding == "valid":
        grid = tuple((n - w) // s + 1 for n, w, s in zip(side.grid, window, stride, strict=True))
        before = (0,) * rank
    else:
        grid = tuple(-(-n // s) for n, s in zip(side.grid, stride, strict=True))
        before = tuple((w - 1) // 2 for w in window)
    if min(grid) < 1:
        raise Undefined("a window longer than the example")
    if padding == "circular" and len(real) < np.prod(side.grid):
        raise Undefined("two ends that are joined, and padding between them")
    found = []
    for place in itertools.product(*(range(n) for n in grid)):
        corner = [s * a - b for s, a, b in zip(stride, place, before, strict=True)]
        below: list[Place | None] = []
        for offset in itertools.product(*(range(w) for w in window)):
            at = tuple(c + o for c, o in zip(corner, offset, strict=True))
            if padding == "circular":
                at = tuple(a % n for a, n in zip(at, side.grid, strict=True))
            below.append(at if at in real else None)
        centre = tuple(s * a for s, a in zip(stride, place, strict=True))
        if (None not in below) if padding == "valid" else centre in real:
            found.append((place, below))
    if not found:
        raise Undefined("nothing is left of an example")
    return grid, found


def _selection(side: Side, wanted: list[Place | None]) -> np.ndarray:
    """The matrix that reads these places, 0 for None."""
    matrix = zeros(len(wanted), len(side.places))
    for row, place in enumerate(wanted):
        if place is not None:
            matrix[row, side.places.index(place)] = mpf(1)
    return matrix


def _window_pool(state: State, part: Part) -> State:
    maps, moved = [], []
    for side in state.sides:
        grid, found = _windows(side, part)
        rows = []
        for _, below in found:
            row = sum(_selection(side, below))
            rows.append(row / sum(row) if part.kind == "mean_pool" else row)
        maps.append(np.array(rows, object))
        moved.append((grid, [place for place, _ in found]))
    return mapped(state, maps, moved)


def _whole_pool(state: State, part: Part) -> State:
    maps = []
    for side in state.sides:
        if not side.grid:
            raise Undefined("pooling without positions")
        count = len(side.places)
        maps.append(exact(np.ones((1, count))) / (count if part.kind == "mean_pool" else 1))
    return mapped(state, maps, [((), [()])] * 2)


def _select(state: State, part: Part) -> State:
    maps = []
    for side in state.sides:
        index = part["index"] if isinstance(part["index"], tuple) else (part["index"],)
        if len(index) != len(side.grid):
            raise Undefined("an index for other positions")
        if min(index) < 0:  # from the end of the real positions
            last = max(side.places) if len(index) == 1 else tuple(n - 1 for n in side.grid)
            index = tuple(n + 1 + i if i < 0 else i for n, i in zip(last, index, strict=True))
        if index not in side.places:
            raise Undefined("a position that is not there")
        maps.append(_selection(side, [index]))
    return mapped(state, maps, [((), [()])] * 2)


def _flatten(state: State, part: Part) -> State:
    one, two = state.sides
    size = len(one.places)
    if one.places != two.places or one.grid != two.grid or size < np.prod(one.grid):
        raise Undefined("positions of their own weights, in examples of different lengths")

    def average(kernel: np.ndarray) -> np.ndarray:
        return np.array([[sum(np.diag(kernel), mpf(0)) / size]], object)

    sides = tuple(
        Side((), [()], average(s.own), None if s.mean is None else [sum(s.mean, mpf(0)) / size])
        for s in state.sides
    )
    nngp, ntk = ({k: average(v) for k, v in kernel.items()} for kernel in (state.nngp, state.ntk))
    uniform, channels = state.uniform and size == 1, state.channels * size
    return replace(state, sides=sides, nngp=nngp, ntk=ntk, channels=channels, uniform=uniform)


# --- weights -------------------------------------------------------------------------------------


def _affine(state: State, part: Part, fan_in: int) -> State:
    """Fresh weights on kernels that are averaged over the fan-in already."""
    w, b = mpf(part["w_std"]) ** 2, mpf(part["b_std"]) ** 2
    nngp = {k: w * v + b for k, v in state.nngp.items()}
    if part["parameterization"] == "ntk":
        ntk = {k: nngp[k] + w * state.ntk[k] for k in PAIRS}
    else:
        one = mpf(1 if part["b_std"] else 0)
        ntk = {k: fan_in * state.nngp[k] + one + w * state.ntk[k] for k in PAIRS}
    sides = tuple(replace(s, own=w * s.own + b, mean=None) for s in state.sides)
    return State(sides, nngp, ntk, part["width"], state.noisy, state.loss)


def _dense(state: State, part: Part) -> State:
    return _affine(state, part, state.channels)


def _conv(state: State, part: Part) -> State:
    found = [_windows(side, part) for side in state.sides]
    volume = len(found[0][1][0][1])
    readers = [
        [_selection(side, [below[o] for _, below in windows]) for o in range(volume)]
        for side, (_, windows) in zip(state.sides, found, strict=True)
    ]

    def average(kernel: np.ndarray, i: int, j: int) -> np.ndarray:
        pairs = zip(readers[i], readers[j], strict=True)
        return sum(one @ kernel @ two.T for one, two in pairs) / volume

    sides = tuple(
        Side(grid, [place for place, _ in windows], average(side.own, i, i), None)
        for i, (side, (grid, windows)) in enumerate(zip(state.sides, found, strict=True))
    )
    nngp, ntk = ({k: average(v[k], *k) for k in PAIRS} for v in (state.nngp, state.ntk))
    return _affine(replace(state, sides=sides, nngp=nngp, ntk=ntk), part, volume * state.channels)


def _embedding(state: State, part: Part) -> State:
    scale = mpf(part["std"]) ** 2
    nngp = {k: scale * v for k, v in state.nngp.items()}
    sides = tuple(replace(s, own=scale * s.own, mean=None) for s in state.sides)
    return State(sides, nngp, dict(nngp), part["width"], state.noisy)


# --- one position at a time ----------------------------------------------------------------------


def _variances(side: Side) -> list[Any]:
    return [side.own[a, a] for a in range(len(side.places))]


def _activation(state: State, part: Part) -> State:
    phi = expectation(part.options)
    q = [_variances(side) for side in state.sides]

    def both(kernel: np.ndarray, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        value, slope = zeros(*kernel.shape), zeros(*kernel.shape)
        for a, b in np.ndindex(*kernel.shape):
            value[a, b], slope[a, b] = phi.pair(q[i][a], q[j][b], kernel[a, b])
        return value, slope

    pairs = {k: both(state.nngp[k], *k) for k in PAIRS}
    sides = []
    for i, side in enumerate(state.sides):
        own = both(side.own, i, i)[0] if state.noisy else pairs[i, i][0]
        sides.append(replace(side, own=own, mean=[phi.mean(v) for v in q[i]]))
    return replace(
        state,
        raw=False,
        sides=tuple(sides),
        nngp={k: value for k, (value, _) in pairs.items()},
        ntk={k: state.ntk[k] * slope for k, (_, slope) in pairs.items()},
    )


def _layer_norm(state: State, part: Part) -> State:
    means = [s.mean or [mpf(0)] * len(s.places) for s in state.sides]
    roots, loss = [], state.loss
    for side, mean in zip(state.sides, means, strict=True):
        spread = [q - m**2 for q, m in zip(_variances(side), mean, strict=True)]
        if not state.raw:
            ratios = zip(_variances(side), spread, strict=True)
            worst = max(float(q / (max(v, 0) + mpf(part["eps"]))) for q, v in ratios)
            loss = max(loss, state.loss * worst)
        roots.append(np.array([1 / mp.sqrt(max(v, 0) + mpf(part["eps"])) for v in spread], object))
    means = [np.array(m, object) for m in means]

    def scaled(kernel: np.ndarray, i: int, j: int, *, centred: bool) -> np.ndarray:
        kernel = kernel - np.outer(means[i], means[j]) if centred else kernel
        return kernel * np.outer(roots[i], roots[j])

    sides = tuple(
        replace(s, own=scaled(s.own, i, i, centred=True), mean=None)
        for i, s in enumerate(state.sides)
    )
    nngp = {k: scaled(state.nngp[k], *k, centred=True) for k in PAIRS}
    ntk = {k: scaled(state.ntk[k], *k, centred=False) for k in PAIRS}
    return replace(state, sides=sides, nngp=nngp, ntk=ntk, loss=loss)


def _dropout(state: State, part: Part) -> State:
    sides = []
    for side in state.sides:
        own = side.own.copy()
        for a in range(len(side.places)):
            own[a, a] = own[a, a] / (1 - mpf(part["rate"]))
        sides.append(replace(side, own=own))
    return replace(state, sides=tuple(sides), noisy=state.noisy or part["rate"] > 0)


# --- several layers on one input -----------------------------------------------------------------


def _merged(ends: list[State], weights: list[Any]) -> State:
    """Σ weight·kernel of branches at the same places."""
    _require_same_places(ends)

    def total(kernels: list[np.ndarray]) -> np.ndarray:
        return sum(w * k for w, k in zip(weights, kernels, strict=True))

    sides = []
    for i, side in enumerate(ends[0].sides):
        sides.append(replace(side, own=total([end.sides[i].own for end in ends]), mean=None))
    nngp = {k: total([end.nngp[k] for end in ends]) for k in PAIRS}
    ntk = {k: total([end.ntk[k] for end in ends]) for k in PAIRS}
    noisy, loss = any(end.noisy for end in ends), max(end.loss for end in ends)
    raw, uniform = any(end.raw for end in ends), all(end.uniform for end in ends)
    return State(tuple(sides), nngp, ntk, ends[0].channels, noisy, loss, uniform, raw)


def _require_same_places(ends: list[State]) -> None:
    for i in (0, 1):
        if any(end.sides[i].places != ends[0].sides[i].places for end in ends):
            raise Undefined("branches that leave different positions")


def _with_means(state: State, ends: list[State], merge: Callable[[list[Any]], Any]) -> State:
    """The merged means, place by place."""
    sides = []
    for i, side in enumerate(state.sides):
        means = [end.sides[i].mean or [mpf(0)] * len(side.places) for end in ends]
        merged = [merge([m[a] for m in means]) for a in range(len(side.places))]
        sides.append(replace(side, mean=merged))
    return replace(state, sides=tuple(sides))


def _additive(ends: list[State], weights: list[Any]) -> State:
    roots = [mp.sqrt(w) for w in weights]
    return _with_means(
        _merged(ends, weights), ends, lambda m: sum(r * v for r, v in zip(roots, m, strict=True))
    )


def _product(ends: list[State]) -> State:
    # The mean over channels of a product is the product of means if one factor has one law.
    if sum(not end.uniform for end in ends) > 1:
        raise Undefined("a product of channels of different laws")
    uniform = all(end.uniform for end in ends)
    state = ends[0]
    for end in ends[1:]:
        _require_same_places([state, end])
        sides = tuple(
            replace(s, own=s.own * e.own) for s, e in zip(state.sides, end.sides, strict=True)
        )
        ntk = {k: state.ntk[k] * end.nngp[k] + state.nngp[k] * end.ntk[k] for k in PAIRS}
        nngp = {k: state.nngp[k] * end.nngp[k] for k in PAIRS}
        noisy, loss = state.noisy or end.noisy, max(state.loss, end.loss)
        state = State(sides, nngp, ntk, state.channels, noisy, loss, uniform)
    return _with_means(state, ends, lambda m: mp.fprod(m))


def _concat(ends: list[State]) -> State:
    channels = sum(end.channels for end in ends)
    shares = [mpf(end.channels) / channels for end in ends]
    joined = _with_means(
        _merged(ends, shares), ends, lambda m: sum(w * v for w, v in zip(shares, m, strict=True))
    )
    return replace(joined, channels=channels, uniform=joined.uniform and len(ends) == 1)


# --- a whole network -----------------------------------------------------------------------------

_SIMPLE: dict[str, Callable[[State, Part], State]] = {
    "dense": _dense,
    "conv": _conv,
    "embedding": _embedding,
    "activation": _activation,
    "layer_norm": _layer_norm,
    "dropout": _dropout,
    "select": _select,
    "flatten": _flatten,
}


def walk(part: Part, state: Any, sampling: Sampling | None = None) -> Any:
    """The state after a part; a tuple of states for two streams."""
    kind = part.kind
    if kind == "serial":
        for inner in part.parts:
            state = walk(inner, state, sampling)
        return state
    if kind == "repeat":
        for _ in range(part["times"]):
            state = walk(part.parts[0], state, sampling)
        return state
    if kind == "parallel":
        return tuple(walk(p, s, sampling) for p, s in zip(part.parts, state, strict=True))
    if kind == "cross_attention":
        return sqrt_attention(state[0], state[1], part, sampling)
    if kind == "attention_pool":
        return sqrt_attention(read_out(state), state, part, sampling)
    if kind == "attention":
        if part["scaling"] == "linear":
            return linear_attention(state, part)
        return sqrt_attention(state, state, part, sampling)
    if kind == "residual":
        ends = [state, walk(part.parts[0], state, sampling)]
        weight = part["weight"]
        return _additive(ends, [1, 1] if weight is None else [mpf(weight), 1 - mpf(weight)])
    if kind in ("sum", "product", "concat"):
        ends = [walk(inner, state, sampling) for inner in part.parts]
        if kind == "sum":
            return _additive(ends, [mpf(1)] * len(ends))
        return _product(ends) if kind == "product" else _concat(ends)
    if kind in ("mean_pool", "sum_pool"):
        return (_whole_pool if part["window"] is None else _window_pool)(state, part)
    return _SIMPLE[kind](state, part)
