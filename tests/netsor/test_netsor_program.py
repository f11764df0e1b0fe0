"""Building, listing, drawing, simulating; and every mistake with the rule it breaks."""

import re

import jax
import numpy as np
import pytest
import tensor_programs as examples

from widelimit.errors import (
    NetworkError,
    NumericalError,
    OptionError,
    ShapeError,
)
from widelimit.netsor import (
    Program,
    Scalar,
    ScalarFunction,
    clip,
    listing,
    relu,
    softmax,
    tanh,
)

K = np.array([[1.0, 0.5], [0.5, 1.2]])


def small_program() -> Program:
    p = Program("small")
    x, z = p.inputs("x", covariance=K)
    w = p.matrix("W", std=1.5)
    g = (w @ tanh(x)).named("g")
    y = (2 * g - (w @ z) / 4 + 1).named("y")
    p.output(p.matrix("V") @ (y * g))
    return p


def test_listing_reads_like_the_formulas() -> None:
    text = str(small_program())
    for line in (
        "x1, x2 ~ N(0, K)",
        "σ = 1.5: W",
        "MatMul      g := W @ h_1",
        "Nonlin      y := 2·g - 0.25·g_2 + 1",
        "MatMul      g_3 := V @ (y·g)",
        "outputs  g_3",
    ):
        assert line in text
    assert repr(small_program()) == "Program('small': 12 lines, 2 matrices, 0 dot products)"


def test_listing_of_attention_and_of_one_line() -> None:
    p = examples.multi_head_attention(K, heads=1)
    text = str(p)
    assert "Dot         p1[1,2] := n^(-1/2) q1[1]ᵀ k1[2]" in text
    assert "Scalar      A1[1,1], A1[1,2] := softmax(p1[1,1], p1[1,2])" in text
    assert "Nonlin | p  y1 := A1[1,1]·o1[1] + A1[1,2]·o1[2]" in text
    assert repr(p["q1[1]"]) == "q1[1] := Q1 @ t1"
    assert repr(p["A1[1,2]"]) == "A1[1,2] := softmax(p1[1,1], p1[1,2])[1]"
    assert repr(p.matrices[0]) == "Q1 with entries N(0, 1²/n)"


def test_listing_keeps_arithmetic_unambiguous() -> None:
    p = Program()
    x, z = p.inputs("x", covariance=K)
    gate = (1 - x) * z
    minus = x - (z - x)
    p.output(gate, minus)
    text = str(p)
    assert ":= (1 - x1)·x2" in text
    assert ":= x1 - (x2 - x1)" in text


def test_outputs_default_to_what_nothing_reads() -> None:
    p = Program()
    x = p.input("x")
    w = p.matrix("W")
    y = w @ x
    assert p.outputs == (y,)
    z = relu(y)
    assert p.outputs == (z,)
    p.output(y)
    assert p.outputs == (y,)


def test_numpy_numbers_combine_from_the_left() -> None:
    p = Program()
    x = p.input("x")
    y = np.float64(3.0) * x + np.float32(1.0) - np.int64(2)
    found = p.limit().second_moment(y, y)
    assert found.value == pytest.approx(10.0)
    assert p.limit().mean(sum([x, x, y])).value == pytest.approx(-1.0)


# ---- mistakes while building ----------------------------------------------------------------

