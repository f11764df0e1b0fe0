"""One composition, compared with everything that must give the same numbers.

The slow reference, and every example alone, without its padding.
"""

import re
import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from draw import Composition, accepted
from parts import Part, build
from slow_attention import Sampling, is_sampled
from slow_reference import walk
from slow_state import PAIRS, State, Undefined, start

import widelimit as wl
from widelimit.layers.compose import is_sampled as takes_samples

# Relative to the largest entry. The library sums series to 4e-7; the slope of an activation with a
# kink has an infinite derivative at equal inputs, so that rounding ε leaves √ε of it. In single
# precision, inputs that are equal as a whole are redone in double; tokens of unequal ones are not.
EXACT, KINKED, SERIES, SINGLE, SINGLE_KINKED = 1e-10, 2e-8, 3e-6, 3e-5, 2.5e-4
# Sums that cancel to less than this share of their terms are not compared.
MOST_LOSS = 1e4
MOST_SIGMAS = 6.0
# A series that does not reach its tolerance says by how much; deeper layers add a little to it.
ANNOUNCED = 1.5
SAMPLES, REPLICATES = 512, 16

_KINKS = {"Relu", "LeakyRelu", "ABRelu", "Abs", "Sign"}
_SERIES = {"Tanh", "Sigmoid", "Silu", "Softplus", "Elementwise"}


@dataclass(frozen=True)
class Finding:
    """Two ways to one kernel that differ."""

    what: str
    composition: Composition
    detail: str

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}\n  {self.composition}"


@dataclass(frozen=True)
class Checked:
    """What became of one seed."""

    composition: Composition
    refusals: list[str]
    findings: list[Finding]
    compared: bool  # False: too ill-conditioned to say


def functions(part: Part) -> set[str]:
    """The names of all activations and score maps."""
    found = {p["name"] for p in part.all() if p.kind == "activation"}
    return found | {p["map"]["name"] for p in part.all() if p.options.get("map")}


def tolerance(c: Composition, ours: "Found", kernel: str) -> float:
    names = functions(c.part)
    usual = SERIES if names & _SERIES else KINKED if names & _KINKS else EXACT
    if c.dtype == np.float32:
        usual = SINGLE_KINKED if names & _KINKS and kernel == "NTK" else SINGLE
    return max(usual, ANNOUNCED * ours.announced)


def sampled(part: Part) -> bool:
    return any(is_sampled(p) for p in part.all())


Pair = tuple[int, int]
Kernel = dict[Pair, np.ndarray]


@dataclass(frozen=True)
class Found:
    """The library's kernels by pairs, errors where scores are drawn, and the announced error."""

    nngp: Kernel
    ntk: Kernel
    nngp_error: Kernel | None
    ntk_error: Kernel | None
    announced: float

    def both(self) -> list[tuple[str, Kernel]]:
        return [("NNGP", self.nngp), ("NTK", self.ntk)]


def _announced(said: list[warnings.WarningMessage]) -> float:
    """The largest error that warnings speak of; how many features scores need is not among them."""
    largest = 0.0
    for warning in said:
        if issubclass(warning.category, wl.errors.AccuracyWarning):
            number = re.search(r"error of (\S+)", str(warning.message))
            assert number is not None, str(warning.message)
            largest = max(largest, float(number[1]))
        else:
            assert issubclass(warning.category, wl.engine.ResidualWarning), str(warning.message)
    return largest


def found(
    part: Part, c: Composition, *, apart: bool, sampler: Any = None, pair: Pair = (0, 1)
) -> Found:
    """The library's kernels: of one array with a mask, or of two arrays (of a pair) without."""
    options = {"dtype": c.dtype} if c.tokens else {}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        net = build(part)
        if apart:
            one, two = (tuple(x[None] for x in c.alone(i)) for i in pair)
            inputs = (one, two) if len(one) > 1 else (one[0], two[0])
            options["sampler"] = sampler
            k = net.kernel(*inputs, **options)
            places = {pair: (0, 0)}
        else:
            k = net.kernel(c.x, mask=c.mask, sampler=sampler, **options)
            places = {pair: pair for pair in PAIRS}
    arrays = [
        None if a is None else {pair: np.asarray(a[at], float) for pair, at in places.items()}
        for a in (k.nngp, k.ntk, k.nngp_error, k.ntk_error)
    ]
    return Found(*arrays, _announced(said))


