"""neural-tangents' `predict`: posteriors and training dynamics from kernels.

The formulas are those of `inference.gp` and `inference.dynamics`, written with `jax.numpy`, so that
predictors work inside `jit`, `grad` and `vmap` in the precision that JAX is set to. With training
kernel Θ (regularised: Θ + ρ), `n` entries of the targets and rate η, gradient flow gives

    f_t(X) = y + e^{−ηΘt/n} (f₀(X) − y),
    f_t(x) = f₀(x) + Θ(x, X) Θ⁻¹ (1 − e^{−ηΘt/n}) (y − f₀(X)).
"""

import dataclasses
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
from .functions import Get
from .kernel import interleaved, separated

Axes = int | Sequence[int]


class Gaussian(NamedTuple):
    """Mean and covariance."""

    mean: Array
    covariance: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ODEState:
    """Outputs on training and test examples, and with momentum their velocities."""

    fx_train: Any = None
    fx_test: Any = None
    qx_train: Any = None
    qx_test: Any = None


# --- kernels and outputs as matrices --------------------------------------------------------------


def _matrix(kernel: Any) -> Array:
    """(N1, N2, a1, b1, …) as (N1·a1…, N2·b1…)."""
    half = jnp.ndim(kernel) // 2
    moved = jnp.moveaxis(separated(jnp.asarray(kernel), 2), 1, half)
    return moved.reshape(math.prod(moved.shape[:half]), -1)


class _Targets:
    """Targets (N, axes…) as rows (N·kept, traced), to which kernels are matrices.

    Kernels are the identity along the traced axes, and full along the others, the kept ones.
    """

    def __init__(self, y: Any, trace_axes: Axes):
        self.y = jnp.asarray(y)
        axes = (trace_axes,) if isinstance(trace_axes, int) else trace_axes
        self.traced = sorted(axis % self.y.ndim for axis in axes)
        sizes = enumerate(self.y.shape[1:], 1)
        self.kept = [size for axis, size in sizes if axis not in self.traced]
        self.rows = self.to_rows(self.y)
        self.spectra: dict[str, tuple[Array, Array]] = {}

    def to_rows(self, fx: Any, count: int | None = None) -> Array:
        """Outputs as rows; a number stands for all of them, of `count` examples, None for 0."""
        shape = (len(self.y) if count is None else count, *self.y.shape[1:])
        fx = jnp.asarray(0.0 if fx is None else fx, self.y.dtype)
        moved = jnp.moveaxis(jnp.broadcast_to(fx, shape), self.traced, self._last)
        return moved.reshape(-1, math.prod(moved.shape[moved.ndim - len(self.traced) :]))

    def to_outputs(self, rows: Array) -> Array:
        """(…, N·kept, traced) as (…, N, axes…)."""
        lead = rows.ndim - 2
        traced = [self.y.shape[axis] for axis in self.traced]
        found = rows.reshape(*rows.shape[:-2], -1, *self.kept, *traced)
        return jnp.moveaxis(found, self._last, [lead + axis for axis in self.traced])

    @property
    def _last(self) -> list[int]:
        return list(range(-len(self.traced), 0))

    def to_matrix(self, kernel: Any) -> Array:
        """(N1·kept, N2·kept)."""
        wanted = tuple(size for size in self.kept for _ in range(2))
        if jnp.ndim(kernel) < 2 or jnp.shape(kernel)[2:] != wanted:
            raise ShapeError(
                "A kernel does not fit y_train and trace_axes=.",
                got=f"a kernel of shape {jnp.shape(kernel)}, for outputs {self.y.shape} with "
                f"trace_axes={tuple(self.traced)}",
                remedy=f"pass one with the axes {wanted} after examples, or other trace_axes=",
            )
        return _matrix(kernel)

    def to_kernel(self, matrix: Array) -> Array:
        """(…, N·kept, N·kept) as (…, N1, N2, a1, b1, a2, b2)."""
        lead, half = matrix.ndim - 2, 1 + len(self.kept)
        found = matrix.reshape(*matrix.shape[:-2], -1, *self.kept, matrix.shape[-1])
        found = found.reshape(*found.shape[:-1], -1, *self.kept)
        return interleaved(jnp.moveaxis(found, lead + half, lead + 1), lead + 2)

    def regularise(self, kernel: Any, diag_reg: Any, absolute: bool) -> Array:
        """The matrix of a training kernel with the regulariser on its diagonal."""
        matrix = self.to_matrix(kernel)
        scale = 1.0 if absolute else jnp.trace(matrix) / len(matrix)
        return matrix + diag_reg * scale * jnp.eye(len(matrix), dtype=matrix.dtype)

    def learn(self, known: Array, right: Array, t: Any, rate: Any = 1.0, name: str = "") -> Array:
        """`(Θ + ρ)⁻¹ (1 − e^{−η(Θ+ρ)t/n})` times columns, at all times (…); None is the end.

        `name` is that of the kernel, which is decomposed once for all calls.
        """
        if t is None:
            inverse = lower_inverse(cholesky(known))
            return inverse.T @ (inverse @ right)
        values, vectors = _once(self.spectra, name, lambda: eigh(known))
        step = rate / self.y.size * jnp.asarray(t, self.y.dtype)[..., None]
        still = values <= 0
        safe = jnp.where(still, 1, values)
        response = jnp.where(still, step, -jnp.expm1(-step * safe) / safe)
        return vectors @ (response[..., None] * (vectors.T @ right))


