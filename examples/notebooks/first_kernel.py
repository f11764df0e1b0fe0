"""A first kernel: the tangent kernel of a ReLU network, and how finite networks approach it."""

import marimo

app = marimo.App(width="medium", app_title="A first kernel")


@app.cell
def _():
    import marimo as mo
    import matplotlib.pyplot as plt
    import numpy as np

    import widelimit as wl

    return mo, np, plt, wl


@app.cell
def _(mo):
    mo.md("""
    # A first kernel

    A **kernel** says how alike a network finds two inputs. Here the inputs are points on a circle, and
    the question is how alike the network finds two of them when the angle between them grows. Draw
    networks of several widths: the wider they are, the closer they come to the line of the infinitely
    wide one, and the less it matters which one you drew.
    """)


@app.cell
def _(mo):
    depth = mo.ui.slider(1, 4, value=1, label="hidden layers", show_value=True)
    width = mo.ui.slider(
        steps=[4, 8, 16, 32, 64, 128, 256, 512, 1024], value=16, label="width", show_value=True
    )
    networks = mo.ui.slider(1, 8, value=3, label="networks drawn", show_value=True)
    mo.vstack([depth, width, networks])
    return depth, networks, width


@app.cell
def _(depth, np, wl):
    hidden = [wl.Dense(512, w_std=2**0.5), wl.Relu()]
    net = wl.Serial(*(hidden * depth.value), wl.Dense(1))
    angles = np.linspace(0, np.pi, 25)
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    kernel = net.kernel(x[:1], x)  # of the first point with all
    return angles, kernel, net, x


@app.cell
def _(kernel, net, networks, np, width, wl, x):
    finite = wl.with_width(net, width.value)
    drawn = []
    for number in range(networks.value):
        params = finite.init(number, (2,))
        drawn.append(np.asarray(wl.empirical_ntk(finite.apply, params, x[:1], x))[0])
    gap = float(np.mean(np.abs(np.array(drawn) - kernel.ntk[0])) / kernel.ntk[0, 0])
    return drawn, gap


@app.cell
def _(angles, drawn, gap, kernel, mo, np, plt, width):
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    for curve in drawn:
        axis.plot(np.degrees(angles), curve, color="#8a97a5", lw=1)
    axis.plot(np.degrees(angles), kernel.ntk[0], color="#c0392b", lw=3, label="infinite width")
    axis.plot([], [], color="#8a97a5", lw=1, label=f"networks of width {width.value}")
    axis.set(xlabel="angle between the inputs, degrees", ylabel="tangent kernel")
    axis.legend(frameon=False)
    plt.close(figure)
    mo.vstack(
        [
            figure,
            mo.md(f"Networks of width {width.value} are **{gap:.1%}** from the limit on average."),
        ]
    )


if __name__ == "__main__":
    app.run()
