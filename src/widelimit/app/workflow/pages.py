"""The page of a run: numbers, network, kernel, calibration, learning curve, words, examples."""

import io
from typing import Any

import jax
import matplotlib.image
import numpy as np

from ...inference import KernelKind
from ...sklearn.networks import Kind
from ..drawing.diagram import diagram
from ..drawing.plots import (
    canvas,
    plot_calibration,
    plot_confusion,
    plot_coverage,
    plot_curve,
    plot_kernel,
    plot_noise,
    plot_predictions,
    plot_spectrum,
    verbatim,
)
from ..report import Picture, Report
from . import scores
from .attention import mean_attention, received
from .baselines import Baseline, advice
from .kinds import Task
from .run import Result
from .solving import facts_of

_SHOWN = 8  # examples in a list
_LOOKED_AT = 6  # texts or images whose attention is shown
_IN_A_GROUP = 25  # test examples behind a dot of the calibration
_SURE = 0.9
_BANDS = (
    (_SURE, "sure: it says 90 % or more"),
    (0.75, "fairly sure: 75 % to 90 %"),
    (0.6, "leaning to it: 60 % to 75 %"),
    (0.0, "guessing: below 60 %"),
)
_LEVELS = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
_KINDS = {KernelKind.NNGP: "NNGP (Bayesian network)", KernelKind.NTK: "NTK (trained network)"}


def page(result: Result) -> Report:
    """Everything a run found, from the answer to the details."""
    name = result.train.path.name
    classes = result.task is Task.CLASSIFY
    verb = "Classifying" if classes else "Predicting"
    lead = (
        f"Learned from {len(result.train):,} examples, tested on {len(result.test):,} that it had "
        f"never seen. The model is an infinitely wide network – {result.model.estimator.summary_}."
    )
    report = Report(f"{verb} {name}", lead).numbers(tiles(result))
    add_sections(report, result)
    report.section("How it was done").bullets(result.notes)
    report.heading("The command").command()
    return report.heading("The same numbers in Python").code(result.python)


def add_sections(report: Report, result: Result) -> None:
    """What it is sure of, quality, network, kernel, attention and examples, on any page."""
    add_certainty(report, result)
    _quality(report, result)
    _network(report, result)
    _kernel(report, result)
    _attention(report, result)
    _examples(report, result)


