"""One composition, compared with everything that must give the same numbers.

The slow reference; every example alone, without its padding; the branches in another order.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from draw import Composition, accepted
from parts import Part, build
from slow_reference import PAIRS, Sampling, State, Undefined, Uneven, is_sampled, start, walk

import widelimit as wl

# Relative to the largest entry. The library sums series to 4e-7; the slope of an activation with a
# kink has an infinite derivative at equal inputs, so that rounding ε leaves √ε of it.
EXACT, KINKED, SERIES, SINGLE = 1e-10, 2e-8, 3e-6, 3e-5
# Sums that cancel to less than this share of their terms are not compared.
MOST_LOSS = 1e4
MOST_SIGMAS = 6.0
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


def tolerance(composition: Composition) -> float:
    names = functions(composition.part)
    if composition.dtype == np.float32:
        return SINGLE
    return SERIES if names & _SERIES else KINKED if names & _KINKS else EXACT


def sampled(part: Part) -> bool:
    return any(is_sampled(p) for p in part.all())


def kernels(net: wl.Layer, c: Composition, *, sampler: Any = None) -> Any:
    """Both kernels of the two examples, and standard errors where scores are drawn."""
    options = {"dtype": c.dtype} if c.tokens else {}
    with warnings.catch_warnings():
        # How many features a score field needs is another matter.
        warnings.simplefilter("ignore", wl.ResidualWarning)
        return net.kernel(c.x, mask1=c.mask, sampler=sampler, **options)


def fitted(net: wl.Layer, c: Composition) -> Any:
    """A sampler for these examples, where the network needs one."""
    if not net.sampled():
        return None
    return net.sampler(c.x, c.mask, samples=SAMPLES, replicates=REPLICATES)


def reference(c: Composition, sampling: Sampling | None = None) -> State:
    """The slow reference at the network's output."""
    states = tuple(
        start(tuple(x), (None, None) if mask is None else tuple(mask), tokens=c.tokens)
        for x, mask in c.streams
    )
    return walk(c.part, states[0] if len(states) == 1 else states, sampling)


def _placed(end: State, kernel: dict[Any, np.ndarray], i: int, j: int, shape: Any) -> np.ndarray:
    """A kernel of the reference in the library's layout: zero where nothing is real."""
    full = np.zeros(shape)
    for a, one in enumerate(end.sides[i].places):
        for b, two in enumerate(end.sides[j].places):
            full[one + two] = float(kernel[i, j][a, b])
    return full


def _scales(values: dict[tuple[int, int], np.ndarray]) -> dict[tuple[int, int], float]:
    """√(|K_ii| |K_jj|) of every pair, never far below the largest of them."""
    own = [np.abs(values[i, i]).max() for i in (0, 1)]
    least = max(1e-6 * max(own), 1e-30)
    return {(i, j): max(float(np.sqrt(own[i] * own[j])), least) for i, j in PAIRS}


def against_reference(c: Composition, found: Any) -> tuple[list[Finding], bool]:
    """Where the library and the slow reference differ; False if nothing can be said."""
    end = reference(c)
    if end.loss > MOST_LOSS:
        return [], False
    allowed = tolerance(c) * end.loss
    findings = []
    for name, ours, kernel in (("NNGP", found.nngp, end.nngp), ("NTK", found.ntk, end.ntk)):
        exact = {(i, j): _placed(end, kernel, i, j, ours[i, j].shape) for i, j in PAIRS}
        scales = _scales(exact)
        for pair in PAIRS:
            error = np.abs(np.asarray(ours[pair], float) - exact[pair]).max() / scales[pair]
            if not error <= allowed:
                at = f"{name}{pair} off by {error:.1e} (allowed {allowed:.0e})"
                detail = f"{at}\n  ours {_entry(ours[pair])}, reference {_entry(exact[pair])}"
                findings.append(Finding("slow reference", c, detail))
    return findings, True


def _entry(kernel: Any) -> str:
    return np.array2string(np.asarray(kernel, float).ravel()[:4], precision=8)


def against_drawn_scores(c: Composition, found: Any) -> list[Finding]:
    """The same where both sides draw scores: z-scores from independent repetitions of both."""
    ends = [
        reference(c, Sampling(np.random.default_rng([c.seed, r]), 3 * SAMPLES))
        for r in range(REPLICATES)
    ]
    findings = []
    for name, ours, error, kernel in (
        ("NNGP", found.nngp, found.nngp_error, "nngp"),
        ("NTK", found.ntk, found.ntk_error, "ntk"),
    ):
        values = {
            p: np.stack([_placed(e, getattr(e, kernel), *p, ours[p].shape) for e in ends])
            for p in PAIRS
        }
        scales = _scales({p: v.mean(axis=0) for p, v in values.items()})
        for pair, drawn in values.items():
            mean, spread = drawn.mean(axis=0), drawn.std(axis=0, ddof=1) / np.sqrt(REPLICATES)
            # Errors from few repetitions are themselves uncertain, and a nonlinearity above drawn
            # scores has a bias of the order 1/samples.
            floor = max(SINGLE, 1 / SAMPLES) * scales[pair]
            sigma = np.sqrt(spread**2 + np.asarray(error[pair], float) ** 2 + floor**2)
            z = np.max(np.abs(np.asarray(ours[pair], float) - mean) / sigma)
            if not z < MOST_SIGMAS:
                detail = f"{name}{pair} z = {z:.1f}\n  ours {_entry(ours[pair])}, {_entry(mean)}"
                findings.append(Finding("drawn scores", c, detail))
    return findings


