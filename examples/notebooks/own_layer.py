"""Your own layer: one class with a finite and an infinite side, checked against random networks."""

import marimo

app = marimo.App(width="medium", app_title="Your own layer")


@app.cell
def _():
    from typing import Any

    import marimo as mo
    import numpy as np

    import widelimit as wl
    from widelimit.layers.base import Facts, cast, leaf
    from widelimit.options import Range
    from widelimit.state import Need

    return Any, Facts, Need, Range, cast, leaf, mo, np, wl


@app.cell
def _(mo):
    mo.md("""
    # Your own layer

    A layer is one class. Its finite side says what happens to one example (`forward`), its infinite side
    what happens to the covariance of a pair (`cross`). This one lets every position see its neighbours
    in a ring:

    `y_a = √(1 − share) x_a + √share (x_{a−1} + x_{a+1})/2`

    It is linear, so kernels follow at once: with the matrix L of that map, `κ ← L κ Lᵀ` and `Θ ← L Θ Lᵀ`.
    Below, the kernel is compared with random networks of finite width. If you get the rule wrong, the
    last number tells.
    """)


@app.cell
def _(Any, Facts, Need, Range, cast, leaf, np, wl):
    import jax.numpy as jnp

    class Ring(wl.Layer):
        """`y_a = √(1 − s) x_a + √s (x_{a−1} + x_{a+1})/2`: κ ← L κ Lᵀ, Θ ← L Θ Lᵀ."""

        share: Any = leaf("share", where=Range.UNIT, default=0.5)

        def outline(self, before):
            return before  # shapes stay, and what is Gaussian stays so

        def matrix(self, size, like):
            near = (np.eye(size, k=1) + np.eye(size, k=1 - size) + np.eye(size, k=-1)
                    + np.eye(size, k=size - 1)) / 2  # fmt: skip
            share = cast(self.share, like)
            return jnp.sqrt(1 - share) * np.eye(size, dtype=like.dtype) + jnp.sqrt(
                share
            ) * near.astype(like.dtype)

        def forward(self, params, x, mask, key):
            return self.matrix(x.shape[0], x) @ x

        def memo(self, example):
            return None

        def cross(self, pair, memo1, memo2):
            pair = pair.compute()
            L = self.matrix(pair.nngp.shape[0], pair.nngp)
            return pair.to(L @ pair.nngp @ L.T, None if pair.ntk is None else L @ pair.ntk @ L.T)

        @property
        def facts(self):
            return Facts(need=Need.FULL)  # an entry of the output depends on all pairs of positions

    return (Ring,)


@app.cell
def _(mo):
    share = mo.ui.slider(
        0.0, 1.0, step=0.1, value=0.5, label="share of the neighbours", show_value=True
    )
    width = mo.ui.slider(steps=[16, 64, 256], value=64, label="width", show_value=True)
    mo.vstack([share, width])
    return share, width


@app.cell
def _(Ring, np, share, width, wl):
    x = np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)
    net = wl.Serial(
        wl.Dense(width.value), Ring(share=share.value), wl.Relu(), wl.MeanPool(), wl.Dense(1)
    )
    kernel = net.kernel(x)
    seen = wl.monte_carlo_kernel(net, x, key=1, draws=200)
    z = np.abs((seen.nngp - kernel.nngp) / seen.nngp_error).max()
    return kernel, seen, z


@app.cell
def _(kernel, mo, seen, z):
    mo.md(f"""
    | | infinite width | mean over 200 random networks |
    |---|---|---|
    | κ of the first input with itself | {kernel.nngp[0, 0]:.4f} | {seen.nngp[0, 0]:.4f} ± {seen.nngp_error[0, 0]:.4f} |
    | κ of both inputs | {kernel.nngp[0, 1]:.4f} | {seen.nngp[0, 1]:.4f} ± {seen.nngp_error[0, 1]:.4f} |
    | Θ of both inputs | {kernel.ntk[0, 1]:.4f} | {seen.ntk[0, 1]:.4f} ± {seen.ntk_error[0, 1]:.4f} |

    The largest difference is **{z:.1f} standard errors**; more than 4 would be a mistake in the rule.
    """)


if __name__ == "__main__":
    app.run()
