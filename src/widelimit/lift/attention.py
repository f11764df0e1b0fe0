"""Self-attention in what was computed: roles of channels, heads, masks, rotations, by probing.

Scores of a head depend on some channels at the query's position, its queries, and on some at the
key's position, its keys; gradients tell which. What is left are values. Then all steps together are
compared with attention of these channels on random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..layers import Rotary
from .parts import Affine, Attend, DrawnPart, DrawnWeights, PartNode, Source
from .probes import evaluate, nodes_of, softmaxes_of
from .values import Aligner, Computed, Library, refusal

_FAR = -1e4  # scores below this are masked


def _close(one: np.ndarray, two: np.ndarray) -> bool:
    return np.allclose(one, two, rtol=2e-3, atol=2e-4)


@dataclass(frozen=True, eq=False)
class Channels:
    """Channels of one part's output, by their numbers."""

    node: PartNode
    numbers: np.ndarray

    def of(self, outputs: dict[int, np.ndarray]) -> np.ndarray:
        """Their values (batch, positions, channels)."""
        return outputs[id(self.node)][..., self.numbers]


@dataclass(frozen=True, eq=False)
class Heads:
    """What attention gives before its last weights: heads side by side."""

    below: PartNode
    query: list[Channels]
    key: list[Channels]
    value: Channels
    kv_heads: int
    value_width: int
    allowed: np.ndarray | None
    sharpness: float
    rotary: Rotary | None
    rows: np.ndarray
    """Batch times positions, for every row of what it gives."""

    def part(self, out: DrawnWeights) -> DrawnPart:
        """Attention with these last weights."""
        roles = [_weights(self.query), _weights(self.key), _weights([self.value]), out]

        def make(laws: Sequence[Affine]) -> Attend:
            return Attend(
                *laws,
                width=out.weights.shape[1],
                heads=len(self.query),
                kv_heads=self.kv_heads,
                key_width=len(self.query[0].numbers),
                value_width=self.value_width,
                allowed=self.allowed,
                sharpness=self.sharpness,
                rotary=self.rotary,
            )

        return DrawnPart(tuple(roles), make, biased=True)


def _weights(roles: list[Channels]) -> DrawnWeights:
    """The weights that make these channels."""
    node = roles[0].node
    assert isinstance(node.part, DrawnPart)
    return node.part.arrays[0].part(np.unique(np.concatenate([each.numbers for each in roles])))


def attention(value: Computed, aligner: Aligner, library: Library, where: str) -> Heads:
    """The attention that an array is, whose last axis weights act on; refused where it is none."""
    return _Probe(value, aligner, library, where).read()


