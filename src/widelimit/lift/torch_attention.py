"""Self-attention in a region: roles of channels, heads, masks and rotations, found by probing.

Scores of a head depend on some channels at the query's position, its queries, and on some at the
key's position, its keys; gradients tell which. What is left are values. Then the whole region is
compared with attention of these channels on random numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch  # pyright: ignore[reportMissingImports]

from ..layers import Rotary
from .parts import Affine, Attend, PartNode
from .torch_export import refusal
from .torch_laws import DrawnPart, DrawnWeights
from .torch_regions import Region, Scores, run
from .torch_values import BATCH, Aligner, Rows

_FAR = -1e4  # scores below this are masked
_CLOSE = {"rtol": 2e-3, "atol": 2e-4}


@dataclass(frozen=True, eq=False)
class Channels:
    """Channels of one part's output, by their numbers."""

    node: PartNode
    numbers: np.ndarray

    def of(self, outputs: dict[int, Any]) -> Any:
        """Their values (batch, positions, channels)."""
        return outputs[id(self.node)][..., torch.as_tensor(self.numbers)]


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
    rows: Any
    where: str

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

        return DrawnPart(tuple(roles), make)

    def to(self, node: PartNode, channels: int) -> Any:
        """The tensor of a node's output at these positions."""
        return Rows(self.below, self.rows).to(node, channels)


def _weights(roles: list[Channels]) -> DrawnWeights:
    """The weights that make these channels, all of one part."""
    part = roles[0].node.part
    assert isinstance(part, DrawnPart)
    numbers = np.unique(np.concatenate([each.numbers for each in roles]))
    return part.arrays[0].part(numbers)


def attention(region: Region, aligner: Aligner, where: str) -> Heads:
    """The attention that a region is; refused where it is none."""
    return _Probe(region, aligner, where).read()


