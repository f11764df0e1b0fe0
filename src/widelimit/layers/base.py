"""What a layer is: its finite forward pass and its infinite-width rule, side by side."""

import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Key, PyTree

from ..errors import OptionError, ShapeError
from ..options import RandomKey, known_options
from ..state import UNKNOWN, Example, Kernels, Mean, Need, Outline, Pair
from .readings import read

if TYPE_CHECKING:
    from ..engine.kernel import Sink
    from ..engine.propagation import SignalProfile
    from ..engine.sampling import Sampler
    from ..laws import Law, Points
    from ..progress import Callback
    from ..scale.cost import Cost

DEFAULT_MEMORY = 2**30

Params = PyTree[Array]
Memo = PyTree[Array]


def hyperparameter(value: Any, name: str, *, scalar: bool = True) -> Any:
    """A differentiable leaf: kept in double precision, cast to the dtype of the call.

    One number, or where it is not a `scalar` an array of them.
    """
    if isinstance(value, jax.Array):  # traced ones too, which have no numbers to look at
        good = jnp.issubdtype(value.dtype, jnp.number)
        number = value if jnp.issubdtype(value.dtype, jnp.inexact) else value.astype(float)
    else:
        try:
            number = np.asarray(value)
        except ValueError:  # lists of different lengths
            number = np.asarray(None)
        good = number.dtype.kind in "iuf" and bool(np.isfinite(number).all())
        number = number.astype(np.float64) if good else number
    if not good or (scalar and number.shape != ()):
        kind = "a finite real number" if scalar else "an array of finite real numbers"
        raise OptionError(
            f"{name}= is {kind}.", got=f"{name}={value!r}", remedy=f"give {kind}, such as 1.5"
        )
    return number


def leaf(name: str, default: float) -> Any:
    """A dataclass field that holds a hyperparameter."""
    converter = functools.partial(hyperparameter, name=name)
    return eqx.field(default=default, converter=converter, kw_only=True)


def option(default: Any = None, **kwargs: Any) -> Any:
    """A keyword-only dataclass field that is part of the network's structure, not tuned."""
    return eqx.field(default=default, static=True, kw_only=True, **kwargs)


def cast(value: Any, like: Array) -> Array:
    """A hyperparameter in the dtype of the arrays it meets."""
    return jnp.asarray(value, like.dtype)


