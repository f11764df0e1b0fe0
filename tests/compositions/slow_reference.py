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
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from expectations import Expectation, expectation
from mpmath import mp, mpf
from parts import Part

Place = tuple[int, ...]
PAIRS = ((0, 0), (0, 1), (1, 1))


class Undefined(Exception):
    """A network without a meaning on these inputs; the library must refuse it."""


class Uneven(Undefined):
    """Branches that leave different positions: refused, or the order of branches has no say."""


@dataclass(frozen=True)
class Side:
    """One example: its array's extents, its real places, covariance and mean over channels."""

    grid: Place
    places: list[Place]
    own: np.ndarray
    mean: list[Any] | None

    def flat(self, place: Place) -> int:
        """The place's number in the array, row by row."""
        return int(np.ravel_multi_index(place, self.grid)) if place else 0


@dataclass(frozen=True)
class State:
    """Two examples at one layer: κ and Θ of their three pairs."""

    sides: tuple[Side, Side]
    nngp: dict[tuple[int, int], np.ndarray]
    ntk: dict[tuple[int, int], np.ndarray]
    channels: int
    noisy: bool = False  # there was dropout: an example's own covariance is not κ(x, x)
    # By how much a variance is smaller than the sum of the sizes it is the sum of: rounding in
    # whatever precision is so many times larger beside it.
    loss: float = 1.0
    raw: bool = False  # linear maps of the inputs: exact rows could be used, nothing must be lost


@dataclass(frozen=True)
class Sampling:
    """How Gaussian scores are drawn where there is no closed form."""

    rng: np.random.Generator
    draws: int


def exact(array: Any) -> np.ndarray:
    """Numbers as they are, in 30 digits."""
    array = np.asarray(array)
    out = np.empty(array.shape, object)
    for index in np.ndindex(*array.shape):
        value = array[index]
        out[index] = value if isinstance(value, mpf) else mpf(float(value))
    return out


def zeros(*shape: int) -> np.ndarray:
    return exact(np.zeros(shape))


# --- the beginning -------------------------------------------------------------------------------


def start(xs: tuple[Any, Any], masks: tuple[Any, Any], *, tokens: bool) -> State:
    """κ_ab = x_a·x'_b/channels, or 1 where two tokens agree; Θ = 0."""
    rows, places, grids = [], [], []
    for x, mask in zip(xs, masks, strict=True):
        grid = x.shape if tokens else x.shape[:-1]
        real = [p for p in np.ndindex(*grid) if mask is None or mask[p]]
        rows.append([x[p] if tokens else exact(x[p]) for p in real])
        places.append(real)
        grids.append(tuple(grid))
    channels = 0 if tokens else xs[0].shape[-1]

    def product(one: Any, two: Any) -> Any:
        return mpf(int(one == two)) if tokens else sum(one * two, mpf(0)) / channels

    nngp = {}
    for i, j in PAIRS:
        entries = [[product(a, b) for b in rows[j]] for a in rows[i]]
        nngp[i, j] = np.array(entries, object).reshape(len(rows[i]), len(rows[j]))
    means = [None if tokens else [sum(r, mpf(0)) / channels for r in side] for side in rows]
    sides = tuple(
        Side(g, p, nngp[i, i], m)
        for i, (g, p, m) in enumerate(zip(grids, places, means, strict=True))
    )
    ntk = {k: zeros(*v.shape) for k, v in nngp.items()}
    return State(sides, nngp, ntk, channels, raw=not tokens)


# --- maps over positions -------------------------------------------------------------------------


def _loss(sizes: np.ndarray, sums: np.ndarray) -> float:
    """How many times smaller than the sizes of its terms a variance is, at the worst place."""
    worst = 1.0
    for size, total in zip(np.diag(sizes), np.diag(sums), strict=True):
        if size > 0:
            worst = max(worst, float(size / total) if total > 0 else np.inf)
    return worst


def _mapped(state: State, maps: list[np.ndarray], moved: list[tuple[Place, list[Place]]]) -> State:
    """κ ← L κ L'ᵀ for one matrix per example."""
    sides, loss = [], state.loss
    for side, matrix, (grid, places) in zip(state.sides, maps, moved, strict=True):
        mean = None if side.mean is None else list(matrix @ np.array(side.mean, object))
        sides.append(Side(grid, places, matrix @ side.own @ matrix.T, mean))
        sizes = abs(matrix) @ abs(side.own) @ abs(matrix).T
        loss = max(loss, state.loss * _loss(sizes, sides[-1].own))
    both = [
        {(i, j): maps[i] @ kernel[i, j] @ maps[j].T for i, j in PAIRS}
        for kernel in (state.nngp, state.ntk)
    ]
    return replace(state, sides=tuple(sides), nngp=both[0], ntk=both[1], loss=loss)


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
    return _mapped(state, maps, moved)


