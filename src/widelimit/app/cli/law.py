"""`widelimit law`: the law of one output with infinite width and few heads."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import jax
import numpy as np
import typer

from ...data import DataError, Standardise
from ..drawing.diagram import diagram
from ..drawing.plots import canvas, plot_law
from ..report import Report
from ..workflow import Kind, Settings, Task, read_source
from ..workflow.finite import LAW_NETWORKS, HeadLaw, LawNetwork, head_law
from ..workflow.run import word_vectorizer
from . import options as o
from .outputs import ready, show, use_data_dir
from .screen import Screen, print_json

_GRID = np.linspace(-6, 6, 241)


@dataclass(frozen=True, kw_only=True)
class LawOptions(o.FileOptions):
    """Which input, which network, how much is drawn."""

    file: Annotated[
        Path | None,
        typer.Argument(help="A file with texts or sequences; without one: random inputs."),
    ] = None
    row: int = o.option(0, "Which example of the file, from 0.", min=0)
    positions: int = o.option(5, "How many positions (words) of the input to use.", min=1)
    channels: int = o.option(16, "Channels of random inputs.", min=1)
    network: LawNetwork = o.option(
        LawNetwork.ATTENTION, "attention: one layer; residual; transformer: one block."
    )
    heads: list[int] | None = o.option(None, "Number of heads; repeatable.", shown="1, 4, 16")
    qk_std: float = o.option(2.0, "Multiplies the scores.")
    width: int = o.option(128, "Width of the finite networks in the histogram; 0 for none.", min=0)
    draws: int = o.option(4096, "Draws of the scores.", min=16)
    networks: int = o.option(1000, "Finite networks to draw.", min=10)
    vectors: o.Vectors = None
    data_dir: o.DataDir = None
    seed: o.Seed = 0
    report: o.Page = None
    open_page: o.Open = False
    as_json: o.Json = False


@o.taking(LawOptions)
def law(options: LawOptions) -> None:
    """Density, kurtosis and quantiles of one output: Gaussian only with many heads."""
    use_data_dir(options.data_dir)
    path = options.report or Path("out") / "law" / "report.html"
    ready({"--report": path}, [options.file, options.vectors])
    screen, begin = Screen(), time.monotonic()
    if options.file is None:
        size = (1, options.positions, options.channels)
        x = np.random.default_rng(options.seed).normal(size=size)
        shown = f"{options.positions} random positions of {options.channels} channels"
    else:
        x, shown = _input(options.file, options)
    counts = sorted(set(options.heads or (1, 4, 16)))
    screen.say(f"{LAW_NETWORKS[options.network]}; input: {shown}")
    found: list[HeadLaw] = []
    with screen.bar("laws") as advance:
        for done, count in enumerate(counts):
            found.append(
                head_law(
                    options.network,
                    x,
                    heads=count,
                    qk_std=options.qk_std,
                    width=options.width,
                    draws=options.draws,
                    networks=options.networks,
                    key=jax.random.key(options.seed),
                )
            )
            advance(done + 1, len(counts))
    for one in found:
        screen.say(_line(one))
    _page(found, options, x, shown, time.monotonic() - begin).write(path)
    screen.say(f"report: {path}")
    if options.as_json:
        print_json({"input": shown, "laws": [one.numbers for one in found], "report": str(path)})
    show(path, options.open_page)


def _input(file: Path, options: LawOptions) -> tuple[np.ndarray, str]:
    """One input of a file (1, positions, channels) and what it is in words."""
    settings, row = Settings(vectors=options.vectors, length=options.positions), options.row
    source = read_source(file, Task.CLASSIFY, options.reading(), labels_needed=False)
    if row >= len(source):
        raise DataError(
            f"There is no row {row} in '{file}'.",
            got=f"{len(source)} examples",
            remedy=f"give a row from 0 to {len(source) - 1}",
            option="row",
        )
    one, words = source.take(np.array([row])), []
    if one.kind in (Kind.TEXT, Kind.MIXED):
        text = str(one.x[one.columns["text"]].iloc[0])
        embedder = word_vectorizer(one, settings).fit([text]).embedder_
        words = embedder.positions(text)
        x, mask = embedder([text])
        real = x[0][mask[0]]
    elif one.kind is Kind.SEQUENCE:
        real = one.x[0] if one.mask is None else one.x[0][one.mask[0]]
        real = Standardise.per_channel(source.x, mask=source.mask)(real)
    else:
        raise DataError(
            f"'{file}' holds {one.kind} data, which have no positions.",
            got=f"examples of kind {one.kind}",
            remedy="give texts, an .npz file with x (N, positions, channels), or no file",
        )
    shown = f"'{' '.join(words)}'" if words else f"{one.names[0]}"
    return np.asarray(real[None, : settings.length], np.float64), shown


def _line(one: HeadLaw) -> str:
    normal = one.numbers["gaussian_quantiles"]
    found = one.numbers["quantiles_in_std"].items()
    ends = ", ".join(f"{p}: {q:.2f} (Gaussian {normal[p]:.2f})" for p, q in found)
    return f"{one.name}: excess kurtosis {one.kurtosis}; {ends}"


def _page(
    found: list[HeadLaw], options: LawOptions, x: np.ndarray, shown: str, seconds: float
) -> Report:
    width = options.width
    densities = {one.name: one.density(_GRID) for one in found}
    samples = {one.name: one.samples for one in found if one.samples is not None}
    figure, axes = canvas(2, width=5.4, height=4.0)
    for axis, logarithmic in zip(axes[0], (False, True), strict=True):
        plot_law(axis, _GRID, densities, draws=samples, logarithmic=logarithmic)
    dots = f" Dots: outputs of {options.networks:,} random networks of width {width}."
    table = {"": [one.name for one in found] + ["Gaussian"]}
    table["excess kurtosis"] = [one.kurtosis for one in found] + ["0"]
    if width:
        measured = (one.numbers["finite_width_kurtosis"] for one in found)
        table[f"at width {width}"] = [f"{one:.3f}" for one in measured] + ["0"]
    of_all = [one.numbers["quantiles_in_std"] for one in found]
    for p, normal in found[0].numbers["gaussian_quantiles"].items():
        table[f"{p} quantile"] = [f"{one[p]:.3f}" for one in (*of_all, {p: normal})]
    tiles = {
        f"excess kurtosis, {one.name}": f"{one.numbers['excess_kurtosis']:.2f}"
        for one in (found[0], found[-1])
    }
    report = Report(
        "A wide attention network with few heads",
        "However wide the layers are, few heads keep the outputs from being Gaussian: their "
        "variance depends on the random scores.",
    )
    report.numbers(tiles | {"in all": f"{seconds:.0f} s"})
    report.section("The law", f"Input: {shown}.")
    report.figure(figure, "Lines: the exact law at infinite width." + dots * bool(width))
    report.table(tuple(table), list(zip(*table.values(), strict=True)))
    drawing = diagram(found[0].net, x.shape[1:], title=f"network '{options.network.value}'")
    report.section("The network").diagram(drawing, LAW_NETWORKS[options.network])
    return report.section("The command").command()
