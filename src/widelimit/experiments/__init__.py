"""Published figures and open questions as runnable studies; each writes data and a figure."""

from widelimit.experiments import (
    head_counts,
    moving_kernel,
    sampled_heads,
    score_scaling,
    signal_propagation,
    width,
)
from widelimit.experiments.study import Size, Study

_ALL = (
    Study(
        "width",
        "Networks approach the finite-head law",
        "Two heads, widths 16 to 1024: histograms of one output against the law, KL by width.",
        width.run_width,
    ),
    Study(
        "heads",
        "One head and 256 heads",
        "At width 256: against the law with as many heads, and against the infinite-head Gaussian.",
        head_counts.run_heads,
    ),
    Study(
        "scores",
        "Scores under both scalings",
        "One attention score at width 256: random at 1/√n, constant at 1/n.",
        score_scaling.run,
    ),
    Study(
        "low-rank",
        "Narrow heads in a wide network",
        "Heads of width 64 in networks of width 64H, H = 1, 4, 16, against the law.",
        head_counts.run_low_rank,
    ),
    Study(
        "relu",
        "ReLU inputs",
        "The width study with unbounded inputs, which break a precondition of the theorem.",
        width.run_relu,
    ),
    Study(
        "single-head",
        "A single head stays non-Gaussian",
        "Log density against the fitted Gaussian, at infinite width and at width 1024.",
        head_counts.run_single_head,
    ),
    Study(
        "moving-ntk",
        "The tangent kernel moves when heads are few",
        "Change of the tangent kernel in training, one head and 128 heads, by width.",
        moving_kernel.run,
    ),
    Study(
        "signal",
        "Signal propagation with depth",
        "Which parts of a transformer keep positions apart, layer by layer; a phase diagram.",
        signal_propagation.run,
    ),
    Study(
        "sampled-heads",
        "How many heads to sample",
        "Error of the infinite-head softmax kernel by the number of sampled heads.",
        sampled_heads.run,
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES", "Size", "Study"]