BAD = [
    (lambda p, x, w: w @ 3.0, NetworkError, "takes a vector"),
    (lambda p, x, w: w @ p.dot(w @ x, w @ x), NetworkError, "takes a vector"),
    (lambda p, x, w: w @ Program().input("x"), NetworkError, "one program"),
    (lambda p, x, w: x + Program().input("z"), NetworkError, "one program"),
    (lambda p, x, w: w.T, NetworkError, "without its transpose"),
    (lambda p, x, w: x * "two", NetworkError, "finite real numbers"),
    (lambda p, x, w: x * np.ones(3), NetworkError, "finite real numbers"),
    (lambda p, x, w: x + float("nan"), NetworkError, "finite real numbers"),
    (lambda p, x, w: x / 0, NetworkError, "non-zero"),
    (lambda p, x, w: x**0.5, NetworkError, "positive integer power"),
    (lambda p, x, w: p.dot(x, 2.0), NetworkError, "two vectors"),
    (lambda p, x, w: p.map(np.tanh), NetworkError, "at least one vector"),
    (lambda p, x, w: tanh(), NetworkError, "at least one vector"),
    (lambda p, x, w: p.map(np.tanh, x, scalars=[x]), NetworkError, "scalars inside"),
    (lambda p, x, w: p.map(lambda a, b: a + b, x), ShapeError, "must accept 1 argument"),
    (lambda p, x, w: p.map(np.sum, x), ShapeError, "arguments' shape"),
    (lambda p, x, w: p.map(lambda a: a - a.mean(), x), NetworkError, "coordinate by itself"),
    (lambda p, x, w: p.map(np.sort, x), NetworkError, "coordinate by itself"),
    (lambda p, x, w: p.map(lambda a: np.exp(1j * a), x), NumericalError, "real numbers"),
    (lambda p, x, w: p.matmul(Program("other").matrix("V"), x), NetworkError, "it was made in"),
    (lambda p, x, w: softmax([]), NetworkError, "at least one scalar"),
    (lambda p, x, w: softmax([x]), NetworkError, "takes scalars"),
    (
        lambda p, x, w: ScalarFunction("total", np.sum)([p.dot(w @ x, w @ x)]),
        ShapeError,
        "arguments' shape",
    ),
    (
        lambda p, x, w: ScalarFunction("over draws", lambda s: s - s.mean(axis=0))(
            [p.dot(w @ x, w @ x)]
        ),
        NetworkError,
        "draw, on the first axis, by itself",
    ),
    (lambda p, x, w: p.matrix("W"), NetworkError, "its own, non-empty name"),
    (lambda p, x, w: p.input("x"), NetworkError, "its own, non-empty name"),
    (lambda p, x, w: relu(x).named(""), NetworkError, "its own, non-empty name"),
    (lambda p, x, w: p.matrix("U", std=-1.0), NetworkError, "standard deviation"),
    (lambda p, x, w: p.matrix("U", std=np.ones(2)), NetworkError, "standard deviation"),
    (lambda p, x, w: p.input("u", std=float("inf")), NetworkError, "standard deviation"),
    (lambda p, x, w: p.input("u", mean=float("nan")), NumericalError, "mean"),
    (lambda p, x, w: p.input("u", mean="two"), NumericalError, "real numbers"),
    (lambda p, x, w: p.input("u", mean=[1.0, 2.0]), ShapeError, "one per vector"),
    (lambda p, x, w: p.inputs("u", covariance=[["one"]]), NumericalError, "real numbers"),
    (lambda p, x, w: p.inputs("u", covariance=[[1.0], [1.0, 2.0]]), NumericalError, "real num"),
    (lambda p, x, w: p.inputs("u", covariance=[1.0, 2.0]), ShapeError, "square matrix"),
    (lambda p, x, w: p.inputs("u", covariance=np.eye(2), mean=np.ones(3)), ShapeError, "mean"),
    (lambda p, x, w: p.inputs("u", covariance=[[np.nan]]), NumericalError, "finite"),
    (lambda p, x, w: p.inputs("u", covariance=[[1, 2], [2, 1]]), NumericalError, "semi-definite"),
    (lambda p, x, w: p.inputs("u", covariance=[[1, 0.5], [0, 1]]), NumericalError, "symmetric"),
    (lambda p, x, w: p.output("y"), NetworkError, "takes vectors"),
    (lambda p, x, w: p["nowhere"], NetworkError, "no line named"),
    (lambda p, x, w: clip(0.0), NetworkError, "clipping limit"),
    (lambda p, x, w: Program().mermaid(), NetworkError, "without lines"),
]


@pytest.mark.parametrize(("act", "error", "rule"), BAD, ids=range(len(BAD)))
def test_building_mistakes_name_the_rule(act, error, rule) -> None:
    p = Program()
    x, w = p.input("x"), p.matrix("W")
    with pytest.raises(error, match=rule):
        act(p, x, w)


# ---- simulation -----------------------------------------------------------------------------


def test_simulation_runs_the_lines() -> None:
    """The recorded numbers satisfy the program's own equations."""
    p = examples.multi_head_attention(K, heads=1, input_map=tanh)
    names = ["t1", "t2", "q1[1]", "k1[2]", "o1[1]", "o1[2]", "y1"]
    run = p.simulate(24, 7, jax.random.key(0), vectors=[p[n] for n in names], coordinates=24)
    values = {name: run.coordinates(p[name]) for name in names}
    assert run.draws == 7
    assert run.values.shape == (7, 24, 7)
    assert run.scalars.shape == (7, 4)
    score = np.sum(values["q1[1]"] * values["k1[2]"], axis=1) / np.sqrt(24)
    np.testing.assert_allclose(run.scalars[:, 1], score, rtol=1e-4, atol=1e-5)
    weight = 1 / (1 + np.exp(run.scalars[:, 1] - run.scalars[:, 0]))[:, None]
    mixed = weight * values["o1[1]"] + (1 - weight) * values["o1[2]"]
    np.testing.assert_allclose(values["y1"], mixed, rtol=1e-4, atol=1e-5)
    product = np.mean(values["t1"] * values["t2"], axis=1)
    np.testing.assert_allclose(run.second_moment(p["t1"], p["t2"]), product, rtol=1e-4, atol=1e-6)


