"""What every dual offers: one phase per position, one phase per pair."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
from jaxtyping import Array, Float

from ..errors import NetworkError, WidelimitError
from ..printing import Written, brief


class Dual(Written, eqx.Module):
    """The Gaussian expectations of an activation φ that wide-network kernels are made of.

    For `(u, v) ~ N(0, [[q₁, κ], [κ, q₂]])` a dual gives the *value* `E[φ(u)φ(v)]` and the
    *derivative* `E[φ'(u)φ'(v)]`. By Price's theorem the derivative is also `∂value/∂κ`.

    A position takes part in many pairs, so the work comes in two phases:

        left, right = dual.prepare(q1), dual.prepare(q2)      # per position
        value, derivative = dual(left, right, k)              # per pair

    Between the two the caller reshapes the leaves of `left` and `right` (each has the axes of its
    `q` and no others) so that they have the rank of `k` and broadcast against it.

    Gradients with respect to `q₁`, `q₂`, `κ` and the dual's own leaves are finite everywhere. A
    position of variance zero is uncorrelated with every other. A dual is a pure function of these:
    numbers that it depends on and that change are leaves.
    """

    kinked: ClassVar[bool] = False
    """φ or φ' jumps: the derivative dual has a square-root singularity at correlation ±1."""
    homogeneous: ClassVar[bool] = False
    """φ(s·x) = s·φ(x) for every s > 0."""

    ranged: ClassVar[bool] = False
    """Rounding leaves its digits for some variances only; see `trusted`."""

    @property
    def name(self) -> str:
        """What the function is called."""
        return type(self).__name__

    @abc.abstractmethod
    def fn(self, x: Float[Array, "*s"]) -> Float[Array, "*s"]:
        """φ itself, elementwise: what a finite network applies."""

    @abc.abstractmethod
    def prepare(self, q: Float[Array, "*p"]) -> Any:
        """Everything about a position that pairs need; a pytree of arrays of the shape of `q`."""

    @abc.abstractmethod
    def __call__(
        self, left: Any, right: Any, k: Float[Array, "*s"], *, need_derivative: bool = True
    ) -> tuple[Float[Array, "*s"], Float[Array, "*s"] | None]:
        """`(E[φ(u)φ(v)], E[φ'(u)φ'(v)])`; the second is None if it is not needed."""

    @abc.abstractmethod
    def mean(self, q: Float[Array, "*p"]) -> Float[Array, "*p"] | None:
        """`E[φ(u)]` for `u ~ N(0, q)`; None: not known."""

    def trusted(self, dtype: Any) -> tuple[float, float]:
        """The variances (above 0) for which this precision keeps its digits, where `ranged`."""
        return 0.0, float("inf")

    def extend_to(self, variance: float) -> "Dual":
        """An equal dual that keeps its accuracy up to this variance; closed forms always do."""
        return self

    def error(self, q: Any) -> float:
        """The estimated relative error for these (concrete) variances; 0 for closed forms."""
        return 0.0


def separate(numbers: Any) -> Any:
    """The same arrays, hidden from the compiler's search for common subexpressions.

    What two outputs share, XLA on CPU writes to memory; to compute it twice is faster.
    """
    return jax.lax.optimization_barrier(numbers)


class Fixed(eqx.Module):
    """A plain function, part of the network's structure.

    It is pure, as JAX takes all functions to be: compiled programs do not see that a global, an
    attribute or a closure of it has changed. Numbers that change are leaves of an Equinox module.
    """

    function: Callable[..., Array] = eqx.field(static=True)

    def __repr__(self) -> str:
        return brief(self.function)

    def __call__(self, *arguments: Array) -> Array:
        try:
            return self.function(*arguments)
        except (TypeError, ValueError) as error:
            if isinstance(error, WidelimitError):
                raise
            raise NetworkError(
                f"{brief(self.function)} fails on JAX arrays.",
                got=str(error).partition(".")[0],
                remedy="write jnp.tanh for np.tanh, and jnp.where(x > 0, a, b) for `if`",
            ) from error


def as_module(function: Any) -> Any:
    """A function as a pytree: Equinox modules keep their leaves, plain functions have none."""
    return function if isinstance(function, eqx.Module) else Fixed(function)
