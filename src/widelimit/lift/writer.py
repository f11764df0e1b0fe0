"""From a graph of parts to layers: chains, residual connections, sums and products of branches."""

from __future__ import annotations

import warnings

import numpy as np

from .. import layers
from ..layers import Layer, Serial
from ..programs.biases import Biases
from .activations import activation
from .parts import (
    Activate,
    Add,
    Attend,
    BiasLaw,
    Convolution,
    Drop,
    FirstToken,
    Flat,
    Linear,
    Lookup,
    Multiply,
    Normalise,
    PartNode,
    Pick,
    Places,
    Pool,
    Scale,
    in_order,
)
from .values import LiftWarning, refusal

# Parts with random numbers of their own.
_DRAWN = Linear | Convolution | Attend | Lookup | Places | FirstToken | Drop


def written(last: PartNode, biases: Biases) -> Serial:
    """The network whose output is this node's."""
    return _Writer(last, biases).network()


class _Writer:
    def __init__(self, last: PartNode, biases: Biases):
        self.last, self.biases = last, biases
        self.nodes = in_order(last)
        self.number = {id(node): i for i, node in enumerate(self.nodes)}
        self.above: dict[int, list[PartNode]] = {id(node): [] for node in self.nodes}
        for node in self.nodes:
            for each in node.inputs:
                self.above[id(each)].append(node)
        self.wide: dict[int, bool] = {}
        self.written: set[int] = set()
        self.passed: dict[int, set[int]] = {}
        for node in self.nodes:
            weighted = isinstance(node.part, Linear | Convolution | Attend | Lookup)
            self.wide[id(node)] = weighted or any(self.wide[id(i)] for i in node.inputs)
            common = [self.passed[id(each)] for each in node.inputs]
            below = set.intersection(*common) if common else set()
            self.passed[id(node)] = below | {id(node)}

    def network(self) -> Serial:
        source = self.nodes[0]
        self.warn_of_first_laws()
        return Serial(*self.between(source, self.last))

    def between(self, start: PartNode, end: PartNode) -> list[Layer]:
        """The layers from one node's output to another's."""
        found: list[Layer] = []
        node = end
        while node is not start:
            if isinstance(node.part, Add | Multiply):
                fork = self.fork(node)
                found.append(self.merged(node, fork))
                node = fork
            elif isinstance(node.part, Scale):
                layer, node = self.scaled(node)
                found.append(layer)
            elif isinstance(node.part, Places):
                layer, node = self.placed(node)
                found.append(layer)
            else:
                found.append(self.layer(node, 1.0))
                node = node.inputs[0]
        return found[::-1]

    def fork(self, node: PartNode) -> PartNode:
        """The last node that both branches come from."""
        both = self.passed[id(node.inputs[0])] & self.passed[id(node.inputs[1])]
        return self.nodes[max(self.number[i] for i in both)]

    def merged(self, node: PartNode, fork: PartNode) -> Layer:
        """A residual connection, a sum or a product."""
        one, two = (Serial(*self.between(fork, each)) for each in node.inputs)
        if isinstance(node.part, Multiply):
            return layers.Product(one, two)
        for branch, other in ((one, two), (two, one)):
            if not other.layers:
                return layers.Residual(_plain(branch))
        return layers.Sum(_plain(one), _plain(two))

    def scaled(self, node: PartNode) -> tuple[Layer, PartNode]:
        """A number in front, taken into the weights or the pool below it; and what is below."""
        assert isinstance(node.part, Scale)
        factor, below = node.part.factor, node.inputs[0]
        while isinstance(below.part, Scale):
            factor, below = factor * below.part.factor, below.inputs[0]
        scalable = isinstance(below.part, Linear | Convolution | Attend | Lookup | Pool)
        if not scalable or len(self.above[id(below)]) > 1:
            raise refusal(
                f"A factor of {factor:.4g} follows no weights that it could be taken into",
                node.where,
                "scale the weights",
            )
        return self.layer(below, factor), below.inputs[0]

    def placed(self, node: PartNode) -> tuple[Layer, PartNode]:
        """Vectors of positions, with those that were added just before; and what is below."""
        variance, common = 0.0, 0.0
        while isinstance(node.part, Places):
            self.require_once(node)
            variance, common = variance + node.part.variance, common + node.part.common
            node = node.inputs[0]
            if len(self.above[id(node)]) > 1:
                break
        std, shared = (float(np.sqrt(v)) for v in (variance, common))
        return layers.PositionTable(std=std, common_std=shared), node

    # ---- single parts --------------------------------------------------------------------------

    def layer(self, node: PartNode, factor: float) -> Layer:
        """The layer of one part, its output times `factor`."""
        part, below = node.part, node.inputs[0]
        if isinstance(part, _DRAWN):
            self.require_once(node)
        match part:
            case Linear():
                return layers.Dense(
                    part.width,
                    w_std=abs(factor) * part.law.weights.std,
                    b_std=abs(factor) * self.bias(part.law.bias, below),
                )
            case Convolution():
                return layers.Conv(
                    part.width,
                    part.window,
                    stride=part.stride,
                    padding=part.padding,
                    w_std=abs(factor) * part.law.weights.std,
                    b_std=abs(factor) * self.bias(part.law.bias, below),
                )
            case Lookup():
                std = abs(factor) * float(np.sqrt(part.variance))
                return layers.Embedding(part.width, vocabulary=part.vocabulary, std=std)
            case Attend():
                return self.attention(node, part, factor)
            case Pool():
                return self.pool(node, part, factor)
            case FirstToken():
                return layers.ClassToken(std=float(np.sqrt(part.variance)))
            case Normalise():
                norm = layers.LayerNorm if part.centred else layers.RMSNorm
                return norm(eps=part.eps)
            case Drop():
                return layers.Dropout(part.rate)
            case Activate():
                return activation(part.function)
            case Pick():
                return layers.Select(part.index)
            case Flat():
                return layers.Flatten()
            case _:
                raise AssertionError(part)

    def require_once(self, node: PartNode) -> None:
        """Raise where weights would be written into two branches, as if they were two."""
        if id(node) in self.written:
            raise refusal(
                "Weights stand in both branches that are combined",
                node.where,
                "give each branch its own weights",
            )
        self.written.add(id(node))

    def bias(self, law: BiasLaw | None, below: PartNode) -> float:
        """σ_b of a layer on this node's output."""
        gone = law is None or (
            law.vanishing and self.wide[id(below)] and self.biases is Biases.LIMIT
        )
        return 0.0 if gone or law is None else float(np.sqrt(law.variance))

    def attention(self, node: PartNode, part: Attend, factor: float) -> Layer:
        below = node.inputs[0]
        shares = [
            self.bias(law.bias, below) / (law.weights.std or 1.0)
            for law in (part.query, part.key, part.value)
        ]
        if abs(shares[0] - shares[1]) > 1e-9:
            raise refusal(
                f"Biases of queries are {shares[0]:.4g} of their weights, of keys {shares[1]:.4g}: "
                "they are not alike",
                node.where,
                "draw them alike",
            )
        projections = None
        if any(shares):
            projections = layers.Projections(qk_b_std=shares[0], v_b_std=shares[2])
        return layers.Attention(
            part.width,
            heads=part.heads,
            qk_std=part.sharpness * part.query.weights.std * part.key.weights.std,
            ov_std=abs(factor) * part.value.weights.std * part.out.weights.std,
            # What comes out of the heads is wide, even where attention is on raw inputs.
            b_std=abs(factor) * self.bias(part.out.bias, node),
            positions=part.rotary,
            pattern=_pattern(part.allowed),
            projections=projections,
            key_width=part.key_width,
            value_width=part.value_width,
            kv_heads=None if part.kv_heads == part.heads else part.kv_heads,
        )

    def pool(self, node: PartNode, part: Pool, factor: float) -> Layer:
        """A mean or a sum."""
        factor = factor * part.factor
        size = node.inputs[0].count if part.window is None else int(np.prod(part.window))
        window = part.window
        if abs(factor * size - 1) < 1e-6:
            return layers.MeanPool(window, stride=part.stride)
        if abs(factor - 1) < 1e-6:
            return layers.SumPool(window, stride=part.stride)
        raise refusal(
            f"A pool is {factor:.4g} times a sum over {size} positions, neither mean nor sum",
            node.where,
            "take the mean",
        )

    # ---- first layers --------------------------------------------------------------------------

    def warn_of_first_laws(self) -> None:
        """Weights of another law on raw inputs, with a nonlinearity above them.

        A sum over many channels is Gaussian whatever the weights' law; one over three inputs is
        not. Where only second moments count (attention, normalisation, further weights) that makes
        no difference.
        """
        odd: set[int] = set()
        for node in self.nodes:
            part, inputs = node.part, node.inputs
            if isinstance(part, Linear | Convolution):
                if not self.wide[id(inputs[0])] and not part.law.weights.gaussian:
                    odd.add(id(node))
            elif isinstance(part, Lookup):
                if not part.gaussian:
                    odd.add(id(node))
            elif not isinstance(part, Attend) and any(id(each) in odd for each in inputs):
                odd.add(id(node))
                if isinstance(part, Activate | Multiply):
                    warnings.warn(
                        LiftWarning(
                            f"Weights on raw inputs are not Gaussian (uniform, or truncated), and "
                            f"{node.where} acts on what they make. The lifted network has "
                            "Gaussian ones of the same variance; wl.trace(make, x) keeps the law "
                            "of JAX models."
                        ),
                        stacklevel=2,
                    )
                    return


def _plain(branch: Serial) -> Layer:
    return branch.layers[0] if len(branch.layers) == 1 else branch


def _pattern(allowed: np.ndarray | None) -> layers.Pattern | None:
    if allowed is None or allowed.all():
        return None
    if np.array_equal(allowed, np.tril(np.ones_like(allowed))):
        return layers.Causal()
    return layers.Allowed(allowed)