def test_simulation_is_reproducible_and_memory_only_changes_the_batches() -> None:
    p = small_program()
    first, second = p.simulate(16, 300, 1), p.simulate(16, 300, 1)
    np.testing.assert_array_equal(first.gram, second.gram)
    assert np.any(first.gram != p.simulate(16, 300, 2).gram)
    assert p.simulate(16, 300, 1, memory=1).gram.shape == (300, 1, 1)


def test_input_means_and_covariances_are_simulated() -> None:
    p = Program()
    x, z = p.inputs("x", covariance=K, mean=[0.5, -1.0])
    run = p.simulate(64, 4000, 0, vectors=[x, z])
    error = run.gram.std(axis=0) / np.sqrt(run.draws)
    expected = K + np.outer([0.5, -1.0], [0.5, -1.0])
    assert np.all(error < 0.01 * np.max(expected))
    assert np.max(np.abs(run.gram.mean(axis=0) - expected) / error) < 4.5


@pytest.mark.parametrize(
    ("act", "error", "rule"),
    [
        (lambda p: p.simulate(0, 10, 0), OptionError, "width= is not a positive"),
        (lambda p: p.simulate(8, 2.0, 0), OptionError, "draws= is not a positive"),
        (lambda p: p.simulate(8, 10, 0, memory=0), OptionError, "memory= is not a positive"),
        (lambda p: p.simulate(8, 10, 0, coordinates=9), NetworkError, "between 1 and the width"),
        (lambda p: p.simulate(8, 10, -1), OptionError, "key= is"),
        (lambda p: p.simulate(8, 10, 0, vectors=[Program().input("x")]), NetworkError, "program"),
        (lambda p: p.simulate(8, 2, 0).coordinates(p["x1"]), NetworkError, "asked to record"),
    ],
)
def test_simulation_mistakes_name_the_rule(act, error, rule) -> None:
    with pytest.raises(error, match=rule):
        act(small_program())


def test_simulation_reports_overflow() -> None:
    p = Program()
    p.output(p.map(lambda v: np.where(v > 0, np.inf, v), p.input("x")))
    with pytest.raises(NumericalError, match="stay finite"):
        p.simulate(8, 2, 0)
    p = Program()
    x = p.input("x")
    p.dot(p.matrix("Q", std=1e30) @ x, p.matrix("K", std=1e30) @ x)
    p.output(x)  # which stays finite
    with pytest.raises(NumericalError, match="stay finite"):
        p.simulate(8, 2, 0)


def test_second_moments_of_tiny_vectors_do_not_underflow() -> None:
    p = Program()
    p.output(p.input("x", std=1e-25))
    assert p.simulate(64, 100, 0).gram.mean() == pytest.approx(1e-50, rel=0.1, abs=0)


# ---- drawing --------------------------------------------------------------------------------


def test_the_diagram_has_every_line_and_colours_mixtures() -> None:
    program = examples.stacked_attention(K, heads=[1, 2])
    text = program.mermaid()
    boxes = dict(re.findall(r'^  (b\d+)\["(.*)"\]:::\w+', text, re.M))
    kinds = dict(re.findall(r"^  (b\d+)\[.*\]:::(\w+)", text, re.M))
    captions = {caption: kinds[name] for name, caption in boxes.items()}
    assert captions["x1"] == "input"
    assert captions["L1.q1[2] = L1.Q1 @ t1[2]"] == "matmul"
    assert captions["L1.p1[1,2]"] == "scalar"
    # Its input depends on the first layer's scores: Gaussian given these, not Gaussian.
    late = [kind for caption, kind in captions.items() if caption.startswith("L2.q1[1] = L2.Q1 @")]
    assert late == ["mixture"]
    assert sum(kind == "mixture" for kind in kinds.values()) == sum(
        not isinstance(line.nodes[0], Scalar) and line.nodes[0].stage > 0
        for line in listing.lines(program)
    )
    arrows = re.findall(r"^  (b\d+) (-->|-\.->) (b\d+)$", text, re.M)
    assert arrows
    assert all(int(source[1:]) < int(target[1:]) for source, _, target in arrows)
    assert all((arrow == "-.->") == (kinds[source] == "scalar") for source, arrow, _ in arrows)
    assert program._repr_markdown_() == f"```mermaid\n{text}\n```"


def test_names_do_not_break_the_diagram() -> None:
    p = Program('"] click <script>')
    p.output(p.input('x"]; a --> b').named("y<br>{z}"))
    for line in p.mermaid().splitlines():
        assert not re.search(r'<|>(?!$|\s)|"\].*"\]', line.replace("-->", "").replace("-.->", ""))
