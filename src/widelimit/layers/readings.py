"""The public readings of a network, declared here and filled in by the rooms above.

A layer knows its rules; what is computed from them – a finite network, kernels, a law – lives in
rooms that are built on layers. Each such function announces itself with `@reading`, and the methods
of `Layer` find it here, so that no import points upwards.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import equinox as eqx
from jaxtyping import Array, PyTree

from ..forks import require_own_jax
from ..options import RandomKey, known_options
from ..state import Kernels

if TYPE_CHECKING:
    import numpy as np

    from ..engine.kernel import Sink
    from ..engine.propagation import SignalProfile
    from ..engine.sampling import Sampler
    from ..finite.summary import Summary
    from ..laws import HeadWidths, NetworkLaw, Points
    from ..progress import Callback
    from ..scale.cost import Cost

DEFAULT_MEMORY = 2**30
DEFAULT_HEADS = 2**16

Params = PyTree[Array]

Function = TypeVar("Function", bound=Callable[..., Any])

_READINGS: dict[str, Callable[..., Any]] = {}


def reading(function: Function) -> Function:
    """Make a function of (network, …) the method of its name of every layer."""
    _READINGS[function.__name__] = function
    return function


def read(name: str, *args: Any, **options: Any) -> Any:
    """Call a reading by its name."""
    require_own_jax()
    return _READINGS[name](*args, **options)


class Readings(eqx.Module):
    """What a user does with a network."""

    def init(self, key: RandomKey, shape: tuple[int, ...]) -> Params:
        """Draw the finite network's parameters; `shape` is that of one example."""
        return read("init", self, key, shape)

    def apply(
        self, params: Params, x: Any, mask: Any = None, *, key: RandomKey | None = None
    ) -> Array:
        """Run the finite network on a batch (N, positions…, channels).

        `mask` (N, positions…) is True at real positions; `key` draws dropout masks.
        """
        return read("apply", self, params, x, mask, key=key)

    def summary(self, shape: Any) -> "Summary":
        """A table of layers, shapes and parameters, for examples of this shape."""
        return read("summary", self, shape)

    def _repr_html_(self) -> str:
        """The diagram, in notebooks."""
        return read("diagram", self, None)

    @known_options
    def kernel(
        self,
        x1: Any,
        x2: Any = None,
        *,
        mask: Any = None,
        mask2: Any = None,
        key: RandomKey | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
        most_heads: int = DEFAULT_HEADS,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: Any = None,
        memory: int = DEFAULT_MEMORY,
        progress: "bool | Callback | None" = None,
        out: "tuple[np.ndarray, np.ndarray | None] | None" = None,
        sink: "Sink | None" = None,
        store: Any = None,
        tile: int | None = None,
        client: Any = None,
    ) -> Kernels:
        """NNGP and tangent kernels of all pairs of two batches, or of one batch with itself.

        Inputs are arrays (N, positions…, channels), lists of arrays of different lengths, or
        integer token ids (N, positions…) for networks that start with `Embedding`. The result has
        axes (N1, N2, positions…, positions'…); pooled or flattened networks give (N1, N2).
        `mask` belongs to x1 and `mask2` to x2: boolean, True at real positions.

        Networks with random scores (softmax attention at 1/√d, finite heads) are sampled: `key`,
        `samples` heads per layer, a `tolerance` on all relative errors (95 %), or a `sampler` that
        several calls share; the result then carries standard errors. A tolerance that takes more
        than `most_heads` in all, or more than a quarter of `memory` for them, is refused before the
        work begins. Where that shows only afterwards, the kernel is returned with a
        `ToleranceWarning`.

        `ntk=False` gives the NNGP kernel alone. `dtype` is by default that of the inputs. `memory`
        bounds the bytes used beyond inputs and result. `progress`: None is a bar on a terminal; or
        a bool, or a function of done and total tiles. `out=(nngp, ntk)` are arrays or memory maps
        to fill; `sink` is called with (rows, columns, nngp, ntk) of every tile instead of keeping
        them.

        `store` keeps the kernel on disk: a folder or any Zarr store. The call goes on
        with what an earlier one left, also with more examples at the end, and returns arrays that
        are read when they are indexed. Its tiles are squares of `tile` examples, computed by this
        process or by the workers of a `client` of `dask.distributed`.
        """
        return read(
            "kernel",
            self,
            x1,
            x2,
            mask=mask,
            mask2=mask2,
            key=key,
            samples=samples,
            tolerance=tolerance,
            most_heads=most_heads,
            sampler=sampler,
            ntk=ntk,
            dtype=dtype,
            memory=memory,
            progress=progress,
            out=out,
            sink=sink,
            store=store,
            tile=tile,
            client=client,
        )

    @known_options
    def diagonal(
        self,
        x: Any,
        mask: Any = None,
        *,
        key: RandomKey | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
        most_heads: int = DEFAULT_HEADS,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: Any = None,
        memory: int = DEFAULT_MEMORY,
    ) -> Kernels:
        """`κ(x, x)` and `Θ(x, x)` of every example with itself: N entries, not N².

        The result has axes (N, positions…, positions'…), and (N,) after pooling; it is the diagonal
        of `kernel`, with the same options.
        """
        return read(
            "diagonal",
            self,
            x,
            mask,
            key=key,
            samples=samples,
            tolerance=tolerance,
            most_heads=most_heads,
            sampler=sampler,
            ntk=ntk,
            dtype=dtype,
            memory=memory,
        )

    @known_options
    def cost(
        self,
        x: Any,
        mask: Any = None,
        *,
        examples: int | None = None,
        tests: int = 0,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: Any = None,
        memory: int = DEFAULT_MEMORY,
    ) -> "Cost":
        """Time, memory and disk of a kernel on this machine, before it is computed.

        `x` are some examples (all of them, or a few dozen); the kernel is that of
        `examples` inputs like them (by default of x itself), and of `tests` against these. A few
        tiles are computed to find out, which takes some seconds. `with_workers(k)` of the result
        says what a cluster would take.
        """
        return read(
            "cost",
            self,
            x,
            mask,
            examples=examples,
            tests=tests,
            sampler=sampler,
            ntk=ntk,
            dtype=dtype,
            memory=memory,
        )

    @known_options
    def law(
        self,
        x: Any,
        mask: Any = None,
        *,
        key: RandomKey | None = None,
        draws: int = 4096,
        samples: int = 128,
        points: "Points | str" = "auto",
        head_widths: "HeadWidths | str" = "infinite",
        memory: int = DEFAULT_MEMORY,
    ) -> "NetworkLaw":
        """The law of the outputs at infinite width: Gaussian given the scores of finite heads.

        `draws` of the scores of all layers with finitely many heads are averaged over, at
        quasi-random `points` where few numbers describe the scores. Layers with infinitely many
        heads that have no closed form are averages over `samples` heads. `head_widths="given"`
        takes heads as wide as layers state by `key_width=` and `value_width=`. The result draws
        kernels and outputs, and gives densities, moments and quantiles of any coordinate with
        standard errors; see `laws.NetworkLaw`. `memory` bounds the bytes of kernels kept.
        """
        options = {"key": key, "draws": draws, "samples": samples, "memory": memory}
        return read("law", self, x, mask, points=points, head_widths=head_widths, **options)

    @known_options
    def sampler(
        self,
        x: Any,
        mask: Any = None,
        *,
        key: RandomKey | None = None,
        samples: int | None = None,
        replicates: int | None = None,
        tolerance: float | None = None,
        most_heads: int = DEFAULT_HEADS,
        memory: int = DEFAULT_MEMORY,
        rank: int | None = None,
        residual: float = 1e-3,
    ) -> "Sampler":
        """Heads and landmarks drawn once for all kernels that belong together.

        Pass it to every call, `kernel(…, sampler=sampler)`. `samples` heads are drawn for every
        layer with infinitely many, in each of `replicates` independent copies of the network, from
        which standard errors come; with a `tolerance`, heads are added until errors are below it,
        at most `most_heads` in all copies and as many as fit into a quarter of `memory`.
        `rank` and `residual` bound the features of the scores of deep layers.
        """
        return read(
            "sampler",
            self,
            x,
            mask,
            key=key,
            samples=samples,
            replicates=replicates,
            tolerance=tolerance,
            most_heads=most_heads,
            memory=memory,
            rank=rank,
            residual=residual,
        )

    @known_options
    def signal(
        self,
        x: Any,
        mask: Any = None,
        *,
        key: RandomKey | None = None,
        samples: int = 32,
        replicates: int = 8,
    ) -> "SignalProfile":
        """Variance, correlations, tangent kernel and effective rank by depth: see `wl.signal`."""
        return read("signal", self, x, mask, key=key, samples=samples, replicates=replicates)