class Layer(eqx.Module):
    """One layer of a network, with three readings.

    Finite: `init` draws parameters, `forward` maps one example. Infinite: `memo` gathers what pairs
    will need from one example (done once per example), `cross` maps the kernels of one pair.
    `outline` says what happens to shapes, `need` what part of the input's covariance the output's
    needs, `need_own` what `memo` looks at.
    """

    # The public readings; see `readings` for where they are computed.
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
        `samples` heads per layer, a `tolerance` on the relative standard error, or a `sampler` that
        several calls share; the result then carries standard errors.

        `ntk=False` gives the NNGP kernel alone. `dtype` is by default that of the inputs. `memory`
        bounds the bytes used beyond inputs and result. `progress`: None is a bar on a terminal; or
        a bool, or a function of done and total tiles. `out=(nngp, ntk)` are arrays or memory maps
        to fill; `sink` is called with (rows, columns, nngp, ntk) of every tile instead of keeping
        them.

        `store` keeps the kernel on disk: a folder, a .zip file, or any Zarr store. The call goes on
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

        `x` are some examples (all of them, or a few dozen); the kernel is that of so many
        `examples` like them (by default of x itself), and of `tests` against these. A few tiles
        are computed to find out, which takes some seconds. `with_workers(k)` of the result says
        what a cluster would take.
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
        memory: int = DEFAULT_MEMORY,
    ) -> "Law":
        """The law of the outputs at infinite width: Gaussian given the scores of finite heads.

        `draws` of the scores of all layers with finitely many heads are averaged over, at
        quasi-random `points` where few numbers describe the scores. Layers with infinitely many
        heads that have no closed form are averages over `samples` heads. The result draws kernels
        and outputs, and gives densities, moments and quantiles of any coordinate with standard
        errors; see `laws.Law`. `memory` bounds the bytes of the kernels that are kept.
        """
        options = {"key": key, "draws": draws, "samples": samples, "memory": memory}
        return read("law", self, x, mask, points=points, **options)

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
        rank: int | None = None,
        residual: float = 1e-3,
    ) -> "Sampler":
        """Heads and landmarks drawn once for all kernels that belong together.

        Pass it to every call, `kernel(…, sampler=sampler)`. `samples` heads are drawn for every
        layer with infinitely many, in each of `replicates` independent copies of the network, from
        which standard errors come; with a `tolerance`, heads are added until errors are below it.
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
        """Variance, correlations, tangent kernel and rank by depth; see `engine.propagation`."""
        return read("signal", self, x, mask, key=key, samples=samples, replicates=replicates)

    # What is known before any number is.
    def takes_tokens(self) -> bool:
        """Whether inputs are integer token ids, without a channel axis."""
        return False

    def outline(self, before: Outline) -> Outline:
        """Shape and facts after this layer; raises where the layer does not fit."""
        raise NotImplementedError

    def streams(self) -> int:
        """How many streams an input has: 1 is an array, more are a tuple of arrays."""
        return 1

    def require(self, before: Outline) -> None:
        """Raise where the infinite-width rule does not hold for such an input."""

    @property
    def need_own(self) -> Need:
        """Which part of the example's covariance `memo` looks at."""
        return Need.NONE

    def need(self, out: Need) -> Need:
        """Which part of the input's covariance the part `out` of the output's depends on."""
        return out

    @property
    def noisy(self) -> bool:
        """Whether passes of the finite network are random, as with dropout."""
        return False

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        """The same for the encode phase, where `memo` looks at the covariance too.

        `noisy`: a layer below drops entries, so that an example's own covariance is not the one
        between two passes of it.
        """
        return max(self.need(out) if out else Need.NONE, self.need_own)

    # Finite width.
    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        """Draw the parameters for inputs of this outline."""
        return ()

    def forward(self, params: Params, x: Any, mask: Any, key: Key[Array, ""] | None) -> Any:
        """Map one example (positions…, channels); what it leaves at padding does not matter."""
        raise NotImplementedError

    def mask(self, mask: Any) -> Array | None:
        """Which output positions are real; None where no positions are left."""
        return mask

    def checked_mask(self, mask: Any, name: str) -> Any:
        """The mask of a batch after this layer; raises where an example has no real position left.

        Valid windows shorten sequences: one that is shorter than the window has nothing left, and
        its kernels would be zero without a word.
        """
        after = None if mask is None else jax.vmap(self.mask)(mask)
        if after is None:
            return None
        found = np.asarray(after)
        empty = np.flatnonzero(~found.reshape(len(found), -1).any(axis=1))
        if empty.size:
            raise ShapeError(
                f"{type(self).__name__} leaves every example at least one real position.",
                got=f"{empty.size} examples of '{name}' too short for its window, the first at "
                f"index {empty[0]}",
                remedy="drop short sequences, use a smaller window, or padding='same'",
            )
        return after

    def run(self, params: Params, x: Any, mask: Any, key: Key[Array, ""] | None) -> tuple[Any, Any]:
        """One example through the finite layer, zero at padding, and its mask after it."""
        after = None if mask is None else self.mask(mask)
        return remask(self.forward(params, x, mask, key), after), after

    # Infinite width.
    @property
    def keeps_zeros(self) -> bool:
        """Whether the rule itself leaves zeros at padding; if not, they are put there."""
        return False

    def memo(self, example: Example) -> Memo:
        """What pairs will need from this example."""
        return None

    def cross(self, pair: Pair, memo1: Memo, memo2: Memo) -> Pair:
        """The kernels of one pair after this layer."""
        raise NotImplementedError

    def own(self, pair: Pair, memo: Memo) -> Pair:
        """The covariance of one example with itself after this layer."""
        return self.cross(pair, memo, memo)

    def mean(self, example: Example, memo: Memo) -> Mean:
        """Mean over channels after this layer; None where it is zero.

        A layer that does not say cannot stand below one that asks (LayerNorm).
        """
        return UNKNOWN

    def features(self, example: Example) -> Float[Array, "*positions rank"] | None:
        """Exact feature rows after this layer, where they exist."""
        return None

    def masked_memo(self, example: Example) -> "MaskedMemo":
        """The memo, and where zeros must be put after this layer."""
        mask = None if example.mask is None or self.keeps_zeros else self.mask(example.mask)
        return MaskedMemo(self.memo(example), mask)

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        """One step of the encode phase: the memo, and the example after this layer.

        `anchors` are the memos of the landmark inputs at this layer, stacked.
        """
        self.require(example.outline)
        after = self.outline(example.outline)
        memo = self.masked_memo(example)
        nngp, full = None, False
        if need is not Need.NONE:
            pair = self.own(example.pair(), memo.own).masked(memo.mask, memo.mask).forced()
            pair = pair.diagonal() if need is Need.DIAGONAL else pair
            nngp, full = pair.nngp, pair.full
        landmarks = example.landmarks
        if landmarks is not None:
            landmarks = jax.vmap(lambda p, m: self._crossed(p, memo, m).forced())(
                landmarks, anchors
            )
        mask = None if example.mask is None else self.mask(example.mask)
        mean = self.mean(example, memo.own)
        if isinstance(mean, jax.Array):
            mean = remask(mean, memo.mask, axes=0)
        features = self.features(example)
        features = None if features is None else remask(features, memo.mask)
        return memo, Example(nngp, mean, mask, features, landmarks, full, after)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        """One step of the cross phase, trimmed to what the layers above will look at."""
        pair = self._crossed(pair, memo1, memo2)
        return pair.diagonal() if need is Need.DIAGONAL and pair.full else pair

    def _crossed(self, pair: Pair, memo1: "MaskedMemo", memo2: "MaskedMemo") -> Pair:
        return self.cross(pair, memo1.own, memo2.own).masked(memo1.mask, memo2.mask)

    # Random scores (see `heads`): most layers have none.
    def sampled(self) -> bool:
        """Whether this layer's limit is random, or an average over random scores."""
        return False

    def drawn(self, crowd: Example, key: Key[Array, ""], scheme: Any) -> "Layer":
        """This layer with its random scores drawn for a crowd of examples (stacked)."""
        return self

    def draw(
        self, crowd: Any, need: Need, key: Key[Array, ""], scheme: Any
    ) -> tuple["Layer", Memo, Any]:
        """Encode a crowd jointly, drawing random scores on the way.

        The crowd's `landmarks` are the crowd itself: kernels of all its pairs.
        """
        layer = self.drawn(crowd, key, scheme)
        memos = jax.vmap(layer.masked_memo)(crowd)
        return layer, memos, jax.vmap(lambda one: layer.encode(one, need, memos)[1])(crowd)


