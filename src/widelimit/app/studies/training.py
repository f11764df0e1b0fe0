"""Finite networks trained from several random starts, for studies that hold them beside kernels.

Adam on squared loss with centred one-hot labels – what kernels solve in closed form. What is
trained is the change of the outputs, `f(x) − f_0(x)`, so the function starts at zero. Step count
and learning rate are the same for every start; the rate is chosen on a held-out fifth of the
training examples.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...compilation import jitted
from ...data import Dataset, stratified_order
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
    """Networks of all starts, with the learning rate that does best on a held-out fifth.

    Adam with a cosine schedule on the squared error of the outputs' change, in random batches.
    """
    try:
        import optax
    except ImportError:
        raise MissingExtraError("optax", "fit") from None
    held = round(0.2 * len(data.y_train))
    given = data.train.take(np.roll(stratified_order(data.y_train, key=1), -held))
    kept, targets = len(given) - held, centred_one_hot(given.y)[0].astype(np.float32)

    @jitted
    def train(key: Any, rate: Any, count: Any, *sides: tuple[Any, Any]) -> Any:
        """Outputs for both sides, learned from the first examples of the first side."""
        first, second = jax.random.split(key)
        begin = net.init(first, sides[0][0].shape[1:])
        before = [net.apply(begin, *side) for side in sides]
        aims = targets + before[0]
        optimiser = optax.adam(optax.cosine_decay_schedule(rate, scale.steps))

        def loss(params: Params, index: Any) -> Any:
            batch = jax.tree.map(lambda values: values[index], sides[0])
            return jnp.mean((net.apply(params, *batch) - aims[index]) ** 2)

        def step(carry: Any, subkey: Any) -> Any:
            params, memory = carry
            index = jax.random.randint(subkey, (BATCH,), 0, count)
            change, memory = optimiser.update(jax.grad(loss)(params, index), memory, params)
            return (optax.apply_updates(params, change), memory), None

        carry = (begin, optimiser.init(begin))
        (end, _), _ = jax.lax.scan(step, carry, jax.random.split(second, scale.steps))
        return tuple(net.apply(end, *side) - b for side, b in zip(sides, before, strict=True))

    sides = [(part.x.astype(np.float32), part.mask) for part in (given, data.test)]

    def classes(side: int, rate: float, starts: int, count: int) -> np.ndarray:
        options = (np.float32(rate), np.int32(count), *sides)
        found = [train(jax.random.key(start), *options)[side] for start in range(starts)]
        return np.argmax(np.stack(found), axis=-1)

    scores = {
        rate: float(np.mean(classes(0, rate, 1, kept)[0, kept:] == given.y[kept:]))
        for rate in RATES
    }
    rate = max(RATES, key=lambda one: scores[one])
    correct = classes(1, rate, scale.starts, len(given)) == data.y_test
    return Accuracy(Validated(rate, scores[rate]), correct)
