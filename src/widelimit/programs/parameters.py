"""Parameters: what the initialiser draws, as limit variables."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from .extents import Wide
from .gaussian import Form, GaussianSource, Remap
from .layout import whole
from .matrices import Opaque, WeightArray, WideMatrix
from .scalar_steps import on_scalars
from .scalars import NormalGroup, WideScalar
from .steps import Step
from .trees import Apply, Atom, Leaf
from .vectors import WideVector

if TYPE_CHECKING:
    from .interpreter import Machine


@dataclass(frozen=True)
class EntryLaw:
    """`centre + spread·T(z)` with z standard normal; T is the identity for Gaussian entries.

    `variance` is that of T(z), whose mean is 0.
    """

    name: str
    transform: Callable[[Any], Any] | None
    variance: float
    centre: float
    spread: float
    power: Fraction

    @property
    def deviation(self) -> float:
        """The standard deviation of an entry, without the power of n."""
        return abs(self.spread) * float(np.sqrt(self.variance))


def entry_law(step: Step, arguments: list[WideScalar]) -> EntryLaw:
    """The law of one entry of a sampler's output."""
    if step.name in ("_normal", "_normal_real"):
        return EntryLaw("normal", None, 1.0, 0.0, 1.0, Fraction(0))
    numbers = [_one_bound(step, a) for a in arguments[1:]]
    if step.name == "_uniform":
        low, high = numbers
        powers = {a.power for a in arguments[1:] if not a.is_zero}
        if len(powers) > 1:
            raise step.refuse(
                "Both ends of a uniform law scale alike with the width.",
                remedy="draw from (−a, a) with a = c·n^(−1/2)",
            )
        power = powers.pop() if powers else Fraction(0)
        return EntryLaw("uniform", _uniform, 1 / 3, (low + high) / 2, (high - low) / 2, power)
    if any(a.power != 0 for a in arguments[1:]):
        raise step.refuse(
            "The shape of an initial law does not depend on the width.",
            got=f"'{step.name}' with bounds that change with the width",
            remedy="draw from a fixed law and scale the result",
        )
    if step.name == "_truncated_normal":
        low, high = numbers
        if low != -high:
            raise step.refuse(
                "Truncated normals are symmetric.",
                got=f"bounds {low:g} and {high:g}",
                remedy="use bounds (−c, c)",
            )
        mass = float(special.erf(high / np.sqrt(2)))
        density = float(np.exp(-(high**2) / 2) / np.sqrt(2 * np.pi))
        return EntryLaw(
            "truncated normal",
            _Truncated(mass),
            1 - 2 * high * density / mass,
            0.0,
            1.0,
            Fraction(0),
        )
    raise step.refuse(
        "Parameters are drawn by normal, uniform or truncated normal laws.",
        got=f"'{step.name}'",
        remedy="use jax.random.normal, uniform or truncated_normal; dropout and other noise in the "
        "forward pass is switched off before tracing",
    )


def _one_bound(step: Step, bound: Any) -> float:
    """A bound of a sampler, which is one number for all entries."""
    if isinstance(bound, WideScalar) and bound.fixed:
        found = np.unique(np.asarray(bound.value()))
        if found.size == 1:
            return float(found[0])
    raise step.refuse(
        "All entries of a parameter have one law.",
        got=f"'{step.name}' with bounds that differ between entries, or are drawn themselves",
        remedy="draw from a fixed law, and multiply by what differs: s * uniform(key, shape, "
        "minval=-1, maxval=1)",
    )


def _uniform(z: Any) -> Any:
    return special.erf(z / np.sqrt(2))


@dataclass(frozen=True)
class _Truncated:
    mass: float

    def __call__(self, z: Any) -> Any:
        return np.sqrt(2) * special.erfinv(self.mass * special.erf(z / np.sqrt(2)))


def identity_of(machine: Machine, step: Step, key: Any) -> tuple[Any, ...]:
    """Equal keys and shapes draw equal numbers; one key draws arrays of one law and shape."""
    shape = step.results[0].shape
    for number in np.unique(key) if machine.is_live(step.results[0]) else ():
        if machine.drawn_from.setdefault(int(number), (step.name, shape)) != (step.name, shape):
            raise step.refuse(
                "A random key draws one array.",
                got="a key that drew an array of another law or shape before: the two are not "
                "independent",
                remedy="split the key, and give every parameter its own",
            )
    return step.name, np.asarray(key).tobytes(), shape