def tiles(result: Result) -> dict[str, str]:
    """The numbers one looks at first."""
    seconds = f"{sum(result.seconds.values()):.0f} s"
    if result.task is Task.REGRESS:
        error = scores.root_mean_square(result.test.y, result.predicted.answers)
        score, unknown = result.score, ("too few targets that differ", "–")
        said = unknown if np.isnan(score.value) else (score.interval, score.shown)
        found = {
            f"R² on held-out examples (95 %: {said[0]})": said[1],
            "root mean square error": f"{error.value:.4g}",
        }
    else:
        surer = np.argsort(-result.predicted.confidence)[: max(1, len(result.test) // 2)]
        found = {
            f"right on held-out examples (95 %: {result.score.interval})": result.score.shown,
            "by guessing the most frequent class": f"{baseline(result):.1%}",
            "right in the surer half": f"{np.mean(result.right[surer]):.1%}",
        }
    if result.folds is not None:
        found["cross-validated"] = result.folds.shown
    return found | {"in all": seconds}


def baseline(result: Result) -> float:
    """The share of test examples in the class that is most frequent in training."""
    values, counts = np.unique(result.train.y, return_counts=True)
    return float(np.mean(result.test.y == values[counts.argmax()]))


def add_certainty(report: Report, result: Result) -> None:
    """How often the model is right by how sure it says it is, in plain numbers."""
    test = result.predicted
    if test.probabilities is None:
        return
    right, rows, above = result.right, [], np.inf
    for least, name in _BANDS:
        inside = (test.confidence >= least) & (test.confidence < above)
        above = least
        if inside.any():
            share = float(np.mean(right[inside]))
            rows.append((name, int(inside.sum()), int(right[inside].sum()), f"{share:.0%}"))
    sure = test.confidence >= _SURE
    if sure.any():
        said = (
            f"Of {len(right):,} examples it had never seen, the model was sure of {sure.sum():,} "
            f"(it said 90 % or more), and {right[sure].sum():,} of those answers are right."
        )
    else:
        said = (
            f"The model was sure of none of the {len(right):,} examples it had never seen: its "
            f"highest probability is {test.confidence.max():.0%}."
        )
    report.section("What it is sure of", said)
    report.table(("how sure it was", "examples", "right", "share right"), rows)


def _network(report: Report, result: Result) -> None:
    process, estimator = result.process, result.model.estimator
    shape = jax.tree.map(lambda x: x.shape[1:], result.examples.x)
    facts = [
        ("kernel", _KINDS[result.settings.kernel]),
        ("examples to learn from", len(result.train)),
        ("examples to test on", len(result.test)),
        ("noise variance, by leave-one-out", estimator.noise_),
        *facts_of(process.posterior, result.settings.solver),
        *((f"seconds: {name}", round(value, 1)) for name, value in result.seconds.items()),
    ]
    if result.test.kind is Kind.IMAGE:
        facts.insert(
            0, ("pixels; larger images are shrunk (--image-size)", f"{shape[0]}×{shape[1]}")
        )
    if process.posterior.jitter:
        facts.append(("jitter", process.posterior.jitter))
    report.section("The network")
    report.diagram(
        diagram(estimator.network_, shape),
        "Every layer is infinitely wide; positions and channels are those of one example.",
        facts,
    )


def _quality(report: Report, result: Result) -> None:
    test, truth = result.predicted, result.test.y
    assert truth is not None
    figure, axes = canvas(3, width=4.4, height=3.7)
    first, second, third = axes[0]
    if test.probabilities is not None:
        # Groups of equally many examples, and no more of them than say something.
        groups = int(np.clip(len(result.test) // _IN_A_GROUP, 1, 8))
        plot_calibration(first, result.right, test.confidence, groups)
        plot_confusion(second, truth, test.answers, test.classes)
        plot_curve(third, result.curve, "accuracy")
        columns = np.searchsorted(np.array(test.classes), truth)
        caption = (
            "Left: when the model says 80 %, is it right in 80 % of the cases? A dot is a group of "
            f"about {len(result.test) // groups} test examples. Middle: test examples by true and "
            "predicted class. Right: the score by the number of examples learned from, on training "
            "examples that were left out (mean and deviation over parts of them)."
        )
        text = (
            f"{result.score.shown} of the held-out examples are right "
            f"(95 % interval {result.score.interval}); the mean log probability of the "
            f"true class is {scores.log_score(test.probabilities, columns):.3f}."
        )
    else:
        assert test.std is not None
        plot_predictions(first, truth, test.answers, test.std)
        shares = scores.coverage(truth, test.answers, test.std, _LEVELS)
        plot_coverage(second, _LEVELS, shares)
        plot_curve(third, result.curve, "R²")
        caption = (
            "Left: every prediction with its interval. Middle: do intervals hold as many targets "
            "as they promise? Right: the score by the number of examples learned from, on training "
            "examples that were left out."
        )
        inside = float(scores.coverage(truth, test.answers, test.std, np.array([0.9]))[0])
        middle = float(np.median(result.train.y))
        text = (
            f"Half of the predictions are off by less than "
            f"{scores.typical_miss(truth, test.answers):.4g}; saying {middle:.4g} each time, "
            "the middle of the training targets, half would be off by less than "
            f"{scores.typical_miss(truth, middle):.4g}. {inside:.0%} of the targets lie in "
            f"their 90 % intervals. R² is {result.score} on held-out examples (1: every target "
            "met; 0: no better than their average)."
        )
    report.section("How good it is", text).figure(figure, caption)
    _comparison(report, result)


def _comparison(report: Report, result: Result) -> None:
    """Simpler methods on the same split, and whether one should use them."""
    if not result.baselines:
        return
    classes = result.task is Task.CLASSIFY
    own = Baseline("this network", result.score, sum(result.seconds.values()))
    report.heading("Against simpler methods, on the same examples")
    report.table(
        ("method", "right" if classes else "R²", "95 % interval", "seconds"),
        [
            (one.name, one.score.shown, one.score.interval, f"{one.seconds:.1f}")
            for one in (own, *result.baselines)
        ],
    )
    verdict = advice(result.score, result.baselines)
    if verdict is not None:
        report.bullets([verdict])


def _kernel(report: Report, result: Result) -> None:
    estimator, kernel = result.model.estimator, result.kernel
    trials = [(t.noise * t.amplitude, t.score) for t in estimator.trials_]
    figure, axes = canvas(3 if trials else 2, width=4.4, height=3.5)
    labels = result.model.kept(result.train)[: len(kernel)]
    classes = result.task is Task.CLASSIFY
    if classes:
        labels = np.searchsorted(estimator.classes_, labels)
    plot_kernel(axes[0, 0], kernel, labels, result.predicted.classes)
    plot_spectrum(axes[0, 1], result.eigenvalues, estimator.noise_)
    if trials:
        plot_noise(axes[0, 2], trials, estimator.noise_)
    report.section("The kernel").figure(
        figure,
        f"Left: correlations of the network's outputs between training examples, sorted by "
        f"{'class' if classes else 'target'}. Then what the network finds easy to learn (large "
        "eigenvalues) and what drowns in noise"
        + (", and the noise variances that were tried." if trials else "."),
    )


def _attention(report: Report, result: Result) -> None:
    """Words or pixels by the attention they receive; nothing for networks without attention."""
    kind = result.test.kind
    if kind in (Kind.TABLE, Kind.MIXED):
        return
    chosen = np.arange(min(_LOOKED_AT, len(result.test)))
    x, mask, _ = result.examples.take(chosen)
    weights = mean_attention(result.process.data, x, mask)
    if weights is None:
        return
    share = received(weights, mask)
    report.section(
        "Where the network looks",
        "The share of all attention that each position receives, by the size of the weights, "
        "averaged over the heads of the infinitely wide network before it has seen any label."
        + (" Hover over a word for its share." if kind is Kind.TEXT else ""),
    )
    if kind is Kind.TEXT:
        _texts(report, result, share)
    elif kind is Kind.IMAGE:
        _images(report, result, chosen, share)
    else:
        _sequences(report, share, mask)


def _texts(report: Report, result: Result, share: np.ndarray) -> None:
    texts = result.test.x[result.model.text]
    for row, weights in enumerate(share):
        text = texts.iloc[row]
        words = result.model.vectorizer.embedder_.positions(text) if isinstance(text, str) else []
        if words:
            shares = weights[: len(words)] * len(words)
            note = f"{result.test.names[row]} – {result.model.label}: {result.test.y[row]}"
            report.weighted_words(words, shares.tolist(), note)


def _images(report: Report, result: Result, chosen: np.ndarray, share: np.ndarray) -> None:
    figure, axes = canvas(len(chosen), rows=2, width=1.7, height=1.7)
    extent = result.examples.x.shape[1:3]
    for column, row in enumerate(chosen):
        axes[0, column].imshow(_pixels(result.test.x[row]))
        grid = share[column].reshape(extent) * share.shape[1]
        axes[1, column].imshow(grid, cmap="magma", interpolation="nearest")
        axes[0, column].set_title(verbatim(str(result.test.y[row])), fontsize=9)
        for axis in axes[:, column]:
            axis.set_axis_off()
    report.figure(figure, "Test images and the attention that each of their positions receives.")


def _pixels(picture: np.ndarray) -> np.ndarray:
    """An image from 0 to 1 with three channels."""
    shown = np.asarray(picture, np.float64)
    low, high = shown.min(), shown.max()
    shown = (shown - low) / max(high - low, 1e-12)
    return shown[..., :3] if shown.shape[-1] >= 3 else np.repeat(shown[..., :1], 3, axis=-1)


def _sequences(report: Report, share: np.ndarray, mask: np.ndarray | None) -> None:
    figure, axes = canvas(1, width=6.0, height=3.0)
    for row, weights in enumerate(share):
        real = weights if mask is None else weights[mask[row]]
        axes[0, 0].plot(real * len(real), lw=1.5, label=f"test example {row}")
    axes[0, 0].set(xlabel="position", ylabel="attention received (1: even share)")
    axes[0, 0].legend(frameon=False, fontsize=8)
    report.figure(figure, "Attention received along a few test sequences.")


def _examples(report: Report, result: Result) -> None:
    tested, truth, test = result.test, result.test.y, result.predicted
    assert truth is not None
    report.section("Predictions to look at")
    if test.probabilities is None:
        assert test.std is not None
        off = np.abs(truth - test.answers) / test.std
        numbers = (truth, test.answers, test.std, off)
        report.text("The largest misses, in units of their own uncertainty.").table(
            ("where", "example", "true", "predicted", "±", "misses by (std)"),
            [
                (tested.names[i], tested.excerpt(i), *(float(values[i]) for values in numbers))
                for i in np.argsort(-off)[:_SHOWN]
            ],
        )
        return
    wrong = np.flatnonzero(~result.right)
    wrong = wrong[np.argsort(-test.confidence[wrong])][:_SHOWN]
    if len(wrong) and (most := float(test.confidence[wrong[0]])) < _SURE:
        report.heading(f"Wrong: the model was not sure of these, and said at most {most:.0%}")
    elif len(wrong):
        causes = "odd labels, irony" if tested.kind is Kind.TEXT else "odd labels"
        report.heading(
            f"Wrong, and the surest come first: {causes}, or what the network cannot see"
        )
    if len(wrong):
        _listed(report, result, wrong)
    report.heading("Least sure: the examples worth a person's look")
    _listed(report, result, np.argsort(test.confidence)[:_SHOWN])


def _listed(report: Report, result: Result, chosen: np.ndarray) -> None:
    """Examples with what they are and what was said, images as pictures."""
    tested, test, rows = result.test, result.predicted, []
    for i in chosen:
        shown: Any = tested.excerpt(i)
        if tested.kind is Kind.IMAGE:
            stream = io.BytesIO()
            matplotlib.image.imsave(stream, _pixels(tested.x[i]), format="png")
            shown = Picture(stream.getvalue())
        sure, right = f"{test.confidence[i]:.1%}", bool(result.right[i])
        rows.append((tested.names[i], shown, str(tested.y[i]), str(test.answers[i]), sure, right))
    report.table(("where", "example", "true", "predicted", "probability", ""), rows)
