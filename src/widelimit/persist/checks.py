"""Whether what was read from a file fits together: every array against its object and network."""

import typing
from functools import cache, singledispatch
from typing import Any

import jax
import numpy as np

from ..data.preprocess import Standardise
from ..data.vectors import WordVectors
from ..engine.inputs import Inputs, read_inputs
from ..inference import FittedClassifier, FittedGP, GPPosterior, KernelKind
from ..inference.network_kernels import NetworkKernels, require_scalar_output
from ..layers.base import Layer

_CHECKED = ("widelimit.inference.", "widelimit.data.", "widelimit.engine.", "widelimit.sklearn.")


def require_sound(made: Any) -> Any:
    """The object itself; a `ValueError` says what of it does not fit."""
    if isinstance(made, Layer):
        _require_numbers(made, jax.tree.leaves(made))
    elif type(made).__module__.startswith(_CHECKED):
        hints = _hints(type(made))
        names = hints or [name for name in vars(made) if name.endswith("_")]
        _require_numbers(made, [getattr(made, name) for name in names])
        _require_types(made, hints)
    elif type(made).__module__.startswith("sklearn."):
        _require_features(made)
    if hasattr(made, "process_"):
        _require_estimator(made)
    _require_whole(made)
    return made


def _require_features(made: Any) -> None:
    """Arrays of a step of scikit-learn's: a number, or a name, for every feature."""
    count = getattr(made, "n_features_in_", None)
    for name, value in vars(made).items():
        if not isinstance(value, np.ndarray) or (value.dtype == object and not name.endswith("_")):
            continue
        if name == "features_":  # of a `MissingIndicator`: row numbers of features
            fits = value.ndim == 1 and value.dtype.kind == "i"
            fits = fits and bool(((value >= 0) & (value < count)).all())
        elif name == "feature_names_in_":
            fits = value.shape == (count,) and value.dtype == object
        else:
            fits = value.shape == (count,) and value.dtype.kind == "f"
            fits = fits and bool(np.isfinite(value).all())
        if not fits:
            shape = f"{value.shape}, {value.dtype}"
            raise ValueError(f"{type(made).__name__}.{name} of shape {shape}")


def _require_estimator(made: Any) -> None:
    """Targets' scales, classes and noise that fit the process."""
    outputs = made.process_.posterior.weights.shape[1]
    if not isinstance(made.noise_, float) or not made.noise_ >= 0:
        raise ValueError(f"a noise variance of {made.noise_!r}")
    if hasattr(made, "classes_"):
        _require_classes(made.classes_, made.process_)
        return
    mean, scale = np.asarray(made.y_mean_), np.asarray(made.y_scale_)
    sizes = ((), (outputs,)) if outputs == 1 else ((outputs,),)
    if (
        mean.shape != scale.shape
        or mean.shape not in sizes
        or {mean.dtype, scale.dtype} != {np.dtype(np.float64)}
    ):
        raise ValueError(f"targets of shape {mean.shape} and {scale.shape}")


def _require_numbers(made: Any, values: Any) -> None:
    """No NaN, infinity, objects or complex numbers in what a model computes with."""
    for value in values:
        if isinstance(value, float | np.ndarray):
            array = np.asarray(value)
            odd = array.dtype.kind not in "biufU" if array.dtype != object else False
            if odd or (array.dtype.kind == "f" and not np.isfinite(array).all()):
                raise ValueError(f"{type(made).__name__} holds {array.dtype} that is not finite")


@cache
def _hints(cls: type) -> dict[str, Any]:
    try:
        found = typing.get_type_hints(cls)
    except (NameError, TypeError, AttributeError):
        return {}
    names = getattr(cls, "__dataclass_fields__", None) or getattr(cls, "_fields", ())
    return {name: found[name] for name in names if name in found}


def _require_types(made: Any, hints: dict[str, Any]) -> None:
    """Fields are of their declared types; axes of one name have one length."""
    sizes: dict[str, int] = {}
    wrong = [name for name, hint in hints.items() if not _fits(getattr(made, name), hint, sizes)]
    if wrong:
        value = getattr(made, wrong[0])
        shape = f" of shape {value.shape}, {value.dtype}" if hasattr(value, "dtype") else ""
        raise ValueError(f"{type(made).__name__}.{wrong[0]} is a {type(value).__name__}{shape}")


def _fits(value: Any, hint: Any, sizes: dict[str, int]) -> bool:
    try:
        fits = isinstance(value, hint) or (hint is float and isinstance(value, int))
    except TypeError:  # hints with parameters cannot be asked
        return True
    axes = getattr(hint, "dim_str", "").split()
    if not fits or not all(map(str.isidentifier, axes)):
        return fits
    pairs = zip(axes, np.shape(value), strict=True) if axes else ()
    return all(sizes.setdefault(axis, size) == size for axis, size in pairs)


@singledispatch
def _require_whole(made: Any) -> None:
    """What only the object itself can say about its parts."""


@_require_whole.register
def _(made: Standardise) -> None:
    kinds = {made.mean.dtype.kind, made.std.dtype.kind}
    if kinds != {"f"} or made.mean.shape != made.std.shape or (made.std <= 0).any():
        raise ValueError(f"a scale of shapes {made.mean.shape} and {made.std.shape}")


@_require_whole.register
def _(made: WordVectors) -> None:
    vectors = made.vectors
    if vectors.ndim != 2 or len(vectors) != len(made.words) or vectors.dtype.kind != "f":
        raise ValueError(f"word vectors of shape {vectors.shape} for {len(made.words)} words")
    if not all(isinstance(word, str) for word in made.words):
        raise ValueError("words that are no texts")


@_require_whole.register
def _(made: NetworkKernels) -> None:
    """Inputs that the network takes, and heads that fit them: traced, nothing is computed."""
    inputs = made.inputs
    again = read_inputs(made.net, inputs.x, inputs.mask, dtype=made.engine.dtype)
    if again.dtype != inputs.dtype or not isinstance(inputs.tokens, bool):
        raise ValueError(f"inputs of dtype {inputs.dtype} where the engine has {again.dtype}")
    require_scalar_output(made.net, inputs.outline)

    def kernels(x: Any, mask: Any) -> Any:
        some = Inputs(x, mask, inputs.tokens)
        return made.net.kernel(some, sampler=made.sampler, ntk=True)

    with jax.enable_x64(inputs.dtype == np.float64):
        one = inputs[slice(0, 1)]
        found = jax.eval_shape(kernels, one.x, one.mask)
    if found.nngp.shape != (1, 1):
        raise ValueError(f"a network whose kernel has shape {found.nngp.shape}")


@_require_whole.register
def _(made: GPPosterior) -> None:
    if len(made.factor) != len(made.targets):
        raise ValueError(f"a factor of {len(made.factor)} for {len(made.targets)} targets")


@_require_whole.register
def _(made: FittedGP) -> None:
    if isinstance(made.posterior, GPPosterior) and len(made.posterior) != len(made.data):
        raise ValueError(f"{len(made.posterior)} targets for {len(made.data)} examples")
    if not isinstance(made.gp.kind, KernelKind):
        raise ValueError("a process without a kernel")


@_require_whole.register
def _(made: FittedClassifier) -> None:
    _require_classes(made.classes, made.process)


def _require_classes(classes: Any, process: FittedGP) -> None:
    outputs = process.posterior.weights.shape[1]
    if np.shape(classes) != (outputs,) or len(set(np.asarray(classes).tolist())) != outputs:
        raise ValueError(f"{np.shape(classes)} classes for {outputs} outputs")
