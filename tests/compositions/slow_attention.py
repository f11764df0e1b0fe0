"""Attention in the slow reference: deterministic scores, closed forms, drawn scores."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from expectations import Expectation, expectation
from mpmath import mp, mpf
from parts import Part
from slow_state import PAIRS, Place, Side, State, exact, loss_of, mapped, zeros

SQUARES = {"name": "squares"}


@dataclass(frozen=True)
class Sampling:
    """How Gaussian scores are drawn where there is no closed form."""

    rng: np.random.Generator
    draws: int


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


def _lifted(state: State, b_std: float) -> State:
    """κ + σ², Θ as it is: the layer's own terms have what a trained bias adds."""
    more = mpf(b_std) ** 2
    sides = tuple(replace(s, own=s.own + more) for s in state.sides)
    return replace(state, sides=sides, nngp={k: state.nngp[k] + more for k in PAIRS})


def _scored(state: State, part: Part) -> State:
    """κ̃ and Θ̃ of queries and keys: with encoding and bias, and all of one length."""
    given = part.options.get("projections", {})
    state = _lifted(_encoded(state, part["encoding"]), given.get("qk_b_std", 0))
    if not given.get("qk_norm"):
        return state
    inverse = [
        np.array([0 if v == 0 else 1 / mp.sqrt(v) for v in np.diag(side.own)], object)
        for side in state.sides
    ]

    def scaled(kernel: np.ndarray, i: int, j: int) -> np.ndarray:
        return kernel * inverse[i][:, None] * inverse[j][None, :]

    sides = tuple(replace(s, own=scaled(s.own, i, i)) for i, s in enumerate(state.sides))
    nngp, ntk = ({k: scaled(v[k], *k) for k in PAIRS} for v in (state.nngp, state.ntk))
    return replace(state, sides=sides, nngp=nngp, ntk=ntk)


def _valued(state: State, part: Part) -> State:
    """κ and Θ of values: with the encoding where they see it, and their bias."""
    encoding = part["encoding"]
    seen = _encoded(state, encoding) if encoding and encoding["on_values"] else state
    return _lifted(seen, part.options.get("projections", {}).get("v_b_std", 0))


def _with_dropped_weights(own: np.ndarray, squares: np.ndarray, values: np.ndarray, part: Part):
    """κ_aa + rate/(1 − rate) Σ_i E[A_ai²] κ_ii within one pass."""
    rate = mpf(part.options.get("dropout", 0.0))
    return own + np.diag(squares @ np.diag(values)) * rate / (1 - rate)


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
    shared = part["map"] in (None, SQUARES)  # keys of one query share a total of 1
    phi = None if shared else expectation(part["map"])
    for a, query in enumerate(side.places):
        keys = np.flatnonzero(allowed[a])
        scores = {}
        for k in keys:
            turn = _rho(part, side.places[k][0] - query[0]) if part["rotary"] else 1
            scores[k] = mpf(part["qk_std"]) * scored[a, k] * turn + bias[a, k]
        if phi is None:
            top = max(scores.values(), default=mpf(0))
            raised = {k: mp.exp(s - top) for k, s in scores.items()}
            if part["map"] == SQUARES:
                raised = {k: s**2 + mpf("0.1") for k, s in scores.items()}
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


def linear_attention(state: State, part: Part) -> State:
    """A is deterministic: κ ← ov² AκA'ᵀ + b², Θ ← ov² (AΘA'ᵀ + 2AκA'ᵀ) + b²."""
    scored, valued = _scored(state, part), _valued(state, part)
    maps = [_weights_at_linear(part, s, s.own) for s in scored.sides]
    moved = mapped(valued, maps, [(s.grid, s.places) for s in state.sides])
    ov, b = mpf(part["ov_std"]) ** 2, mpf(part["b_std"]) ** 2
    owns = [
        _with_dropped_weights(after.own, weights**2, before.own, part)
        for after, weights, before in zip(moved.sides, maps, valued.sides, strict=True)
    ]
    sides = tuple(
        replace(s, own=ov * own + b, mean=None) for s, own in zip(moved.sides, owns, strict=True)
    )
    nngp = {k: ov * moved.nngp[k] + b for k in PAIRS}
    ntk = {k: ov * (moved.ntk[k] + 2 * moved.nngp[k]) + b for k in PAIRS}
    noisy = state.noisy or part["dropout"] > 0
    return State(sides, nngp, ntk, part["width"], noisy, moved.loss)


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


