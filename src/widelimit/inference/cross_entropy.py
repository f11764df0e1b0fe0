"""Training dynamics under the softmax cross-entropy, by integrating in function space.

With one-hot (or soft) targets `p` and `q(f) = softmax(f)`, an infinitely wide network obeys
`ḟ(x) = −η c Θ(x, X) (q(f(X)) − p)`. Its path is therefore a combination of kernel rows,

    f_t(x) = f₀(x) − Θ(x, X) G_t,    Ġ_t = η c (q(f₀(X) − Θ G_t) − p),    G₀ = 0,

and only `G` (train, classes) has to be integrated: any number of test examples costs one matrix
product afterwards. Gradient flow is solved by SciPy's RK45; gradient descent is iterated exactly.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float
from scipy.integrate import solve_ivp
from scipy.special import logsumexp, softmax

from ..errors import NumericalError, ShapeError
from ..options import RandomKey, choice, generator, positive, whole
from . import checks
from .checks import Values
from .conventions import Optimizer, Reduction
from .solve import semidefinite_root

_EVALUATIONS = 6  # of the slope, in a step of RK45


@dataclass(frozen=True, eq=False)
class CrossEntropyPath:
    """Networks trained under the cross-entropy, at the requested times."""

    times: Float[np.ndarray, " times"]
    duals: Float[np.ndarray, "*members times n classes"] = field(repr=False)
    """`G_t`."""
    train: Float[np.ndarray, "*members times n classes"] = field(repr=False)
    """Logits on the training set."""
    targets: Float[np.ndarray, "n classes"] = field(repr=False)
    factor: float
    test: Float[np.ndarray, "*members times m classes"] | None = field(repr=False, default=None)
    """Logits of the test examples, if there were any."""
    classes: np.ndarray | None = None
    """What the columns stand for, if labels were given."""

    def logits(
        self, ntk_cross: Values, *, start: Values | None = None
    ) -> Float[np.ndarray, "*members times m classes"]:
        """Logits at other examples from the NTK block (test, train) and their initial logits.

        `start` is (…, test, classes), with the same leading shape as the training start;
        zero where not given.
        """
        cross = checks.matrix(
            ntk_cross, "The NTK of test against training", columns=len(self.targets)
        )
        moved = cross.astype(np.float64) @ self.duals
        if start is None:
            return -moved
        initial = checks.real_array(start, "The initial logits").astype(np.float64)
        wanted = (*self.duals.shape[:-3], len(cross), self.targets.shape[1])
        if initial.shape != wanted:
            raise ShapeError(
                f"The initial logits of the test examples must have shape {wanted}.",
                got=f"shape {initial.shape}",
                remedy="draw test and training logits together, with sample_initial_functions",
            )
        return initial[..., None, :, :] - moved

    @property
    def loss(self) -> Float[np.ndarray, "*members times"]:
        """Training cross-entropy in the units of the chosen reduction."""
        norm = logsumexp(self.train, axis=-1)
        fit = np.sum(self.targets * self.train, axis=-1)
        return self.factor * np.sum(norm - fit, axis=-1)


def cross_entropy_path(
    ntk: Values,
    targets: Values,
    times: Values,
    *,
    start: Values | None = None,
    learning_rate: float = 1.0,
    optimizer: Optimizer | str = Optimizer.GRADIENT_FLOW,
    reduction: Reduction | str = Reduction.SUM,
    tolerance: float = 1e-6,
    max_steps: int = 100_000,
) -> CrossEntropyPath:
    """Train on targets (n, classes) whose rows are probabilities, and report at `times`.

    `start` holds initial logits (n, classes) of one network, or (members, n, classes) of an
    ensemble; without it the mean network, which starts at zero, is trained. Softmax losses have
    no `t = ∞` (the logits grow forever), so times are finite. Gradient flow is integrated with
    steps whose local error in the logits is about `tolerance`, at most `max_steps` of them.
    """
    optimizer = choice(Optimizer, optimizer, "optimizer")
    reduction = choice(Reduction, reduction, "reduction")
    positive("tolerance", tolerance)
    whole("max_steps", max_steps)
    kernel = checks.square(ntk, "The NTK of the training examples")
    rows = len(kernel)
    labels = checks.matrix(targets, "The class targets", rows=rows).astype(np.float64)
    if labels.min() < 0 or not np.allclose(labels.sum(axis=1), 1.0, atol=1e-6):
        raise NumericalError(
            "Each row of the class targets must be a probability distribution.",
            got=f"row sums from {labels.sum(axis=1).min():.3g} to {labels.sum(axis=1).max():.3g}",
            remedy="pass one-hot rows; the centred targets of the regression do not fit here",
        )
    initial = np.zeros(labels.shape)
    if start is not None:
        initial = checks.real_array(start, "The initial logits").astype(np.float64)
    if initial.ndim not in (2, 3) or initial.shape[-2:] != labels.shape:
        raise ShapeError(
            f"The initial logits must have shape {labels.shape}, or (members, *{labels.shape}).",
            got=f"shape {initial.shape}",
            remedy="pass one row of initial logits per training example",
        )
    grid, order = np.unique(optimizer.check(times).reshape(-1), return_inverse=True)
    if not grid.size or not np.isfinite(grid).all():
        raise NumericalError(
            "Training under the cross-entropy has no end, and is reported at one time at least.",
            got="t = inf" if grid.size else "no times",
            remedy="ask for a finite time, or several",
        )
    factor, wide = reduction.factor(*labels.shape), kernel.astype(np.float64)
    rate = positive("learning_rate", learning_rate) * factor

    def pull(dual: np.ndarray) -> np.ndarray:
        """`Ġ = η c (softmax(f₀ − ΘG) − p)`."""
        return rate * (softmax(initial - wide @ dual, axis=-1) - labels)

    if optimizer is Optimizer.GRADIENT_DESCENT:
        found, dual = [], np.zeros_like(initial)
        for count in np.diff(grid.astype(np.int64), prepend=0):
            for _ in range(count):
                dual = dual + pull(dual)
            found.append(dual)
        duals = np.stack(found)
    else:
        # An error δ in every entry of G is an error of at most δ·‖Θ‖_∞ in the logits.
        gain = max(float(np.abs(wide).sum(axis=1).max()), 1e-300)
        duals = _flow(pull, initial.shape, grid, tolerance, tolerance / gain, max_steps)
    duals = np.moveaxis(duals, 0, -3)[..., order, :, :]
    train = initial[..., None, :, :] - wide @ duals
    return CrossEntropyPath(grid[order], duals, train, labels, factor)


def _flow(
    pull: Callable[[np.ndarray], np.ndarray],
    shape: tuple[int, ...],
    grid: np.ndarray,
    relative: float,
    absolute: float,
    max_steps: int,
) -> np.ndarray:
    """`G` at the times of the grid, from `G = 0`."""
    count = itertools.count()
    too_far = NumericalError(
        "The integration of the training dynamics must reach the last time.",
        got=f"it needs more than {max_steps} steps to reach t = {grid[-1]:.3g}",
        remedy="ask for shorter times, raise max_steps, or use gradient descent steps",
    )

    def slope(_: float, flat: np.ndarray) -> np.ndarray:
        if next(count) > _EVALUATIONS * max_steps:
            raise too_far
        return pull(flat.reshape(shape)).reshape(-1)

    if grid[-1] == 0.0:
        return np.zeros((1, *shape))
    options = {"t_eval": grid, "rtol": relative, "atol": absolute}
    found = solve_ivp(slope, (0.0, grid[-1]), np.zeros(math.prod(shape)), **options)
    if not found.success:  # steps below rounding
        raise too_far
    return found.y.T.reshape(-1, *shape)


def sample_initial_functions(
    nngp: Values, *, outputs: int, draws: int, key: RandomKey = 0
) -> Float[np.ndarray, "draws n outputs"]:
    """Outputs of `draws` networks at initialisation, drawn from `N(0, K)` per output.

    To start an ensemble on training and test examples, pass the kernel of both sets together and
    split the result along its second axis.
    """
    kernel = checks.square(nngp, "The NNGP kernel")
    root = semidefinite_root(
        kernel, scale=float(np.diagonal(kernel).max()), unit=checks.rounding_unit(kernel)
    )
    shape = (whole("draws", draws), root.shape[1], whole("outputs", outputs))
    return np.einsum("ir,dro->dio", root, generator(key).standard_normal(shape))
