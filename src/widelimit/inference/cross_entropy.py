"""Training dynamics under the softmax cross-entropy, by integrating in function space.

With one-hot (or soft) targets `p` and `q(f) = softmax(f)`, an infinitely wide network obeys
`ḟ(x) = −η c Θ(x, X) (q(f(X)) − p)`. Its path is therefore a combination of kernel rows,

    f_t(x) = f₀(x) − Θ(x, X) G_t,    Ġ_t = η c (q(f₀(X) − Θ G_t) − p),    G₀ = 0,

and only `G` (train, classes) has to be integrated: any number of test examples costs one matrix
product afterwards. Gradient flow is solved by diffrax; gradient descent is iterated exactly.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import logsumexp

from ..compilation import compiled
from ..errors import MissingExtraError, NumericalError, ShapeError
from ..options import RandomKey, choice, generator, positive, whole
from . import checks
from .checks import Values
from .conventions import Optimizer, Reduction
from .solve import semidefinite_root


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


class _Problem(NamedTuple):
    kernel: Float[Array, "n n"]
    labels: Float[Array, "n classes"]
    initial: Float[Array, "*members n classes"]
    rate: Float[Array, ""]


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
    initial = _initial(start, labels.shape)
    grid, order = np.unique(optimizer.check(times).reshape(-1), return_inverse=True)
    if not grid.size:
        raise ShapeError(
            "Training is reported at one time at least.",
            got="no times",
            remedy="pass a time, or several",
        )
    if not np.isfinite(grid).all():
        raise NumericalError(
            "Training under the cross-entropy has no end.",
            got="t = inf",
            remedy="ask for finite times",
        )
    factor = reduction.factor(*labels.shape)
    rate = positive("learning_rate", learning_rate) * factor
    with jax.enable_x64(True):
        problem = _Problem(
            *(jnp.asarray(a, dtype=jnp.float64) for a in (kernel, labels, initial, rate))
        )
        if optimizer is Optimizer.GRADIENT_DESCENT:
            duals = _descend(problem, grid.astype(np.int64))
        else:
            duals = _flow(problem, grid, tolerance, max_steps)
    duals = np.moveaxis(duals, 0, -3)[..., order, :, :]
    train = initial[..., None, :, :] - kernel.astype(np.float64) @ duals
    return CrossEntropyPath(grid[order], duals, train, labels, factor)


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


def _initial(start: Values | None, shape: tuple[int, int]) -> np.ndarray:
    if start is None:
        return np.zeros(shape)
    initial = checks.real_array(start, "The initial logits").astype(np.float64)
    if initial.ndim not in (2, 3) or initial.shape[-2:] != shape:
        raise ShapeError(
            f"The initial logits must have shape {shape}, or (members, *{shape}).",
            got=f"shape {initial.shape}",
            remedy="pass one row of initial logits per training example",
        )
    return initial


def _pull(time: Values, dual: Array, problem: _Problem) -> Array:
    """`Ġ = η c (softmax(f₀ − ΘG) − p)`; autonomous, so the time is ignored."""
    logits = problem.initial - problem.kernel @ dual
    labels = jnp.broadcast_to(problem.labels, logits.shape)
    return problem.rate * (jax.nn.softmax(logits, axis=-1) - labels)


@compiled
def _advance(dual: Array, problem: _Problem, count: Array) -> Array:
    return jax.lax.fori_loop(0, count, lambda k, d: d + _pull(k, d, problem), dual)


def _descend(problem: _Problem, steps: np.ndarray) -> np.ndarray:
    dual, duals = jnp.zeros_like(problem.initial), []
    for count in np.diff(steps, prepend=0):
        dual = _advance(dual, problem, jnp.asarray(count))
        duals.append(np.asarray(dual))
    return np.stack(duals)


def _flow(problem: _Problem, grid: np.ndarray, tolerance: float, max_steps: int) -> np.ndarray:
    try:
        import diffrax
    except ImportError as missing:
        raise MissingExtraError("diffrax", "dynamics") from missing
    if grid[-1] == 0.0:
        return np.zeros((1, *problem.initial.shape))
    # An error δ in every entry of G is an error of at most δ·‖Θ‖_∞ in the logits.
    gain = float(jnp.abs(problem.kernel).sum(axis=1).max())
    solution = diffrax.diffeqsolve(
        diffrax.ODETerm(_pull),
        diffrax.Dopri5(),
        t0=0.0,
        t1=float(grid[-1]),
        dt0=None,
        y0=jnp.zeros_like(problem.initial),
        args=problem,
        saveat=diffrax.SaveAt(ts=jnp.asarray(grid)),
        # Arrays, so that other tolerances and kernels do not compile anew.
        stepsize_controller=diffrax.PIDController(
            rtol=jnp.asarray(tolerance), atol=jnp.asarray(tolerance / max(gain, 1e-300))
        ),
        max_steps=max_steps,
        throw=False,
    )
    if solution.result != diffrax.RESULTS.successful:
        raise NumericalError(
            "The integration of the training dynamics must reach the last time.",
            got=f"it needs more than {max_steps} steps to reach t = {grid[-1]:.3g}",
            remedy="ask for shorter times, raise max_steps, or use gradient descent steps",
        )
    return np.asarray(solution.ys)
