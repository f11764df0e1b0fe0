"""Each precondition of the limit theorem, violated on purpose and found by name."""

import numpy as np
import pytest
import tensor_programs as examples

from widelimit.errors import NetworkError
from widelimit.netsor import (
    CoordinateFunction,
    Growth,
    Precondition,
    PreconditionWarning,
    Program,
    ScalarFunction,
    Severity,
    clip,
    exp,
    relu,
    sigmoid,
    softmax,
    tanh,
)
from widelimit.netsor.functions import probe_growth

K = np.array([[1.0, 0.5], [0.5, 1.2]])


def start(input_map: CoordinateFunction):
    p = Program("test")
    x = input_map(p.input("x")).named("token")
    return p, x, p.matrix("Q"), p.matrix("K"), p.matrix("V")


def test_covered_programs() -> None:
    for program in (
        examples.mlp(K),
        examples.gru(K),
        examples.multi_head_attention(K, heads=2),
        examples.attention_after_mlp(K, heads=2),
    ):
        report = program.check()
        assert report.covered
        assert "all preconditions" in str(report)


def test_unbounded_input_map_warns_and_still_gives_the_law() -> None:
    program = examples.multi_head_attention(K, heads=1, input_map=relu)
    (finding,) = program.check().findings
    assert finding.precondition is Precondition.BOUNDED_INPUT
    assert finding.severity is Severity.WARNING
    assert "t1 (relu), t2 (relu) feeding p1[1,1]" in finding.where
    with pytest.warns(PreconditionWarning, match="input map of every score is bounded"):
        law = program.limit()
    assert law.scalar_covariance().value[0, 0] == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("make", "covered"),
    [
        (lambda x: x, False),
        (lambda x: 2 * tanh(x) + 1, True),
        (lambda x: tanh(x) * sigmoid(x), True),
        (lambda x: tanh(x) * x, False),
        (lambda x: relu(tanh(x)), True),
        (lambda x: relu(x), False),
    ],
)
def test_bounds_pass_through_operations(make, covered: bool) -> None:
    p = Program()
    x = make(p.input("x"))
    p.output((p.matrix("V") @ x) * p.dot(p.matrix("Q") @ x, p.matrix("K") @ x))
    assert p.check().covered is covered


def test_constant_inputs_are_bounded() -> None:
    p = Program()
    one = p.input("one", std=0.0, mean=1.0)
    p.output((p.matrix("V") @ one) * p.dot(p.matrix("Q") @ one, p.matrix("K") @ one))
    assert p.check().covered


def expect_error(p: Program, precondition: Precondition, where: str) -> None:
    found = [f for f in p.check().of(Severity.ERROR) if f.precondition is precondition]
    assert len(found) == 1
    assert where in found[0].where
    assert not p.check().ok
    with pytest.raises(NetworkError) as caught:
        p.limit()
    assert precondition.value in caught.value.rule
    assert where in caught.value.got
    assert found[0].remedy in caught.value.remedy


def expect_warning(p: Program, precondition: Precondition, where: str) -> None:
    """Outside the theorem: the law is derived all the same, and finite widths have it."""
    (found,) = p.check().findings
    assert found.severity is Severity.WARNING
    assert found.precondition is precondition
    assert where in found.where
    with pytest.warns(PreconditionWarning, match=precondition.value):
        law = p.limit()
    limit = law.expected_gram(4096, 0)
    # 4·m(4n)/3 − m(n)/3 removes what is of order 1/n.
    small, large = (p.simulate(n, 6000, n).gram for n in (24, 96))
    gap = (4 * large.mean(axis=0) - small.mean(axis=0)) / 3 - limit.value
    spread = np.sqrt((16 * large.var(axis=0) + small.var(axis=0)) / (9 * 6000))
    error = np.hypot(spread, limit.error)
    assert np.all(error < 0.03 * np.max(limit.value))
    assert np.all(np.abs(gap) < 4.5 * error)


def test_score_matrix_used_in_a_vector() -> None:
    p, x, query, key, _ = start(tanh)
    score = p.dot(query @ x, key @ x).named("score")
    p.output(sigmoid(p.matrix("W") @ x) + tanh_of(p, score, query @ sigmoid(x)))
    expect_warning(p, Precondition.SCORE_MATRIX_ONLY, "Q makes the score score and also")


def tanh_of(p: Program, score, vector):
    """`tanh(score)·vector`."""
    (weight,) = ScalarFunction("tanh", np.tanh, bounded=True)([score])
    return weight * vector


def test_score_matrix_as_output() -> None:
    p, x, query, key, value = start(tanh)
    score = p.dot(query @ x, key @ x)
    p.output(tanh_of(p, score, value @ x), key @ x)
    expect_warning(p, Precondition.SCORE_MATRIX_ONLY, "K makes the score")


