"""Every kind of network, not a list: random compositions against three independent sources.

The slow reference in 30 digits, the same examples without padding, and wide finite networks. A
failure prints the composition; `check(seed)` runs it again.
"""

import itertools
from collections import Counter
from typing import Any

import jax
import numpy as np
import pytest
from agreement import Estimate
from comparisons import (
    against_alone,
    can_be_cut,
    check,
    compared,
    fitted,
    found,
    functions,
    has_padding,
    sampled,
)
from draw import Composition, accepted, draw, draw_noisy_scores
from expectations import expectation, mean_by_quadrature, quadrature
from mpmath import mpf
from parts import build
from scipy.integrate import quad
from scipy.stats import norm

import widelimit as wl
from widelimit.layers.compose import is_sampled

FAST = (0, 1, 2, 3, 4, 5, 7, 8)  # the slow reference has much to do for some
CHUNK = 20
CHUNKS = range(9, 629, CHUNK)


@pytest.mark.parametrize("seed", FAST)
def test_one_composition(seed):
    checked = check(seed, with_drawn_scores=False)
    assert not checked.findings, "\n".join(str(finding) for finding in checked.findings)


@pytest.mark.slow
@pytest.mark.parametrize("first", CHUNKS)
def test_many_compositions(first):
    found = [check(seed) for seed in range(first, first + CHUNK)]
    failures = [str(finding) for checked in found for finding in checked.findings]
    assert not failures, "\n".join(failures)
    refused = sum(len(checked.refusals) for checked in found)
    assert refused < CHUNK, f"{refused} refusals: the generator draws what has no limit"
    assert sum(checked.compared for checked in found) > 0.8 * CHUNK, "too few well-conditioned"


@pytest.mark.parametrize("seed", range(3))
def test_padding_changes_no_scores_under_dropout(seed):
    """Padded and alone with the same heads: the same kernels, to the last digits."""
    c = draw_noisy_scores(seed)
    sampler = fitted(c, samples=8, replicates=2)
    findings = against_alone(c, found(c.part, c, apart=False, sampler=sampler), sampler, 1.0)
    assert not findings, str(findings[0])


@pytest.mark.parametrize("seed", [26, 50, 167])
def test_fixed_patterns_know_padding(seed):
    """Matrices over positions, cut to the length of each example, where scores are known."""
    c = draw(seed)
    assert any((p.options.get("pattern") or ("",))[0] == "allowed" for p in c.part.all())
    assert has_padding(c)
    assert can_be_cut(c)
    findings = against_alone(c, found(c.part, c, apart=False), None, 1.0)
    assert not findings, str(findings[0])


# Beyond the first forty: causal and fixed patterns with grouped keys.
GROUPED = (51, 63, 70, 93, 97, 112)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(40), *GROUPED])
def test_scores_under_dropout(seed):
    """The same with padding, alone, and where the slow reference draws them."""
    findings, _ = compared(draw_noisy_scores(seed))
    assert not findings, "\n".join(map(str, findings))


# --- the generator -------------------------------------------------------------------------------


def _traits(c: Composition) -> set[str]:
    """What a composition holds, by names that the test below lists."""
    parts = list(c.part.all())
    found = {p.kind for p in parts} | functions(c.part) | {c.dtype.__name__}
    found |= {f"{p.kind} {p['padding']}" for p in parts if "padding" in p.options}
    found |= {p["parameterization"] for p in parts if "parameterization" in p.options}
    for p in parts:
        attention = p.kind in ("attention", "attention_pool", "cross_attention")
        if attention:
            found.add(f"{p.kind} {'softmax' if p['map'] is None else 'elementwise'}")
            found |= {f"{p.kind} {p['scaling']}"} if p.kind == "attention" else set()
            found |= {name for name in ("rotary", "kv_heads") if p.options.get(name)}
            found |= {"weights dropped"} if p.options.get("dropout") else set()
            found |= set(p.options.get("projections", ()))
            for name in ("bias", "pattern"):
                found |= {p[name][0]} if p.options.get(name) else set()
            if p["encoding"]:
                found |= {p["encoding"]["combine"].value, p["encoding"]["profile"].value}
                found |= {"on_values"} if p["encoding"]["on_values"] else set()
        found |= {"weighted residual"} if p.kind == "residual" and p["weight"] else set()
    found |= {"two arrays"} if c.apart else set()
    found |= {"tokens"} if c.tokens else set()
    found |= {"drawn scores"} if sampled(c.part) else set()
    if has_padding(c):
        found.add("right padding" if c.right_padded else "holes")
    x, _ = c.streams[0]
    found |= {"vector"} if not c.tokens and x.ndim == 2 else set()
    found |= {"image"} if not c.tokens and x.ndim == 4 else set()
    return found


