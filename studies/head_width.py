"""Which law for which heads: a map over the number of heads and their width.

One attention layer on four independent tokens, keys and values of width d. Networks are drawn
exactly in law and held against three laws: the Gaussian of infinitely many heads, the limit of
infinitely wide heads, and the law of heads of width d. A law fits where the networks do not tell
themselves from it, by distribution function and kurtosis.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import erfc

from widelimit.app.drawing.plots import canvas
from widelimit.app.studies import finite_heads as setting
from widelimit.app.studies.study import Result, Size, Study, publish, tracked
from widelimit.laws import HeadWidths, law_from_covariance
from widelimit.laws.marginal import Marginal
from widelimit.laws.simulation import simulate
from widelimit.laws.simulation_inputs import GaussianInputs, GivenGram
from widelimit.layers.attention.layer import Attention
from widelimit.progress import Callback

HEADS = (1, 2, 4, 8, 16, 32)
WIDTHS = (4, 8, 16, 32, 64, 128, 256)
LEVEL = 0.001
"""A law that chance explains less often than this does not fit."""

LAWS = {
    "gaussian": "the Gaussian fits",
    "limit": "the limit law is needed",
    "given": "only the law of heads of width $d$ fits",
}
_COLOURS = {"gaussian": "#cfe3f2", "limit": "#f6dc9a", "given": "#eba999"}
# Samples of the published size behind every point.
_SAMPLES = 4
# Wide enough that its own width is nowhere seen.
_WIDE = 10**7


def run(size: Size, out: Path, progress: Callback | None = None) -> dict[str, Any]:
    """Write `head_width.csv`, `head_width.json` and `head_width.png` into `out`."""
    scale = setting.simulation_size(size)
    networks = _SAMPLES * scale.runs
    heads = HEADS[::2] if size is Size.SMALL else HEADS
    widths = WIDTHS[::2] if size is Size.SMALL else WIDTHS
    covariance = setting.identity_covariance()
    variance = float(setting.limit_law(1, covariance, scale.draws).variance)
    gaussian = Marginal(np.array([variance]), groups=1)
    limits = {h: setting.limit_law(h, covariance, scale.draws) for h in heads}
    steps = [(h, width) for h in heads for width in widths]
    rows = []
    for number, (h, width) in enumerate(tracked(steps, progress)):
        laws = {"gaussian": gaussian, "limit": limits[h], "given": given_law(h, width, scale.draws)}
        rows.append({"heads": h, "width": width, **measured(h, width, laws, networks, number)})
    result = {
        "networks": networks,
        "level": LEVEL,
        "points": len(rows),
        "fits": {name: sum(row["fits"] == name for row in rows) for name in LAWS},
        "given_fits_everywhere": all(row["p_given"] > LEVEL for row in rows),
        "parts": {str(h): parts(h, networks) for h in (1, 4, 16)},
    }
    publish(out, "head_width", result, rows, _plot(heads, widths, rows))
    return result


def given_law(heads: int, width: int, draws: int) -> Marginal:
    """The law of `y_{1,1}` with keys and values of this width."""
    draws = max(2**12, min(draws, 2**17 // (heads * setting.TOKENS)))
    layer = Attention(heads=heads, key_width=width, value_width=width)
    covariance = setting.identity_covariance()
    found = law_from_covariance(layer, covariance, draws=draws, head_widths=HeadWidths.GIVEN)
    return found.at(0, 0)


def measured(
    heads: int, width: int, laws: dict[str, Marginal], networks: int, key: int
) -> dict[str, Any]:
    """Kurtosis of networks, and chance and divergence under each of the laws."""
    layer = Attention(heads=heads, key_width=width, value_width=width)
    inputs = GivenGram(setting.identity_covariance(), channels=setting.TOKENS)
    drawn = simulate(
        layer,
        inputs,
        draws=networks,
        key=key,
        positions=[0],
        variances=True,
        progress=False,
    )
    assert drawn.variances is not None
    y, variances = drawn.outputs[:, 0, 0], drawn.variances[:, 0, 0]
    kurtosis, error = setting.sample_kurtosis(y)
    found: dict[str, Any] = {"kurtosis": kurtosis, "kurtosis_error": error}
    for name, law in laws.items():
        said = law.kurtosis()
        apart = abs(kurtosis - said.value) / math.hypot(error, said.error)
        chance = setting.kolmogorov_smirnov(y, law.mixture).pvalue
        found |= {
            f"kurtosis_{name}": float(said.value),
            # The less likely of two readings.
            f"p_{name}": min(1.0, 2 * min(chance, float(erfc(apart / math.sqrt(2))))),
            f"kl_{name}": setting.density_kl(variances, law),
        }
    found["fits"] = next((name for name in LAWS if found[f"p_{name}"] > LEVEL), "none")
    return found


def parts(heads: int, networks: int) -> dict[str, float]:
    """Where the kurtosis of the published narrow heads comes from: width 64 part by part."""
    fixed, narrow = GivenGram(setting.identity_covariance(), channels=setting.TOKENS), 64
    channels = narrow * heads
    random = GaussianInputs(positions=setting.TOKENS, channels=channels)
    cases = {
        "limit": (_WIDE, _WIDE, fixed),
        "keys": (narrow, _WIDE, fixed),
        "keys and values": (narrow, narrow, fixed),
        "keys, values and inputs": (narrow, narrow, random),
    }
    found = {}
    for name, (key_width, value_width, inputs) in cases.items():
        layer = Attention(heads=heads, key_width=key_width, value_width=value_width)
        drawn = simulate(
            layer, inputs, draws=networks, positions=[0], variances=True, progress=False
        )
        assert drawn.variances is not None
        v = drawn.variances[:, 0, 0]
        found[name] = float(3 * (np.mean(v**2) / np.mean(v) ** 2 - 1))
    return found


def _plot(heads: tuple[int, ...], widths: tuple[int, ...], rows: list[dict[str, Any]]) -> Any:
    figure, axes = canvas(2, width=6.0, height=4.6)
    axis = axes[0, 0]
    for row in rows:
        place = widths.index(row["width"]), heads.index(row["heads"])
        colour = _COLOURS.get(row["fits"], "0.4")
        axis.add_patch(_cell(place, colour))
        axis.text(*place, f"{row['kurtosis']:.2g}", ha="center", va="center", fontsize=8)
    for name, words in LAWS.items():
        axis.scatter([], [], marker="s", s=60, color=_COLOURS[name], label=words)
    axis.set_xlim(-0.5, len(widths) - 0.5)
    axis.set_ylim(-0.5, len(heads) - 0.5)
    axis.set_xticks(range(len(widths)), [str(w) for w in widths])
    axis.set_yticks(range(len(heads)), [str(h) for h in heads])
    axis.set_ylabel("heads $H$")
    axis.set_title("the simplest law that fits (numbers: excess kurtosis)", fontsize=10)
    axis.legend(loc="lower center", bbox_to_anchor=(0.5, -0.34), fontsize=8, frameon=False, ncols=3)
    curves = axes[0, 1]
    for number, h in enumerate(heads):
        here = [row for row in rows if row["heads"] == h]
        colour = f"C{number}"
        values = [row["kurtosis"] for row in here]
        errors = [2 * row["kurtosis_error"] for row in here]
        style = {"fmt": "o", "ms": 4, "color": colour, "capsize": 2}
        curves.errorbar(widths, values, errors, label=f"$H={h}$", **style)
        curves.plot(widths, [row["kurtosis_given"] for row in here], color=colour)
        curves.plot(widths, [row["kurtosis_limit"] for row in here], ":", color=colour)
    curves.set_xscale("log", base=2)
    curves.set_yscale("log")
    curves.set_xticks(widths, [str(w) for w in widths])
    curves.set_ylabel("excess kurtosis")
    curves.set_title("networks (dots), their law (lines), the limit (dotted)", fontsize=10)
    curves.legend(fontsize=8, frameon=False, ncols=2)
    for each in axes[0]:
        each.set_xlabel("width $d$ of keys and values")
    return figure


def _cell(place: tuple[int, int], colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((place[0] - 0.5, place[1] - 0.5), 1, 1, facecolor=colour, edgecolor="white")


def conclude(result: Result) -> list[str]:
    """What the numbers say, in sentences."""
    fits, parts = result["fits"], result["parts"]
    said = [
        f"Of {result['points']} pairs of a number and a width of heads the Gaussian fits "
        f"{fits['gaussian']}, the limit law {fits['limit']} more, and only the law of heads of "
        f"that width {fits['given']} ({result['networks']:,} networks each, level "
        f"{result['level']}).",
        "The law of heads of given width is rejected nowhere."
        if result["given_fits_everywhere"]
        else "The law of heads of given width is rejected somewhere.",
    ]
    said += [
        f"Heads of width 64, H = {heads}: excess kurtosis {one['limit']:.3f} in the limit, "
        f"{one['keys']:.3f} with such keys, {one['keys and values']:.3f} with such values too, and "
        f"{one['keys, values and inputs']:.3f} with random inputs of width {64 * int(heads)}."
        for heads, one in parts.items()
    ]
    return said


STUDY = Study(
    "head-width",
    "Which law for which heads",
    "A map over number and width of heads: Gaussian, limit law, or the law at that width.",
    run,
    {
        "head_width": "Left: the simplest law that networks do not contradict, by the number "
        "and the width of their heads. Right: excess kurtosis of networks "
        "(dots, two standard errors), of the law of heads of that width (lines) "
        "and of the limit (dotted).",
    },
    conclude,
)
