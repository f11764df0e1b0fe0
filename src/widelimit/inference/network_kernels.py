"""From a network and its training examples to the kernel blocks that inference needs.

Everything here belongs to one fitted model: the training examples are read once, the heads of a
sampled network are drawn once, and every later block is computed with them, so that all blocks are
parts of one positive semi-definite matrix.
"""

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Float

from ..engine.diagonal import own_kernels
from ..engine.inputs import Data, Inputs, read_inputs
from ..engine.kernel import Problem
from ..engine.phases import finite_layers
from ..engine.sampling import Sampler, pad_like
from ..errors import NetworkError, ShapeError
from ..layers.base import Layer
from ..layers.compose import is_sampled
from ..layers.readings import DEFAULT_HEADS
from ..options import RandomKey, positive, whole
from ..printing import counted, written
from ..state import Kernels
from .checks import require_values
from .gp import KernelKind
from .repeats import Groups, input_groups

# Fewer pairs than this are not worth a message to a worker.
ALONE = 2**15
_LIVE_BLOCKS = 4  # float64 copies of one (test, train) block that are alive during a solve


@dataclass(frozen=True, kw_only=True)
class Engine:
    """How kernels are computed: precision, memory, and heads where they have to be drawn.

    `dtype` is the precision of the `O(N²)` kernel work, by default that of the training inputs
    (float32 for tokens); the solves are float64 whatever it is.
    `memory` bounds the bytes of a block of test examples. For networks whose attention is sampled:
    `samples` heads per layer in each of `replicates` copies, or as many as a relative `tolerance`
    needs, but no more than `most_heads` in all; `rank` bounds the features of the scores; `key`
    fixes the heads.

    `store` keeps the kernel of the training examples on disk (see `Layer.kernel`), so that a later
    fit can reuse or continue it. The workers of a `client` of `dask.distributed` compute it, and
    kernels with other examples for as long as the client is open.
    """

    dtype: Any = None
    memory: int = 2**30
    samples: int | None = None
    replicates: int | None = None
    tolerance: float | None = None
    most_heads: int = DEFAULT_HEADS
    rank: int | None = None
    key: RandomKey = 0
    store: Any = None
    client: Any = None

    def __post_init__(self):
        whole("memory", self.memory)
        whole("most_heads", self.most_heads)
        for name in ("samples", "replicates", "rank"):
            if getattr(self, name) is not None:
                whole(name, getattr(self, name))
        if self.tolerance is not None:
            positive("tolerance", self.tolerance)
        if isinstance(self.key, int | np.integer):  # others wait for JAX, which starts with use
            whole("key", self.key, least=0)

    def __repr__(self) -> str:
        return written(self)

    def without_store(self) -> "Engine":
        """The same engine without its store, for other examples."""
        return replace(self, store=None)

    def sampler(self, net: Layer, inputs: Inputs) -> Sampler | None:
        """Heads and landmarks for these examples; None for networks that need none."""
        if not is_sampled(net):
            return None
        names = ("key", "samples", "replicates", "tolerance", "most_heads", "memory", "rank")
        return net.sampler(inputs, **{name: getattr(self, name) for name in names})


def finite_heads(net: Layer) -> tuple[int, ...]:
    """Numbers of heads of the layers whose scores stay random because they have finitely many."""
    return tuple(int(layer.heads) for layer in finite_layers(net).values())


def require_layer(net: Any) -> None:
    """Refuse what is no network."""
    if not isinstance(net, Layer):
        raise NetworkError(
            f"A {type(net).__name__} is no network.",
            got=f"{net!r}",
            remedy="pass a layer such as Serial(Dense(512), Relu(), Dense(1))",
        )


def require_gaussian(net: Layer) -> None:
    """Refuse networks whose outputs are not a Gaussian process in the limit."""
    heads = finite_heads(net)
    if heads:
        raise NetworkError(
            "A Gaussian process is the limit of networks with infinitely many heads: with finitely "
            "many at 1/√d, attention scores stay random, and so does the kernel.",
            got=f"attention layers with {', '.join(map(str, heads))} heads",
            remedy="use heads=INFINITE or scaling=Scaling.LINEAR, or net.law(x)",
        )