def drawn(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A sampler's output: scalars, a vector, or a matrix, by its width axes."""
    return [_parameter(machine, step, operands)]


def _parameter(machine: Machine, step: Step, arguments: list[WideScalar]) -> Any:
    law = entry_law(step, arguments)
    slot = step.results[0]
    wide = slot.wide_axes
    key = identity_of(machine, step, arguments[0].value())
    if not wide:
        return _finite(machine, step, law, key)
    if len(wide) == 1:
        return _vector(machine, step, law, key)
    if len(wide) > 2:
        raise step.refuse(
            "Parameters have at most two width axes.",
            got=f"{len(wide)} of them",
            remedy="keep one width axis for inputs and one for outputs",
        )
    return _matrix(machine, step, law, key)


def iota(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """Numbers along an axis."""
    wide = step.results[0].wide_axes
    if not wide:
        return on_scalars(machine, step, operands)
    return [Opaque() if len(wide) == 2 else channel_number(machine, step)]


def channel_number(machine: Machine, step: Step) -> WideVector:
    """`iota` along the channels: `n` times a place that is uniform between 0 and the axis' share.

    Sums over channels are integrals over places, as if every channel had drawn its own: this is
    how sinusoidal tables enter.
    """
    slot = step.results[0]
    axis = slot.wide_axes[0]
    extent = slot.shape[axis]
    assert isinstance(extent, Wide)
    shape = tuple(1 if i == axis else int(e) for i, e in enumerate(slot.shape))  # pyright: ignore
    size = int(np.prod(shape, dtype=int))
    zero = np.zeros((1, size))
    dimension = int(step.params[0]["dimension"])
    if dimension != axis:
        numbers = np.indices(shape)[dimension].reshape(1, -1).astype(float)
        return WideVector(shape, axis, whole(extent.share), Fraction(0), numbers)
    form = machine.places.get(extent.share)
    if form is None:
        source = GaussianSource("channel", np.eye(1)[None], ordered=True)
        form = machine.places[extent.share] = Form.members(machine.labels, source, 0, 1)
    place = functools.partial(_scaled, special.ndtr, float(extent.share))
    tree = Apply("channel", place, (Leaf(form.remapped(Remap(np.zeros(size, int)))),))
    return WideVector(
        shape, axis, whole(extent.share), Fraction(1), zero, parts=((None, Atom((tree,))),)
    )


def _initial(machine: Machine, step: Step) -> WideVector:
    """A vector given with others: per coordinate jointly `N(mean, covariance)`."""
    params = step.params[0]
    form = machine.vector_forms.get(params["key"])
    if form is None:
        source = GaussianSource("x", np.asarray(params["covariance"])[None])
        form = Form.members(machine.labels, source, 0, source.size)
        machine.vector_forms[params["key"]] = form
    member = form.remapped(Remap(np.array([params["position"]])))
    constant = np.full((1, 1), params["mean"][params["position"]])
    layout = whole(Fraction(1))
    if not member.variance.any():
        return WideVector((1,), 0, layout, Fraction(0), constant)
    return WideVector((1,), 0, layout, Fraction(0), constant, member, np.ones((1, 1)))


def _weights(machine: Machine, step: Step) -> WideMatrix:
    """A matrix with entries `N(0, std²/n)`."""
    params, layout = step.params[0], whole(Fraction(1))
    weights = machine.matrices.setdefault(params["matrix"], WeightArray(str(params["matrix"])))
    layouts, slots = {0: layout, 1: layout}, np.zeros((1, 1), int)
    return WideMatrix(weights, slots, layouts, {0: 0, 1: 1}, params["std"], Fraction(-1, 2))


def written(machine: Machine, step: Step, operands: list[Any]) -> list[Any]:
    """A parameter that a program states itself."""
    return [(_initial if step.name == "initial" else _weights)(machine, step)]


def _finite(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideScalar:
    shape = tuple(int(extent) for extent in step.results[0].shape)  # pyright: ignore
    size = int(np.prod(shape, dtype=int))
    found = machine.finite.get(key)
    if found is None:
        group = NormalGroup(size, 1.0, machine.integrator)
        found = machine.finite[key] = group
    if law.transform is None and machine.on_tail(step.results[0]):
        weights = law.spread * np.eye(size)[None]
        centre = np.full((1, *shape), law.centre)
        return WideScalar(shape, centre, power=law.power, pending=((found, weights),))

    def compute() -> np.ndarray:
        z = found.values()
        entries = z if law.transform is None else law.transform(z)
        return (law.centre + law.spread * entries).reshape(-1, *shape)

    return WideScalar(shape, functools.cache(compute), power=law.power)


def _vector(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideVector:
    extents = step.results[0].shape
    axis = step.results[0].wide_axes[0]
    extent = extents[axis]
    assert isinstance(extent, Wide)
    shape = tuple(1 if i == axis else int(e) for i, e in enumerate(extents))  # pyright: ignore
    size = int(np.prod(shape, dtype=int))
    form = machine.vector_forms.get(key)
    if form is None:
        source = GaussianSource(machine.parameter_name(step), np.eye(size)[None])
        form = machine.vector_forms[key] = Form.members(machine.labels, source, 0, size)
    machine.note_parameter(step, law)
    centre = np.full((1, size), law.centre)
    base = WideVector(shape, axis, whole(extent.share), law.power, centre)
    if law.transform is None:
        scale = np.full((1, size), law.spread)
        return WideVector(shape, axis, base.layout, law.power, centre, form, scale)
    scaled = functools.partial(_scaled, law.transform, law.spread)
    tree = Apply(law.name, scaled, (Leaf(form),))
    part = (None, Atom((tree,)))
    return WideVector(shape, axis, base.layout, law.power, centre, parts=(part,))


def _scaled(transform: Callable[[Any], Any], spread: float, z: Any) -> Any:
    return spread * transform(z)


def _matrix(machine: Machine, step: Step, law: EntryLaw, key: Any) -> WideMatrix:
    if law.centre != 0:
        raise step.refuse(
            "Weight matrices have mean zero.",
            got=f"{law.name} entries of mean {law.centre:g}",
            remedy="draw from a centred law",
        )
    extents = step.results[0].shape
    wide = step.results[0].wide_axes
    shape = tuple(1 if i in wide else int(e) for i, e in enumerate(extents))  # pyright: ignore
    weights = machine.matrices.get(key)
    if weights is None:
        entries = int(np.prod(shape, dtype=int))
        weights = machine.matrices[key] = WeightArray(machine.parameter_name(step), entries)
    machine.note_parameter(step, law)
    size = int(np.prod(shape, dtype=int))
    layouts = {a: whole(extents[a].share) for a in wide}  # pyright: ignore
    return WideMatrix(
        weights,
        np.arange(size).reshape(shape),
        layouts,
        {a: k for k, a in enumerate(wide)},
        law.deviation,
        law.power,
    )
