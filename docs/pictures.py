"""The pictures of the gallery, each from a few lines of the library on tiny data.

Run `python docs/pictures.py` to draw them all anew into docs/images, or name some of them.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image

import widelimit as wl
from widelimit.data import downsample, load_sample_images, load_sample_texts

matplotlib.use("Agg")
import matplotlib.pyplot as plt

IMAGES = Path(__file__).parent / "images"
BLUE, RED, GREEN, GREY = "#24527a", "#c0392b", "#3a7d44", "#8a97a5"


def attention(**options) -> wl.Attention:
    """Attention at 1/d, the exact kind."""
    return wl.Attention(64, scaling=wl.Scaling.LINEAR, **options)


def save(figure, name: str) -> None:
    """Write a picture of moderate size: 128 colours are enough."""
    path = IMAGES / f"{name}.png"
    figure.savefig(path, dpi=110)
    plt.close(figure)
    with Image.open(path) as full:
        few = full.convert("RGB").quantize(128)
    few.save(path, optimize=True)


def kernels() -> None:
    """Kernels of sample photographs, sorted by class: NNGP and NTK as correlations."""
    images = load_sample_images()
    x = downsample(images.x_train, (8, 8))
    net = wl.Serial(
        wl.Conv(64, 3), wl.Residual(attention(positions=wl.Decay(rate=0.1)), 0.5),
        wl.Relu(), wl.MeanPool(), wl.Dense(1),
    )  # fmt: skip
    found = net.kernel(x)
    # Within a class, examples stand in the order of the kernel's first direction.
    order = np.lexsort([np.linalg.eigh(found.nngp)[1][:, -2], images.y_train])
    counts = np.bincount(images.y_train)
    ends = np.concatenate([[0], np.cumsum(counts)])
    figure, axes = plt.subplots(1, 2, figsize=(9.4, 4.4), layout="constrained")
    for axis, kernel, title in ((axes[0], found.nngp, "NNGP"), (axes[1], found.ntk, "NTK")):
        scale = np.sqrt(np.diagonal(kernel))
        correlation = (kernel / np.outer(scale, scale))[np.ix_(order, order)]
        low = np.quantile(correlation, 0.02)
        shown = axis.imshow(correlation, cmap="magma", vmin=low, vmax=1, interpolation="nearest")
        axis.set_title(f"{title}, as correlations", fontsize=11)
        middle = (ends[1:] + ends[:-1]) / 2
        axis.set_xticks(middle, images.class_names, fontsize=9)
        axis.set_yticks(middle, images.class_names, fontsize=9, rotation=90, va="center")
        axis.tick_params(length=0)
        for end in ends[1:-1]:
            axis.axhline(end - 0.5, color="white", lw=0.8)
            axis.axvline(end - 0.5, color="white", lw=0.8)
        figure.colorbar(shown, ax=axis, shrink=0.85)
    save(figure, "kernels")


def signal() -> None:
    """Correlation of positions by depth, and where it ends up over two hyperparameters."""
    x = np.random.default_rng(0).normal(size=(4, 8, 16)).astype(np.float32)
    depth = 12
    stacks = {
        "attention alone": (attention(), RED),
        "residual, α = 0.5": (wl.Residual(attention(), 0.5), GREY),
        "residual, α = 0.8": (wl.Residual(attention(), 0.8), BLUE),
        "attention alone, qk_std = 5": (attention(qk_std=5.0), GREEN),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for label, (layer, colour) in stacks.items():
        profile = wl.Serial(wl.Dense(64), *[layer] * depth).signal(x)
        left.plot(profile[wl.engine.Quantity.POSITIONS][1:], "o-", ms=4, color=colour, label=label)
    left.axhline(1, color="0.8", lw=1, zorder=0)
    left.set(xlabel="attention layer", ylabel="correlation of positions", title="rank collapse")
    left.set_xticks(range(0, depth + 1, 2))
    left.legend(fontsize=8.5, frameon=False)
    weights, scales = np.linspace(0, 0.95, 20), np.geomspace(0.1, 10, 20)

    def make(weight: float, scale: float) -> wl.Layer:
        return wl.Serial(wl.Dense(64), *[wl.Residual(attention(qk_std=scale), weight)] * 6)

    grid = wl.phase_diagram(make, weights, scales, x)
    mesh = right.pcolormesh(scales, weights, grid, shading="nearest", cmap="viridis", vmin=0)
    right.set(xscale="log", xlabel="qk_std", ylabel="residual weight α", title="after six layers")
    figure.colorbar(mesh, ax=right, label="correlation of positions")
    save(figure, "signal")


def few_heads() -> None:
    """The law of one output with few heads against the Gaussian of the same variance."""
    x = np.random.default_rng(3).normal(size=(1, 5, 16))
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
    grid = np.linspace(-7, 7, 401)
    normal = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    left.semilogy(grid, normal, "--", color=GREY, label="Gaussian")
    counts, tails = [1, 2, 4, 8, 16], []
    for heads in counts:
        net = wl.Serial(wl.Attention(64, heads=heads, qk_std=3.0), wl.Select(0))
        law = net.law(x, draws=2048)
        tails.append(law.kurtosis())
        scale = float(law.moments((2,)).value[0]) ** 0.5
        if heads in (1, 4, 16):
            colour = {1: RED, 4: BLUE, 16: GREEN}[heads]
            density = law.density(grid * scale).value * scale
            left.semilogy(
                grid, density, color=colour, label=f"{heads} heads".replace("1 heads", "1 head")
            )
    left.set(
        xlabel="output, in standard deviations", ylabel="density", ylim=(1e-8, 1), xlim=(-7, 7)
    )
    left.legend(frameon=False, fontsize=9, loc="lower center")
    values, errors = [float(t) for t in tails], [float(t.error) for t in tails]
    right.errorbar(counts, values, yerr=errors, fmt="o-", color=BLUE, label="of the law")
    right.plot(counts, values[0] / np.array(counts), "--", color=GREY, label="1/heads")
    right.set(xscale="log", yscale="log", xlabel="heads", ylabel="excess kurtosis")
    right.set_xticks(counts, map(str, counts))
    ticks = [0.05, 0.1, 0.2, 0.5]
    right.set_yticks(ticks, map(str, ticks))
    right.minorticks_off()
    right.legend(frameon=False, fontsize=9)
    save(figure, "few_heads")


def bands() -> None:
    """Gaussian processes of three networks through the same points."""
    rng = np.random.default_rng(4)
    angle = np.sort(np.concatenate([rng.uniform(-2.6, -0.6, 7), rng.uniform(0.9, 2.4, 5)]))
    line = np.linspace(-3.5, 3.5, 200)

    def inputs(t: np.ndarray) -> np.ndarray:
        return np.stack([t, np.ones_like(t)], axis=1)

    y = np.sin(1.5 * angle) + 0.05 * rng.normal(size=len(angle))
    names = {
        "ReLU": wl.Relu(), "erf": wl.Erf(rate=2.0), "sine": wl.layers.Sin(),
    }  # fmt: skip
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), sharey=True, layout="constrained")
    for axis, (name, activation) in zip(axes, names.items(), strict=True):
        net = wl.Serial(
            wl.Dense(64, w_std=2.0, b_std=0.5), activation, wl.Dense(64, w_std=2.0, b_std=0.5),
            activation, wl.Dense(1),
        )  # fmt: skip
        fitted = wl.GP(net, noise=0.0025).fit(inputs(angle), y)
        prediction = fitted.predict(inputs(line))
        for level, shade in ((0.95, 0.15), (0.5, 0.25)):
            low, high = prediction.interval(level)
            axis.fill_between(line, low, high, color=BLUE, alpha=shade, lw=0)
        drawn = fitted.sample(inputs(line), draws=3, key=1)
        axis.plot(line, drawn.T, color=GREY, lw=0.8)
        axis.plot(line, prediction.mean, color=BLUE, lw=2)
        axis.plot(angle, y, "o", color=RED, ms=5, zorder=3)
        axis.set(title=f"{name} network", xlabel="x", ylim=(-2.6, 2.6), xlim=(-3.5, 3.5))
    axes[0].set_ylabel("y")
    save(figure, "bands")


def training() -> None:
    """Expected losses of the ensemble of trained networks on sample sentences, at all times."""
    texts = load_sample_texts(length=12).subset(train=150, test=100)
    net = wl.Serial(
        wl.LayerNorm(), wl.Dense(64), wl.Residual(attention(qk_std=2.0), 0.8),
        wl.Relu(), wl.MeanPool(), wl.Dense(1),
    )  # fmt: skip
    y, y_test = 2.0 * texts.y_train - 1, 2.0 * texts.y_test - 1
    model = wl.Training(net, reduction=wl.inference.Reduction.MEAN_OVER_EXAMPLES)
    trained = model.fit(texts.x_train, y, texts.mask_train)
    times = np.geomspace(0.1, 1e5, 120)
    on_test = trained.on(texts.x_test, texts.mask_test)
    seen, unseen = trained.dynamics.curve(times), on_test.curve(times, y_test)
    right = (np.sign(on_test.mean(times)) == y_test[None, :]).mean(axis=1)
    figure, (left, other) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
    left.loglog(times, seen.loss, color=BLUE, lw=2, label="training sentences")
    left.loglog(times, unseen.loss, color=RED, lw=2, label="test sentences")
    left.loglog(times, unseen.spread, ":", color=RED, label="of which: spread of the ensemble")
    left.set(xlabel="training time", ylabel="expected loss", ylim=(1e-3, 2))
    left.legend(frameon=False, fontsize=9)
    other.semilogx(times, right, color=RED, lw=2)
    best = times[np.argmin(unseen.loss)]
    for axis in (left, other):
        axis.axvline(best, color=GREY, ls="--", lw=1)
    other.annotate("smallest test loss", (best, 0.51), xytext=(6, 0), textcoords="offset points",
                   color=GREY, fontsize=9)  # fmt: skip
    other.set(xlabel="training time", ylabel="test accuracy of the mean", ylim=(0.5, 0.8))
    save(figure, "training")


def reliability() -> None:
    """Whether the probabilities of a classifier mean what they say."""
    texts = load_sample_texts(length=12)
    net = wl.Serial(
        wl.LayerNorm(), wl.Dense(64), wl.Residual(attention(qk_std=2.0), 0.8),
        wl.Relu(), wl.MeanPool(), wl.Dense(1, w_std=4.0),
    )  # fmt: skip
    model = wl.Classifier(wl.GP(net, noise=0.3))
    fitted = model.fit(texts.x_train, texts.y_train, texts.mask_train)
    found = fitted.reliability(texts.x_test, texts.y_test, texts.mask_test, groups=10)
    figure, axis = plt.subplots(figsize=(4.6, 4.6), layout="constrained")
    found.plot(axis)
    save(figure, "reliability")


ALL = (kernels, signal, few_heads, bands, training, reliability)
PICTURES: dict[str, Callable[[], None]] = {picture.__name__: picture for picture in ALL}

if __name__ == "__main__":
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        size = (IMAGES / f"{name}.png").stat().st_size
        print(f"{name}.png {size / 1000:.0f} kB")
