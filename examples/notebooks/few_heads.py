"""Few heads: however wide an attention layer is, its outputs are not Gaussian."""

import marimo

app = marimo.App(width="medium", app_title="Few heads and the law")


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
    # Few heads, and the law of one output

    Wide networks with random weights have Gaussian outputs – unless they attend with few heads. Each
    head looks where its random scores point, and that stays random at every width. Given the scores an
    output is Gaussian; without them it is a mixture of Gaussians, with heavy tails. Add heads, and the
    tails go.
    """)


@app.cell
def _(mo):
    heads = mo.ui.slider(1, 16, value=1, label="heads", show_value=True)
    sharpness = mo.ui.slider(
        0.0, 4.0, step=0.5, value=2.0, label="scale of the scores", show_value=True
    )
    likeness = mo.ui.slider(
        0.0, 0.95, step=0.05, value=0.0, label="correlation of the tokens", show_value=True
    )
    mo.vstack([heads, sharpness, likeness])
    return heads, likeness, sharpness


@app.cell
def _(heads, likeness, np, sharpness, wl):
    tokens = 4
    covariance = np.full((tokens, tokens), likeness.value)
    np.fill_diagonal(covariance, 1.0)
    layer = wl.Attention(64, heads=heads.value, qk_std=max(sharpness.value, 1e-3))
    law = wl.law_from_covariance(layer, covariance, draws=1024).at(0, 0)
    kurtosis = law.kurtosis()
    spread = float(law.variance) ** 0.5
    return kurtosis, law, spread


@app.cell
def _(heads, kurtosis, law, mo, np, plt, spread):
    grid = np.linspace(-6, 6, 201)
    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    gaussian = np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)
    axis.semilogy(grid, gaussian, "--", color="#8a97a5", label="Gaussian (infinitely many heads)")
    density = spread * np.asarray(law.density(spread * grid).value)
    axis.semilogy(
        grid, density, color="#c0392b", lw=2, label=f"{heads.value} heads, infinite width"
    )
    axis.set(xlabel="output, in standard deviations", ylabel="density", ylim=(1e-7, 1))
    axis.legend(frameon=False, loc="lower center")
    plt.close(figure)
    times = float(law.sf(4 * spread)) / 3.167e-5
    said = mo.md(
        f"Excess kurtosis **{float(kurtosis):.3f}** ± {float(kurtosis.error):.3f}; values beyond four "
        f"standard deviations are **{times:.1f} times** as frequent as for a Gaussian."
    )
    mo.vstack([figure, said])


if __name__ == "__main__":
    app.run()