def _whole_pool(state: State, part: Part) -> State:
    maps = []
    for side in state.sides:
        if not side.grid:
            raise Undefined("pooling without positions")
        count = len(side.places)
        maps.append(exact(np.ones((1, count))) / (count if part.kind == "mean_pool" else 1))
    return _mapped(state, maps, [((), [()])] * 2)


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
    return _mapped(state, maps, [((), [()])] * 2)


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
    return replace(state, sides=sides, nngp=nngp, ntk=ntk, channels=state.channels * size)


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
    raw = any(end.raw for end in ends)
    return State(tuple(sides), nngp, ntk, ends[0].channels, noisy, loss, raw)


def _require_same_places(ends: list[State]) -> None:
    for i in (0, 1):
        if any(end.sides[i].places != ends[0].sides[i].places for end in ends):
            raise Uneven("branches that leave different positions")


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
    state = ends[0]
    for end in ends[1:]:
        _require_same_places([state, end])
        sides = tuple(
            replace(s, own=s.own * e.own) for s, e in zip(state.sides, end.sides, strict=True)
        )
        ntk = {k: state.ntk[k] * end.nngp[k] + state.nngp[k] * end.ntk[k] for k in PAIRS}
        nngp = {k: state.nngp[k] * end.nngp[k] for k in PAIRS}
        noisy, loss = state.noisy or end.noisy, max(state.loss, end.loss)
        state = State(sides, nngp, ntk, state.channels, noisy, loss)
    return _with_means(state, ends, lambda m: mp.fprod(m))


def _concat(ends: list[State]) -> State:
    channels = sum(end.channels for end in ends)
    shares = [mpf(end.channels) / channels for end in ends]
    joined = _with_means(
        _merged(ends, shares), ends, lambda m: sum(w * v for w, v in zip(shares, m, strict=True))
    )
    return replace(joined, channels=channels)


# --- attention -----------------------------------------------------------------------------------


def _offset(one: Place, two: Place) -> list[int]:
    return [b - a for a, b in zip(one, two, strict=True)]


def _profile(options: dict[str, Any], one: Place, two: Place) -> Any:
    square = mpf(sum(o * o for o in _offset(one, two)))
    rate, name = mpf(options["rate"]), options["profile"].value
    if name == "gaussian":
        return mp.exp(-rate * square)
    return mp.exp(-rate * mp.sqrt(square)) if name == "exponential" else 1 / (1 + rate * square)


def _encoded(state: State, options: dict[str, Any] | None) -> State:
    """κ̃ = w_x κ + w_p R, Θ̃ = w_x Θ + w_p R."""
    if options is None:
        return state
    strength = mpf(options["strength"]) ** 2
    content, place = mpf(1), strength
    if options["combine"].value == "mix":
        content = 1 - strength
    elif options["combine"].value == "concat":
        extra = options.get("channels") or state.channels
        content = mpf(state.channels) / (state.channels + extra)
        place = strength * extra / (state.channels + extra)

    def plus(kernel: np.ndarray, i: int, j: int) -> np.ndarray:
        rows, columns = state.sides[i].places, state.sides[j].places
        decay = [[_profile(options, a, b) for b in columns] for a in rows]
        return content * kernel + place * np.array(decay, object)

    sides = tuple(replace(s, own=plus(s.own, i, i)) for i, s in enumerate(state.sides))
    nngp, ntk = ({k: plus(v[k], *k) for k in PAIRS} for v in (state.nngp, state.ntk))
    return replace(state, sides=sides, nngp=nngp, ntk=ntk)


def _allowed(part: Part, side: Side) -> np.ndarray:
    """Which key each query may look at."""
    size = len(side.places)
    found = np.ones((size, size), bool)
    pattern = part.options.get("pattern")
    if pattern is None:
        return found
    kind, value = pattern
    for a, k in np.ndindex(size, size):
        query, key = side.places[a], side.places[k]
        if kind == "causal":
            found[a, k] = side.flat(key) <= side.flat(query)
        elif kind == "local":
            found[a, k] = max(abs(o) for o in _offset(query, key)) <= value
        else:
            found[a, k] = value[side.flat(query), side.flat(key)]
    return found


