"""Signal propagation: do the positions of a deep attention network stay apart?"""

import marimo

app = marimo.App(width="medium", app_title="Signal propagation and rank collapse")


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
    # Signal propagation and rank collapse

    Attention averages over positions. Layer upon layer, all positions become the same vector: this is
    *rank collapse*, and a deeper network then sees one token. Residual connections and sharp scores
    hold it up. Move the sliders and watch where the positions end.
    """)


@app.cell
def _(mo):
    depth = mo.ui.slider(1, 16, value=8, label="layers", show_value=True)
    weight = mo.ui.slider(0.0, 0.95, step=0.05, value=0.0, label="residual weight", show_value=True)
    scale = mo.ui.slider(
        steps=[0.5, 1.0, 2.0, 4.0, 8.0, 16.0],
        value=1.0,
        label="scale of the scores",
        show_value=True,
    )
    mo.vstack([depth, weight, scale])
    return depth, scale, weight


@app.cell
def _(depth, np, scale, weight, wl):
    x = np.random.default_rng(0).normal(size=(4, 6, 16)).astype(np.float32)
    attention = wl.Attention(64, scaling="linear", qk_std=scale.value)
    layer = wl.Residual(attention, weight.value) if weight.value else attention
    profile = wl.Serial(wl.Dense(64), *[layer] * depth.value).signal(x)
    correlation = profile["correlation of positions"]
    return correlation, profile


@app.cell
def _(correlation, mo, np, plt, profile):
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    steps = np.arange(len(correlation))
    axes[0].plot(steps, correlation, "o-", color="#24527a")
    axes[0].axhline(1.0, color="#c0392b", ls="--", lw=1)
    axes[0].set(xlabel="layer", title="correlation of positions", ylim=(-0.1, 1.05))
    axes[1].plot(steps, profile["effective rank"], "o-", color="#24527a")
    axes[1].set(xlabel="layer", title="effective rank", ylim=(0, 1.05))
    plt.close(figure)
    verdict = "collapsed" if correlation[-1] > 0.99 else "still apart"
    said = mo.md(f"Positions end at a correlation of **{correlation[-1]:.3f}**: {verdict}.")
    mo.vstack([figure, said])


if __name__ == "__main__":
    app.run()
