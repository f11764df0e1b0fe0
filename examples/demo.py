"""One attention network on real sentences, read three ways; writes a page with pictures.

Run it with `make demo`. Everything it needs ships with the package.
"""

import sys
import time
from pathlib import Path

import jax
import matplotlib
import numpy as np

import widelimit as wl
from widelimit.data import load_sample_texts
from widelimit.report import Report

matplotlib.use("Agg")
import matplotlib.pyplot as plt

BLUE, RED, GREY = "#24527a", "#c0392b", "#8a97a5"


def network(width: int = 64, heads: float = 4) -> wl.Serial:
    """A small text classifier: residual attention with a decaying encoding, then an average."""
    attention = wl.Attention(
        width,
        heads,
        scaling=wl.Scaling.LINEAR,
        positions=wl.Decay(rate=0.1, strength=0.5),
        qk_std=2.0,
    )
    return wl.Serial(
        wl.LayerNorm(),
        wl.Dense(width),
        wl.Residual(attention, 0.8),
        wl.Relu(),
        wl.MeanPool(),
        wl.Dense(1, w_std=4.0),
    )


def finite_becomes_infinite(axis, x, mask) -> float:
    """How far one random network's tangent kernel is from the limit, by width."""
    exact = network().kernel(x, mask1=mask)
    widths, distances, draws = [16, 32, 64, 128, 256], [], 24
    for width in widths:
        found = wl.monte_carlo_kernel(
            network(width), x, mask1=mask, key=jax.random.key(width), draws=draws
        )
        one_network = (found.ntk - exact.ntk) ** 2 + draws * found.ntk_error**2
        distances.append(np.sqrt(one_network.sum()) / np.linalg.norm(exact.ntk))
    axis.loglog(widths, distances, "o-", color=BLUE, lw=2, label="tangent kernel of one network")
    slope = distances[0] * np.sqrt(widths[0] / np.array(widths))
    axis.loglog(widths, slope, ls="--", color=GREY, label="1/√width")
    axis.set_xticks(widths, [str(width) for width in widths])
    axis.minorticks_off()
    axis.set(
        xlabel="width of the finite network",
        ylabel="relative distance to the limit",
        title="finite → infinite",
    )
    axis.legend(fontsize=8)
    return float(distances[-1])


def sentiment(axis, texts) -> tuple[float, float, float]:
    """A Gaussian process with the attention kernel: is a sentence positive?"""
    y = 2.0 * texts.y_train - 1
    posterior = wl.GP(network(), noise=0.3).fit(texts.x_train, y, mask=texts.mask_train)
    mean, std = posterior.predict(texts.x_test, mask=texts.mask_test)
    right = (mean > 0) == (texts.y_test == 1)
    sure = np.abs(mean) / std
    order = np.argsort(-sure)
    kept = np.arange(1, len(order) + 1)
    axis.plot(kept / len(order), np.cumsum(right[order]) / kept, color=BLUE, lw=2)
    axis.axhline(right.mean(), color=GREY, ls="--", lw=1)
    axis.set(
        xlabel="share of test sentences answered, surest first",
        ylabel="accuracy",
        title="prediction with uncertainty",
        ylim=(0.5, 1.02),
    )
    half = float(right[order[: len(order) // 2]].mean())
    return float(right.mean()), half, float(posterior.log_evidence)


def few_heads(axis, x, mask) -> float:
    """Standard 1/√d softmax attention with few heads, on five words: not Gaussian, however wide."""
    sentence = x[:1, : min(5, int(mask[0].sum()))].astype(np.float64)
    grid = np.linspace(-6, 6, 301)
    kurtosis = 0.0
    for heads, colour in ((1, RED), (4, BLUE)):
        net = wl.Serial(wl.LayerNorm(), wl.Attention(64, heads, qk_std=2.0), wl.Select(0))
        law = net.law(sentence, draws=2000)
        scale = float(law.moments((2,)).value[0]) ** 0.5
        axis.semilogy(
            grid,
            np.asarray(law.density(grid * scale).value) * scale,
            color=colour,
            lw=2,
            label=f"{heads} head{'s' if heads > 1 else ''}",
        )
        if heads == 1:
            kurtosis = float(np.asarray(law.kurtosis().value))
    normal = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    axis.semilogy(grid, normal, color=GREY, ls="--", label="Gaussian")
    axis.set(
        xlabel="output, in standard deviations",
        ylabel="density",
        title="finitely many heads: not Gaussian",
        ylim=(1e-6, 2),
    )
    axis.legend(fontsize=8)
    return kurtosis


def main() -> None:
    """Compute, draw, write, and say where."""
    begin = time.monotonic()
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")
    out.mkdir(parents=True, exist_ok=True)
    texts = load_sample_texts(length=20)
    figure, axes = plt.subplots(1, 3, figsize=(14, 4))
    print("1/3 finite networks against the kernel …", flush=True)
    gap = finite_becomes_infinite(axes[0], texts.x_train[:6], texts.mask_train[:6])
    print("2/3 a Gaussian process on 400 sentences …", flush=True)
    accuracy, half, evidence = sentiment(axes[1], texts)
    print("3/3 the law of few heads …", flush=True)
    kurtosis = few_heads(axes[2], texts.x_train[:1], texts.mask_train[:1])
    figure.tight_layout()
    figure.savefig(out / "three_readings.png", dpi=130)
    seconds = time.monotonic() - begin
    page = (
        Report(
            "One attention network, three readings",
            "Real film opinions (400 to learn from, 200 to answer), one network description.",
        )
        .numbers(
            {
                "of 200 test sentences right": f"{accuracy:.1%}",
                "right in the surer half": f"{half:.1%}",
                "log evidence": f"{evidence:.0f}",
                "excess kurtosis with one head": f"{kurtosis:.2f}",
                "seconds in all": f"{seconds:.0f}",
            }
        )
        .figure(
            figure,
            "Left to right: finite networks approach the limit; the limit predicts, "
            "and knows when it does not know; with few heads the limit is not Gaussian.",
        )
        .section("The network")
        .code(repr(network()))
        .write(out / "report.html")
    )
    print(f"a width-256 network is {gap:.1%} from the limit; accuracy {accuracy:.1%}")
    print(f"done in {seconds:.0f} s: open {page}")


if __name__ == "__main__":
    main()