def test_same_matrix_on_both_sides() -> None:
    p, x, query, _, value = start(tanh)
    score = p.dot(query @ x, query @ x).named("score")
    p.output(score * (value @ x))
    expect_error(p, Precondition.TWO_MATRICES, "Q on both sides of score")
    # The reason given is real: the scalar's mean grows like √n.
    small, large = (p.simulate(n, 200, 0).scalars.mean() for n in (16, 256))
    assert large / small == pytest.approx(4.0, rel=0.1)


def test_same_matrix_in_different_dot_products_is_allowed() -> None:
    p, x, query, key, value = start(tanh)
    scores = [p.dot(query @ x, key @ x), p.dot(key @ x, query @ relu(x))]
    p.output(softmax(scores)[0] * (value @ x))
    report = p.check()
    assert report.ok
    assert {f.precondition for f in report.findings} <= {Precondition.BOUNDED_INPUT}


def test_one_side_that_is_not_a_matmul() -> None:
    p, x, query, _, value = start(tanh)
    score = p.dot(query @ x, x).named("score")
    p.output(tanh_of(p, score, value @ x))
    expect_warning(p, Precondition.MATMUL_SIDES, "token in score")


def test_two_sides_that_are_no_matmuls() -> None:
    p, x, _, _, value = start(tanh)
    score = p.dot(x, sigmoid(x)).named("score")
    p.output(score * (value @ x))
    expect_error(p, Precondition.MATMUL_SIDES, "token in score")


def test_exp_warns_and_faster_growth_is_refused() -> None:
    p, x, _, _, value = start(tanh)
    p.output(value @ exp(value @ x))
    (finding,) = p.check().findings
    assert finding.severity is Severity.WARNING
    assert finding.precondition is Precondition.PSEUDO_LIPSCHITZ
    with pytest.warns(PreconditionWarning, match=r"'exp' .* pseudo-Lipschitz"):
        p.limit()

    p, x, _, _, value = start(tanh)
    p.output(value @ p.map(lambda v: np.exp(v**2), value @ x, name="exp of square"))
    expect_error(p, Precondition.PSEUDO_LIPSCHITZ, "'exp of square'")


def test_declared_growth_is_believed() -> None:
    p, x, _, _, value = start(tanh)
    steep = CoordinateFunction("steep", np.tanh, growth=Growth.UNCONTROLLED)
    p.output(value @ steep(value @ x))
    expect_error(p, Precondition.PSEUDO_LIPSCHITZ, "'steep'")


def test_functions_of_scalars_are_checked_too() -> None:
    p, x, query, key, value = start(tanh)
    grows = ScalarFunction("exp", np.exp, growth=Growth.CONTROLLED)
    (weight,) = grows([p.dot(query @ x, key @ x)])
    p.output(weight * (value @ x))
    (finding,) = p.check().findings
    assert finding.precondition is Precondition.PSEUDO_LIPSCHITZ


@pytest.mark.parametrize(
    ("fn", "arity", "growth"),
    [
        (np.tanh, 1, Growth.PSEUDO_LIPSCHITZ),
        (lambda v: v**3 - v, 1, Growth.PSEUDO_LIPSCHITZ),
        (lambda v: v**12, 1, Growth.PSEUDO_LIPSCHITZ),
        (lambda v, w: v * w**2, 2, Growth.PSEUDO_LIPSCHITZ),
        (np.exp, 1, Growth.CONTROLLED),
        (np.cosh, 1, Growth.CONTROLLED),
        (lambda v: np.exp(-v), 1, Growth.CONTROLLED),
        (lambda v, w: v * np.exp(w), 2, Growth.CONTROLLED),
        (lambda v: np.exp(v**2), 1, Growth.UNCONTROLLED),
        (lambda v: np.exp(np.exp(v)), 1, Growth.UNCONTROLLED),
        (lambda v: np.log(v), 1, Growth.UNCONTROLLED),
    ],
)
def test_growth_probe(fn, arity: int, growth: Growth) -> None:
    assert probe_growth(fn, arity) is growth


def test_matmul_after_scalars_is_labelled() -> None:
    program = examples.stacked_attention(K, heads=[1, 1])
    report = program.check()
    (finding,) = report.findings
    assert finding.precondition is Precondition.NO_MATMUL_AFTER_SCALARS
    assert finding.severity is Severity.NOTE
    assert "conditional recursion" in finding.reason
    assert report.ok
    assert not report.covered
    assert "[note]" in str(report)
    program.limit()


def test_several_violations_are_all_named() -> None:
    p, x, query, _, _ = start(relu)
    score = p.dot(query @ x, query @ x)
    p.output(score * (query @ x))
    report = p.check()
    assert {f.precondition for f in report.findings} == {
        Precondition.TWO_MATRICES,
        Precondition.SCORE_MATRIX_ONLY,
        Precondition.BOUNDED_INPUT,
    }
    assert [f.severity for f in report.findings] == [
        Severity.ERROR,
        Severity.WARNING,
        Severity.WARNING,
    ]
    with pytest.raises(NetworkError) as caught:
        p.limit()
    assert Precondition.TWO_MATRICES.value in str(caught.value)
    clip(10.0)(x)  # building goes on: only the limit is refused