def _once(store: dict[str, Any], name: str, make: Callable[[], Any]) -> Any:
    """What is made once, unless it is made inside a transformation, which ends before the next."""
    found = store[name] if name in store else make()
    if not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(found)):
        store[name] = found
    return found


# --- squared loss ---------------------------------------------------------------------------------


def _of(kernels: Any, name: str) -> Array:
    """One kernel of several, or the only one."""
    return kernels[name] if isinstance(kernels, dict) else getattr(kernels, name, kernels)


def _posterior(
    targets: _Targets,
    kind: str,
    kernels: tuple[Any, Any, Any],
    regulariser: tuple[Any, bool],
    t: Any = None,
    rate: Any = 1.0,
    *,
    exact: bool,
) -> Any:
    """Outputs at time t (None: the end) of networks that start from their NNGP kernel.

    `kernels` are those of training examples, of test against training and of test examples;
    without the second, tests are the training set, where the regulariser counts as noise that is
    known, and without the third there are means alone. `exact`: the kernel of training is that of
    the initial functions, t is None, and predictions are exact posteriors.
    """
    train, cross, own = kernels
    name = "nngp" if kind == "nngp" else "ntk"
    known = targets.regularise(_of(train, name), *regulariser)
    at = known if cross is None else targets.to_matrix(_of(cross, name))
    map_ = jnp.swapaxes(targets.learn(known, at.T, t, rate, name), -1, -2)
    mean = targets.to_outputs(map_ @ targets.rows)
    if own is None:
        return mean
    if exact:
        # Of the training set itself: regularised, as it is known.
        prior = known if own is train else targets.to_matrix(_of(own, name))
        return Gaussian(mean, targets.to_kernel(prior - map_ @ at.T))
    # `K_** − M K_*ᵀ − K_* Mᵀ + M K Mᵀ` of outputs `f₀(x) + M (y − f₀(X))`.
    start, prior = (targets.to_matrix(_of(kernel, "nngp")) for kernel in (train, own))
    mixed = map_ @ (start if cross is None else targets.to_matrix(_of(cross, "nngp"))).T
    moved = map_ @ start @ jnp.swapaxes(map_, -1, -2)
    return Gaussian(mean, targets.to_kernel(prior - mixed - jnp.swapaxes(mixed, -1, -2) + moved))


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
    targets, regulariser = _Targets(y_train, trace_axes), (diag_reg, diag_reg_absolute_scale)

    def predict_fn(get: Any = None, k_test_train: Any = None, k_test_test: Any = None) -> Any:
        kernels = k_train_train, k_test_train, k_test_test

        def one(kind: str) -> Any:
            return _posterior(targets, kind, kernels, regulariser, exact=kind != "ntk")

        return Get.read(get, ("nngp", "ntk", "ntkgp")).answer(one, "Gaussians")

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
    targets = _Targets(y_train, trace_axes)
    known = targets.regularise(k_train_train, diag_reg, diag_reg_absolute_scale)

    def predict_fn(
        t: Any = None, fx_train_0: Any = 0.0, fx_test_0: Any = None, k_test_train: Any = None
    ) -> Any:
        start = targets.to_rows(fx_train_0)
        weights = targets.learn(known, targets.rows - start, t, learning_rate)
        train = None
        if fx_train_0 is not None:
            train = targets.y if t is None else targets.to_outputs(start + known @ weights)
        if not _has_tests(fx_test_0, k_test_train):
            return train
        begin = targets.to_rows(fx_test_0, k_test_train.shape[0])
        test = targets.to_outputs(begin + targets.to_matrix(k_test_train) @ weights)
        return test if train is None else (train, test)

    return predict_fn