class _Probe:
    def __init__(self, value: Computed, aligner: Aligner, library: Library, where: str):
        self.value, self.aligner, self.library, self.where = value, aligner, library, where
        self.nodes, self.softmaxes = nodes_of(value), softmaxes_of(value)
        self.size, self.batch = self.nodes[0].count, aligner.layout.batch
        self.random = np.random.default_rng(1)

    def refuse(self, failed: str, remedy: str) -> Exception:
        return refusal(failed, f"{self.softmaxes[0].where}, before {self.where}", remedy)

    def drawn(self, scale: float = 1.0) -> dict[int, np.ndarray]:
        """Random outputs of the parts, in the digits of single precision."""
        shapes = {id(node): self.aligner.size(node) for node in self.nodes}
        return {
            key: np.float32(scale * self.random.standard_normal(shape)).astype(float)
            for key, shape in shapes.items()
        }

    def scores(self, outputs: dict[int, np.ndarray], *, tensor: bool = False) -> Any:
        """Scores (batch, heads, query, key), and the array itself if asked for."""
        targets = [softmax.inputs[0] for softmax in self.softmaxes]
        given = {key: self.library.array(numbers) for key, numbers in outputs.items()}
        try:
            found = evaluate([*targets, *[self.value] * tensor], given, self.aligner)
        except (RuntimeError, NotImplementedError) as error:
            message = str(error).splitlines()[0]
            raise self.refuse(
                f"A step could not be read: {message}",
                "model.eval(), or write this part in layers: wl.Attention(…)",
            ) from error
        arrays = [self.library.numbers(each) for each in found]
        shape = (self.batch, -1, self.size, self.size)
        scores = np.concatenate([each.reshape(shape) for each in arrays[: len(targets)]], axis=1)
        return (scores, arrays[-1]) if tensor else scores

    def read(self) -> Heads:
        if any(isinstance(node.part, Source) for node in self.nodes):
            raise self.refuse(
                "Scores, or their mask, are computed from the input itself",
                "leave padding to the kernel: net.kernel(x, mask=…)",
            )
        below = {id(node.inputs[0]) for node in self.nodes if isinstance(node.part, DrawnPart)}
        plain = all(isinstance(n.part, DrawnPart) and len(n.part.arrays) == 1 for n in self.nodes)
        shapes = {tuple(softmax.shape[-2:]) for softmax in self.softmaxes}
        if not plain or len(below) != 1 or shapes != {(self.size, self.size)}:
            raise self.refuse(
                "Different arrays are combined by a softmax, or parts of them, that are not the "
                "queries, keys and values of all positions of one array",
                "describe cross-attention with wl.CrossAttention",
            )
        if self.size < 2:
            raise self.refuse("Attention is over one position", "pass x of two positions or more")
        zero = {key: 0 * drawn for key, drawn in self.drawn().items()}
        bias = self.scores(zero)
        allowed = self.pattern(bias)
        queries, keys = self.roles(allowed)
        sharpness, rotary = self.form(queries, keys, zero, bias)
        value, rows, kv_heads, width = self.values(queries, keys)
        return Heads(
            self.nodes[0].inputs[0], queries, keys, value, kv_heads, width,
            None if allowed.all() else allowed, sharpness, rotary, rows,
        )  # fmt: skip

    def pattern(self, bias: np.ndarray) -> np.ndarray:
        """Which keys a query sees; nothing else is added to scores."""
        free = bias > _FAR
        if not (free == free[:1, :1]).all():
            raise self.refuse(
                "Heads or examples have masks of their own", "give all heads the same mask"
            )
        if (np.abs(bias[free]) > 1e-6).any():
            raise self.refuse(
                "A constant that is not a mask is added to scores (relative positions, ALiBi)",
                "describe it with wl.Attention(positions=wl.Alibi(…))",
            )
        return free[0, 0]

    def roles(self, allowed: np.ndarray) -> tuple[list[Channels], list[Channels]]:
        """Channels of queries and keys, head by head."""
        pairs = np.argwhere(allowed & ~np.eye(self.size, dtype=bool))
        if not len(pairs):
            raise self.refuse(
                "Every position attends to itself alone", "let positions see each other"
            )
        query, key = pairs[-1]
        outputs = self.drawn()
        ids = list(outputs)

        def of(softmax: Computed) -> list[list[np.ndarray]]:
            def function(arrays: list[Any]) -> Any:
                outputs = dict(zip(ids, arrays, strict=True))
                (found,) = evaluate(softmax.inputs, outputs, self.aligner)
                return found.reshape(self.batch, -1, self.size, self.size)[0, :, query, key]

            return self.library.slopes(function, [self.library.array(outputs[i]) for i in ids])

        queries, keys = [], []
        for slopes in (head for softmax in self.softmaxes for head in of(softmax)):
            for role, place in ((queries, query), (keys, key)):
                hit = [
                    Channels(node, np.flatnonzero(np.abs(slope[0, place]) > 1e-9))
                    for node, slope in zip(self.nodes, slopes, strict=True)
                ]
                hit = [each for each in hit if len(each.numbers)]
                if len(hit) != 1 or hit[0].node is not (role or hit)[0].node:
                    raise self.refuse(
                        "Queries or keys are made by several weights, or by none",
                        "make queries of one matrix, and keys of one",
                    )
                role.append(hit[0])
        widths = {len(c.numbers) for c in (*queries, *keys)}
        if len(widths) != 1:
            raise self.refuse(
                f"Heads have queries and keys of different widths {sorted(widths)}",
                "give all heads one width",
            )
        return queries, keys

    def form(
        self,
        queries: list[Channels],
        keys: list[Channels],
        zero: dict[int, np.ndarray],
        bias: np.ndarray,
    ) -> tuple[float, Rotary | None]:
        """Whether scores are products of queries and keys, plain or turned by positions."""
        outputs = self.drawn()
        free = bias > _FAR
        q, k = (np.stack([c.of(outputs) for c in each], 1) for each in (queries, keys))
        product = q @ np.swapaxes(k, -1, -2)
        added = np.where(free, self.scores(outputs), 0.0) - np.where(free, bias, 0.0)
        own = np.where(free, product, 0.0)
        own, said = (np.diagonal(each, axis1=-2, axis2=-1) for each in (own, added))
        scale = float((said * own).sum() / (own**2).sum())
        # In the digits that single precision shows.
        sharpness = float(f"{scale * q.shape[-1] ** 0.5:.5g}")
        if _close(added, np.where(free, product * scale, 0.0)):
            return sharpness, None
        for kind in (_halves, _neighbours):
            found = self.rotation(queries, keys, zero, bias, scale, kind)
            if found is None:
                continue
            rotary, theta = found
            turned = _turned(q, k, theta, kind) * scale
            if _close(added, np.where(free, turned, 0.0)):
                return sharpness, rotary
        raise self.refuse(
            "Scores are not products of queries and keys, plain or with rotary positions on all "
            "channels whose angles are base^(−k/pairs)",
            "turn all channels of a head by such angles (rotary_emb_dim=dim_head), or write the "
            "attention in layers with wl.Attention(positions=wl.Rotary(…))",
        )

    def rotation(
        self,
        queries: list[Channels],
        keys: list[Channels],
        zero: dict[int, np.ndarray],
        bias: np.ndarray,
        scale: float,
        kind: Any,
    ) -> tuple[Rotary, np.ndarray] | None:
        """θ of the pairs of channels, where they are base^(−k/pairs)."""
        first, second = kind(len(queries[0].numbers))
        pairs, theta = len(first), []
        for pair in range(pairs):
            turned = []
            for partner in (first[pair], second[pair]):
                outputs = {key: x.copy() for key, x in zero.items()}
                for role, channel in ((queries[0], first[pair]), (keys[0], partner)):
                    outputs[id(role.node)][..., role.numbers[channel]] = 1.0
                turned.append(float(self.scores(outputs)[0, 0, 1, 0] - bias[0, 0, 1, 0]) / scale)
            theta.append(abs(np.arctan2(turned[1], turned[0])))
        if pairs < 2 or abs(theta[0] - 1) > 1e-3 or theta[1] <= 0:
            return None
        base = float(theta[1] ** -pairs)
        base = float(f"{base:.2g}") if abs(base / float(f"{base:.2g}") - 1) < 0.02 else base
        expected = base ** (-np.arange(pairs) / pairs)
        close = np.allclose(theta, expected, rtol=1e-2, atol=1e-5)
        return (Rotary(base, pairs=pairs), expected) if close else None

    def values(
        self, queries: list[Channels], keys: list[Channels]
    ) -> tuple[Channels, np.ndarray, int, int]:
        """Channels of values, the rows of the result, groups of heads, and values of a head."""
        used = {(id(c.node), int(n)) for c in (*queries, *keys) for n in c.numbers}
        rest = [
            Channels(node, np.array([n for n in range(node.channels) if (id(node), n) not in used]))
            for node in self.nodes
        ]
        rest = [each for each in rest if len(each.numbers)]
        if len(rest) != 1:
            raise self.refuse(
                "Values are made by several weights, or are queries and keys too",
                "make values of one matrix of their own",
            )
        (value,) = rest
        heads, total = len(queries), self.batch * self.size
        outputs = self.drawn()
        scores, tensor = self.scores(outputs, tensor=True)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = np.einsum("bhts,bsc->bhct", weights, value.of(outputs))
        flat = tensor.reshape(-1, tensor.shape[-1])
        if len(flat) != total:
            raise self.refuse(
                f"Heads give an array of shape {tensor.shape}",
                "join heads along the last axis before the last weights",
            )
        counts = np.arange(total).reshape(self.batch, self.size)
        for rows in (counts, counts.T):
            found = flat[np.argsort(rows.reshape(-1))].reshape(self.batch, self.size, -1)
            owner = _owners(found, mixed)
            if owner is None:
                continue
            groups = np.unique(owner[:, 1], return_counts=True)[1]
            per_head = np.unique(owner[:, 0], return_counts=True)[1]
            even = len(set(groups)) == 1 and len(set(per_head)) == 1 and len(per_head) == heads
            if even and len(groups) == len(value.numbers):
                shaped = rows.reshape(tensor.shape[:-1])
                return value, shaped, heads // int(groups[0]), int(per_head[0])
        raise self.refuse(
            "Softmaxes of scores do not simply weigh the values",
            "model.eval(), or write the attention in layers",
        )


