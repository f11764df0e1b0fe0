"""Networks as tensor programs.

Every builder takes the per-coordinate covariance of its input vectors, for instance `X Xᵀ/d` of
embedded inputs: one row per example (MLP), position (CNN, attention) or time step (RNN, GRU, LSTM).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from numpy.typing import ArrayLike

from widelimit.netsor import (
    CoordinateFunction,
    Matrix,
    Program,
    Scalar,
    Vector,
    clip,
    relu,
    sigmoid,
    softmax,
    tanh,
)


def mlp(
    covariance: ArrayLike,
    *,
    depth: int = 2,
    activation: CoordinateFunction = relu,
    w_std: float = math.sqrt(2.0),
    b_std: float = 0.0,
) -> Program:
    """`h^ℓ = φ(W^ℓ h^{ℓ-1} + b^ℓ)` for several inputs at once, then a linear readout `y`."""
    p = Program(f"MLP of depth {depth}")
    hidden = _mlp_layers(p, p.inputs("x", covariance=covariance), depth, activation, w_std, b_std)
    readout = p.matrix("V")
    p.output(*[(readout @ h).named(f"y{i + 1}") for i, h in enumerate(hidden)])
    return p


def _mlp_layers(
    p: Program,
    hidden: Sequence[Vector],
    depth: int,
    activation: CoordinateFunction,
    w_std: float,
    b_std: float,
) -> Sequence[Vector]:
    for level in range(1, depth + 1):
        weight = p.matrix(f"W{level}", std=w_std)
        bias = p.input(f"b{level}", std=b_std) if b_std else 0.0
        hidden = [
            activation((weight @ h) + bias).named(f"h{level}[{i + 1}]")
            for i, h in enumerate(hidden)
        ]
    return hidden


def cnn(
    covariance: ArrayLike,
    *,
    depth: int = 2,
    window: int = 3,
    activation: CoordinateFunction = relu,
    w_std: float = math.sqrt(2.0),
) -> Program:
    """Convolutions `g_a = k^{-1/2} Σ_o W_o h_{a+o}` (zero padding), pooling and readout `y`."""
    p = Program(f"CNN of depth {depth}, window {window}")
    hidden: list[Vector] = list(p.inputs("x", covariance=covariance))
    reach = window // 2
    for level in range(1, depth + 1):
        weights = {
            o: p.matrix(f"W{level}[{o:+d}]", std=w_std / math.sqrt(window))
            for o in range(-reach, reach + 1)
        }
        hidden = [
            activation(
                sum_of([w @ hidden[a + o] for o, w in weights.items() if 0 <= a + o < len(hidden)])
            ).named(f"h{level}[{a + 1}]")
            for a in range(len(hidden))
        ]
    pooled = (sum_of(hidden) / len(hidden)).named("pool")
    p.output((p.matrix("V") @ pooled).named("y"))
    return p


def rnn(
    covariance: ArrayLike,
    *,
    activation: CoordinateFunction = tanh,
    w_std: float = 1.0,
    u_std: float = 1.0,
    b_std: float = 0.0,
) -> Program:
    """`h_t = φ(W h_{t-1} + U x_t + b)`, `h_0 = 0`: one W at all times; outputs `y_t = V h_t`.

    The shared W correlates times: `Cov(Z^{Wh_s}, Z^{Wh_t}) = σ² E[Z^{h_s} Z^{h_t}]`.
    """
    p = Program("RNN")
    inputs = p.inputs("x", covariance=covariance)
    recurrent, feed, readout = p.matrix("W", std=w_std), p.matrix("U", std=u_std), p.matrix("V")
    bias = p.input("b", std=b_std) if b_std else 0.0
    state: Vector | None = None
    outputs = []
    for t, x in enumerate(inputs, 1):
        state = activation(_affine(feed, x, recurrent, state) + bias).named(f"h{t}")
        outputs.append((readout @ state).named(f"y{t}"))
    p.output(*outputs)
    return p


def gru(covariance: ArrayLike, *, w_std: float = 1.0, u_std: float = 1.0) -> Program:
    """A gated recurrent unit, `h_0 = 0`.

    `z = sigmoid(W_z x + U_z h)`, `r = sigmoid(W_r x + U_r h)`, `c = tanh(W_c x + U_c(r·h))`,
    `h ← (1-z)·h + z·c`; outputs `y_t = V h_t`.
    """
    p = Program("GRU")
    inputs = p.inputs("x", covariance=covariance)
    feed = {gate: p.matrix(f"W{gate}", std=w_std) for gate in "zrc"}
    back = {gate: p.matrix(f"U{gate}", std=u_std) for gate in "zrc"}
    readout = p.matrix("V")
    state: Vector | None = None
    outputs = []
    for t, x in enumerate(inputs, 1):
        update = sigmoid(_affine(feed["z"], x, back["z"], state)).named(f"z{t}")
        if state is None:
            candidate = tanh(feed["c"] @ x).named(f"c{t}")
            state = (update * candidate).named(f"h{t}")
        else:
            reset = sigmoid(_affine(feed["r"], x, back["r"], state)).named(f"r{t}")
            candidate = tanh(_affine(feed["c"], x, back["c"], reset * state)).named(f"c{t}")
            state = ((1 - update) * state + update * candidate).named(f"h{t}")
        outputs.append((readout @ state).named(f"y{t}"))
    p.output(*outputs)
    return p


def lstm(covariance: ArrayLike, *, w_std: float = 1.0, u_std: float = 1.0) -> Program:
    """A long short-term memory cell, `h_0 = c_0 = 0`.

    Gates `i, f, o = sigmoid(W x + U h)`, `g = tanh(W_g x + U_g h)`, `c ← f·c + i·g`,
    `h ← o·tanh(c)`; outputs `y_t = V h_t`.
    """
    p = Program("LSTM")
    inputs = p.inputs("x", covariance=covariance)
    feed = {gate: p.matrix(f"W{gate}", std=w_std) for gate in "ifog"}
    back = {gate: p.matrix(f"U{gate}", std=u_std) for gate in "ifog"}
    readout = p.matrix("V")
    state: Vector | None = None
    cell: Vector | None = None
    outputs = []
    for t, x in enumerate(inputs, 1):

        def gate(letter: str, function: CoordinateFunction) -> Vector:
            argument = _affine(feed[letter], x, back[letter], state)  # noqa: B023 (called at once)
            return function(argument).named(f"{letter}{t}")  # noqa: B023

        entry = gate("i", sigmoid) * gate("g", tanh)
        cell = (entry if cell is None else gate("f", sigmoid) * cell + entry).named(f"c{t}")
        state = (gate("o", sigmoid) * tanh(cell)).named(f"h{t}")
        outputs.append((readout @ state).named(f"y{t}"))
    p.output(*outputs)
    return p


def attention_layer(
    p: Program,
    tokens: Sequence[Vector],
    *,
    heads: int,
    qk_std: float = 1.0,
    ov_std: float = 1.0,
    name: str = "",
) -> list[Vector]:
    """Add softmax attention with `heads` heads and 1/√n scores to a program.

    `y_a = H^{-1/2} Σ_h Σ_i softmax_i(p_h,a·) W_O,h W_V,h x_i`,
    `p_h,ai = n^{-1/2} (W_Q,h x_a)ᵀ(W_K,h x_i)`. `qk_std` multiplies the scores, `ov_std` the
    output.
    """
    outputs: list[list[Vector]] = [[] for _ in tokens]
    for h in range(1, heads + 1):
        query, key = p.matrix(f"{name}Q{h}", std=qk_std), p.matrix(f"{name}K{h}")
        value, out = p.matrix(f"{name}V{h}", std=ov_std), p.matrix(f"{name}O{h}")
        queries = [(query @ x).named(f"{name}q{h}[{a}]") for a, x in enumerate(tokens, 1)]
        keys = [(key @ x).named(f"{name}k{h}[{i}]") for i, x in enumerate(tokens, 1)]
        values = [
            (out @ (value @ x).named(f"{name}v{h}[{i}]")).named(f"{name}o{h}[{i}]")
            for i, x in enumerate(tokens, 1)
        ]
        for a, q in enumerate(queries, 1):
            scores: list[Scalar] = [
                p.dot(q, k).named(f"{name}p{h}[{a},{i}]") for i, k in enumerate(keys, 1)
            ]
            weights = [w.named(f"{name}A{h}[{a},{i}]") for i, w in enumerate(softmax(scores), 1)]
            outputs[a - 1] += [w * v for w, v in zip(weights, values, strict=True)]
    return [
        (sum_of(parts) / math.sqrt(heads)).named(f"{name}y{a}")
        for a, parts in enumerate(outputs, 1)
    ]


def multi_head_attention(
    covariance: ArrayLike,
    *,
    heads: int,
    qk_std: float = 1.0,
    ov_std: float = 1.0,
    input_map: CoordinateFunction | None = None,
) -> Program:
    """One attention layer on tokens `ψ(x_a)`; ψ clips at ±100 by default.

    The limit: scores Gaussian with `Cov(p_h,ai, p_h,bj) = σ_QK² κ_ab κ_ij`, independent over heads;
    given them, `y ~ N(0, σ_OV² H^{-1} Σ_h A_h κ A_hᵀ)`.
    """
    p = Program(f"multi-head attention, {heads} head{'s' if heads > 1 else ''}")
    psi = clip(100.0) if input_map is None else input_map
    tokens = [psi(x).named(f"t{a}") for a, x in enumerate(p.inputs("x", covariance=covariance), 1)]
    p.output(*attention_layer(p, tokens, heads=heads, qk_std=qk_std, ov_std=ov_std))
    return p


def attention_after_mlp(
    covariance: ArrayLike,
    *,
    heads: int,
    depth: int = 1,
    activation: CoordinateFunction = tanh,
    w_std: float = math.sqrt(2.0),
    qk_std: float = 1.0,
    ov_std: float = 1.0,
) -> Program:
    """An MLP applied to every token, then attention between the tokens."""
    p = Program(f"attention with {heads} head{'s' if heads > 1 else ''} after an MLP")
    tokens = _mlp_layers(
        p, p.inputs("x", covariance=covariance), depth, activation, w_std, b_std=0.0
    )
    p.output(*attention_layer(p, tokens, heads=heads, qk_std=qk_std, ov_std=ov_std))
    return p


def stacked_attention(
    covariance: ArrayLike,
    *,
    heads: Sequence[int],
    activation: CoordinateFunction = tanh,
    qk_std: float = 1.0,
    ov_std: float = 1.0,
) -> Program:
    """Attention layers with a nonlinearity between them: the conditional recursion at work.

    Scores of layer ℓ are Gaussian given those of the layers below.
    """
    p = Program(f"{len(heads)} attention layers")
    tokens: Sequence[Vector] = p.inputs("x", covariance=covariance)
    for level, count in enumerate(heads, 1):
        inputs = [activation(x).named(f"t{level}[{a}]") for a, x in enumerate(tokens, 1)]
        tokens = attention_layer(
            p, inputs, heads=count, qk_std=qk_std, ov_std=ov_std, name=f"L{level}."
        )
    p.output(*tokens)
    return p


def sum_of(vectors: Sequence[Vector]) -> Vector:
    """The sum of at least one vector."""
    total = vectors[0]
    for vector in vectors[1:]:
        total = total + vector
    return total


def _affine(feed: Matrix, x: Vector, recurrent: Matrix, state: Vector | None) -> Vector:
    return feed @ x if state is None else (recurrent @ state) + (feed @ x)