def _score_bias(part: Part, side: Side) -> np.ndarray:
    size = len(side.places)
    total = zeros(size, size)
    if part.options.get("bias") is None:
        return total
    kind, value = part["bias"]
    for a, k in np.ndindex(size, size):
        offset = _offset(side.places[a], side.places[k])
        if kind == "alibi":
            total[a, k] = -mpf(value) * sum(abs(o) for o in offset)
        elif kind == "offset":
            square = sum(o * o for o in offset)
            total[a, k] = mpf("0.4") * mp.tanh(offset[0]) - mpf("0.1") * square
        else:
            total[a, k] = mpf(value[side.flat(side.places[a]), side.flat(side.places[k])])
    return total


def _rho(part: Part, gap: int) -> Any:
    """mean_k cos(θ_k gap); 1 without rotary angles."""
    if part.options.get("rotary") is None:
        return mpf(1)
    base, pairs = part["rotary"]
    return sum(mp.cos(mpf(base) ** (-mpf(k) / pairs) * gap) for k in range(pairs)) / pairs


def _weights_at_linear(part: Part, side: Side, scored: np.ndarray) -> np.ndarray:
    """A(x) = ζ(qk κ̃(x, x)), one row per query."""
    allowed, bias = _allowed(part, side), _score_bias(part, side)
    weights = zeros(*scored.shape)
    phi = None if part["map"] is None else expectation(part["map"])
    for a, query in enumerate(side.places):
        keys = np.flatnonzero(allowed[a])
        scores = {}
        for k in keys:
            turn = _rho(part, side.places[k][0] - query[0]) if part["rotary"] else 1
            scores[k] = mpf(part["qk_std"]) * scored[a, k] * turn + bias[a, k]
        if phi is None:
            top = max(scores.values(), default=mpf(0))
            raised = {k: mp.exp(s - top) for k, s in scores.items()}
            scores = {k: v / sum(raised.values()) for k, v in raised.items()}
        for k, s in scores.items():
            weights[a, k] = s if phi is None else _map_exactly(part["map"], phi, s)
    return weights


def _map_exactly(options: dict[str, Any], phi: Expectation, score: Any) -> Any:
    """ζ of one deterministic score, in 30 digits for the maps that are drawn most."""
    exactly = {
        "identity": lambda s: s,
        "Relu": lambda s: max(s, mpf(0)),
        "Abs": abs,
        "Erf": mp.erf,
        "Tanh": mp.tanh,
        "Exp": mp.exp,
    }.get(options["name"])
    if exactly is None or options.get("given"):
        return mpf(float(phi.fn(np.array(float(score)))))
    return exactly(score)


def _linear_attention(state: State, part: Part) -> State:
    """A is deterministic: κ ← ov² AκA'ᵀ + b², Θ ← ov² (AΘA'ᵀ + 2AκA'ᵀ) + b²."""
    scored = _encoded(state, part["encoding"])
    valued = scored if part["encoding"] and part["encoding"]["on_values"] else state
    maps = [_weights_at_linear(part, s, s.own) for s in scored.sides]
    moved = _mapped(valued, maps, [(s.grid, s.places) for s in state.sides])
    ov, b = mpf(part["ov_std"]) ** 2, mpf(part["b_std"]) ** 2
    sides = tuple(replace(s, own=ov * s.own + b, mean=None) for s in moved.sides)
    nngp = {k: ov * moved.nngp[k] + b for k in PAIRS}
    ntk = {k: ov * (moved.ntk[k] + 2 * moved.nngp[k]) + b for k in PAIRS}
    return State(sides, nngp, ntk, part["width"], state.noisy, moved.loss)


@dataclass(frozen=True)
class _Scores:
    """What the scores of two passes are made of: own covariances and κ, Θ of queries and keys."""

    own_query: tuple[np.ndarray, np.ndarray]
    own_key: tuple[np.ndarray, np.ndarray]
    query: tuple[np.ndarray, np.ndarray]
    key: tuple[np.ndarray, np.ndarray]
    value: tuple[np.ndarray, np.ndarray]
    allowed: tuple[np.ndarray, np.ndarray]
    places: tuple[tuple[list[Place], list[Place]], tuple[list[Place], list[Place]]]
    bias: tuple[np.ndarray, np.ndarray]