def _owners(found: np.ndarray, mixed: np.ndarray) -> np.ndarray | None:
    """For each column the head and the value's channel whose mean it is; None if it is none."""
    mark = np.random.default_rng(2).standard_normal(found.shape[:2])
    wanted = np.einsum("btk,bt->k", found, mark)
    offered = np.einsum("bhct,bt->hc", mixed, mark)
    best = np.abs(wanted[:, None] - offered.reshape(-1)).argmin(axis=1)
    columns = np.moveaxis(mixed, 0, 2).reshape(-1, *found.shape[:2])[best]
    if not _close(np.moveaxis(columns, 0, -1), found):
        return None
    return np.stack(np.divmod(best, mixed.shape[2]), axis=1)


def _halves(width: int) -> tuple[np.ndarray, np.ndarray]:
    first = np.arange(width // 2)
    return first, first + width // 2


def _neighbours(width: int) -> tuple[np.ndarray, np.ndarray]:
    first = 2 * np.arange(width // 2)
    return first, first + 1


def _turned(q: np.ndarray, k: np.ndarray, theta: np.ndarray, kind: Any) -> np.ndarray:
    """Products of queries and keys, turned against each other by θ·(their distance)."""
    first, second = kind(q.shape[-1])
    places = np.arange(q.shape[-2])
    angles = theta[:, None, None] * (places[:, None] - places)
    one, two = (x[..., first] + 1j * x[..., second] for x in (q, k))
    products = np.einsum("bhtk,bhsk->bhkts", one, two.conj())
    return (products * np.exp(1j * angles)).real.sum(axis=-3)
