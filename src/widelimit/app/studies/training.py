"""Finite networks trained from several random starts, for studies that hold them beside kernels.

Adam on squared loss with centred one-hot labels – what kernels solve in closed form. What is
trained is the change of the outputs, `f(x) − f_0(x)`, so the function starts at zero. Step count
and learning rate are the same for every start; the rate is chosen on a held-out fifth of the
training examples.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...compilation import jitted
from ...data import Dataset
from ...errors import MissingExtraError
from ...inference import centred_one_hot
from ...layers.base import Layer, Params
from .accuracy import Accuracy, Validated

HEADS, BATCH = 4, 50
RATES = (0.001, 0.01)


class TrainingSize(NamedTuple):
    """Images, width of the networks, steps of training, and random starts."""

    train: int
    test: int
    width: int
    steps: int
    starts: int


def best_trained(net: Layer, data: Dataset, scale: TrainingSize) -> Accuracy:
    """Networks of all starts, with the learning rate that does best on a held-out fifth."""
    held = data.train.split(0.2, key=1)
    kept, labels = len(held.y_train), np.concatenate([held.y_train, held.y_test])
    masks = [mask for mask in (held.mask_train, held.mask_test) if mask is not None]
    mask = np.concatenate(masks) if masks else None
    given = Examples(np.concatenate([held.x_train, held.x_test]), mask)
    learn = trainer(net, given, labels, Examples(data.x_test, data.mask_test), scale.steps)
    scores = {}
    for rate in RATES:
        outputs, _ = learn(rate, 1, kept)
        scores[rate] = float(np.mean(np.argmax(outputs[0, kept:], axis=-1) == held.y_test))
    rate = max(scores, key=lambda one: scores[one])
    _, outputs = learn(rate, scale.starts, len(labels))
    return Accuracy(Validated(rate, scores[rate]), np.argmax(outputs, axis=-1) == data.y_test)


def trainer(
    net: Layer, given: "Examples", labels: np.ndarray, tested: "Examples", steps: int
) -> Callable[[float, int, int], tuple[np.ndarray, np.ndarray]]:
    """Training from several starts, compiled once.

    The function takes a learning rate, how many starts, and how many of the given examples are
    learned from: the first. It returns outputs (start, example, class) of given and tested ones.
    Adam with a cosine schedule on the squared error of the outputs' change, in random batches.
    """
    try:
        import optax
    except ImportError:
        raise MissingExtraError("optax", "fit") from None
    targets = centred_one_hot(labels)[0].astype(np.float32)

    def one(key: Any, rate: Any, count: Any, given: Examples, tested: Examples) -> Any:
        first, second = jax.random.split(key)
        begin = net.init(first, given.x.shape[1:])
        sides = given, tested
        before = [side.outputs(net, begin) for side in sides]
        aims = targets + before[0]
        optimiser = optax.adam(optax.cosine_decay_schedule(rate, steps))

        def loss(params: Params, index: Any) -> Any:
            return jnp.mean((given.at(index).outputs(net, params) - aims[index]) ** 2)

        def step(carry: Any, subkey: Any) -> Any:
            params, memory = carry
            index = jax.random.randint(subkey, (BATCH,), 0, count)
            change, memory = optimiser.update(jax.grad(loss)(params, index), memory, params)
            return (optax.apply_updates(params, change), memory), None

        carry = (begin, optimiser.init(begin))
        (end, _), _ = jax.lax.scan(step, carry, jax.random.split(second, steps))
        return tuple(side.outputs(net, end) - b for side, b in zip(sides, before, strict=True))

    compiled = jitted(one)
    arrays = given.single(), tested.single()

    def learn(rate: float, starts: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        options = (np.float32(rate), np.int32(count), *arrays)
        found = [compiled(jax.random.key(start), *options) for start in range(starts)]
        ours, others = zip(*found, strict=True)
        return np.stack(ours), np.stack(others)

    return learn


class Examples(NamedTuple):
    """Inputs, and a mask if they are padded."""

    x: Any
    mask: Any

    def single(self) -> "Examples":
        """In single precision."""
        return Examples(self.x.astype(np.float32), self.mask)

    def at(self, index: Any) -> "Examples":
        """Some of them."""
        return Examples(self.x[index], None if self.mask is None else self.mask[index])

    def outputs(self, net: Layer, params: Params) -> Any:
        """Of the finite network."""
        return net.apply(params, self.x, self.mask)