def _closed(part: Part, s: _Scores) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Elementwise ζ: every pair of scores is a bivariate Gaussian."""
    phi, qk = expectation(part["map"]), mpf(part["qk_std"]) ** 2
    nngp, ntk, sizes = (zeros(*s.query[0].shape) for _ in range(3))
    for a, b in np.ndindex(*nngp.shape):
        query, query_ntk = s.query[0][a, b], s.query[1][a, b]
        keys = (np.flatnonzero(s.allowed[i][row]) for i, row in enumerate((a, b)))
        for k, l in itertools.product(*keys):
            key, key_ntk = s.key[0][k, l], s.key[1][k, l]
            value, value_ntk = s.value[0][k, l], s.value[1][k, l]
            q1 = qk * s.own_query[0][a, a] * s.own_key[0][k, k]
            q2 = qk * s.own_query[1][b, b] * s.own_key[1][l, l]
            same, slope = phi.pair(q1, q2, qk * query * key)
            nngp[a, b] += value * same
            sizes[a, b] += abs(value * same)
            ntk[a, b] += (2 * value + value_ntk) * same
            lifted = 2 * query * key + query_ntk * key + query * key_ntk
            ntk[a, b] += qk * lifted * value * slope
    return nngp, ntk, sizes


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(float)


def _drawn(
    part: Part, s: _Scores, sampling: Sampling
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Any ζ: average over Gaussian scores of the two passes."""
    qk = float(part["qk_std"]) ** 2
    sizes = [a.shape for a in s.allowed]
    blocks = (
        (s.own_query[0], s.own_key[0], 0, 0),
        (s.query[0], s.key[0], 0, 1),
        (s.own_query[1], s.own_key[1], 1, 1),
    )
    turns = {}
    for _, _, i, j in blocks:
        turn = np.ones((*sizes[i], *sizes[j]))
        if part.options.get("rotary") is not None:
            for a, k, b, l in np.ndindex(*turn.shape):
                (pq, pk), (rq, rk) = s.places[i], s.places[j]
                gap = (pk[k][0] - pq[a][0]) - (rk[l][0] - rq[b][0])
                turn[a, k, b, l] = float(_rho(part, gap))
        turns[i, j] = turn
    parts = {
        (i, j): qk * np.einsum("ab,kl->akbl", _plain(q), _plain(k)) * turns[i, j]
        for q, k, i, j in blocks
    }
    n = [size[0] * size[1] for size in sizes]
    joint = np.block(
        [
            [parts[0, 0].reshape(n[0], n[0]), parts[0, 1].reshape(n[0], n[1])],
            [parts[0, 1].reshape(n[0], n[1]).T, parts[1, 1].reshape(n[1], n[1])],
        ]
    )
    values, vectors = np.linalg.eigh((joint + joint.T) / 2)
    root = vectors * np.sqrt(np.maximum(values, 0))
    half = sampling.rng.standard_normal((sampling.draws // 2, sum(n))) @ root.T
    scores = np.concatenate([half, -half])
    ends = []
    for i, block in enumerate(np.split(scores, [n[0]], axis=1)):
        g = block.reshape(-1, *sizes[i]) + _plain(s.bias[i])
        ends.append(_weights_and_slopes(part, g, s.allowed[i]))
    (w1, d1), (w2, d2) = ends
    value, value_ntk = _plain(s.value[0]), _plain(s.value[1])
    count = len(scores)
    pairs = np.einsum("mak,mbl->akbl", w1, w2, optimize=True) / count
    nngp = np.einsum("akbl,kl->ab", pairs, value)
    ntk = np.einsum("akbl,kl->ab", pairs, 2 * value + value_ntk)
    moved = np.einsum("maik,ij->makj", d1, value, optimize=True)
    response = np.einsum("makj,mbjl->akbl", moved, d2, optimize=True) / count
    query, query_ntk = _plain(s.query[0]), _plain(s.query[1])
    key, key_ntk = _plain(s.key[0]), _plain(s.key[1])
    lifted = np.einsum("ab,kl->akbl", 2 * query + query_ntk, key)
    lifted = (lifted + np.einsum("ab,kl->akbl", query, key_ntk)) * turns[0, 1]
    ntk = ntk + qk * np.sum(lifted * response, axis=(1, 3))
    return exact(nngp), exact(ntk), exact(nngp)


def _weights_and_slopes(part: Part, g: np.ndarray, allowed: np.ndarray):
    """ζ(G) and ∂ζ_ai/∂G_ak, axes (draw, query, i, k)."""
    size = g.shape[-1]
    if part["map"] is not None:
        phi = expectation(part["map"])
        slopes = np.where(allowed, phi.slope(g), 0)
        return np.where(allowed, phi.fn(g), 0), slopes[..., None] * np.eye(size)
    g = np.where(allowed, g, -np.inf)
    top = np.max(g, axis=-1, keepdims=True)
    raised = np.where(allowed, np.exp(g - np.where(np.isfinite(top), top, 0)), 0)
    total = np.sum(raised, axis=-1, keepdims=True)
    w = raised / np.where(total == 0, 1, total)
    return w, w[..., None] * np.eye(size) - w[..., :, None] * w[..., None, :]


def is_sampled(part: Part) -> bool:
    """Whether an attention layer's kernel is an average over drawn scores."""
    if part.kind not in ("attention", "attention_pool", "cross_attention"):
        return False
    if part.options.get("scaling") == "linear":
        return False
    return part["map"] is None or bool(part.options.get("bias") or part.options.get("rotary"))


def _sqrt_attention(
    queries: State, context: State, part: Part, sampling: Sampling | None
) -> State:
    """Scores at 1/√d from queries of one state to keys of another (self-attention: the same)."""
    keys = _encoded(context, part["encoding"])
    values = keys if part["encoding"] and part["encoding"]["on_values"] else context
    itself = part.kind == "attention"
    queries = keys if itself else queries
    patterns = [
        _allowed(part, side)
        if itself
        else np.ones((len(q.places), len(side.places)), bool)
        for q, side in zip(queries.sides, context.sides, strict=True)
    ]
    biases = [
        _score_bias(part, side) if itself else zeros(*pattern.shape)
        for side, pattern in zip(context.sides, patterns, strict=True)
    ]
    drawn = is_sampled(part)
    if drawn and sampling is None:
        raise ValueError("scores that are drawn need a sampling")

    def run(i: int, j: int, *, own: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        def kernels(state: State) -> tuple[np.ndarray, np.ndarray]:
            if own:
                return state.sides[i].own, zeros(*state.sides[i].own.shape)
            return state.nngp[i, j], state.ntk[i, j]

        scores = _Scores(
            own_query=(queries.sides[i].own, queries.sides[j].own),
            own_key=(keys.sides[i].own, keys.sides[j].own),
            query=kernels(queries),
            key=kernels(keys),
            value=kernels(values),
            allowed=(patterns[i], patterns[j]),
            places=tuple((queries.sides[s].places, keys.sides[s].places) for s in (i, j)),
            bias=(biases[i], biases[j]),
        )
        return _drawn(part, scores, sampling) if drawn else _closed(part, scores)

    ov, b = mpf(part["ov_std"]) ** 2, mpf(part["b_std"]) ** 2
    noisy = queries.noisy or context.noisy
    pairs = {k: run(*k, own=False) for k in PAIRS}
    passes = [run(i, i, own=True) if noisy else pairs[i, i] for i in (0, 1)]
    owns, losses = [p[0] for p in passes], [(p[2], p[0]) for p in passes]
    sides = tuple(
        Side(s.grid, s.places, ov * own + b, None)
        for s, own in zip(queries.sides, owns, strict=True)
    )
    nngp = {k: ov * v[0] + b for k, v in pairs.items()}
    ntk = {k: ov * v[1] + b for k, v in pairs.items()}
    loss = max(queries.loss, context.loss) * max(_loss(*sizes) for sizes in losses)
    return State(sides, nngp, ntk, part["width"], noisy, loss)


def _read_out(state: State) -> State:
    """A trained query of N(0, 1) entries: κ = Θ = 1 for every pair."""
    one = exact(np.ones((1, 1)))
    sides = tuple(Side((), [()], one, None) for _ in range(2))
    return State(sides, dict.fromkeys(PAIRS, one), dict.fromkeys(PAIRS, one), 1)


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
        return _sqrt_attention(state[0], state[1], part, sampling)
    if kind == "attention_pool":
        return _sqrt_attention(_read_out(state), state, part, sampling)
    if kind == "attention":
        if part["scaling"] == "linear":
            return _linear_attention(state, part)
        return _sqrt_attention(state, state, part, sampling)
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
