"""neural-tangents' empirical kernels: of functions at given parameters, and averaged over draws."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from ..engine.inputs import is_traced
from ..errors import OptionError
from ..finite import empirical_ntk
from ..finite.empirical import Axes, NtkMethod, jacobian_kernel, traced_ntk
from ..inference import taylor_expand as _taylor_expand
from ..options import as_key, whole
from .functions import Get, numbers

Which = int | Sequence[int]

_OWN = frozenset({"pattern"})
"""Arguments of `f` that have an entry for each example."""


class NtkImplementation(IntEnum):
    """Products are made where they are asked for; otherwise the library chooses the cheaper way."""

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


def _read_axes(vmap_axes: Any) -> tuple[bool, frozenset[str]]:
    """Whether examples stand apart, and which arguments of `f` have an entry for each of them."""
    several = isinstance(vmap_axes, tuple) and len(vmap_axes) == 3
    *ends, named = vmap_axes if several else (vmap_axes, {})
    found = set(jax.tree.leaves(ends, is_leaf=lambda axis: axis is None))
    if found not in ({0}, {None}) or not isinstance(named, dict) or {*named.values()} - {0, None}:
        raise OptionError(
            "vmap_axes= names other axes than 0, along which examples stand here.",
            got=f"vmap_axes={vmap_axes!r}",
            remedy="move this axis to the front inside f and its inputs, and pass vmap_axes=0",
        )
    return found == {0}, _OWN | {name for name, axis in named.items() if axis == 0}


def _applied(
    f: Callable[..., Any], x1: Any, x2: Any, options: dict[str, Any], named: frozenset[str] = _OWN
) -> tuple[Callable[..., Any], Any, Any]:
    """`f` of parameters and inputs alone; arguments of each example become a part of the inputs."""
    own = {name: options.pop(name) for name in sorted(named) if options.get(name) is not None}
    for name, value in options.items():
        if isinstance(value, tuple) and len(value) == 2:
            raise OptionError(
                f"{name}= holds a value for each of two batches, which is not known here.",
                got=f"{name}=({name}1, {name}2)",
                remedy="pass one value for both; networks with dropout are built with "
                "Dropout(rate, mode='test')",
            )
    if not own and not options:
        return f, x1, x2  # itself: what was compiled for it serves the next call
    if not own:
        return lambda params, x: f(params, x, **options), x1, x2
    pairs = [(name, v if isinstance(v, tuple | list) else (v, v)) for name, v in own.items()]
    one, two = ({name: pair[side] for name, pair in pairs} for side in (0, 1))

    def run(params: Any, x: Any) -> Any:
        return f(params, x[0], **x[1], **options)

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
    """`ntk_fn(x1, x2, params)`: products of gradients; other hints than products are accepted.

    Without `vmap_axes`, it is tried whether outputs depend on their own example alone.
    """
    products = NtkImplementation(implementation) is NtkImplementation.NTK_VECTOR_PRODUCTS
    method = NtkMethod.PRODUCTS if products else NtkMethod.AUTO
    apart, named = _read_axes(vmap_axes)

    def ntk_fn(x1: Any, x2: Any, params: Any, **apply_fn_kwargs: Any) -> Array:
        run, x1, x2 = _applied(f, x1, x2, apply_fn_kwargs, named)
        rank = len(jax.eval_shape(run, params, x1).shape) - 1
        axes = Axes.make(rank, trace_axes, diagonal_axes)
        if not apart and not _stand_apart(run, params, x1):
            return _shown(_of_batches(run, params, x1, x2, axes), axes)
        if is_traced((x1, x2, params)):
            return _shown(traced_ntk(run, params, x1, x2, axes, method), axes)
        which: Any = {"trace_axes": trace_axes, "diagonal_axes": diagonal_axes, "method": method}
        return _shown(empirical_ntk(run, params, x1, x2, progress=False, **which), axes)

    return ntk_fn


def _stand_apart(f: Callable[..., Any], params: Any, x: Any) -> bool:
    """Whether outputs depend on their own example alone: seen at drawn weights and two examples."""
    rng = np.random.default_rng(0)

    def drawn(leaf: Any, *lead: int) -> Any:
        shape, dtype = (*lead, *jnp.shape(leaf)[len(lead) :]), jnp.result_type(leaf)
        if jnp.issubdtype(dtype, jnp.floating):
            return np.asarray(rng.normal(size=shape), dtype)
        return jnp.ones(shape, dtype)  # keys too

    try:
        with jax.ensure_compile_time_eval():
            params = jax.tree.map(drawn, params)
            both = jax.tree.map(lambda leaf: drawn(leaf, 2), x)
            one, two = (jax.tree.map(lambda leaf, i=i: leaf[i : i + 1], both) for i in range(2))
            found = f(params, both), jnp.concatenate([f(params, one), f(params, two)])
    except jax.errors.UnexpectedTracerError:  # f holds abstract values
        return False
    together, alone = map(np.asarray, found)
    size = np.abs(together).max(initial=0, where=np.isfinite(together))
    return np.allclose(together, alone, rtol=1e-4, atol=1e-4 * size, equal_nan=True)


def _of_batches(f: Callable[..., Any], params: Any, x1: Any, x2: Any, axes: Axes) -> Array:
    """The kernel of a function whose outputs depend on all examples of their batch."""
    batches = [x1] if x2 is None else [x1, x2]
    trained, fixed = eqx.partition(params, eqx.is_inexact_array)

    def one(trained: Any, place: Any) -> Array:
        return jnp.concatenate([f(eqx.combine(trained, fixed), x) for x in batches])[place]

    size = jax.eval_shape(f, params, x1).shape[0]
    total = jax.eval_shape(lambda: jnp.concatenate([f(params, x) for x in batches])).shape[0]
    places = jnp.arange(total)
    return jacobian_kernel(one, trained, places[:size], None if x2 is None else places[size:], axes)


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
        def one(name: str) -> Array:
            return functions[name](x1, x2, params, **apply_fn_kwargs)

        return Get.read(get, tuple(functions)).answer(one, "EmpiricalKernel")

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


def monte_carlo_kernel_fn(
    init_fn: Callable[..., Any],
    apply_fn: Callable[..., Any],
    key: Any,
    n_samples: int | Iterable[int],
    batch_size: int = 0,
    device_count: int = -1,
    store_on_device: bool = True,
    trace_axes: Which = (-1,),
    diagonal_axes: Which = (),
    vmap_axes: Any = None,
    implementation: NtkImplementation | int = NtkImplementation.JACOBIAN_CONTRACTION,
    _j_rules: bool = True,
    _s_rules: bool = True,
    _fwd: bool | None = None,
) -> Callable[..., Any]:
    """`kernel_fn(x1, x2, get)`: empirical kernels averaged over draws of the parameters.

    For one number of samples the mean; for several a generator over the means.
    """
    several = not isinstance(n_samples, int)
    counts = sorted(set(n_samples)) if several else [whole("n_samples", n_samples)]
    root = as_key(key)
    inputs = inspect.signature(apply_fn).parameters.values()
    takes_rng = any(p.name == "rng" or p.kind is p.VAR_KEYWORD for p in inputs)

    def drawn(params: Any, x: Any, **options: Any) -> Any:
        """One function for all draws, which is compiled once: keys stand beside the weights."""
        return apply_fn(params[0], x, **({"rng": params[1]} if takes_rng else {}), **options)

    empirical_fn = empirical_kernel_fn(
        drawn, trace_axes, diagonal_axes, vmap_axes, implementation=implementation
    )

    def means(x1: Any, x2: Any, get: Any, options: dict[str, Any]) -> Iterator[Any]:
        x1 = jax.tree.map(numbers, x1)
        x2 = None if x2 is None else jax.tree.map(numbers, x2)
        shape = jax.tree.map(lambda x: x.shape, x1)
        total = None
        for count in range(1, counts[-1] + 1):
            weights, noise = jax.random.split(jax.random.fold_in(root, count))
            noise = jax.random.key_data(noise)
            _, params = init_fn(weights, shape)
            found = empirical_fn(x1, x2, get, (params, noise), **options)
            total = found if total is None else jax.tree.map(lambda a, b: a + b, total, found)
            if count in counts:
                yield jax.tree.map(lambda a, n=count: a / n, total)

    def kernel_fn(x1: Any, x2: Any, get: Any = None, **apply_fn_kwargs: Any) -> Any:
        found = means(x1, x2, get, apply_fn_kwargs)
        return found if several else next(found)

    return kernel_fn


def taylor_expand(f: Callable[..., Any], params: Any, degree: int) -> Callable[..., Any]:
    """The Taylor polynomial of `f(params, …)` about `params`."""
    return _taylor_expand(f, params, degree=degree)
