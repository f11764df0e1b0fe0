"""What a user does with a network: the one place where the package's methods of `Layer` are.

A layer knows its rules; what is computed from them – a finite network, kernels, a law – lives in
rooms that are built on layers. The methods here import these rooms when they are called: the one
import upwards in the package, which its contract names.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
from jaxtyping import Array, PyTree

from ..options import RandomKey
from ..state import Kernels

if TYPE_CHECKING:
    from distributed import Client
    from jax.typing import ArrayLike
    from numpy.typing import DTypeLike

    from ..engine.inputs import Inputs
    from ..engine.kernel import Arrays, Sink
    from ..engine.propagation import SignalProfile
    from ..engine.sampling import Sampler
    from ..finite.summary import Summary
    from ..laws import HeadWidths, NetworkLaw
    from ..progress import Callback
    from ..scale.cost import Cost
    from ..scale.places import Place
    from .base import Layer

    Data = ArrayLike | Sequence[ArrayLike] | Inputs
    Mask = ArrayLike | Sequence[ArrayLike | None] | None

DEFAULT_MEMORY = 2**30
DEFAULT_HEADS = 2**16

Params = PyTree[Array]


def _layer(network: Any) -> "Layer":
    """Networks are layers, of which the methods below are a part."""
    return network


class Readings(eqx.Module):
    """What a user does with a network."""

    def init(self, key: RandomKey, shape: "Sequence[int] | Sequence[Sequence[int]]") -> Params:
        """Draw the finite network's parameters; `shape` is that of one example."""
        from ..finite.network import draw_params

        return draw_params(_layer(self), key, shape)

    def apply(
        self, params: Params, x: "Data", mask: "Mask" = None, *, key: RandomKey | None = None
    ) -> Array:
        """Run the finite network on a batch (N, positions…, channels).

        `mask` (N, positions…) is True at real positions; `key` draws dropout masks.
        """
        from ..finite.network import run

        return run(_layer(self), params, x, mask, key)

    def summary(self, shape: "Sequence[int] | Sequence[Sequence[int]]") -> "Summary":
        """A table of layers, shapes and parameters, for examples of this shape."""
        from ..finite.summary import summarise

        return summarise(_layer(self), shape)

    def diagram(self, shape: "Sequence[int] | None" = None) -> str:
        """The network as one HTML element; with a `shape`, its input's and output's are said."""
        from ..app.drawing.diagram import diagram

        return diagram(_layer(self), shape)

    def _repr_html_(self) -> str:
        return self.diagram()

    def kernel(
        self,
        x1: "Data",
        x2: "Data | None" = None,
        *,
        mask: "Mask" = None,
        mask2: "Mask" = None,
        key: RandomKey | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: "DTypeLike | None" = None,
        memory: int = DEFAULT_MEMORY,
        progress: "bool | Callback | None" = None,
    ) -> Kernels:
        """NNGP and tangent kernels of all pairs of two batches, or of one batch with itself.

        Inputs are arrays (N, positions…, channels), lists of arrays of different lengths, or
        integer token ids (N, positions…) for networks that start with `Embedding`. The result has
        axes (N1, N2, positions…, positions'…); pooled or flattened networks give (N1, N2).
        `mask` belongs to x1 and `mask2` to x2: boolean, True at real positions.

        Networks with random scores (softmax attention at 1/√d, finite heads) are sampled: `key`,
        `samples` heads per layer, a `tolerance` on all relative errors (95 %), or a `sampler` that
        several calls share; the result then carries standard errors. A tolerance that takes more
        heads than `sampler` would draw is refused before the work begins. Where that shows only
        afterwards, the kernel is returned with a `ToleranceWarning`.

        `ntk=False` gives the NNGP kernel alone. `dtype` is by default that of the inputs (of tokens
        float32); inside JAX's transformations it is JAX's, float32 unless `jax.enable_x64` is on.
        `memory` bounds the bytes used beyond inputs and result. `progress`: None is a bar on a
        terminal; or a bool, or a function of done and total tiles.

        Under `jit`, `grad` or `vmap` kernels are those outside, to rounding – but for float32
        kernels of nearly equal inputs, the diagonal among them. Single precision cannot tell their
        angles; outside, such pairs are computed again in double precision, which a program that is
        being traced cannot enter. There Θ of an activation with a kink is off by up to 2e-4 of its
        largest entry for every such layer, and of functions that jump (`Sign`) both kernels are
        off, deep networks entirely. `with jax.enable_x64(True):` around the transformation, and
        float64 inputs, avoid it.

        `kernel_into` fills arrays, a function or a store instead of returning arrays.
        """
        from ..engine.kernel import Problem, compute

        problem = Problem.read(_layer(self), x1, x2, mask, mask2, sampler, ntk, dtype, memory)
        problem = problem.draw(key=key, samples=samples, tolerance=tolerance)
        return compute(problem, tolerance, progress)

    def kernel_into(
        self,
        target: "Arrays | Sink | Place",
        x1: "Data",
        x2: "Data | None" = None,
        *,
        mask: "Mask" = None,
        mask2: "Mask" = None,
        key: RandomKey | None = None,
        samples: int | None = None,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: "DTypeLike | None" = None,
        memory: int = DEFAULT_MEMORY,
        progress: "bool | Callback | None" = None,
        tile: int | None = None,
        client: "Client | None" = None,
    ) -> Kernels:
        """The kernels of `kernel`, tile by tile into a target, for results that memory cannot hold.

        The target is a pair of arrays or memory maps to fill, `(nngp, ntk)` or `(nngp, None)`; a
        function, called with (rows, columns, nngp, ntk) of every tile; or a store on disk: a
        folder, or any Zarr store. A store goes on with what an earlier call left, also with more
        examples at the end, and the arrays returned are read when they are indexed. Its tiles are
        squares of `tile` examples, computed by this process or by the workers of a `client` of
        `dask.distributed`.
        """
        from ..engine.kernel import Problem, fill, refuse_store_options, stream

        problem = Problem.read(_layer(self), x1, x2, mask, mask2, sampler, ntk, dtype, memory)
        problem = problem.draw(key=key, samples=samples)
        if callable(target):
            refuse_store_options(tile=tile, client=client)
            return stream(problem, target, progress)
        if isinstance(target, tuple | list):
            refuse_store_options(tile=tile, client=client)
            return fill(problem, target, progress)
        from ..scale.compute import compute_into_store  # Zarr is needed for stores only

        return compute_into_store(problem, target, tile, client, progress)

    def diagonal(
        self,
        x: "Data",
        mask: "Mask" = None,
        *,
        key: RandomKey | None = None,
        samples: int | None = None,
        tolerance: float | None = None,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: "DTypeLike | None" = None,
        memory: int = DEFAULT_MEMORY,
    ) -> Kernels:
        """`κ(x, x)` and `Θ(x, x)` of every example with itself: N entries, not N².

        The result has axes (N, positions…, positions'…), and (N,) after pooling; it is the diagonal
        of `kernel`, with the same options.
        """
        from ..engine.diagonal import compute_diagonal
        from ..engine.kernel import Problem

        problem = Problem.read(_layer(self), x, None, mask, None, sampler, ntk, dtype, memory)
        return compute_diagonal(problem.draw(key=key, samples=samples, tolerance=tolerance))

    def cost(
        self,
        x: "Data",
        mask: "Mask" = None,
        *,
        examples: int | None = None,
        tests: int = 0,
        sampler: "Sampler | None" = None,
        ntk: bool = True,
        dtype: "DTypeLike | None" = None,
        memory: int = DEFAULT_MEMORY,
    ) -> "Cost":
        """Time, memory and disk of a kernel on this machine, before it is computed.

        `x` are some examples (all of them, or a few dozen); the kernel is that of
        `examples` inputs like them (by default of x itself), and of `tests` against these. A few
        tiles are computed to find out, which takes some seconds. `with_workers(k)` of the result
        says what a cluster would take.
        """
        from ..engine.kernel import Problem
        from ..scale.cost import measure

        problem = Problem.read(_layer(self), x, None, mask, None, sampler, ntk, dtype, memory)
        return measure(problem.draw(), examples, tests)

    def law(
        self,
        x: "Data",
        mask: "Mask" = None,
        *,
        key: RandomKey | None = None,
        draws: int = 4096,
        samples: int = 128,
        head_widths: "HeadWidths | str" = "infinite",
        memory: int = DEFAULT_MEMORY,
    ) -> "NetworkLaw":
        """The law of the outputs at infinite width: Gaussian given the scores of finite heads.

        `draws` of the scores of all layers with finitely many heads are averaged over, at
        quasi-random points where few numbers describe the scores. Layers with infinitely many
        heads that have no closed form are averages over `samples` heads, fresh in every draw:
        beside finite-head layers they widen the law by a share of order 1/samples. Without any
        finite-head layer the law is Gaussian, with one kernel averaged over 16 such draws.
        `head_widths="given"` takes heads as wide as layers state by `key_width=` and
        `value_width=`, in layers that are infinitely wide: for one attention layer this is the law
        of the finite network on these inputs, whatever its width. Where entries are dropped above
        the scores, kernels are those of two passes, and the law is that of outputs averaged over
        the masks; leave `Dropout` out for the law of evaluation.

        The result draws kernels and outputs, and gives densities, moments and quantiles of any
        coordinate with standard errors; see `laws.Law`. `memory` bounds the bytes of the kernels
        and samples that are kept or returned, and of the normals behind one draw of the scores.
        """
        from ..laws.network import make_law

        return make_law(_layer(self), x, mask, key, draws, samples, head_widths, memory)

    def sampler(
        self,
        x: "Data",
        mask: "Mask" = None,
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
        which standard errors come. With a `tolerance`, heads are added until all errors, relative
        to the largest kernel entry, are below it with a confidence of 95 % (see `error_bound`). A
        pilot on a few examples tells how many that takes; if these are more than `most_heads` in
        all copies, or do not fit into a quarter of `memory`, an error says so at once, and what
        could be had instead.

        Features of the scores are exact on raw inputs and through linear layers. Elsewhere they
        come from `rank` landmark positions of the inputs, or as many as it takes to miss at most a
        share `residual` of a position's variance. A rank above the number of positions is cut to
        it.
        """
        from ..engine.sampling import HeadCount, fit_sampler

        count = HeadCount(samples, replicates, tolerance, most_heads, memory, rank, residual)
        return fit_sampler(_layer(self), x, mask, key, count)

    def signal(
        self,
        x: "Data",
        mask: "Mask" = None,
        *,
        key: RandomKey | None = None,
        samples: int = 32,
        replicates: int = 8,
    ) -> "SignalProfile":
        """How a signal travels through the network: five numbers after every layer.

        They are variance, correlation between positions, correlation between inputs, tangent kernel
        and effective rank (see `engine.Quantity`), averaged over up to 32 examples x;
        `profile["variance"]` is one of them by depth, `profile.plot()` draws them. Serials inside
        the network are opened. Networks with random scores draw `samples` heads per layer from
        `key` in each of `replicates` copies.
        """
        from ..engine.propagation import propagate

        return propagate(_layer(self), x, mask, key, samples, replicates)
