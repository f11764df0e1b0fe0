"""What the figures of a study show, and what its numbers say, in sentences for its page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_MOST_COLUMNS = 8  # of a table that fits on a page

Result = Mapping[str, Any]


@dataclass(frozen=True)
class Explanation:
    """Captions of a study's figures by the names of their files, and its conclusions."""

    captions: Mapping[str, str]
    conclude: Callable[[Result], list[str]]


def settings(result: Result) -> list[tuple[str, Any]]:
    """What a study was run with: its single numbers, and its data sets with their sizes."""
    found: list[tuple[str, Any]] = [
        (name.replace("_", " "), value)
        for name, value in result.items()
        if isinstance(value, int | float | str)
    ]
    seen = {}
    for row in result.get("rows", ()):
        if "data" in row and "train" in row:
            seen.setdefault(row["data"], []).append(row)
    for data, rows in seen.items():
        sizes = sorted({row["train"] for row in rows})
        train = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        test = f", {rows[0]['test']:,} to test" if "test" in rows[0] else ""
        found.append((str(data), f"{train} training examples{test}"))
    return found


def tables(result: Result) -> list[tuple[list[str], list[list[Any]]]]:
    """The numbers of a study that writes no table of its own: by width, by heads, by row."""
    found = []
    for name, part in (("", result), *result.items()):
        if name == "rows" and not isinstance(part, Mapping):
            found.append(_table({str(i): row for i, row in enumerate(part, 1)}))
        elif isinstance(part, Mapping):
            groups = {key: one for key, one in part.items() if _numbers(one)}
            if len(groups) > 1:
                found.append(_table(groups))
    return found


