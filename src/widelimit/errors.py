"""Errors that say the rule, what came, and the remedy."""

import copyreg
import sys
import warnings
from typing import Any


class WidelimitError(ValueError):
    """Base of every error this library raises on purpose."""

    def __init__(self, rule: str, *, got: str, remedy: str, option: str | tuple[str, ...] = ()):
        """`rule` is what failed, `got` is what arrived instead, `remedy` is what to do.

        `option` names what the remedy sets, one option or several: `encoding=` in Python,
        `--encoding` on the command line.
        """
        self.rule, self.got, self.remedy = rule, got, remedy
        self.options = (option,) if isinstance(option, str) else option
        super().__init__(f"{rule} Got: {got}. Remedy: {self.advice()}")

    def advice(self, *, command_line: bool = False) -> str:
        """The remedy with the options it sets, as Python or as the command line writes them."""
        dashed = [f"--{name.replace('_', '-')}" for name in self.options]
        names = ", ".join(dashed if command_line else [f"{name}=" for name in self.options])
        return f"{self.remedy} ({names})" if names else self.remedy

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle would call the class with the finished message alone; a pool of processes that
        # cannot read an answer waits for it forever.
        made = copyreg.__newobj__  # type: ignore[attr-defined]
        return made, (type(self), *self.args), self.__dict__


class ShapeError(WidelimitError):
    """Arrays, masks or lengths that do not fit the network or each other."""


class NetworkError(WidelimitError):
    """A network to which the infinite-width rules of its layers do not apply."""


class NumericalError(WidelimitError):
    """NaN, infinities, or matrices that are not positive semi-definite."""


class PrecisionError(NumericalError):
    """Numbers that this precision cannot represent accurately; double precision can."""


class OptionError(WidelimitError, TypeError):
    """An option that a call does not have, or a value that the option does not take."""


class ForkError(WidelimitError, RuntimeError):
    """A computation in a process that was forked after JAX had started."""


class StallError(WidelimitError, RuntimeError):
    """Threads that have stopped computing and will not finish."""


class AccuracyWarning(UserWarning):
    """A dual by quadrature does not reach its tolerance."""

    TOLERANCE = 1e-5

    @classmethod
    def of(cls, where: str, error: float) -> "AccuracyWarning":
        """Name where, and the estimated relative error."""
        return cls(
            f"Kernels of an activation summed by quadrature have an estimated relative error of "
            f"{error:.1e} for {where}, at its worst for identical inputs. Remedy: smaller weights, "
            "LayerNorm before the activation, or an activation with a closed form (for piecewise "
            "linear ones ABRelu, LeakyRelu, Abs)."
        )


class MissingExtraError(ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str):
        """Name the `package` that is missing and the `extra` that brings it."""
        super().__init__(
            f"This feature needs the package '{package}'. Remedy: pip install 'widelimit[{extra}]'"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        made = copyreg.__newobj__  # type: ignore[attr-defined]
        return made, (type(self), *self.args), self.__dict__


# Between a person's line and ours may stand wrappers of these.
_WRAPPERS = ("widelimit", "equinox", "jax", "jaxtyping", "beartype")


def warn(warning: Warning) -> None:
    """Warn at the line outside the package that led here, however many calls are between."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", "").split(".")[0] in _WRAPPERS:
        level, frame = level + 1, frame.f_back
    warnings.warn(warning, stacklevel=level)
