"""neural-tangents' empirical kernels: those of a function at given parameters."""

import itertools
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from ..errors import OptionError
from ..finite import empirical_ntk
from ..finite.empirical import Axes, jacobian_kernel
from .functions import answer, asked

Which = int | Sequence[int]


class NtkImplementation(IntEnum):
    """Accepted; the library chooses between Jacobians and products itself."""

    AUTO = 0
    JACOBIAN_CONTRACTION = 1
    NTK_VECTOR_PRODUCTS = 2
    STRUCTURED_DERIVATIVES = 3


def _shown(kernel: Any, axes: Axes) -> Array:
    """The library's order of axes (first input's, then the second's) as neural-tangents' pairs."""
    left = [axis for axis in range(axes.rank) if axis not in axes.averaged]
    second = itertools.count(2 + len(left))
    pairs = ([2 + i] if left[i] in axes.shared else [2 + i, next(second)] for i in range(len(left)))
    return jnp.transpose(jnp.asarray(kernel), (0, 1, *itertools.chain(*pairs)))


def _applied(
    f: Callable[..., Any], x1: Any, x2: Any, options: dict[str, Any]
) -> tuple[Callable[..., Any], Any, Any]:
    """`f` of parameters and inputs alone; graphs, `pattern=`, become a part of the inputs."""
    if isinstance(options.get("rng"), tuple):
        raise OptionError(
            "rng= holds a key for each of two batches, which is not known here.",
            got="rng=(key1, key2)",
            remedy="pass one key, or build the network with Dropout(rate, mode='test')",
        )
    pattern = options.pop("pattern", None)
    if pattern is None and not options:
        return f, x1, x2  # itself: what was compiled for it serves the next call
    if pattern is None:
        return lambda params, x: f(params, x, **options), x1, x2
    one, two = pattern if isinstance(pattern, tuple | list) else (pattern, pattern)

    def run(params: Any, graph: Any) -> Any:
        return f(params, graph[0], pattern=graph[1], **options)

    return run, (x1, one), None if x2 is None else (x2, two)


def empirical_nngp_fn(
    f: Callable[..., Any], trace_axes: Which = (-1,), diagonal_axes: Which = ()
) -> Callable[..., Any]:
    """`nngp_fn(x1, x2, params)`: products of outputs, averaged over the traced axes."""

    def nngp_fn(x1: Any, x2: Any, params: Any, **apply_fn_kwargs: Any) -> Array:
        run, x1, x2 = _applied(f, x1, x2, apply_fn_kwargs)
        one = run(params, x1)
        two = one if x2 is None else run(params, x2)
        axes = Axes.make(one.ndim - 1, trace_axes, diagonal_axes)
        left, right = (axes.group(side[..., None]) for side in (one, two))
        total = jnp.einsum("atskp,btslp->abskl", left, right) / axes.sizes(one.shape[1:])[0]
        return _shown(axes.arrange(total, one.shape[1:], two.shape[1:]), axes)

    return nngp_fn


def empirical_ntk_fn(
    f: Callable[..., Any],
    trace_axes: Which = (-1,),
    diagonal_axes: Which = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int = NtkImplementation.JACOBIAN_CONTRACTION,
    _j_rules: bool = True,
    _s_rules: bool = True,
    _fwd: bool | None = None,
) -> Callable[..., Any]:
    """`ntk_fn(x1, x2, params)`: products of gradients; hints on how to compute are accepted.

    Each output must depend on its own example alone (`vmap_axes` says so in neural-tangents).
    """
    NtkImplementation(implementation)

    def ntk_fn(x1: Any, x2: Any, params: Any, **apply_fn_kwargs: Any) -> Array:
        run, x1, x2 = _applied(f, x1, x2, apply_fn_kwargs)
        rank = len(jax.eval_shape(run, params, x1).shape) - 1
        axes = Axes.make(rank, trace_axes, diagonal_axes)
        if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((x1, x2, params))):

            def one(params: Any, x: Any) -> Array:
                return run(params, jax.tree.map(lambda leaf: leaf[None], x))[0]

            return _shown(jacobian_kernel(one, params, x1, x2, axes), axes)
        which: Any = {"trace_axes": trace_axes, "diagonal_axes": diagonal_axes}
        return _shown(empirical_ntk(run, params, x1, x2, progress=False, **which), axes)

    return ntk_fn


def empirical_kernel_fn(
    f: Callable[..., Any],
    trace_axes: Which = (-1,),
    diagonal_axes: Which = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int = NtkImplementation.JACOBIAN_CONTRACTION,
    _j_rules: bool = True,
    _s_rules: bool = True,
    _fwd: bool | None = None,
) -> Callable[..., Any]:
    """`kernel_fn(x1, x2, get, params)`: one kernel, or several as a named tuple."""
    functions = {
        "nngp": empirical_nngp_fn(f, trace_axes, diagonal_axes),
        "ntk": empirical_ntk_fn(f, trace_axes, diagonal_axes, vmap_axes, implementation),
    }

    def kernel_fn(x1: Any, x2: Any, get: Any, params: Any, **apply_fn_kwargs: Any) -> Any:
        get = ("nngp", "ntk") if get is None else get
        if set(asked(get) or ()) - set(functions):
            raise OptionError(
                "get= of an empirical kernel asks for more than 'nngp' and 'ntk'.",
                got=f"get={get!r}",
                remedy="ask for these",
            )

        def one(name: str) -> Array:
            return functions[name](x1, x2, params, **apply_fn_kwargs)

        return answer(get, one, "EmpiricalKernel")

    return kernel_fn


def empirical_ntk_vp_fn(
    f: Callable[..., Any], x1: Any, x2: Any, params: Any, **apply_fn_kwargs: Any
) -> Callable[[Any], Any]:
    """`v ↦ Θ(x1, x2) v` for v of the shape of outputs at x2, without the matrix."""
    run, x1, x2 = _applied(f, x1, x2, apply_fn_kwargs)
    other = x1 if x2 is None else x2

    def product(vector: Any) -> Any:
        _, pull = jax.vjp(lambda p: run(p, other), params)
        _, push = jax.jvp(lambda p: run(p, x1), (params,), pull(vector))
        return push

    return product