def _table(groups: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """A line for each group; one for each quantity where these are more. Errors stand beside."""
    columns = list(dict.fromkeys(key for one in groups.values() for key in one))
    columns = [c for c in columns if not isinstance(next(iter(groups.values())).get(c), list)]
    errors = {c: e for c in columns for e in (f"{c}_se", f"{c}_error") if e in columns}
    columns = [column for column in columns if column not in errors.values()]

    def cell(one: Mapping[str, Any], column: str) -> Any:
        value, error = one.get(column, ""), one.get(errors.get(column, ""))
        return value if error is None or value == "" else f"{value:.4g} ± {error:.1g}"

    names = [column.replace("_", " ") for column in columns]
    rows = [[name, *(cell(one, c) for c in columns)] for name, one in groups.items()]
    if len(columns) <= max(_MOST_COLUMNS, len(groups)):
        return ["", *names], rows
    head, *lines = zip(*rows, strict=True)
    return ["", *head], [[name, *line] for name, line in zip(names, lines, strict=True)]


def _numbers(value: Any) -> bool:
    """Whether these are named numbers."""
    return isinstance(value, Mapping) and any(isinstance(v, int | float) for v in value.values())


def sample_notice(result: Result) -> str:
    """A warning where a study ran on the sample inside the package; else nothing."""
    names = dict.fromkeys(str(row.get("data", "")) for row in result.get("rows", ()))
    if not any("sample" in name for name in names):
        return ""
    images = any(name.startswith("CIFAR") for name in names)
    what = (
        "four of the ten classes of CIFAR-10: 160 training and 80 test photographs"
        if images
        else "400 training and 200 test sentences"
    )
    return (
        f"NOT THE REAL DATA. This ran on the sample that ships with the package – {what}. Its "
        "accuracies say little, and are not comparable with published ones. Give the folder that "
        "holds the data set with --data-dir."
    )


def _by_width(result: Result) -> list[str]:
    widths, limit = result["widths"], result["limit"]
    first, last = (widths[name] for name in (min(widths, key=int), max(widths, key=int)))
    gaps = [max(one["kl_density"] - one["kl_density_floor"], 0.0) for one in (first, last)]
    return [
        f"The limit with {result['heads']} heads is not Gaussian: excess kurtosis "
        f"{limit['kurtosis']:.4f} ± {limit['kurtosis_error']:.4f}.",
        f"From width {min(widths, key=int)} to width {max(widths, key=int)} the divergence of "
        f"networks from the law, beyond what chance gives, goes from {gaps[0]:.1e} to "
        f"{gaps[1]:.1e}; the Kolmogorov distance from {first['ks']:.4f} to {last['ks']:.4f}.",
        f"At width {max(widths, key=int)} kernel density estimates, the published estimator, give "
        f"{last['kl_kernel_density']:.1e}, where two samples of one distribution would give "
        f"{last['kl_kernel_density_floor']:.1e}; the histogram gives {last['kl_histogram']:.1e} "
        f"over a floor of {last['kl_histogram_floor']:.1e}.",
    ]


def _by_length(result: Result) -> list[str]:
    said = []
    for tokens, one in result["lengths"].items():
        gaps = [w["kl_density"] - w["kl_density_floor"] for w in one["widths"].values()]
        said.append(
            f"{tokens} tokens: the limit has excess kurtosis {one['kurtosis']:.3f} ± "
            f"{one['kurtosis_error']:.3f}; the divergence of networks from it falls from "
            f"{gaps[0]:.1e} at width {min(one['widths'], key=int)} to {gaps[-1]:.1e} at width "
            f"{max(one['widths'], key=int)}."
        )
    return said


def _head_width(result: Result) -> list[str]:
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


def _convergence(result: Result) -> list[str]:
    fit, slopes = result["fit"], result["slopes_of_error"]
    parts = {name: f"{one['value']:.3g} ± {one['error']:.1g}" for name, one in fit.items()}
    return [
        f"The squared relative error of one network's kernel is ({parts['per_head']})/H + "
        f"({parts['per_width']})/n + ({parts['per_both']})/(nH); no point is more than "
        f"{result['largest_z_of_fit']:.1f} standard errors from that.",
        *(f"Error by {name}: power {slope:.2f}." for name, slope in slopes.items()),
    ]


def _by_heads(result: Result) -> list[str]:
    return [
        f"{heads} head{'s' if heads != '1' else ''}: networks are {one['ks']:.4f} from the law and "
        f"{one['ks_gaussian']:.4f} from the Gaussian of infinitely many heads (Kolmogorov "
        f"distances); the law itself is {one['law_ks_from_gaussian']:.4f} from that Gaussian, with "
        f"excess kurtosis {one['law_kurtosis']:.3f} ± {one['law_kurtosis_error']:.3f}."
        for heads, one in result.items()
        if isinstance(one, Mapping)
    ]


def _single_head(result: Result) -> list[str]:
    seen = result["networks"]
    said = [
        f"{heads} head{'s' if heads != '1' else ''} at infinite width: excess kurtosis "
        f"{one['kurtosis']:.3f} ± {one['kurtosis_error']:.3f}; values beyond five standard "
        f"deviations are {one['tail_ratio_at_5_sd']:.3g} times as frequent as for the Gaussian."
        for heads, one in result["laws"].items()
    ]
    return [
        *said,
        f"Networks of width {seen['width']} with one head: excess kurtosis {seen['kurtosis']:.3f} "
        f"± {seen['kurtosis_error']:.3f}. Width does not make them Gaussian; heads do.",
    ]


def _scores(result: Result) -> list[str]:
    root, plain, tied = (result[name] for name in ("1/√n", "1/n", "1/n, Q = K"))
    return [
        f"Divided by √n a score keeps a standard deviation of {root['std']:.3f} at width "
        f"{result['width']} (limit 1).",
        f"Divided by n it becomes a number: {plain['mean']:.3f} ± {plain['std']:.3f} with separate "
        f"queries and keys (limit 0), {tied['mean']:.3f} ± {tied['std']:.3f} with shared ones "
        "(limit 1).",
    ]


def _moving(result: Result) -> list[str]:
    return [
        f"{name}: the tangent kernel moves by {one['moved']:.1%} (median) while the loss falls to "
        f"{one['loss_left']:.1%} of its start."
        for name, one in result.items()
    ]


def _signal(result: Result) -> list[str]:
    ends = {
        name: (profile["correlation of positions"][-1], profile["variance"][-1])
        for name, profile in result["profiles"].items()
    }
    said = [
        f"{name}: positions end at a correlation of {correlation:.3f}, the variance at {value:.3g}."
        for name, (correlation, value) in ends.items()
        if correlation is not None
    ]
    return [*said, "A correlation of 1 is rank collapse: every position carries the same vector."]


def _sampled(result: Result) -> list[str]:
    last = result["rows"][-1]
    return [
        f"Errors fall as heads to the power {result['slopes']['nngp']:.2f} (NNGP) and "
        f"{result['slopes']['ntk']:.2f} (NTK); chance alone gives −0.5.",
        f"With {last['heads']:,} heads the NNGP kernel is {last['nngp_error']:.2%} off and says "
        f"{last['nngp_reported']:.2%}; the NTK {last['ntk_error']:.2%} and says "
        f"{last['ntk_reported']:.2%}.",
    ]


def _claims(result: Result) -> list[str]:
    best = max(result["rows"], key=lambda row: row["accuracy"])
    said = [
        f"The highest test accuracy is {best['accuracy']:.3f} ({best['low']:.3f} to "
        f"{best['high']:.3f}): {best['kernel']}, {best['kind']}, on {best['data']}."
    ]
    verdicts: dict[str, list[str]] = {}
    for one in result.get("claims", ()):
        if "ridge" not in one["claim"]:
            verdicts.setdefault(one["verdict"], []).append(one["claim"])
    said += [f"“{'”, “'.join(claims)}”: {verdict}." for verdict, claims in verdicts.items()]
    ridge = [one for one in result.get("claims", ()) if "ridge" in one["claim"]]
    if ridge:
        clear = sum(one["low"] > 0 for one in ridge)
        said.append(f"{clear} of {len(ridge)} comparisons with ridge regression are clear gains.")
    return said


def _landmarks(result: Result) -> list[str]:
    def said(row: Mapping[str, Any]) -> str:
        solver = row["solver"]
        features = solver if solver == "eigenvectors" else f"landmarks ({solver})"
        return (
            f"{row['kernel']}, {row['kind']}, {row['landmarks']:,} {features}: "
            f"{row['gap']:+.4f} (± {row['gap_error']:.4f}) against the exact solve"
        )

    marks = [row for row in result["rows"] if row["solver"] != "exact"]
    folds = [row for row in result["folds"] if row["solver"] != "exact"]
    return [f"{said(row)}; {row['missed']:.1%} of the variance is missed." for row in marks] + [
        f"{said(row)} on {row['tests']:,} training images, each a test of other ones."
        for row in folds
    ]


def _gains(result: Result) -> list[str]:
    gains = result["gain_per_doubling"]
    return [
        f"Each doubling of the training images adds {min(gains.values()):.3f} to "
        f"{max(gains.values()):.3f} of accuracy, by kernel: "
        + ", ".join(f"{name} {gain:.3f}" for name, gain in gains.items())
        + "."
    ]


def _trained(result: Result) -> list[str]:
    return [
        f"{name}: kernels {', '.join(f'{k} {one[k]:.3f}' for k in ('NNGP', 'NTK') if k in one)}; "
        f"trained networks {one['trained']:.3f} on average, {one['spread']:.3f} apart from start "
        "to start."
        for name, one in result["summary"].items()
    ]


def _modified(result: Result) -> list[str]:
    claims = [claim for claim in result["claims"] if claim["second"] == "softmax"]
    said = []
    for data in dict.fromkeys(claim["data"] for claim in claims):
        here = [claim for claim in claims if claim["data"] == data]
        better = [claim["first"] for claim in here if claim["low"] > 0]
        worse = [claim["first"] for claim in here if claim["high"] < 0]
        said.append(
            f"{data}: of {len(here)} modifications {len(better)} are clearly better than plain "
            f"softmax ({', '.join(better) or 'none'}), {len(worse)} clearly worse "
            f"({', '.join(worse) or 'none'})."
        )
    return [*said, *_claims(result)]


def _tables(result: Result) -> list[str]:
    rows: Sequence[Mapping[str, Any]] = result["rows"]
    said = []
    for data in dict.fromkeys(row["data"] for row in rows):
        best = max((row for row in rows if row["data"] == data), key=lambda row: row["mean"])
        said.append(
            f"{data}: {best['method']} has the highest mean, {best['score']} {best['mean']:.3f} "
            f"± {best['half_interval']:.3f}."
        )
    return said


_DENSITIES = (
    "Histograms (grey) of one output over random networks, and the limit law (red), logarithmic."
)
_ACCURACIES = "Test accuracy of every kernel with its 95 % interval; one panel for each data set."

EXPLAINED: dict[str, Explanation] = {
    "width": Explanation(
        {
            "width": f"{_DENSITIES} Right: the Kullback-Leibler divergence of networks from the "
            "law by width, by three estimators; dotted lines are what each shows by chance alone."
        },
        _by_width,
    ),
    "relu": Explanation(
        {
            "relu": f"{_DENSITIES} Right: the Kullback-Leibler divergence of networks from the law "
            "by width, by three estimators; dotted lines are what each shows by chance alone. "
            "Inputs are ReLU, unbounded."
        },
        _by_width,
    ),
    "heads": Explanation(
        {"heads": f"{_DENSITIES} Blue, dashed: the Gaussian of infinitely many heads."}, _by_heads
    ),
    "low-rank": Explanation(
        {
            "low_rank": f"{_DENSITIES} Blue, dashed: the Gaussian of infinitely many heads. Heads "
            "keep a width of 64 while the network grows with their number."
        },
        _by_heads,
    ),
    "head-width": Explanation(
        {
            "head_width": "Left: the simplest law that networks do not contradict, by the number "
            "and the width of their heads. Right: excess kurtosis of networks (dots, two standard "
            "errors), of the law of heads of that width (lines) and of the limit (dotted)."
        },
        _head_width,
    ),
    "convergence": Explanation(
        {
            "convergence": "Relative distance of one network's kernel from that of infinitely many "
            "heads, by the number of heads (left) and by the width (right): drawn networks (dots), "
            "and the fitted sum of three rates (lines)."
        },
        _convergence,
    ),
    "length": Explanation(
        {
            "length": "Left: divergence of networks from the law by width, for sequences of "
            "several lengths. Right: how non-Gaussian the limit is, by length."
        },
        _by_length,
    ),
    "single-head": Explanation(
        {
            "single_head": "Left: log density of one output of networks with one head and of the "
            "laws, beside the Gaussian of the same variance. Right: what is left when the "
            "Gaussian's log density is subtracted."
        },
        _single_head,
    ),
    "scores": Explanation(
        {
            "scores": "One attention score over random networks. Left: divided by √n, with its "
            "Gaussian limit. Right: divided by n, with its constant limits as lines."
        },
        _scores,
    ),
    "moving-ntk": Explanation(
        {
            "moving_ntk": "How far the tangent kernel moves in training, relative to its size, by "
            "width: one dot for each network, lines through the medians."
        },
        _moving,
    ),
    "signal": Explanation(
        {
            "signal_by_depth": "Four quantities of the kernel from the input (0) to the last layer "
            "(1), one line for each variant of the encoder.",
            "phase_diagram": "Correlation of positions after eight residual attention layers, by "
            "residual weight and by the scale of the scores: 1 (yellow) is rank collapse.",
        },
        _signal,
    ),
    "sampled-heads": Explanation(
        {
            "sampled_heads": "Relative error of the sampled kernel by the number of heads: as "
            "observed against a long run (solid), and as the kernel itself reports it (dashed)."
        },
        _sampled,
    ),
    "cifar10": Explanation({"cifar10": _ACCURACIES}, _claims),
    "imdb": Explanation({"imdb": _ACCURACIES}, _claims),
    "rt-polarity": Explanation({"rt_polarity": _ACCURACIES}, _claims),
    "ablations": Explanation({"ablations": _ACCURACIES}, _claims),
    "scaling-softmax": Explanation({"scaling_softmax": _ACCURACIES}, _claims),
    "cifar10-landmarks": Explanation(
        {
            "landmarks": "Accuracy lost by landmarks against the exact solve on the same images, "
            "with two standard errors."
        },
        _landmarks,
    ),
    "learning-curve": Explanation(
        {"learning_curve": "Test accuracy by the number of training images, 95 % intervals."},
        _gains,
    ),
    "trained": Explanation({"trained": _ACCURACIES}, _trained),
    "modified-attention": Explanation({"modified": _ACCURACIES}, _modified),
    "small-data": Explanation(
        {
            "small_data": "Mean score over random splits with its 95 % interval, one panel for "
            "each data set."
        },
        _tables,
    ),
}