def _has_tests(fx_test_0: Any, k_test_train: Any) -> bool:
    if fx_test_0 is not None and k_test_train is None:
        raise OptionError(
            "fx_test_0= is given without k_test_train.",
            got="k_test_train=None",
            remedy="pass the kernel of test against training examples",
        )
    return fx_test_0 is not None


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
    targets, regulariser = _Targets(y_train, trace_axes), (diag_reg, diag_reg_absolute_scale)
    trains: dict[str, Any] = {}

    def predict_fn(
        t: Any = None,
        x_test: Any = None,
        get: Any = None,
        compute_cov: bool = False,
        **kernel_fn_test_test_kwargs: Any,
    ) -> Any:
        options = kernel_fn_train_train_kwargs | kernel_fn_test_test_kwargs  # between both sets

        def one(kind: str) -> Any:
            names = ("nngp", "ntk") if kind == "ntk" else ("nngp",)
            train = _once(
                trains,
                kind,
                lambda: kernel_fn(x_train, None, names, **kernel_fn_train_train_kwargs),
            )
            cross, own = None, train if compute_cov else None
            if x_test is not None:
                cross = kernel_fn(x_test, x_train, names, **options)
            if x_test is not None and compute_cov:
                own = kernel_fn(x_test, None, ("nngp",), **kernel_fn_test_test_kwargs)
            kernels, exact = (train, cross, own), kind == "nngp" and t is None
            return _posterior(targets, kind, kernels, regulariser, t, learning_rate, exact=exact)

        return Get.read(get, ("nngp", "ntk")).answer(one, "Gaussians")

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
    targets = _Targets(y_train, trace_axes)
    known, slope = targets.to_matrix(k_train_train), jax.grad(loss)

    def predict_fn(
        t: Any = None,
        fx_train_or_state_0: Any = 0.0,
        fx_test_0: Any = None,
        k_test_train: Any = None,
    ) -> Any:
        if t is None:
            raise OptionError(
                "gradient_descent has no end of training for losses in general.",
                got="t=None",
                remedy="pass times",
            )
        given = fx_train_or_state_0
        state = given if isinstance(given, ODEState) else ODEState(given, fx_test_0)
        fx, q = [targets.to_rows(state.fx_train)], [targets.to_rows(state.qx_train)]
        kernels = [known]
        if _has_tests(state.fx_test, k_test_train):
            kernels.append(targets.to_matrix(k_test_train))
            count = k_test_train.shape[0]
            fx.append(targets.to_rows(state.fx_test, count))
            q.append(targets.to_rows(state.qx_test, count))

        def move(now: Any, _: Any) -> Any:
            fx, q = now
            pull = targets.to_rows(slope(targets.to_outputs(fx[0]), targets.y))
            forces = [kernel @ pull for kernel in kernels]
            if momentum is None:
                return [-learning_rate * force for force in forces], q
            drag = (momentum - 1.0) / learning_rate**0.5
            return q, [drag * v - force for v, force in zip(q, forces, strict=True)]

        time = jnp.asarray(t, targets.y.dtype)
        flat = time.reshape(-1) * (1.0 if momentum is None else learning_rate**0.5)
        order = jnp.argsort(flat)
        # The solver interpolates between its first two times, which must differ.
        later = jnp.maximum(flat[order], jnp.finfo(flat.dtype).tiny)
        grid = jnp.concatenate([jnp.zeros(1, flat.dtype), later])
        path = odeint(move, (fx, q if momentum is not None else []), grid, rtol=1e-10, atol=1e-10)
        back = 1 + jnp.argsort(order)

        def shown(values: Array) -> Array:
            return targets.to_outputs(values[back].reshape(*time.shape, *values.shape[1:]))

        fx, q = jax.tree.map(shown, path)
        if not isinstance(given, ODEState):
            return fx[0] if len(fx) == 1 else tuple(fx)
        nothing = [None, None]
        (train, test, *_), (train_q, test_q, *_) = [*fx, *nothing], [*q, *nothing]
        return ODEState(train, test, train_q, test_q)

    return predict_fn


def max_learning_rate(
    ntk_train_train: Any, y_train_size: int | None = None, momentum: float = 0.0, eps: float = 1e-12
) -> Any:
    """`2 (1 + β) n / (λ_max + ε)`, above which gradient descent under the mean loss diverges."""
    matrix = _matrix(ntk_train_train)
    size = len(matrix) if y_train_size is None else y_train_size
    return 2 * (1 + momentum) * size / (eigh(matrix)[0][-1] + eps)
