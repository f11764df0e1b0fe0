"""Published figures and open questions as runnable studies; each writes data and a figure."""

from . import (
    ablations,
    cifar10,
    convergence,
    film_texts,
    head_counts,
    head_width,
    landmarks,
    learning_curve,
    modified,
    moving_kernel,
    sampled_heads,
    scaling_softmax,
    score_scaling,
    signal_propagation,
    small_data,
    trained,
    width,
)
from .study import Size, Study

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
        "head-width",
        "Which law for which heads",
        "A map over number and width of heads: Gaussian, limit law, or the law at that width.",
        head_width.run,
    ),
    Study(
        "convergence",
        "Kernels by width and heads",
        "Distance of a finite network's kernel from the limit, in width and heads jointly.",
        convergence.run,
    ),
    Study(
        "length",
        "Longer sequences",
        "The width study with sequences of 2 to 32 tokens.",
        width.run_length,
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
    Study(
        "cifar10",
        "CIFAR-10 kernels",
        "Flattened, pooled and attended positions, NNGP and NTK, tuned with the same effort.",
        cifar10.run,
        cifar10.cost,
        cifar10.PUBLISHED,
    ),
    Study(
        "imdb",
        "Film reviews",
        "IMDb with GloVe: pooled embeddings, CNN, attention with and without encodings.",
        film_texts.run_imdb,
        film_texts.cost_imdb,
        film_texts.PUBLISHED,
    ),
    Study(
        "rt-polarity",
        "Sentences about films",
        "The kernels of the IMDb study on short sentences of every length.",
        film_texts.run_rt_polarity,
        film_texts.cost_rt_polarity,
    ),
    Study(
        "cifar10-landmarks",
        "Landmarks against exact kernels on all images",
        "CIFAR-10 at 8×8 by store and cluster: accuracy lost by Nyström over the landmarks.",
        landmarks.run,
    ),
    Study(
        "learning-curve",
        "Accuracy by the number of training images",
        "The CIFAR-10 kernels on nested beginnings of one training set.",
        learning_curve.run,
    ),
    Study(
        "ablations",
        "Depth, LayerNorm, score maps and encodings",
        "What each part of an attention kernel is worth in accuracy on CIFAR-10.",
        ablations.run,
    ),
    Study(
        "trained",
        "Trained networks beside their kernels",
        "Finite networks trained by Adam on the images their kernels see, over several starts.",
        trained.run,
    ),
    Study(
        "modified-attention",
        "Modified attention in trained networks",
        "Score maps, encodings and residual weight, one at a time, trained and as kernels.",
        modified.run,
    ),
    Study(
        "scaling-softmax",
        "Softmax at 1/√d against softmax at 1/d",
        "Infinitely many heads with random scores against deterministic scores, on sentences.",
        scaling_softmax.run,
    ),
    Study(
        "small-data",
        "Small tables",
        "Infinite networks beside an RBF process, an SVM and a random forest.",
        small_data.run,
    ),
)

STUDIES: dict[str, Study] = {study.name: study for study in _ALL}

__all__ = ["STUDIES", "Size", "Study"]
