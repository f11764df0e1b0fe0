"""neural-tangents' `predict`: posteriors and training dynamics from kernels.

The formulas are those of `inference.gp` and `inference.dynamics`, written with `jax.numpy`, so that
predictors work inside `jit`, `grad` and `vmap` in the precision that JAX is set to. With training
kernel Θ (regularised: Θ + ρ), `n` entries of the targets and rate η, gradient flow gives

    f_t(X) = y + e^{−ηΘt/n} (f₀(X) − y),
    f_t(x) = f₀(x) + Θ(x, X) Θ⁻¹ (1 − e^{−ηΘt/n}) (y − f₀(X)).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.experimental.ode import odeint
from jaxtyping import Array

from ..errors import OptionError, ShapeError
from ..factorizations import cholesky, eigh, lower_inverse
from .functions import answer, asked
from .kernel import interleaved, separated

Axes = int | Sequence[int]


class Gaussian(NamedTuple):
    """Mean and covariance."""

    mean: Array
    covariance: Array


@dataclasses.dataclass(frozen=True)
class ODEState:
    """Outputs on training and test examples, and with momentum their velocities."""

    fx_train: Any = None
    fx_test: Any = None
    qx_train: Any = None
    qx_test: Any = None


jax.tree_util.register_dataclass(
    ODEState, data_fields=[f.name for f in dataclasses.fields(ODEState)], meta_fields=[]
)


# --- kernels and outputs as matrices --------------------------------------------------------------


def _matrix(kernel: Any) -> Array:
    """(N1, N2, a1, b1, …) as (N1·a1…, N2·b1…)."""
    half = jnp.ndim(kernel) // 2
    moved = jnp.moveaxis(separated(jnp.asarray(kernel), 2), 1, half)
    return moved.reshape(math.prod(moved.shape[:half]), -1)


class _Outputs(NamedTuple):
    """Outputs (N, axes…): kernels are the identity along the traced axes, and full along others."""

    shape: tuple[int, ...]
    kept: tuple[int, ...]
    traced: tuple[int, ...]

    @classmethod
    def of(cls, y: Array, trace_axes: Axes) -> "_Outputs":
        axes = (trace_axes,) if isinstance(trace_axes, int) else tuple(trace_axes)
        traced = tuple(sorted(axis % y.ndim for axis in axes))
        return cls(y.shape, tuple(a for a in range(1, y.ndim) if a not in traced), traced)

    def rows(self, y: Array) -> Array:
        """(N·kept, traced)."""
        moved = jnp.transpose(y, (0, *self.kept, *self.traced))
        return moved.reshape(-1, math.prod(self.shape[axis] for axis in self.traced))

    def outputs(self, rows: Array) -> Array:
        """(…, N·kept, traced) as (…, N, axes…)."""
        lead, order = rows.ndim - 2, (*self.kept, *self.traced)
        inner = [self.shape[axis] for axis in order]
        found = rows.reshape(*rows.shape[:-2], -1, *inner)
        back = [lead + 1 + order.index(axis) for axis in range(1, len(self.shape))]
        return jnp.transpose(found, (*range(lead + 1), *back))

    def matrix(self, kernel: Array) -> Array:
        """(N1·kept, N2·kept); traced axes of size 1 may stand in a kernel."""
        wanted = 2 + 2 * len(self.kept)
        if jnp.ndim(kernel) != wanted:
            raise ShapeError(
                "A kernel does not fit y_train and trace_axes=.",
                got=f"a kernel of {jnp.ndim(kernel)} axes, for outputs {self.shape} with "
                f"trace_axes={self.traced}",
                remedy=f"pass a kernel with {wanted} axes, or other trace_axes=",
            )
        return _matrix(kernel)

    def kernel(self, matrix: Array) -> Array:
        """(…, N·kept, N·kept) as (…, N1, N2, a1, b1, a2, b2)."""
        lead, sizes = matrix.ndim - 2, [self.shape[axis] for axis in self.kept]
        found = matrix.reshape(*matrix.shape[:-2], -1, *sizes, matrix.shape[-1])
        found = found.reshape(*found.shape[:-1], -1, *sizes)
        return interleaved(jnp.moveaxis(found, lead + 1 + len(sizes), lead + 1), lead + 2)


def _of(kernels: Any, name: str) -> Array:
    """One kernel of several, or the only one."""
    if isinstance(kernels, dict):
        return kernels[name]
    return getattr(kernels, name, kernels)


# --- squared loss ---------------------------------------------------------------------------------


class _Flow(NamedTuple):
    """`Θ + ρ = U diag(λ) Uᵀ`, and η/n."""

    values: Array
    vectors: Array
    rate: Any

    def response(self, t: Array) -> Array:
        """`(1 − e^{−ηλt/n})/λ` for every time, (…, n)."""
        step = self.rate * t[..., None]
        still = self.values <= 0
        safe = jnp.where(still, 1, self.values)
        found = -jnp.expm1(-step * safe) / safe
        return jnp.where(still, step, found)


@dataclasses.dataclass(frozen=True)
class _Training:
    """Targets, the regulariser, and a rate: what kernels become predictions with."""

    y: Array
    trace_axes: Axes
    diag_reg: Any
    absolute: bool
    learning_rate: Any = 1.0

    @functools.cached_property
    def outputs(self) -> _Outputs:
        return _Outputs.of(self.y, self.trace_axes)

    @functools.cached_property
    def rows(self) -> Array:
        return self.outputs.rows(self.y)

    def regularised(self, kernel: Any) -> Array:
        """The matrix of a training kernel with the regulariser on its diagonal."""
        matrix = self.outputs.matrix(kernel)
        scale = 1.0 if self.absolute else jnp.trace(matrix) / len(matrix)
        return matrix + self.diag_reg * scale * jnp.eye(len(matrix), dtype=matrix.dtype)

    def flow(self, known: Array) -> _Flow:
        values, vectors = eigh(known)
        return _Flow(jnp.maximum(values, 0), vectors, self.learning_rate / self.y.size)

    def posterior(self, kind: str, train: Any, cross: Any, own: Any, t: Any, prior: bool) -> Any:
        """Outputs at time t (None: the end) of networks that start from their NNGP kernel.

        `cross` and `own` are the kernels of test examples; without `cross` these are the training
        set, where the regulariser counts as noise that is known. Without `own`, means alone. With
        `prior` the kernel of training is that of the initial functions, `t` is None, and
        predictions are exact posteriors.
        """
        matrix = self.outputs.matrix
        name = "nngp" if kind == "nngp" else "ntk"
        known = self.regularised(_of(train, name))
        at = known if cross is None else matrix(_of(cross, name))
        if t is None:
            map_ = _solve(known, at.T).T
        else:
            flow, time = self.flow(known), jnp.asarray(t, self.rows.dtype)
            map_ = (at @ flow.vectors * flow.response(time)[..., None, :]) @ flow.vectors.T
        mean = self.outputs.outputs(map_ @ self.rows)
        if own is None:
            return mean
        if prior:
            # Of the training set itself: regularised, as it is known.
            own = known if own is train else matrix(_of(own, name))
            return Gaussian(mean, self.outputs.kernel(own - map_ @ at.T))
        # `K_** − M K_*ᵀ − K_* Mᵀ + M K Mᵀ` of outputs `f₀(x) + M (y − f₀(X))`.
        start = matrix(_of(train, "nngp"))
        mixed = map_ @ (start if cross is None else matrix(_of(cross, "nngp"))).T
        moved = map_ @ start @ jnp.swapaxes(map_, -1, -2)
        covariance = matrix(_of(own, "nngp")) - mixed - jnp.swapaxes(mixed, -1, -2) + moved
        return Gaussian(mean, self.outputs.kernel(covariance))


def _solve(matrix: Array, right: Array) -> Array:
    inverse = lower_inverse(cholesky(matrix))
    return inverse.T @ (inverse @ right)


def gp_inference(
    k_train_train: Any,
    y_train: Any,
    diag_reg: float = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Axes = (-1,),
) -> Callable[..., Any]:
    """Exact posteriors: 'nngp' of Bayesian networks, 'ntkgp' of the tangent kernel as a prior.

    'ntk' is the ensemble of fully trained networks. Without `k_test_test`, means alone. Without
    `k_test_train`, outputs on the training set are its targets.
    """
    training = _Training(jnp.asarray(y_train), trace_axes, diag_reg, diag_reg_absolute_scale)

    def predict_fn(get: Any = None, k_test_train: Any = None, k_test_test: Any = None) -> Any:
        get = ("nngp", "ntk") if get is None else get
        asked(get, ("nngp", "ntk", "ntkgp"))

        def one(kind: str) -> Any:
            exact = kind != "ntk"
            return training.posterior(kind, k_train_train, k_test_train, k_test_test, None, exact)

        return answer(get, one, "Gaussians")

    return predict_fn


def gradient_descent_mse(
    k_train_train: Any,
    y_train: Any,
    learning_rate: float = 1.0,
    diag_reg: float = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Axes = (-1,),
) -> Callable[..., Any]:
    """Gradient flow of given initial outputs under `½ mean (f − y)²`; `t=None` is its end."""
    y = jnp.asarray(y_train)
    training = _Training(y, trace_axes, diag_reg, diag_reg_absolute_scale, learning_rate)
    outputs, known = training.outputs, training.regularised(k_train_train)
    kept: dict[str, _Flow] = {}

    def predict_fn(
        t: Any = None, fx_train_0: Any = 0.0, fx_test_0: Any = None, k_test_train: Any = None
    ) -> Any:
        tests = _require_both(fx_test_0, k_test_train)
        start = _started(outputs, fx_train_0, y)
        gap = training.rows - start
        if t is None:
            weights = _solve(known, gap)
        else:
            flow = _kept(kept, "flow", lambda: training.flow(known))
            response = flow.response(jnp.asarray(t, gap.dtype))
            weights = flow.vectors @ (response[..., None] * (flow.vectors.T @ gap))
        train = None
        if fx_train_0 is not None:
            train = y if t is None else outputs.outputs(start + known @ weights)
        if not tests:
            return train
        begin = _started(outputs, fx_test_0, y, k_test_train.shape[0])
        test = outputs.outputs(begin + outputs.matrix(k_test_train) @ weights)
        return test if train is None else (train, test)

    return predict_fn


def _kept(store: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    """What is made once, unless it is made inside a transformation, which ends before the next."""
    found = store[name] if name in store else make()
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
        store[name] = found
    return found


def _require_both(fx_test_0: Any, k_test_train: Any) -> bool:
    if fx_test_0 is not None and k_test_train is None:
        raise OptionError(
            "fx_test_0= is given without k_test_train.",
            got="k_test_train=None",
            remedy="pass the kernel of test against training examples",
        )
    return fx_test_0 is not None


def _started(outputs: _Outputs, fx: Any, y: Array, count: int | None = None) -> Array:
    """Initial outputs as rows; a number stands for all of them."""
    shape = (len(y) if count is None else count, *y.shape[1:])
    return outputs.rows(jnp.broadcast_to(jnp.asarray(0.0 if fx is None else fx, y.dtype), shape))


def gradient_descent_mse_ensemble(
    kernel_fn: Callable[..., Any],
    x_train: Any,
    y_train: Any,
    learning_rate: float = 1.0,
    diag_reg: float = 0.0,
    diag_reg_absolute_scale: bool = False,
    trace_axes: Axes = (-1,),
    **kernel_fn_train_train_kwargs: Any,
) -> Callable[..., Any]:
    """Mean and covariance of infinitely many networks under gradient flow; `t=None`: at its end.

    'ntk' trains all weights, 'nngp' the last layer alone, which ends in Bayesian inference.
    """
    y = jnp.asarray(y_train)
    training = _Training(y, trace_axes, diag_reg, diag_reg_absolute_scale, learning_rate)
    kept: dict[str, Any] = {}

    def predict_fn(
        t: Any = None,
        x_test: Any = None,
        get: Any = None,
        compute_cov: bool = False,
        **kernel_fn_test_test_kwargs: Any,
    ) -> Any:
        get = ("nngp", "ntk") if get is None else get
        asked(get, ("nngp", "ntk"))
        options = kernel_fn_train_train_kwargs | kernel_fn_test_test_kwargs  # between both sets

        def one(kind: str) -> Any:
            names = ("nngp", "ntk") if kind == "ntk" else ("nngp",)
            train = _kept(
                kept, kind, lambda: kernel_fn(x_train, None, names, **kernel_fn_train_train_kwargs)
            )
            cross, own = None, train if compute_cov else None
            if x_test is not None:
                cross = kernel_fn(x_test, x_train, names, **options)
            if x_test is not None and compute_cov:
                own = kernel_fn(x_test, None, ("nngp",), **kernel_fn_test_test_kwargs)
            exact = kind == "nngp" and t is None
            return training.posterior(kind, train, cross, own, t, exact)

        return answer(get, one, "Gaussians")

    return predict_fn


# --- other losses ---------------------------------------------------------------------------------


def gradient_descent(
    loss: Callable[[Array, Array], Any],
    k_train_train: Any,
    y_train: Any,
    learning_rate: float = 1.0,
    momentum: float | None = None,
    trace_axes: Axes = (-1,),
) -> Callable[..., Any]:
    """Gradient flow under any `loss(fx, y)`, integrated; with momentum β the flow of heavy balls.

    `ḟ = −η Θ ∂loss/∂f`, or `ḟ = q`, `q̇ = (β − 1)/√η · q − Θ ∂loss/∂f` in the time `√η·t`.
    """
    y = jnp.asarray(y_train)
    outputs = _Outputs.of(y, trace_axes)
    known, slope = outputs.matrix(k_train_train), jax.grad(loss)

    def predict_fn(
        t: Any = None,
        fx_train_or_state_0: Any = 0.0,
        fx_test_0: Any = None,
        k_test_train: Any = None,
    ) -> Any:
        given = fx_train_or_state_0
        state = given if isinstance(given, ODEState) else ODEState(given, fx_test_0)
        tests = _require_both(state.fx_test, k_test_train)
        count = k_test_train.shape[0] if tests else 0
        sides = [(known, state.fx_train, state.qx_train, len(y))]
        if tests:
            at = outputs.matrix(k_test_train)
            sides.append((at, state.fx_test, state.qx_test, count))
        start = [_started(outputs, fx, y, size) for _, fx, _, size in sides]
        if momentum is not None:
            start = start, [_started(outputs, q, y, size) for _, _, q, size in sides]

        def force(fx: Array) -> list[Array]:
            pull = outputs.rows(slope(outputs.outputs(fx), y))
            return [matrix @ pull for matrix, *_ in sides]

        def move(now: Any, _: Any) -> Any:
            if momentum is None:
                return [-learning_rate * pull for pull in force(now[0])]
            fx, q = now
            drag = (momentum - 1.0) / learning_rate**0.5
            return q, [drag * v - pull for v, pull in zip(q, force(fx[0]), strict=True)]

        if t is None:
            raise OptionError(
                "gradient_descent has no end of training for losses in general.",
                got="t=None",
                remedy="pass times",
            )
        time = jnp.asarray(t, y.dtype)
        flat = time.reshape(-1) * (learning_rate**0.5 if momentum is not None else 1.0)
        order = jnp.argsort(flat)
        # The solver interpolates between its first two times, which must differ.
        later = jnp.maximum(flat[order], jnp.finfo(flat.dtype).tiny)
        grid = jnp.concatenate([jnp.zeros(1, flat.dtype), later])
        path = odeint(move, start, grid, rtol=1e-10, atol=1e-10)
        back = 1 + jnp.argsort(order)

        def shown(values: Array) -> Array:
            return outputs.outputs(values[back].reshape(*time.shape, *values.shape[1:]))

        fx, q = path if momentum is not None else (path, [None] * len(sides))
        fx = [shown(one) for one in fx]
        if not isinstance(given, ODEState):
            return tuple(fx) if tests else fx[0]
        q = [None if one is None else shown(one) for one in q]
        second = (fx[1], q[1]) if tests else (None, None)
        return ODEState(fx[0], second[0], q[0], second[1])

    return predict_fn


def max_learning_rate(
    ntk_train_train: Any, y_train_size: int | None = None, momentum: float = 0.0, eps: float = 1e-12
) -> Any:
    """`2 (1 + β) n / (λ_max + ε)`, above which gradient descent under the mean loss diverges."""
    matrix = _matrix(ntk_train_train)
    size = len(matrix) if y_train_size is None else y_train_size
    largest = eigh(matrix)[0][-1]
    return 2 * (1 + momentum) * size / (largest + eps)