EXPECTED = {
    *("dense", "conv", "embedding", "activation", "layer_norm", "dropout", "mean_pool", "sum_pool"),
    *("select", "flatten", "serial", "repeat", "residual", "sum", "product", "concat", "parallel"),
    *("attention linear", "attention sqrt", "attention softmax", "attention elementwise"),
    *("attention_pool softmax", "attention_pool elementwise", "rotary", "alibi", "offset"),
    *("cross_attention softmax", "cross_attention elementwise", "matrix", "causal", "local"),
    *("allowed", "kv_heads", "concat", "mix", "gaussian", "exponential", "rational", "on_values"),
    *("conv same", "conv valid", "conv circular", "mean_pool same", "sum_pool valid", "standard"),
    *("weighted residual", "tokens", "drawn scores", "right padding", "holes", "vector", "image"),
    *("Relu", "LeakyRelu", "ABRelu", "Abs", "Sign", "Erf", "Gelu", "Sin", "Cos", "Exp", "Gaussian"),
    *("Monomial", "Polynomial", "Hermite", "Tanh", "Sigmoid", "Silu", "Softplus", "Elementwise"),
    *("qk_b_std", "v_b_std", "qk_norm", "weights dropped"),
    *("identity", "squares", "two arrays", "float32", "float64"),
}


def test_the_generator_reaches_everything():
    counts = Counter(itertools.chain.from_iterable(_traits(draw(seed)) for seed in range(629)))
    rare = {name: counts[name] for name in EXPECTED if counts[name] < 5}
    assert not rare


# --- the reference itself ------------------------------------------------------------------------

SMOOTH = [
    {"name": "Erf", "given": {"scale": 1.2, "rate": 0.8, "shift": 0.3}},
    {"name": "Sin", "given": {"scale": 1.1, "rate": 0.8, "phase": 0.4}},
    {"name": "Cos", "given": {"scale": 1.1, "rate": 0.7}},
    {"name": "Exp", "given": {"rate": 0.3}},
    {"name": "Gaussian", "given": {"scale": 0.9, "rate": 0.6}},
    {"name": "Polynomial", "given": {"coefficients": [0.3, 1.0, -0.2, 0.1]}},
    {"name": "Hermite", "given": {"degree": 3}},
]