class _Probe:
    def __init__(self, region: Region, aligner: Aligner, where: str):
        self.region, self.aligner, self.where = region, aligner, where
        self.nodes = region.nodes
        self.generator = torch.Generator().manual_seed(1)

    def refuse(self, failed: str, remedy: str = "") -> Exception:
        return refusal(failed, f"{self.region.where}, before {self.where}", remedy)

    def drawn(self, *, grad: bool = False) -> dict[int, Any]:
        """Random outputs of the parts."""
        return {
            id(node): torch.randn(
                (BATCH, node.count, node.channels), generator=self.generator
            ).requires_grad_(grad)
            for node in self.nodes
        }

    def scores(self, outputs: dict[int, Any]) -> tuple[Any, Any]:
        """Scores (batch, heads, query, key), and the region's tensor."""
        found = Scores()
        try:
            tensor = run(self.region, outputs, self.aligner, found)
        except (RuntimeError, NotImplementedError) as error:
            message = str(error).splitlines()[0]
            raise self.refuse(
                f"A step could not be read: {message}", "model.eval()" if "drop" in message else ""
            ) from error
        if len(found.found) != 1:
            raise self.refuse(
                f"Several arrays are combined with {len(found.found)} softmaxes: no known part"
            )
        scores, axis = found.found[0]
        size = self.nodes[0].count
        if axis % scores.ndim != scores.ndim - 1 or scores.shape[-2:] != (size, size):
            raise self.refuse(
                f"Scores of shape {tuple(scores.shape)} are not of {size} queries and keys each"
            )
        return scores.reshape(BATCH, -1, size, size), tensor

    def read(self) -> Heads:
        below = {id(node.inputs[0]) for node in self.nodes if isinstance(node.part, DrawnPart)}
        plain = all(isinstance(n.part, DrawnPart) and len(n.part.arrays) == 1 for n in self.nodes)
        if not plain or len(below) != 1:
            raise self.refuse(
                "Several arrays are combined that are not queries, keys and values of one array",
                "describe cross-attention with wl.CrossAttention",
            )
        size = self.nodes[0].count
        if size < 2:
            raise self.refuse("Attention is over one position", "pass x of two positions or more")
        queries, keys = self.roles()
        bias, sharpness, rotary = self.form(queries, keys)
        allowed = self.pattern(bias)
        value, rows, kv_heads, width = self.values(queries, keys)
        return Heads(
            self.nodes[0].inputs[0], queries, keys, value, kv_heads, width,
            allowed, sharpness, rotary, rows, self.where,
        )  # fmt: skip

    def roles(self) -> tuple[list[Channels], list[Channels]]:
        """Channels of queries and keys, head by head."""
        outputs = self.drawn(grad=True)
        scores, _ = self.scores(outputs)
        last = scores.shape[-1] - 1
        queries, keys = [], []
        for head in range(scores.shape[1]):
            one = scores[0, head, last, 0]
            leaves = list(outputs.values())
            slopes = torch.autograd.grad(one, leaves, retain_graph=True, allow_unused=True)
            for role, place in ((queries, last), (keys, 0)):
                hit = [
                    (node, np.flatnonzero(slope[0, place].abs().numpy() > 1e-9))
                    for node, slope in zip(self.nodes, slopes, strict=True)
                    if slope is not None
                ]
                hit = [(node, numbers) for node, numbers in hit if len(numbers)]
                if len(hit) != 1:
                    raise self.refuse("Queries or keys of a head are made by several weights")
                role.append(Channels(*hit[0]))
        widths = {len(c.numbers) for c in (*queries, *keys)}
        if len(widths) != 1:
            raise self.refuse(f"Heads have queries and keys of different widths {sorted(widths)}")
        return queries, keys

    def form(self, queries: list[Channels], keys: list[Channels]) -> tuple[Any, float, Any]:
        """What is added to scores, and their products: plain, or turned by positions."""
        zero = {key: torch.zeros_like(drawn) for key, drawn in self.drawn().items()}
        with torch.no_grad():
            bias, _ = self.scores(zero)
            outputs = self.drawn()
            scores, _ = self.scores(outputs)
            free = bias > _FAR
            q = torch.stack([c.of(outputs) for c in queries], 1)
            k = torch.stack([c.of(outputs) for c in keys], 1)
            width = q.shape[-1]
            product = q @ k.transpose(-1, -2)
            added = torch.where(free, scores - bias, torch.zeros(()))
            diagonal = torch.diagonal(free, dim1=-2, dim2=-1)
            own = torch.diagonal(product, dim1=-2, dim2=-1)
            said = torch.diagonal(added, dim1=-2, dim2=-1)
            scale = float((said * own)[diagonal].sum() / (own**2)[diagonal].sum())
            plain = torch.where(free, product * scale, torch.zeros(()))
            if torch.allclose(added, plain, **_CLOSE):
                return bias, _sharpness(scale, width), None
            rotary = self.rotation(queries, keys, zero, bias, scale)
            if rotary is None:
                raise self.refuse(
                    "Scores are not products of queries and keys, plain or with rotary positions",
                )
            encoding, angles, kind = rotary
            turned = _turned(q, k, torch.as_tensor(angles), kind) * scale
            if not torch.allclose(added, torch.where(free, turned, torch.zeros(())), **_CLOSE):
                raise self.refuse("Queries and keys are turned in a way that is not Rotary's")
            return bias, _sharpness(scale, width), encoding

    def rotation(
        self, queries: list[Channels], keys: list[Channels], zero: Any, bias: Any, scale: float
    ) -> tuple[Rotary, np.ndarray, str] | None:
        """θ of the pairs of channels, where they are base^(−k/pairs)."""
        width = len(queries[0].numbers)
        pairs = width // 2
        for kind in ("halves", "neighbours"):
            first, second = _paired(width, kind)
            theta = np.zeros(pairs)
            for pair in range(pairs):
                turned = []
                for partner in (first[pair], second[pair]):
                    outputs = {key: x.clone() for key, x in zero.items()}
                    for role, channel in ((queries, first[pair]), (keys, partner)):
                        for each in role[:1]:
                            outputs[id(each.node)][..., each.numbers[channel]] = 1.0
                    scores, _ = self.scores(outputs)
                    turned.append(float(scores[0, 0, 1, 0] - bias[0, 0, 1, 0]) / scale)
                theta[pair] = abs(np.arctan2(turned[1], turned[0]))
            if pairs < 2 or abs(theta[0] - 1) > 1e-3 or theta[1] <= 0:
                continue
            base = float(theta[1] ** -pairs)
            base = float(f"{base:.2g}") if abs(base / float(f"{base:.2g}") - 1) < 0.02 else base
            expected = base ** (-np.arange(pairs) / pairs)
            if np.allclose(theta, expected, rtol=1e-2, atol=1e-5):
                return Rotary(base, pairs=pairs), expected, kind
        return None

    def pattern(self, bias: Any) -> np.ndarray | None:
        """Which keys a query sees; nothing else is added to scores."""
        free = bias > _FAR
        if not (free == free[:1, :1]).all():
            raise self.refuse("Heads or examples have masks of their own")
        if (bias[free].abs() > 1e-6).any():
            raise self.refuse(
                "A constant that is not a mask is added to scores (relative positions, ALiBi)",
                "describe it with wl.Attention(positions=wl.Alibi(…))",
            )
        found = free[0, 0].numpy()
        return None if found.all() else found

    def values(
        self, queries: list[Channels], keys: list[Channels]
    ) -> tuple[Channels, Any, int, int]:
        """Channels of values, the rows of the result, groups of heads, and values of a head."""
        used = {(id(c.node), int(n)) for c in (*queries, *keys) for n in c.numbers}
        rest = [
            Channels(node, np.array([n for n in range(node.channels) if (id(node), n) not in used]))
            for node in self.nodes
        ]
        rest = [each for each in rest if len(each.numbers)]
        if len(rest) != 1:
            raise self.refuse("Values are made by several weights, or are queries and keys too")
        (value,) = rest
        size, heads = self.nodes[0].count, len(queries)
        with torch.no_grad():
            outputs = self.drawn()
            scores, tensor = self.scores(outputs)
            weights = torch.softmax(scores, dim=-1)
            mixed = torch.einsum("bhts,bsc->bhct", weights, value.of(outputs))
        flat = tensor.reshape(-1, tensor.shape[-1])
        if flat.shape[0] != BATCH * size:
            raise self.refuse(f"Heads give an array of shape {tuple(tensor.shape)}")
        counts = torch.arange(BATCH * size).reshape(BATCH, size)
        for rows in (counts, counts.T):
            found = flat[torch.argsort(rows.reshape(-1))].reshape(BATCH, size, -1)
            owner = _owners(found, mixed)
            if owner is None:
                continue
            groups = np.unique(owner[:, 1], return_counts=True)[1]
            per_head = np.unique(owner[:, 0], return_counts=True)[1]
            even = len(set(groups)) == 1 and len(set(per_head)) == 1 and len(per_head) == heads
            whole = len(groups) == len(value.numbers)
            if even and whole:
                kv_heads = heads // int(groups[0])
                shaped = rows.reshape(-1).reshape(tensor.shape[:-1])
                return value, shaped, kv_heads, int(per_head[0])
        raise self.refuse(
            "Softmaxes of scores do not simply weigh the values",
            "model.eval(), or write the attention in layers",
        )