def fitted(c: Composition, samples: int = SAMPLES, replicates: int = REPLICATES) -> Any:
    """A sampler for these examples, where the network needs one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wl.engine.ResidualWarning)
        warnings.simplefilter("ignore", wl.errors.AccuracyWarning)  # the kernel says it again
        net = build(c.part)
        if not takes_samples(net):
            return None
        return net.sampler(c.x, c.mask, samples=samples, replicates=replicates)


def reference(c: Composition, sampling: Sampling | None = None) -> State:
    """The slow reference at the network's output."""
    if c.apart:
        pairs = zip(c.alone(0), c.alone(1), strict=True)
        states = [start(xs, (None, None), tokens=c.tokens) for xs in pairs]
    else:
        states = [
            start(tuple(x), (None, None) if m is None else tuple(m), tokens=c.tokens)
            for x, m in c.streams
        ]
    return walk(c.part, states[0] if len(states) == 1 else tuple(states), sampling)


def _placed(end: State, kernel: Kernel, i: int, j: int) -> np.ndarray:
    """A kernel of the reference in the library's layout: zero where nothing is real."""
    full = np.zeros((*end.sides[i].grid, *end.sides[j].grid))
    for a, one in enumerate(end.sides[i].places):
        for b, two in enumerate(end.sides[j].places):
            full[one + two] = float(kernel[i, j][a, b])
    return full


def _scale(values: Kernel) -> float:
    """The largest entry of all pairs."""
    return max(float(np.abs(value).max()) for value in values.values()) or 1e-30


def against_reference(c: Composition, ours: Found) -> tuple[list[Finding], float]:
    """Where the library and the slow reference differ, and how much precision sums cost."""
    end = reference(c)
    if end.loss > MOST_LOSS:
        return [], end.loss
    findings = []
    for (name, kernel), slow in zip(ours.both(), (end.nngp, end.ntk), strict=True):
        allowed = tolerance(c, ours, name) * end.loss
        exact = {pair: _placed(end, slow, *pair) for pair in PAIRS}
        scale = _scale(exact)
        for pair, value in kernel.items():
            error = np.abs(value - exact[pair]).max() / scale
            if not error <= allowed:
                at = f"{name}{pair} off by {error:.1e} (allowed {allowed:.0e})"
                detail = f"{at}\n  ours {_entry(value)}, reference {_entry(exact[pair])}"
                findings.append(Finding("slow reference", c, detail))
    return findings, end.loss


def _entry(kernel: Any) -> str:
    return np.array2string(np.asarray(kernel, float).ravel()[:4], precision=8)


def against_drawn_scores(c: Composition, ours: Found) -> list[Finding]:
    """The same where both sides draw scores: z-scores from independent repetitions of both."""
    ends = [
        reference(c, Sampling(np.random.default_rng([c.seed, r]), 3 * SAMPLES))
        for r in range(REPLICATES)
    ]
    findings = []
    for (name, kernel), errors, slow in zip(
        ours.both(), (ours.nngp_error, ours.ntk_error), ("nngp", "ntk"), strict=True
    ):
        assert errors is not None
        drawn = {
            pair: np.stack([_placed(end, getattr(end, slow), *pair) for end in ends])
            for pair in PAIRS
        }
        scale = _scale({pair: values.mean(axis=0) for pair, values in drawn.items()})
        for pair, value in kernel.items():
            mean = drawn[pair].mean(axis=0)
            spread = drawn[pair].std(axis=0, ddof=1) / np.sqrt(REPLICATES)
            # Errors from few repetitions are themselves uncertain, and a nonlinearity above drawn
            # scores has a bias of the order 1/samples.
            floor = max(ours.announced, 1 / SAMPLES) * scale
            sigma = np.sqrt(spread**2 + errors[pair] ** 2 + floor**2)
            z = np.max(np.abs(value - mean) / sigma)
            if not z < MOST_SIGMAS:
                detail = f"{name}{pair} z = {z:.1f}\n  ours {_entry(value)}, drawn {_entry(mean)}"
                findings.append(Finding("drawn scores", c, detail))
    return findings


# --- without padding -----------------------------------------------------------------------------