@pytest.mark.parametrize("options", SMOOTH, ids=lambda o: o["name"])
def test_closed_forms_of_the_reference_are_integrals(options):
    phi = expectation(options)
    for q1, q2, c in ((1.3, 0.4, 0.5), (2.0, 1.1, -0.95), (0.7, 0.7, 1.0)):
        given = mpf(q1), mpf(q2), mpf(c) * mpf(q1 * q2) ** mpf("0.5")
        integrals = quadrature(phi.fn, phi.slope, *given)
        np.testing.assert_allclose(
            np.array(phi.pair(*given), float), np.array(integrals, float), rtol=1e-12, atol=1e-13
        )
        mean = float(mean_by_quadrature(phi.fn, given[0]))
        np.testing.assert_allclose(float(phi.mean(given[0])), mean, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("negative", [0.0, -1.0, 0.3])
def test_kinked_closed_forms_of_the_reference(negative):
    """By conditioning: given u, the mean of a rectified v is a one-dimensional integral."""
    phi = expectation({"name": "ABRelu", "given": {"negative": negative, "positive": 1.1}})
    for q1, q2, c in ((1.3, 0.4, -0.6), (0.7, 2.0, 0.9)):
        spread = np.sqrt(q2 * (1 - c**2))

        def of_fn(u: float, q1=q1, q2=q2, c=c, spread=spread) -> float:
            middle = c * np.sqrt(q2 / q1) * u
            above = middle * norm.cdf(middle / spread) + spread * norm.pdf(middle / spread)
            return phi.fn(u) * (negative * middle + (1.1 - negative) * above)

        def of_slope(u: float, q1=q1, q2=q2, c=c, spread=spread) -> float:
            positive = norm.cdf(c * np.sqrt(q2 / q1) * u / spread)
            return phi.slope(u) * (negative + (1.1 - negative) * positive)

        given = mpf(q1), mpf(q2), mpf(c) * mpf(q1 * q2) ** mpf("0.5")
        for exact, inner in zip(phi.pair(*given), (of_fn, of_slope), strict=True):
            halves = [
                quad(lambda u, f=inner, q=q1: f(u) * norm.pdf(u, scale=np.sqrt(q)), *ends)[0]
                for ends in ((-12.0, 0.0), (0.0, 12.0))
            ]
            np.testing.assert_allclose(float(exact), sum(halves), rtol=1e-9, atol=1e-10)


# --- finite networks -----------------------------------------------------------------------------

# Heavy tails need more draws than a test has.
_HEAVY = {"Exp", "Monomial", "Polynomial", "Hermite", "Softplus"}
FINITE = range(1_000, 1_016)


def _for_simulation(seed: int) -> tuple[Composition, wl.Layer]:
    """A small composition with light tails whose channels can be made many."""
    for shift in itertools.count():

        def simple(c: Composition) -> wl.Layer:
            net = build(c.part)
            parts = list(c.part.all())
            weights = sum(p.kind in ("dense", "conv", "attention") for p in parts)
            kinds = {p.kind for p in parts}
            if functions(c.part) & _HEAVY or "product" in kinds or not 2 <= weights <= 4:
                raise wl.WidelimitError("Simple ones.", got="another", remedy="draw again")
            if "parallel" in kinds or c.apart:
                raise wl.WidelimitError("Wide ones.", got="another", remedy="draw again")
            net.kernel(c.x, mask=c.mask, **({"samples": 16} if is_sampled(net) else {}))
            if "Sign" in functions(c.part) and not c.tokens:  # rounding decides what sign 0 has
                raise wl.WidelimitError("No jumps at zero.", got="Sign", remedy="draw again")
            # Raw inputs beside a branch have the channels that they have.
            wl.with_width(net, width=24, outputs=48).init(0, c.x.shape[1:])
            return net

        try:
            c, net, _ = accepted(seed + 100 * shift, simple)
        except AssertionError:
            continue
        return c, net
    raise AssertionError


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::widelimit.errors.AccuracyWarning")
@pytest.mark.parametrize("seed", FINITE)
def test_finite_networks_approach_the_limit(seed):
    c, net = _for_simulation(seed)
    x = c.x if c.tokens else c.x.astype(np.float32)
    last: dict[str, Estimate] = {}
    for rounds in range(1, 9):
        ends: dict[str, list[Any]] = {"NNGP": [], "NTK": []}
        for factor in (1, 2):
            sized = wl.with_width(net, width=24 * factor, outputs=48)
            key = jax.random.fold_in(jax.random.key(rounds, impl="rbg"), factor)
            drawn = wl.monte_carlo_kernel(
                wl.with_heads(sized, 12 * factor), x, mask=c.mask, key=key, draws=400
            )
            options = {"samples": 4096} if is_sampled(net) else {}
            limit = sized.kernel(x, mask=c.mask, **options)
            ends["NNGP"].append(Estimate.of_width(drawn.nngp, drawn.nngp_error, limit.nngp))
            ends["NTK"].append(Estimate.of_width(drawn.ntk, drawn.ntk_error, limit.ntk))
        new = {name: Estimate.extrapolated(*pair) for name, pair in ends.items()}
        last = {n: last[n].joined(new[n], rounds) if last else new[n] for n in new}
        if all(estimate.precision() < 0.01 for estimate in last.values()):
            break
    for name, estimate in last.items():
        # Sampled limits have an error of their own, about 1 %.
        slack = np.hypot(estimate.error, 0.01) if is_sampled(net) else estimate.error
        z = float((np.abs(estimate.mean - estimate.limit) / slack).max())
        assert z < 5, f"{name}: z = {z:.1f} (errors {estimate.precision():.2%})\n  {c}"