@dataclass(frozen=True, eq=False, repr=False)
class NetworkKernels:
    """The training examples of a model, and kernels of other examples with them."""

    net: Layer
    _: KW_ONLY
    inputs: Inputs
    sampler: Sampler | None
    engine: Engine

    def __repr__(self) -> str:
        return f"NetworkKernels({counted(len(self), 'example')}, {self.net!r})"

    @classmethod
    def make(cls, net: Layer, x: Data, mask: Any = None, *, engine: Engine) -> "NetworkKernels":
        """Read the training examples and draw heads for them."""
        inputs = read_inputs(net, x, mask, dtype=engine.dtype)
        if engine.dtype is None:
            engine = replace(engine, dtype=np.float32 if inputs.tokens else inputs.dtype)
        require_scalar_output(net, inputs.outline)
        return cls(net, inputs=inputs, sampler=engine.sampler(net, inputs), engine=engine)

    def __len__(self) -> int:
        return self.inputs.size

    @cached_property
    def groups(self) -> Groups | None:
        """Which training examples are the same input; None where no two are."""
        return input_groups(self.inputs)

    def read(self, x: Data, mask: Any = None) -> Inputs:
        """Other examples, checked against the training examples."""
        require_values(x, mask)
        other = read_inputs(self.net, x, mask, dtype=self.engine.dtype)
        if self.inputs.kinds != other.kinds:
            raise ShapeError(
                "Examples have the channels and position axes of the training examples.",
                got=f"{other.words}, where training had {self.inputs.words}",
                remedy="prepare them exactly as the training examples were",
            )
        require_scalar_output(self.net, other.outline)
        return other

    def train(self, *, ntk: bool) -> Kernels:
        """Kernels of the training examples with themselves."""
        store, client = self.engine.store, self.engine.client
        if store is None:
            return self._kernel(self.inputs, None, ntk)
        return self.net.kernel_into(store, self.inputs, client=client, **self._options(ntk))

    def cross(self, other: Inputs, *, ntk: bool) -> Kernels:
        """Kernels (other, train), by the workers of an open client, else by this process."""
        client = self.engine.client
        gone = client is None or getattr(client, "status", None) in ("closing", "closed")
        if gone or other.size * len(self) < ALONE:
            return self._kernel(other, self.inputs, ntk)
        from ..scale.cluster import crossed_by_workers, sent  # Dask is needed with workers only

        known = self.__dict__.setdefault("_sent", {})  # the training examples, once
        if ntk not in known:
            facts = self.sampler, ntk, self.engine.dtype, self.engine.memory
            known[ntk] = sent(client, Problem(self.net, self.inputs, None, *facts))
        return crossed_by_workers(client, known[ntk], len(self), other)

    def corner(self, other: Inputs, *, ntk: bool) -> Kernels:
        """Kernels (other, other)."""
        return self._kernel(other, None, ntk)

    def blocks(self, other: Inputs) -> Iterator[tuple[slice, Inputs]]:
        """Other examples in portions whose (portion, train) blocks stay within the memory."""
        rows = max(1, self.engine.memory // (_LIVE_BLOCKS * 8 * len(self)))
        for start in range(0, other.size, rows):
            part = slice(start, min(start + rows, other.size))
            yield part, other[part]

    def diagonal(self, other: Inputs, kind: KernelKind) -> Float[np.ndarray, " n"]:
        """`k(x, x)` of one kernel for every example, in `O(N)` and double precision."""
        dtype, memory = self.engine.dtype, self.engine.memory
        ntk = kind is KernelKind.NTK
        problem = Problem(self.net, other, None, self.sampler, ntk, dtype, memory)
        return chosen(own_kernels(problem), kind)

    def extended(self, other: Inputs) -> "NetworkKernels":
        """With more training examples and the same heads."""
        return replace(self, inputs=joined(self.inputs, other))

    def _kernel(self, one: Inputs, two: Inputs | None, ntk: bool) -> Kernels:
        return self.net.kernel(one, two, progress=False, **self._options(ntk))

    def _options(self, ntk: bool) -> dict[str, Any]:
        """The precision is an option because tokens have none of their own."""
        dtype, memory = self.engine.dtype, self.engine.memory
        return {"sampler": self.sampler, "ntk": ntk, "dtype": dtype, "memory": memory}


def chosen(kernels: Kernels, kind: KernelKind) -> Any:
    """One of the two kernels."""
    return kernels.nngp if kind is KernelKind.NNGP else kernels.ntk


def joined(one: Inputs, two: Inputs) -> Inputs:
    """Two sets of examples as one; the shorter examples are padded and masked."""
    sides = [_by_stream(pad_like(one, two)), _by_stream(pad_like(two, one))]
    xs, masks = [], []
    for (x1, mask1), (x2, mask2) in zip(*sides, strict=True):
        xs.append(np.concatenate([x1, x2]))
        if mask1 is None and mask2 is None:
            masks.append(None)
            continue
        known = [
            np.ones(x.shape[: x.ndim - (not one.tokens)], bool) if mask is None else mask
            for x, mask in ((x1, mask1), (x2, mask2))
        ]
        masks.append(np.concatenate(known))
    if not isinstance(one.x, tuple):
        return Inputs(xs[0], masks[0], one.tokens)
    return Inputs(
        tuple(xs), tuple(masks) if any(m is not None for m in masks) else None, one.tokens
    )


def _by_stream(inputs: Inputs) -> list[tuple[Any, Any]]:
    """(x, mask) of every stream; most inputs have one."""
    if not isinstance(inputs.x, tuple):
        return [(inputs.x, inputs.mask)]
    return list(zip(inputs.x, inputs.mask or (None,) * len(inputs.x), strict=True))


def require_scalar_output(net: Layer, outline: Any) -> None:
    """Refuse networks whose outputs keep positions."""
    positions = net.outline(outline).positions
    if positions:
        raise ShapeError(
            "A model predicts one set of outputs per example.",
            got=f"a network whose outputs keep positions of shape {positions}",
            remedy="end it with MeanPool(), Flatten() or Select(), then Dense",
        )
