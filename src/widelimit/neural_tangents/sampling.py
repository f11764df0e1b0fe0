"""neural-tangents' Monte Carlo kernels, `batch`, and expansions in the weights."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax

from ..errors import OptionError
from ..inference import taylor_expand as _taylor_expand
from ..options import as_key, whole
from .empirical import NtkImplementation, Which, empirical_kernel_fn
from .functions import numbers


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
    kernel_fn = empirical_kernel_fn(
        apply_fn, trace_axes, diagonal_axes, vmap_axes, implementation=implementation
    )
    several = not isinstance(n_samples, int)
    counts = sorted(set(n_samples)) if several else [whole("n_samples", n_samples)]
    root = as_key(key)
    inputs = inspect.signature(apply_fn).parameters.values()
    takes_rng = any(p.name == "rng" or p.kind is p.VAR_KEYWORD for p in inputs)

    def means(x1: Any, x2: Any, get: Any, options: dict[str, Any]) -> Iterator[Any]:
        x1 = jax.tree.map(numbers, x1)
        x2 = None if x2 is None else jax.tree.map(numbers, x2)
        shape = jax.tree.map(lambda x: x.shape, x1)
        total = None
        for count in range(1, counts[-1] + 1):
            weights, noise = jax.random.split(jax.random.fold_in(root, count))
            _, params = init_fn(weights, shape)
            rng = {"rng": noise} if takes_rng else {}
            found = kernel_fn(x1, x2, get, params, **rng, **options)
            total = found if total is None else jax.tree.map(lambda a, b: a + b, total, found)
            if count in counts:
                yield jax.tree.map(lambda a, n=count: a / n, total)

    def sampled(x1: Any, x2: Any = None, get: Any = None, **apply_fn_kwargs: Any) -> Any:
        found = means(x1, x2, get, apply_fn_kwargs)
        return found if several else next(found)

    return sampled


def batch(
    kernel_fn: Any, batch_size: int = 0, device_count: int = -1, store_on_device: bool = True
) -> Any:
    """The function itself: kernels are computed in tiles that fit into memory anyway.

    Sizes need not divide the number of examples.
    """
    if not isinstance(batch_size, int) or batch_size < 0:
        raise OptionError(
            "batch_size= is no number of examples.",
            got=f"batch_size={batch_size!r}",
            remedy="pass 0 or a positive whole number",
        )
    parts = getattr(kernel_fn, "parts", None)
    if parts is not None:
        return type(kernel_fn)(parts)

    @functools.wraps(kernel_fn)
    def batched(*args: Any, **kwargs: Any) -> Any:
        return kernel_fn(*args, **kwargs)

    return batched


def taylor_expand(f: Callable[..., Any], params: Any, degree: int) -> Callable[..., Any]:
    """The Taylor polynomial of `f(params, …)` about `params`."""
    return _taylor_expand(f, params, degree=degree)
