"""Random networks: every layer, every option, every way to compose them."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from parts import Part

import widelimit as wl
from widelimit.layers.attention.positional import Combine, Profile

WIDTHS = (4, 6)


@dataclass(frozen=True)
class Shape:
    """What the generator knows about the output so far."""

    grid: tuple[int, ...]
    channels: int
    gaussian: bool = False
    depth: int = 0


class Drawer:
    """One random network."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng
        self.more = rng.spawn(1)[0]  # leaves the draws of `rng` as they are
        self.sampled = False  # at most one layer of drawn scores: its errors stay readable
        self.costly = 0  # attention by pairs of scores is slow in the reference

    # --- small choices ---------------------------------------------------------------------------

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def one(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def number(self, low: float, high: float) -> float:
        return float(np.round(self.rng.uniform(low, high), 3))

    # --- layers ----------------------------------------------------------------------------------

    def _weights(self) -> dict[str, Any]:
        return {
            "w_std": self.number(0.7, 1.5),
            "b_std": self.number(0.1, 0.8) if self.chance(0.5) else 0.0,
            "parameterization": "standard" if self.chance(0.25) else "ntk",
            "by_name": self.chance(0.3),
        }

    def dense(self, shape: Shape, width: int | None = None) -> tuple[Part, Shape]:
        width = width or self.one(*WIDTHS)
        part = Part("dense", {"width": width, **self._weights()})
        return part, replace(shape, channels=width, gaussian=True)

    def _window(self, shape: Shape, largest: int = 3) -> Any:
        if len(shape.grid) > 1 and self.chance(0.6):
            return tuple(int(self.rng.integers(1, largest + 1)) for _ in shape.grid)
        return int(self.rng.integers(1, largest + 1))

    def conv(
        self, shape: Shape, width: int | None = None, *, keep: bool = False
    ) -> tuple[Part, Shape]:
        padding = self.one("same", "same", "same", "valid", "circular")
        options = {
            "window": self._window(shape),
            "stride": 1,
            "padding": "same" if keep else padding,
            "width": width or self.one(*WIDTHS),
        }
        if not keep and self.chance(0.4):
            options["stride"] = self._window(shape, 2)
        part = Part("conv", {**options, **self._weights()})
        return part, replace(_moved(shape, part), channels=part["width"], gaussian=True)

    def activation(self, shape: Shape) -> tuple[Part, Shape]:
        names = [*_ACTIVATIONS]
        part = Part("activation", _ACTIVATIONS[names[self.rng.integers(len(names))]](self))
        after = replace(shape, gaussian=False)
        if shape.gaussian or self.chance(0.03):
            return part, after
        before, _ = self.dense(shape)
        return Part("serial", {}, (before, part)), replace(after, channels=before["width"])

    def layer_norm(self, shape: Shape) -> tuple[Part, Shape]:
        return Part("layer_norm", {"eps": self.one(1e-6, 1e-3)}), shape

    def dropout(self, shape: Shape) -> tuple[Part, Shape]:
        return Part("dropout", {"rate": self.number(0.1, 0.5)}), replace(shape, gaussian=False)

    def window_pool(self, shape: Shape) -> tuple[Part, Shape]:
        options = {
            "window": self._window(shape),
            "stride": self._window(shape, 2) if self.chance(0.7) else None,
            "padding": self.one("same", "valid"),
        }
        part = Part(self.one("mean_pool", "sum_pool"), options)
        return part, _moved(shape, part)

    # --- attention -------------------------------------------------------------------------------

    def _encoding(self, shape: Shape) -> dict[str, Any] | None:
        if not self.chance(0.4):
            return None
        combine = self.one(*Combine)
        return {
            "rate": self.number(0.1, 1.5),
            "strength": self.number(0.3, 0.9),
            "profile": self.one(*Profile),
            "combine": combine,
            "channels": self.one(None, 3) if combine is Combine.CONCAT else None,
            "on_values": self.chance(0.5),
        }

    def _score_map(self) -> dict[str, Any]:
        return self.one(
            {"name": "identity"},
            {"name": "Relu"},
            {"name": "Abs"},
            {"name": "LeakyRelu", "given": {"slope": 0.2}},
            {"name": "Erf"},
            {"name": "Exp", "given": {"rate": 0.3}},
            {"name": "Tanh"},
        )

    def _strengths(self, width: int) -> dict[str, Any]:
        return {
            "width": width,
            "qk_std": self.number(0.5, 1.4),
            "ov_std": self.number(0.7, 1.4),
            "b_std": self.number(0.1, 0.6) if self.chance(0.4) else 0.0,
        }

    def _projections(self) -> dict[str, Any]:
        """Biases of queries, keys and values, and queries and keys that are normalised."""
        options: dict[str, Any] = {}
        for name in ("qk_b_std", "v_b_std"):
            if self.more.random() < 0.3:
                options[name] = round(float(self.more.uniform(0.3, 1.2)), 3)
        return options | ({"qk_norm": True} if self.more.random() < 0.2 else {})

    def _dropout(self) -> float:
        return round(float(self.more.uniform(0.1, 0.5)), 3) if self.more.random() < 0.2 else 0.0

    def noise(self, shape: Shape) -> tuple[list[Part], Shape]:
        """Layers that make an example's own covariance that of one pass."""
        parts = []
        if self.chance(0.5):
            part, shape = self.plain(shape)
            parts.append(part)
        if self.chance(0.7):
            part, shape = self.dropout(shape)
        else:
            part, shape = self.attention(shape, scores="known")
            part = part.to(dropout=self.number(0.2, 0.5))
        return [*parts, part], shape

    def attention(
        self, shape: Shape, width: int | None = None, *, scores: str | None = None
    ) -> tuple[Part, Shape]:
        """`scores` are "known" or "drawn" where it is not for chance to say."""
        width = width or self.one(*WIDTHS)
        linear = self.chance(0.5) if scores is None else scores == "known"
        size = int(np.prod(shape.grid))
        bias = None
        if self.chance(0.3):
            bias = self.one(
                ("alibi", self.number(0.1, 0.8)),
                ("offset", None),
                ("matrix", np.round(self.rng.standard_normal((size, size)), 2)),
            )
        rotary = None
        if len(shape.grid) == 1 and self.chance(0.2):
            rotary = (self.one(10.0, 100.0), self.one(1, 2, 4))
        pattern = None
        if self.chance(0.4):
            matrix = self.rng.random((size, size)) < 0.7
            pattern = self.one(("causal", None), ("local", self.one(0, 1)), ("allowed", matrix))
        softmax = self.chance(0.5) or scores == "drawn"
        score_map = None if softmax else self._score_map()
        own = not softmax and self.chance(0.15)
        score_map = {"name": "squares"} if own else score_map
        drawn = not linear and (softmax or own or bias is not None or rotary is not None)
        if drawn and scores is None and (self.sampled or self.chance(0.6)):
            linear, drawn = True, False
        if not linear and not drawn:
            self.costly += 1
            linear = self.costly > 1
        self.sampled = self.sampled or drawn
        part = Part(
            "attention",
            {
                **self._strengths(width),
                "heads": self.one(wl.INFINITE, 4) if linear else wl.INFINITE,
                "scaling": "linear" if linear else "sqrt",
                "map": score_map,
                "encoding": self._encoding(shape),
                "rotary": rotary,
                "bias": bias,
                "pattern": pattern,
                "kv_heads": self.one(None, None, 2),
                "projections": self._projections(),
                "dropout": self._dropout(),
            },
        )
        return part, replace(shape, channels=width, gaussian=True)

    def queried(self, kind: str, shape: Shape) -> tuple[Part, Shape]:
        """Queries from elsewhere: a read-out token, or another stream."""
        width = self.one(*WIDTHS)
        softmax = not self.sampled and self.chance(0.4)
        self.sampled = self.sampled or softmax
        options = {
            **self._strengths(width),
            "map": None if softmax else self._score_map(),
            "encoding": self._encoding(shape),
        }
        return Part(kind, options), Shape((), width, True, shape.depth)

    # --- compositions ----------------------------------------------------------------------------

    def fresh(self, shape: Shape, width: int) -> tuple[Part, Shape]:
        """Layers that keep the positions and end in fresh weights on `width` channels."""
        parts = []
        if self.chance(0.6):
            part, shape = self.plain(shape)
            parts.append(part)
        ends = [self.dense]
        if shape.grid:
            ends += [lambda s, w: self.conv(s, w, keep=True), self.attention]
        part, shape = self.one(*ends)(shape, width)
        return Part("serial", {}, (*parts, part)), shape

    def plain(self, shape: Shape) -> tuple[Part, Shape]:
        """One layer that keeps the positions."""
        kinds = [self.activation, self.activation, self.layer_norm, self.dropout, self.dense]
        if shape.grid:
            kinds.append(lambda s: self.conv(s, keep=True))
        return self.one(*kinds)(shape)

    def residual(self, shape: Shape) -> tuple[Part, Shape]:
        weight = self.one(None, None, self.number(0.1, 0.9))
        inner, after = self.fresh(replace(shape, depth=shape.depth + 1), shape.channels)
        gaussian = shape.gaussian and after.gaussian
        return Part("residual", {"weight": weight}, (inner,)), replace(shape, gaussian=gaussian)

    def merged(self, shape: Shape) -> tuple[Part, Shape]:
        kind = self.one("sum", "product", "concat")
        inner = replace(shape, depth=shape.depth + 1)
        if len(shape.grid) == 1 and self.chance(0.4):
            branches = self._uneven(inner, kind)
        else:
            width = self.one(*WIDTHS)
            branches = [self.fresh(inner, width) for _ in range(self.one(2, 2, 3))]
            if self.chance(0.15):  # channels side by side inside of branches
                branches = [self._halves(inner, width) for _ in range(2)]
            if kind != "sum" and self.chance(0.5):
                part, after = branches[0]
                act, after = self.activation(after)
                branches[0] = Part("serial", {}, (part, act)), after
        channels = [after.channels for _, after in branches]
        return Part(kind, {}, tuple(part for part, _ in branches)), replace(
            branches[0][1],
            channels=sum(channels) if kind == "concat" else channels[0],
            gaussian=kind == "sum" and all(after.gaussian for _, after in branches),
            depth=shape.depth,
        )

    def _halves(self, shape: Shape, width: int) -> tuple[Part, Shape]:
        """Two halves of the channels, each with weights of its own."""
        halves = [self.fresh(shape, width // 2) for _ in range(2)]
        after = replace(halves[0][1], channels=width, gaussian=False)
        return Part("concat", {}, tuple(part for part, _ in halves)), after

    def _uneven(self, shape: Shape, kind: str) -> list[tuple[Part, Shape]]:
        """Branches that treat the edges differently: valid windows beside strided ones."""
        width = self.one(*WIDTHS)
        common = {"width": width, "window": self.one(2, 3)}
        size = shape.grid[0]
        options = [
            {**common, "stride": 1, "padding": "valid"},
            {**common, "stride": 2, "padding": "same"},
            {**common, "stride": 1, "padding": "same"},
            {**common, "stride": 2, "padding": "valid"},
        ]
        parts = [Part("conv", {**o, **self._weights()}) for o in options if size >= o["window"]]
        after = {i: _moved(shape, part).grid for i, part in enumerate(parts)}
        couples = [(i, j) for i in after for j in after if i < j and after[i] == after[j]]
        if not couples:
            return [self.fresh(shape, width) for _ in range(2)]
        couple = list(couples[self.rng.integers(len(couples))])
        self.rng.shuffle(couple)
        made = [
            (parts[i], replace(_moved(shape, parts[i]), channels=width, gaussian=True))
            for i in couple
        ]
        if kind != "sum" and self.chance(0.5):
            part, grown = made[0]
            act, grown = self.activation(grown)
            made[0] = Part("serial", {}, (part, act)), grown
        return made

    def repeat(self, shape: Shape) -> tuple[Part, Shape]:
        """The same block again; from six on the library loops."""
        times = self.one(2, 2, 7)
        conv = shape.grid and self.chance(0.4)
        weights = self.conv(shape, shape.channels, keep=True) if conv else None
        weights, after = weights or self.dense(shape, shape.channels)
        act, after = self.activation(after)
        if times > 2:  # deep ones explode with polynomials
            weights = weights.to(w_std=1.1, parameterization="ntk")
            act = Part("activation", {"name": self.one("Relu", "Tanh", "Erf", "Abs")})
        return Part("repeat", {"times": times}, (Part("serial", {}, (weights, act)),)), after

    def layers(self, shape: Shape, count: int) -> tuple[list[Part], Shape]:
        """Layers or blocks, one after the other."""
        parts = []
        for _ in range(count):
            kinds = [self.dense, self.activation, self.activation, self.layer_norm, self.dropout]
            kinds += [self.residual, self.merged, self.repeat]
            if shape.grid:
                kinds += [self.conv, self.conv, self.window_pool, self.attention, self.attention]
            part, shape = self.one(*kinds)(shape)
            parts.append(part)
        return parts, shape

    def read_out(self, shape: Shape) -> list[Part]:
        """How positions end; sometimes they stay."""
        parts: list[Part] = []
        if shape.grid and self.chance(0.7):
            whole = {"window": None, "stride": None, "padding": "valid"}
            rank = len(shape.grid)
            first = self.one(0, -1, 1) if rank == 1 else (0,) * rank
            part = self.one(
                Part("mean_pool", whole),
                Part("sum_pool", whole),
                Part("select", {"index": first}),
                Part("flatten"),
                None,
            )
            if part is None:
                part, _ = self.queried("attention_pool", shape)
            shape = replace(shape, grid=())
            parts.append(part)
        if self.chance(0.5):
            parts.append(self.dense(shape)[0])
        return parts


def _moved(shape: Shape, part: Part) -> Shape:
    """The grid after windows (at least 1: what does not fit is the library's to refuse)."""
    rank = len(shape.grid)
    window, stride = (
        (v,) * rank if isinstance(v, int) else v
        for v in (part["window"], part["window"] if part["stride"] is None else part["stride"])
    )
    if part["padding"] == "valid":
        grid = ((n - w) // s + 1 for n, w, s in zip(shape.grid, window, stride, strict=True))
    else:
        grid = (-(-n // s) for n, s in zip(shape.grid, stride, strict=True))
    return replace(shape, grid=tuple(max(1, n) for n in grid))


_ACTIVATIONS: dict[str, Any] = {
    name: (lambda d, name=name: {"name": name})
    for name in ("Relu", "Abs", "Sign", "Gelu", "Tanh", "Sigmoid", "Silu", "Softplus")
} | {
    "LeakyRelu": lambda d: {"name": "LeakyRelu", "given": {"slope": d.number(0.05, 0.5)}},
    "ABRelu": lambda d: {
        "name": "ABRelu",
        "given": {"negative": d.number(-1, 1), "positive": d.number(0.3, 1.3)},
    },
    "Erf": lambda d: {
        "name": "Erf",
        "given": {"scale": 1.2, "rate": d.number(0.4, 1.2), "shift": d.one(0.0, 0.3)},
    },
    "Sin": lambda d: {"name": "Sin", "given": {"rate": 0.8, "phase": d.one(0.0, 0.4)}},
    "Cos": lambda d: {"name": "Cos", "given": {"scale": 1.1, "rate": d.number(0.4, 1.0)}},
    "Exp": lambda d: {"name": "Exp", "given": {"rate": d.number(0.1, 0.4)}},
    "Gaussian": lambda d: {"name": "Gaussian", "given": {"rate": d.number(0.2, 0.8)}},
    "Monomial": lambda d: {"name": "Monomial", "given": {"degree": d.one(1, 2, 3)}},
    "Polynomial": lambda d: {
        "name": "Polynomial",
        "given": {"coefficients": [d.number(-0.5, 0.5), 1.0, d.number(-0.3, 0.3), 0.05]},
    },
    "Hermite": lambda d: {"name": "Hermite", "given": {"degree": d.one(1, 2, 3)}},
    "Elementwise": lambda d: {
        "name": "Elementwise",
        "given": {"function": d.one("arctan", "bump", "bent")},
    },
}  # fmt: skip