class MaskedMemo(eqx.Module):
    """What pairs need of one example at one layer, and where zeros are put after the layer."""

    own: Memo
    mask: Array | None  # None: there is no padding, or the layer keeps it zero


def remask(x: Array, mask: Array | None, *, axes: int = 1) -> Array:
    """Zero where positions are not real; `axes` are those after the positions (channels)."""
    if mask is None:
        return x
    return jnp.where(mask.reshape(*mask.shape, *(1,) * axes), x, jnp.zeros((), x.dtype))


def fenced(pair: Pair, witness: Any) -> Pair:
    """The same pair, behind a fence that the compiler does not fuse across (CPU only).

    XLA on CPU copies a producer into each of its consumers. Without fences every layer of a deep
    network is computed anew from the input on: 50 dense layers took minutes to compile, and 5 ran
    half as fast; an activation inside a sum over positions is not vectorised, and takes eight times
    as long. A loop that runs only if a hyperparameter in `witness` is NaN stops it, and leaves the
    arrays where they are (a conditional would copy them). Without hyperparameters there is no
    fence.
    """
    found = [leaf for leaf in jax.tree.leaves(witness) if isinstance(leaf, Tracer)]
    if pair.settled or not found:
        return pair
    first = found[0].reshape(-1)[0]
    kernels = pair.nngp, None if pair.blank else pair.ntk
    nngp, ntk = _behind_loop(kernels, first != first)
    ntk = pair.ntk if pair.blank else ntk
    return Pair(
        nngp, ntk, pair.rank, pair.full, pair.terms, pair.biases, settled=True, blank=pair.blank
    )


@jax.custom_jvp
def _behind_loop(kernels: Any, broken: Array) -> Any:
    """The arrays themselves, unless `broken`: then anything, for NaN spoils what follows."""

    def once(state: tuple[Any, Array]) -> tuple[Any, Array]:
        return jax.tree.map(jnp.negative, state[0]), jnp.zeros_like(state[1])

    def looped(kernels: Any, broken: Array) -> Any:
        return jax.lax.while_loop(lambda state: state[1], once, (kernels, broken))[0]

    return jax.lax.platform_dependent(
        kernels, broken, cpu=looped, default=lambda kernels, broken: kernels
    )


@_behind_loop.defjvp
def _behind_loop_jvp(primals: tuple[Any, Array], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _behind_loop(*primals), tangents[0]