# --- without padding -----------------------------------------------------------------------------


def _bound_to_grid(part: Part) -> bool:
    """Whether a part holds a matrix over positions, which fits one length only."""
    pattern, bias = part.options.get("pattern"), part.options.get("bias")
    return (pattern or ("",))[0] == "allowed" or (bias or ("",))[0] == "matrix"


def _cropped(x: Any, mask: Any, index: int) -> Any:
    """One example without the padding behind it, as a batch of one."""
    if mask is None:
        return x[index : index + 1]
    others = [tuple(d for d in range(mask[index].ndim) if d != dim) for dim in range(x[index].ndim)]
    ends = [
        int(np.flatnonzero(mask[index].any(axis=others[dim]))[-1]) + 1
        for dim in range(mask[index].ndim)
    ]
    return x[(slice(index, index + 1), *(slice(n) for n in ends))]


def has_padding(c: Composition) -> bool:
    return any(mask is not None and not mask.all() for _, mask in c.streams)


def against_alone(net: wl.Layer, c: Composition, found: Any, sampler: Any) -> list[Finding]:
    """Right padding changes nothing, and its rows and columns are zero."""
    if not has_padding(c) or not c.right_padded or any(_bound_to_grid(p) for p in c.part.all()):
        return []
    sides = [tuple(_cropped(x, mask, i) for x, mask in c.streams) for i in (0, 1)]
    one, two = (side if len(side) > 1 else side[0] for side in sides)
    options = {"dtype": c.dtype} if c.tokens else {}
    try:
        alone = net.kernel(one, two, sampler=sampler, **options)
    except wl.WidelimitError as error:
        return [Finding("padded and alone", c, f"alone it is refused: {error}")]
    findings = []
    for name, padded, exact in (("NNGP", found.nngp, alone.nngp), ("NTK", found.ntk, alone.ntk)):
        scales = _scales({pair: padded[pair] for pair in PAIRS})
        full = np.zeros(padded[0, 1].shape)
        full[tuple(slice(n) for n in exact[0, 0].shape)] = exact[0, 0]
        error = np.abs(padded[0, 1] - full).max() / scales[0, 1]
        if not error <= tolerance(c):
            detail = f"{name} off by {error:.1e}\n  padded {_entry(padded[0, 1])}, {_entry(full)}"
            findings.append(Finding("padded and alone", c, detail))
    return findings


def against_swapped(c: Composition, found: Any) -> list[Finding]:
    """Branches have no order."""
    if sampled(c.part) or not any(p.kind in ("sum", "product", "concat") for p in c.part.all()):
        return []
    other = kernels(build(c.part.swapped()), c)
    findings = []
    for name, ours, exact in (("NNGP", found.nngp, other.nngp), ("NTK", found.ntk, other.ntk)):
        error = np.abs(ours - exact).max() / max(np.abs(exact).max(), 1e-30)
        if not error <= tolerance(c):
            findings.append(Finding("branches swapped", c, f"{name} changes by {error:.1e}"))
    return findings


# --- all of it -----------------------------------------------------------------------------------


def compared(net: wl.Layer, c: Composition) -> tuple[list[Finding], bool]:
    """All comparisons of one network that the library takes."""
    sampler = fitted(net, c)
    found = kernels(net, c, sampler=sampler)
    for kernel in (found.nngp, found.ntk):
        if not np.isfinite(kernel).all():
            return [Finding("not finite", c, _entry(kernel))], True
    try:
        if sampled(c.part):
            findings, said = against_drawn_scores(c, found), True
        else:
            findings, said = against_reference(c, found)
    except Uneven as reason:
        findings = against_swapped(c, found)
        return [Finding("not refused", c, f"{reason}; {f.detail}") for f in findings], True
    except Undefined as reason:
        return [Finding("not refused", c, str(reason))], True
    if said:
        findings += against_alone(net, c, found, sampler)
    return findings, said


def check(seed: int) -> Checked:
    """Draw the composition of a seed and compare it."""
    composition, (findings, said), refusals = accepted(seed, compared)
    return Checked(composition, refusals, findings, said)