def _sharpness(scale: float, width: int) -> float:
    """The factor of scores beside 1/√d, in the digits that single precision shows."""
    return float(f"{scale * width**0.5:.5g}")


def _owners(found: Any, mixed: Any) -> np.ndarray | None:
    """For each column the head and the value's channel whose mean it is; None if it is none."""
    generator = torch.Generator().manual_seed(2)
    mark = torch.randn(found.shape[:2], generator=generator)
    wanted = torch.einsum("btk,bt->k", found, mark)
    offered = torch.einsum("bhct,bt->hc", mixed, mark)
    distance = (wanted[:, None] - offered.reshape(-1)[None]).abs()
    best = distance.argmin(dim=1)
    columns = mixed.permute(1, 2, 0, 3).reshape(-1, *found.shape[:2])[best].permute(1, 2, 0)
    if not torch.allclose(columns, found, **_CLOSE):
        return None
    channels = mixed.shape[2]
    return np.stack([best.numpy() // channels, best.numpy() % channels], axis=1)


def _paired(width: int, kind: str) -> tuple[np.ndarray, np.ndarray]:
    half = width // 2
    if kind == "halves":
        return np.arange(half), np.arange(half) + half
    return 2 * np.arange(half), 2 * np.arange(half) + 1


def _turned(q: Any, k: Any, theta: Any, kind: str) -> Any:
    """Products of queries and keys, turned against each other by θ·(their distance)."""
    first, second = _paired(q.shape[-1], kind)
    size = q.shape[-2]
    offsets = torch.arange(size)[:, None] - torch.arange(size)[None, :]
    angles = theta[:, None, None] * offsets
    one, two = (torch.complex(x[..., first], x[..., second]) for x in (q, k))
    products = torch.einsum("bhtk,bhsk->bhkts", one, two.conj())
    turn = torch.polar(torch.ones_like(angles), angles).to(products.dtype)
    return (products * turn).real.sum(dim=-3)