_Run = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""κ, Θ, the sizes of what κ is the sum of, and `E[A_ai²]` of the first input."""


def _closed(part: Part, s: _Scores) -> _Run:
    """Elementwise ζ: every pair of scores is a bivariate Gaussian."""
    phi, qk = expectation(part["map"]), mpf(part["qk_std"]) ** 2
    nngp, ntk, sizes = (zeros(*s.query[0].shape) for _ in range(3))
    for a, b in np.ndindex(*nngp.shape):
        query, query_ntk = s.query[0][a, b], s.query[1][a, b]
        keys = (np.flatnonzero(s.allowed[i][row]) for i, row in enumerate((a, b)))
        for k, m in itertools.product(*keys):
            key, key_ntk = s.key[0][k, m], s.key[1][k, m]
            value, value_ntk = s.value[0][k, m], s.value[1][k, m]
            q1 = qk * s.own_query[0][a, a] * s.own_key[0][k, k]
            q2 = qk * s.own_query[1][b, b] * s.own_key[1][m, m]
            same, slope = phi.pair(q1, q2, qk * query * key)
            nngp[a, b] += value * same
            sizes[a, b] += abs(value * same)
            ntk[a, b] += (2 * value + value_ntk) * same
            lifted = 2 * query * key + query_ntk * key + query * key_ntk
            ntk[a, b] += qk * lifted * value * slope
    squares = zeros(*s.allowed[0].shape)
    for a, k in zip(*np.nonzero(s.allowed[0]), strict=True):
        variance = qk * s.own_query[0][a, a] * s.own_key[0][k, k]
        squares[a, k] = phi.pair(variance, variance, variance)[0]
    return nngp, ntk, sizes, squares


def _plain(array: np.ndarray) -> np.ndarray:
    return array.astype(float)


def _drawn(part: Part, s: _Scores, sampling: Sampling) -> _Run:
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
            for a, k, b, m in np.ndindex(*turn.shape):
                (pq, pk), (rq, rk) = s.places[i], s.places[j]
                gap = (pk[k][0] - pq[a][0]) - (rk[m][0] - rq[b][0])
                turn[a, k, b, m] = float(_rho(part, gap))
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
    return exact(nngp), exact(ntk), exact(nngp), exact(np.mean(w1**2, axis=0))


def _weights_and_slopes(part: Part, g: np.ndarray, allowed: np.ndarray):
    """ζ(G) and ∂ζ_ai/∂G_ak, axes (draw, query, i, k)."""
    size = g.shape[-1]
    if part["map"] == SQUARES:
        squares = np.where(allowed, g**2 + 0.1, 0)
        total = np.sum(squares, axis=-1, keepdims=True)
        total = np.where(total == 0, 1, total)
        w, slopes = squares / total, np.where(allowed, 2 * g, 0) / total
        return w, slopes[..., None] * np.eye(size) - w[..., :, None] * slopes[..., None, :]
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
    shared = part["map"] in (None, SQUARES)
    return shared or bool(part.options.get("bias") or part.options.get("rotary"))


def sqrt_attention(queries: State, context: State, part: Part, sampling: Sampling | None) -> State:
    """Scores at 1/√d from queries of one state to keys of another (self-attention: the same)."""
    keys, values = _scored(context, part), _valued(context, part)
    itself = part.kind == "attention"
    queries = keys if itself else queries
    patterns = [
        _allowed(part, side) if itself else np.ones((len(q.places), len(side.places)), bool)
        for q, side in zip(queries.sides, context.sides, strict=True)
    ]
    biases = [
        _score_bias(part, side) if itself else zeros(*pattern.shape)
        for side, pattern in zip(context.sides, patterns, strict=True)
    ]
    drawn = is_sampled(part)
    if drawn and sampling is None:
        raise ValueError("scores that are drawn need a sampling")

    def run(i: int, j: int, *, own: bool) -> _Run:
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
    before = queries.noisy or context.noisy
    noisy = before or part.options.get("dropout", 0) > 0
    pairs = {k: run(*k, own=False) for k in PAIRS}
    passes = [run(i, i, own=True) if before else pairs[i, i] for i in (0, 1)]
    owns = [
        _with_dropped_weights(p[0], p[3], side.own, part)
        for p, side in zip(passes, values.sides, strict=True)
    ]
    losses = [(p[2], p[0]) for p in passes]
    sides = tuple(
        Side(s.grid, s.places, ov * own + b, None)
        for s, own in zip(queries.sides, owns, strict=True)
    )
    nngp = {k: ov * v[0] + b for k, v in pairs.items()}
    ntk = {k: ov * v[1] + b for k, v in pairs.items()}
    loss = max(queries.loss, context.loss) * max(loss_of(*sizes) for sizes in losses)
    return State(sides, nngp, ntk, part["width"], noisy, loss)


def read_out(state: State) -> State:
    """A trained query of N(0, 1) entries: κ = Θ = 1 for every pair."""
    one = exact(np.ones((1, 1)))
    sides = tuple(Side((), [()], one, None) for _ in range(2))
    return State(sides, dict.fromkeys(PAIRS, one), dict.fromkeys(PAIRS, one), 1)
