"""One attention network on real sentences, read three ways; writes a page with pictures.

Run it with `make demo`. Everything it needs ships with the package.
"""

import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np

import widelimit as wl
from widelimit.app.cli.ending import keep_programs
from widelimit.app.drawing.plots import BLUE, GREY, RED, canvas
from widelimit.app.report import Report
from widelimit.app.workflow import NetworkName, Result, Settings, Task, run
from widelimit.app.workflow.finite import LawNetwork, head_law
from widelimit.app.workflow.pages import add_sections
from widelimit.data import load_sample_texts, sample_directory
from widelimit.sklearn.networks import Kind, candidates

WIDTHS, DRAWS = (16, 64, 256), 32
SENTENCES = "rt_polarity.jsonl.gz"


def kernels_by_width(threads: ThreadPoolExecutor) -> list[Future[wl.Kernels]]:
    """The kernels of the network in the limit and at every width, begun."""
    (named,) = candidates(Kind.TEXT).values()
    net, texts = named.net, load_sample_texts(length=8)
    x, mask = texts.x_train[:4], texts.mask_train[:4]

    def at_width(width: int) -> wl.Kernels:
        finite = wl.with_heads(wl.with_width(net, width), 4)
        return wl.monte_carlo_kernel(finite, x, mask=mask, key=jax.random.key(width), draws=DRAWS)

    limit = threads.submit(net.kernel, x, mask=mask)
    return [limit, *(threads.submit(at_width, width) for width in WIDTHS)]


def finite_becomes_infinite(axis: Any, begun: list[Future[wl.Kernels]]) -> float:
    """Tangent kernels of random networks, by width, in units of the limit.

    Returns how far one network of the largest width is from the limit, typically.
    """
    exact, *found = (one.result() for one in begun)
    means = [float(np.mean(one.ntk / exact.ntk)) for one in found]
    spreads = [float(np.mean(np.sqrt(DRAWS) * one.ntk_error / exact.ntk)) for one in found]
    low, high = np.array(means) - spreads, np.array(means) + spreads
    axis.axhline(1.0, color=RED, lw=2, label="infinite width")
    axis.fill_between(
        WIDTHS, low, high, color=BLUE, alpha=0.25, lw=0, label="two of three networks"
    )
    axis.plot(WIDTHS, means, "o-", color=BLUE, lw=2, label="mean over networks")
    axis.set_xscale("log")
    axis.set_xticks(WIDTHS, [str(width) for width in WIDTHS])
    axis.minorticks_off()
    axis.set(
        xlabel="width of the finite network",
        ylabel="tangent kernel / its limit",
        title="finite → infinite",
    )
    axis.legend(fontsize=8, frameon=False)
    return spreads[-1]


def sentiment(axis: Any, result: Result) -> float:
    """A posterior with the attention kernel: is a sentence positive?"""
    right = result.right[np.argsort(-result.predicted.confidence)]
    kept = np.arange(1, len(right) + 1)
    axis.plot(kept / len(right), np.cumsum(right) / kept, color=BLUE, lw=2)
    axis.axhline(right.mean(), color=GREY, ls="--", lw=1)
    axis.set(
        xlabel="share of test sentences answered, surest first",
        ylabel="accuracy",
        title="prediction with uncertainty",
        ylim=(0.5, 1.02),
    )
    return float(right[: len(right) // 2].mean())


def few_heads(axis: Any) -> tuple[float, float]:
    """Standard 1/√d softmax attention with few heads, however wide, on five tokens.

    Returns the excess kurtosis with one head, for independent tokens and for words of a sentence.
    Word vectors resemble each other: whichever word a head looks at, it finds much the same.
    """
    tokens = np.random.default_rng(0).normal(size=(1, 5, 16))
    texts = load_sample_texts(length=5)
    words = texts.x_train[:1, : int(texts.mask_train[0].sum())].astype(np.float64)
    grid = np.linspace(-6, 6, 301)
    cases = (
        ("1 head, independent tokens", tokens, 1, RED, "-"),
        ("4 heads, independent tokens", tokens, 4, BLUE, "-"),
        ("1 head, words of a sentence", words, 1, RED, ":"),
    )
    kurtosis = {}
    for name, x, heads, colour, style in cases:
        law = head_law(
            LawNetwork.ATTENTION,
            x,
            heads=heads,
            qk_std=2.0,
            draws=2048,
            key=jax.random.key(0),
        )
        axis.semilogy(grid, law.density(grid), color=colour, ls=style, lw=2, label=name)
        kurtosis[name] = law.numbers["excess_kurtosis"]
    normal = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    axis.semilogy(grid, normal, color=GREY, ls="--", label="Gaussian")
    axis.set(
        xlabel="output, in standard deviations",
        ylabel="density",
        title="finitely many heads: not Gaussian",
        ylim=(1e-6, 30),
    )
    axis.legend(fontsize=8, frameon=False, loc="upper center", ncols=2)
    return kurtosis[cases[0][0]], kurtosis[cases[2][0]]


def main() -> None:
    """Compute, draw, write, and say where."""
    begin = time.monotonic()
    keep_programs()
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo")
    out.mkdir(parents=True, exist_ok=True)
    figure, axes = canvas(3, width=4.7, height=4.0)
    # Most of the time goes into compiling programs: two at a time.
    with ThreadPoolExecutor(2) as threads:
        learned = threads.submit(
            run,
            sample_directory() / SENTENCES,
            Task.CLASSIFY,
            settings=Settings(network=NetworkName.ATTENTION, length=30),
            kernel_folder=out,
        )
        widths = kernels_by_width(threads)
        print("1/3 sentiment of real sentences …", flush=True)
        result = learned.result()
        half = sentiment(axes[0, 1], result)
        print("2/3 the law of a network with few heads …", flush=True)
        independent, words = few_heads(axes[0, 2])
        print("3/3 finite networks against the kernel …", flush=True)
        gap = finite_becomes_infinite(axes[0, 0], widths)
    figure.savefig(out / "three_readings.png", dpi=130)
    score = result.score
    seconds = time.monotonic() - begin
    report = (
        Report(
            "One attention network, three readings",
            f"Real film opinions ({len(result.train)} to learn from, {len(result.test)} to answer) "
            "and one network description: drawn at finite width, taken to infinite width, and in "
            "between.",
        )
        .numbers(
            {
                f"of {len(result.test)} test sentences right": score.shown,
                "right in the surer half": f"{half:.1%}",
                f"typical distance of a width-{WIDTHS[-1]} network from the limit": f"{gap:.1%}",
                "excess kurtosis with one head, independent tokens": f"{independent:.2f}",
                "the same for words of a sentence": f"{words:.2f}",
                "in all": f"{seconds:.0f} s",
            }
        )
        .figure(
            figure,
            "Left to right: finite networks approach the limit; the limit predicts, "
            "and knows when it does not know; with few heads the limit is not Gaussian – "
            "clearly so for independent tokens, hardly for these words, whose vectors resemble "
            "each other.",
        )
    )
    add_sections(report, result)
    page = (
        report.section("Now with data of your own")
        .code("widelimit classify reviews.csv --text review --label sentiment --open")
        .write(out / "report.html")
    )
    print(
        f"a width-{WIDTHS[-1]} network is {gap:.1%} from the limit, typically; "
        f"accuracy {score.shown}"
    )
    print(f"done in {seconds:.0f} s: open {page}")


if __name__ == "__main__":
    main()