def _matrices(part: Part) -> dict[str, tuple[str, np.ndarray]]:
    """The options of a part that hold a matrix over positions, which fits one length only."""
    held = {name: part.options.get(name) for name in ("pattern", "bias")}
    return {name: one for name, one in held.items() if one and one[0] in ("allowed", "matrix")}


def _cut(part: Part, length: int) -> Part:
    """The same network for inputs of this length."""
    matrices = {n: (kind, m[:length, :length]) for n, (kind, m) in _matrices(part).items()}
    return replace(part.to(**matrices), parts=tuple(_cut(one, length) for one in part.parts))


def can_be_cut(c: Composition) -> bool:
    """Whether all matrices are over the positions of the input, one sequence of them."""
    x, _ = c.streams[0]
    sizes = {m.shape for part in c.part.all() for _, m in _matrices(part).values()}
    moves = any(p.options.get("window") and p["stride"] != 1 for p in c.part.all())
    return len(c.streams) == 1 and sizes <= {x.shape[1:2] * 2} and not (moves and sizes)


def has_padding(c: Composition) -> bool:
    return any(mask is not None and not mask.all() for _, mask in c.streams)


def against_alone(c: Composition, ours: Found, sampler: Any, loss: float) -> list[Finding]:
    """Right padding changes nothing, and its rows and columns are zero."""
    if not has_padding(c) or not c.right_padded:
        return []
    pairs = {(0, 1): c.part}
    if any(_matrices(part) for part in c.part.all()):
        # No network takes both lengths: each example by itself, with the matrix that fits it
        # (drawn scores keep the length of their sampler; the slow reference has both).
        cut = sampler is None and can_be_cut(c)
        lengths = [len(c.alone(i)[0]) for i in (0, 1)] if cut else []
        pairs = {(i, i): _cut(c.part, length) for i, length in enumerate(lengths)}
    findings = []
    for pair, part in pairs.items():
        try:
            alone = found(part, c, apart=True, sampler=sampler, pair=pair)
        except wl.WidelimitError as error:
            return [Finding("padded and alone", c, f"alone it is refused: {error}")]
        for (name, padded), (_, plain) in zip(ours.both(), alone.both(), strict=True):
            allowed = tolerance(c, ours, name) * loss
            exact = np.zeros(padded[pair].shape)
            exact[tuple(slice(n) for n in plain[pair].shape)] = plain[pair]
            error = np.abs(padded[pair] - exact).max() / _scale(padded)
            if not error <= allowed:
                numbers = f"padded {_entry(padded[pair])}, {_entry(exact)}"
                detail = f"{name}{pair} off by {error:.1e}\n  {numbers}"
                findings.append(Finding("padded and alone", c, detail))
    return findings


# --- all of it -----------------------------------------------------------------------------------


def compared(c: Composition) -> tuple[list[Finding], bool]:
    """All comparisons of one network, if the library takes it."""
    try:
        sampler = fitted(c)
        ours = found(c.part, c, apart=c.apart, sampler=sampler)
    except wl.WidelimitError:
        raise
    except Exception as error:  # what the library cannot do it must refuse by name
        return [Finding("raw error", c, f"{type(error).__name__}: {error}")], True
    for _, kernel in ours.both():
        for value in kernel.values():
            if not np.isfinite(value).all():
                return [Finding("not finite", c, _entry(value))], True
    try:
        if sampled(c.part):
            findings, loss = against_drawn_scores(c, ours), 1.0
        else:
            findings, loss = against_reference(c, ours)
    except Undefined as reason:
        return [Finding("not refused", c, str(reason))], True
    if loss <= MOST_LOSS and not c.apart:
        findings += against_alone(c, ours, sampler, loss)
    return findings, loss <= MOST_LOSS


def check(seed: int, *, with_drawn_scores: bool = True) -> Checked:
    """Draw the composition of a seed and compare it; drawn scores take ten times as long."""

    def run(c: Composition) -> tuple[list[Finding], bool]:
        if sampled(c.part) and not with_drawn_scores:
            raise wl.WidelimitError("Scores are known.", got="drawn scores", remedy="draw again")
        return compared(c)

    composition, (findings, said), refusals = accepted(seed, run)
    return Checked(composition, refusals, findings, said)
