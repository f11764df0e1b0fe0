"""`Kernel`, what kernel functions hand to each other, and how it goes through a network.

Arrays stand in neural-tangents' order: the positions of both inputs interleaved, (N1, N2, a1, b1,
a2, b2). Inside, the library's order, (N1, N2, a1, a2, b1, b2).
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from ..compilation import compiled
from ..engine.walk import cross, draw, need_before
from ..errors import NetworkError, ShapeError
from ..layers import Layer, Serial
from ..layers.compose import is_sampled
from ..state import UNKNOWN, Example, Need, Outline, Pair
from .layout import Layout

_STATIC = {"static": True}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Kernel:
    """Both kernels, the covariances of either batch, and what is known about them."""

    nngp: Array
    ntk: Array | None
    cov1: Array
    cov2: Array | None
    x1_is_x2: Any
    is_gaussian: bool = dataclasses.field(metadata=_STATIC)
    is_reversed: bool = dataclasses.field(metadata=_STATIC)
    is_input: bool = dataclasses.field(metadata=_STATIC)
    diagonal_batch: bool = dataclasses.field(metadata=_STATIC)
    diagonal_spatial: bool = dataclasses.field(metadata=_STATIC)
    shape1: tuple[int, ...] | None = dataclasses.field(metadata=_STATIC)
    shape2: tuple[int, ...] | None = dataclasses.field(metadata=_STATIC)
    batch_axis: int = dataclasses.field(metadata=_STATIC)
    channel_axis: int = dataclasses.field(metadata=_STATIC)
    mask1: Array | None = None
    mask2: Array | None = None
    facts: Outline | None = dataclasses.field(default=None, metadata=_STATIC)
    """What the library knows of the channels beyond `is_gaussian`; None: nothing."""

    def replace(self, **changes: Any) -> "Kernel":
        """A copy with other values of some fields."""
        if "is_gaussian" in changes or "is_input" in changes:
            changes.setdefault("facts", None)
        return dataclasses.replace(self, **changes)

    def asdict(self) -> dict[str, Any]:
        """The fields by their names."""
        names = (field.name for field in dataclasses.fields(self) if field.name != "facts")
        return {name: getattr(self, name) for name in names}

    @property
    def layout(self) -> Layout:
        """The order of the axes of inputs."""
        assert self.shape1 is not None
        return Layout(len(self.shape1), self.batch_axis, self.channel_axis)

    def outline(self, shape: tuple[int, ...]) -> Outline:
        """What the library knows of a batch of this shape."""
        _, *positions, channels = self.layout.ordered(shape)
        if self.facts is not None:
            return self.facts.to(positions=tuple(positions), channels=channels)
        gaussian = {"gaussian": True, "alike": True} if self.is_gaussian else {}
        return Outline(tuple(positions), channels, raw=self.is_input, **gaussian)


# --- the order of positions -----------------------------------------------------------------------


def interleaved(kernel: Array, lead: int) -> Array:
    """(…, a1, a2, b1, b2) → (…, a1, b1, a2, b2), after `lead` axes of examples."""
    half = (kernel.ndim - lead) // 2
    order = [axis for i in range(half) for axis in (lead + i, lead + half + i)]
    return kernel.transpose(*range(lead), *order)


def separated(kernel: Array, lead: int) -> Array:
    """(…, a1, b1, a2, b2) → (…, a1, a2, b1, b2)."""
    rest = range(lead, kernel.ndim)
    return kernel.transpose(*range(lead), *rest[::2], *rest[1::2])


def equal_positions(kernel: Array, lead: int) -> Array:
    """Of (…, a1, a2, b1, b2), what both inputs have at equal positions, (…, a1, a2)."""
    half = (kernel.ndim - lead) // 2
    if kernel.shape[lead : lead + half] != kernel.shape[lead + half :]:
        raise ShapeError(
            "diagonal_spatial=True met inputs of different positions.",
            got=f"positions {kernel.shape[lead : lead + half]} and {kernel.shape[lead + half :]}",
            remedy="bring both inputs to one length, or leave diagonal_spatial= out",
        )
    size = math.prod(kernel.shape[lead : lead + half])
    flat = kernel.reshape(*kernel.shape[:lead], size, size)
    return jnp.diagonal(flat, axis1=-2, axis2=-1).reshape(kernel.shape[: lead + half])


def shaped(kernel: Any, lead: int, diagonal_spatial: bool) -> Array:
    """A kernel of the library as neural-tangents shows it."""
    kernel = jnp.asarray(kernel)
    return equal_positions(kernel, lead) if diagonal_spatial else interleaved(kernel, lead)


# --- from inputs to a kernel, and from one kernel to the next -------------------------------------


def read_kernel(
    sides: Sequence[Any], layout: Layout, *, diagonal_batch: bool, diagonal_spatial: bool
) -> Kernel:
    """The kernel of raw inputs: products over channels, and Θ = 0.

    `sides` are (N, positions…, channels) and a mask, of one batch or two.
    """
    identity = Serial()
    (x1, mask1), (x2, mask2) = [*sides, (None, None)][:2]
    both = identity.kernel(x1, x2, mask=mask1, mask2=mask2, progress=False)

    def covariance(x: Array, mask: Any) -> Array:
        if diagonal_batch:
            return shaped(identity.diagonal(x, mask, ntk=False).nngp, 1, diagonal_spatial)
        own = identity.kernel(x, mask=mask, ntk=False, progress=False)
        return shaped(own.nngp, 2, diagonal_spatial)

    def hidden(mask: Any) -> Array | None:
        return None if mask is None else layout.restored(~jnp.asarray(mask)[..., None])

    same = x2 is None or (x1.shape == x2.shape and jnp.array_equal(x1, x2))
    return Kernel(
        nngp=shaped(both.nngp, 2, diagonal_spatial),
        ntk=shaped(both.ntk, 2, diagonal_spatial),
        cov1=covariance(x1, mask1),
        cov2=None if x2 is None else covariance(x2, mask2),
        x1_is_x2=jnp.asarray(same),
        is_gaussian=False,
        is_reversed=False,
        is_input=True,
        diagonal_batch=diagonal_batch,
        diagonal_spatial=diagonal_spatial,
        shape1=layout.restored_shape(x1.shape),
        shape2=layout.restored_shape((x1 if x2 is None else x2).shape),
        batch_axis=layout.batch,
        channel_axis=layout.channel,
        mask1=hidden(mask1),
        mask2=hidden(mask2),
    )


def propagate(net: Layer, kernel: Kernel, edges: tuple[Any, Any] = (None, None)) -> Kernel:
    """The kernel after a network, by the library's rules for examples and pairs.

    `edges` are the graphs of both batches, where there are any.
    """
    if is_sampled(net):
        raise NetworkError(
            "A Kernel cannot go through attention whose scores are random (SOFTMAX, RELU or ABS "
            "with linear_scaling=False): its heads are drawn from the inputs themselves.",
            got="a Kernel, or get=None",
            remedy="pass the inputs to one kernel_fn, with get='nngp' or 'ntk'",
        )
    if kernel.diagonal_spatial and need_before(net, Need.DIAGONAL) is Need.FULL:
        raise NetworkError(
            "diagonal_spatial=True met a layer that mixes positions: it needs all pairs of them.",
            got="pooling, attention or indexing after it",
            remedy="leave diagonal_spatial= out",
        )
    assert kernel.shape1 is not None
    assert kernel.shape2 is not None
    outlines = kernel.outline(kernel.shape1), kernel.outline(kernel.shape2)
    arrays = kernel.nngp, kernel.ntk, kernel.cov1, kernel.cov2
    full, alone = not kernel.diagonal_spatial, kernel.diagonal_batch
    masks = kernel.mask1, None if kernel.cov2 is None else kernel.mask2
    ordered = [None if m is None else ~kernel.layout.moved(m)[..., 0] for m in masks]
    nngp, ntk, covs, masks = _propagate(
        net, arrays, ordered, edges, outlines, full=full, alone=alone
    )
    ends = [net.outline(outline) for outline in outlines]
    layout, empty = kernel.layout.after(len(ends[0].positions)), net == Serial()
    sizes = (kernel.nngp.shape[0], kernel.nngp.shape[1])
    shape1, shape2 = (
        layout.restored_shape((n, *end.shape)) for n, end in zip(sizes, ends, strict=True)
    )
    mask1, mask2 = (None if m is None else layout.restored(~m[..., None]) for m in masks)
    return dataclasses.replace(
        kernel,
        nngp=nngp,
        ntk=ntk,
        cov1=covs[0],
        cov2=covs[1],
        is_gaussian=ends[0].gaussian,
        is_input=ends[0].raw and kernel.is_input and empty,
        shape1=shape1,
        shape2=shape2,
        batch_axis=layout.batch,
        channel_axis=layout.channel,
        mask1=mask1,
        mask2=mask2,
        facts=ends[0],
    )


@compiled
def _propagate(
    net: Layer, arrays: Any, masks: Any, edges: Any, outlines: Any, *, full: bool, alone: bool
) -> tuple[Array, Array | None, list[Array | None], list[Array | None]]:
    """All pairs, and the covariances of both batches; `alone`: of every example with itself."""
    nngp, ntk, *covs = arrays
    need = Need.FULL if full else Need.DIAGONAL

    def inside(kernel: Array, lead: int) -> Array:
        return separated(kernel, lead) if full else kernel

    def outside(kernel: Array, lead: int) -> Array:
        return interleaved(kernel, lead) if full else kernel

    def encode(cov: Array, mask: Array | None, outline: Outline, edges: Any) -> Any:
        own = cov if alone else jnp.moveaxis(jnp.diagonal(cov), -1, 0)
        mean = None if outline.gaussian else UNKNOWN

        def example(own: Array, mask: Array | None, edges: Any) -> Example:
            return Example(own, mean, mask, None, None, full, outline, edges)

        batch = jax.vmap(example)(inside(own, 1), mask, edges)
        return draw(net, batch, need, jax.random.key(0), _none)

    def pairs(nngp: Array, ntk: Array | None, one: Any, two: Any) -> tuple[Array, Array | None]:
        rank = len(outlines[0].positions)

        def pair(nngp: Array, ntk: Array | None, memo1: Any, memo2: Any):
            found = cross(net, Pair(nngp, ntk, rank, full), memo1, memo2, {}, need).compute()
            return found.nngp, found.ntk

        row = jax.vmap(pair, (0, 0, None, 0))
        ntk = None if ntk is None else inside(ntk, 2)
        nngp, ntk = jax.vmap(row, (0, 0, 0, None))(inside(nngp, 2), ntk, one, two)
        return outside(nngp, 2), None if ntk is None else outside(ntk, 2)

    one = encode(covs[0], masks[0], outlines[0], edges[0])
    two = one if covs[1] is None else encode(covs[1], masks[1], outlines[1], edges[1])
    nngp, ntk = pairs(nngp, ntk, one.memos, two.memos)

    def covariance(cov: Array | None, drawn: Any) -> Array | None:
        if cov is None:
            return None
        if alone:
            return outside(drawn.end.nngp, 1)
        return pairs(cov, None, drawn.memos, drawn.memos)[0]

    found = [covariance(cov, drawn) for cov, drawn in zip(covs, (one, two), strict=True)]
    return nngp, ntk, found, [one.end.mask, two.end.mask]


def _none(*_: Any) -> Any:
    raise AssertionError("no layer here has random scores")
