"""Networks from layers: one after another, and one for each stream of an input."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import jax
from jaxtyping import Array, Key

from ..errors import NetworkError, ShapeError
from ..options import whole
from ..state import Example, Need, Outline, Pair
from .base import Layer, Memo, Params
from .folding import Link, folded
from .labels import Arrangement, Family, Label

# Every level takes some twenty calls inside each other, of which Python allows a thousand; JAX does
# not recover from too many.
_MOST_NESTED = 40


def _depth(layer: Layer) -> int:
    """How deep layers stand inside this one."""
    if not isinstance(layer, Composite):
        return 0
    return 1 + max((_depth(part) for part in layer.parts), default=0)


class Composite(Layer):
    """A layer made of others, its `parts`: what is known about it follows from what they say.

    A subclass says how an example (`run`, `encode`, `draw`) and a pair (`step`) go through them.
    """

    def __check_init__(self) -> None:
        if _depth(self) > _MOST_NESTED:
            raise NetworkError(
                f"Layers stand inside each other at most {_MOST_NESTED} deep.",
                got=f"{type(self).__name__} around {_MOST_NESTED} others, one inside the other",
                remedy="put layers one after another, Serial(*layers), or use Repeat(layer, times)",
            )

    @property
    @abstractmethod
    def parts(self) -> tuple[Layer, ...]:
        """The layers inside this one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.parts))})"

    @abstractmethod
    def rebuilt(self, parts: tuple[Layer, ...]) -> "Composite":
        """The same around other layers."""

    def forward(self, params: Params, x: Any, mask: Any, key: Any) -> Any:
        return self.run(params, x, mask, key)[0]

    def cross(self, pair: Any, memo1: Memo, memo2: Memo) -> Any:
        return self.step(pair, memo1, memo2, Need.FULL)

    def takes_tokens(self) -> bool:
        return any(part.takes_tokens() for part in self.parts)

    @property
    def vocabulary_size(self) -> int | None:
        sizes = [part.vocabulary_size for part in self.parts]
        return min((size for size in sizes if size is not None), default=None)

    def sampled(self) -> bool:
        return any(part.sampled() for part in self.parts)

    @property
    def noisy(self) -> bool:
        return any(part.noisy for part in self.parts)

    @property
    def cuttable(self) -> bool:
        return all(part.cuttable for part in self.parts)

    def need(self, out: Need) -> Need:
        return max(part.need(out) for part in self.parts)

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        return max(part.encode_need(out, noisy=noisy) for part in self.parts)

    def mapped(self, function: Callable[[Layer], Layer]) -> "Composite":
        return self.rebuilt(tuple(part.mapped(function) for part in self.parts))

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple[Layer, bool]:
        ends = [part.resized(new, last=last) for part in self.parts]
        return self.rebuilt(tuple(part for part, _ in ends)), any(below for _, below in ends)

    def parts_of(self, memo: Memo) -> tuple[Memo, ...]:
        """The memos of the parts."""
        return memo

    def attention_map(self, memo: Memo) -> Array | None:
        pairs = zip(self.parts, self.parts_of(memo), strict=True)
        found = (part.attention_map(own) for part, own in pairs)
        return next((weights for weights in found if weights is not None), None)

    def with_heads(self, heads: float) -> "Composite":
        return self.rebuilt(tuple(part.with_heads(heads) for part in self.parts))


class Serial(Composite):
    """Layers one after another. Without layers: the identity."""

    layers: tuple[Layer, ...]

    def __init__(self, *layers: Layer):
        """The first layer receives the input."""
        for layer in layers:
            if not isinstance(layer, Layer):
                raise NetworkError(
                    "Serial takes layers as separate arguments.",
                    got=repr(layer),
                    remedy="write Serial(Dense(64), Relu(), …); unpack a list with *",
                )
        self.layers = layers

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.layers

    def __repr__(self) -> str:
        # Equal layers in a row were repeated.
        runs = [(text, len(list(same))) for text, same in itertools.groupby(map(repr, self.parts))]
        words = [text if count == 1 else f"Repeat({text}, {count})" for text, count in runs]
        alone = len(words) == 1 and len(self.parts) > 1
        return words[0] if alone else f"Serial({', '.join(words)})"

    def rebuilt(self, parts: tuple[Layer, ...]) -> "Serial":
        return Serial(*parts)

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement.CHAIN

    @property
    def linear(self) -> bool:
        return True

    @property
    def label(self) -> Label:
        return Label("identity" if not self.layers else "Serial", "", Family.OTHER)

    def outline(self, before: Outline) -> Outline:
        for layer in self.layers:
            before = layer.outline(before)
        return before

    def need(self, out: Need) -> Need:
        for layer in reversed(self.layers):
            out = layer.need(out)
        return out

    def encode_need(self, out: Need, *, noisy: bool = False) -> Need:
        return self._encode_needs(out, noisy=noisy)[0]

    def _encode_needs(self, out: Need, *, noisy: bool) -> list[Need]:
        """What the encode phase needs before the first layer, and after each."""
        before = [noisy]
        for layer in self.layers:
            before.append(before[-1] or layer.noisy)
        needs = [out]
        for layer, noise in zip(reversed(self.layers), reversed(before[:-1]), strict=True):
            needs.append(layer.encode_need(needs[-1], noisy=noise))
        return needs[::-1]

    def _needs(self, out: Need) -> list[Need]:
        """What the cross phase needs after each layer."""
        needs = [out]
        for layer in reversed(self.layers[1:]):
            needs.append(layer.need(needs[-1]))
        return needs[::-1] if self.layers else []

    def init_params(self, key: Key[Array, ""], before: Outline) -> Params:
        params = []
        for layer, subkey in zip(self.layers, split_key(key, len(self.layers)), strict=True):
            params.append(layer.init_params(subkey, before))
            before = layer.outline(before)
        return tuple(params)

    def run(self, params: Params, x: Any, mask: Any, key: Any) -> tuple[Any, Any]:
        for layer, own, subkey in zip(
            self.layers, params, split_key(key, len(self.layers)), strict=True
        ):
            x, mask = layer.run(own, x, mask, subkey)
        return x, mask

    def checked_mask(self, mask: Any, name: str) -> Any:
        for layer in self.layers:
            mask = layer.checked_mask(mask, name)
        return mask

    def encode(self, example: Example, need: Need, anchors: Memo) -> tuple[Memo, Example]:
        def step(example: Example, tree: Any, need: Need) -> tuple[Example, Memo]:
            layer, anchor = tree
            memo, example = layer.encode(example, need, anchor)
            return example, memo

        trees = zip(self.layers, anchors or (None,) * len(self.layers), strict=True)
        needs = self._encode_needs(need, noisy=is_noisy(example))[1:]
        example, memos = folded(step, example, _chain(trees, needs))
        return tuple(memos), trimmed(example, need)

    def step(self, pair: Pair, memo1: Memo, memo2: Memo, need: Need) -> Pair:
        def step(pair: Pair, tree: Any, need: Need) -> tuple[Pair, None]:
            layer, own1, own2 = tree
            return layer.step(pair, own1, own2, need), None

        trees = zip(self.layers, memo1, memo2, strict=True)
        pair, _ = folded(step, pair, _chain(trees, self._needs(need)))
        single = isinstance(pair, Pair)
        return pair.diagonal() if single and need is Need.DIAGONAL and pair.full else pair

    def takes_tokens(self) -> bool:
        return bool(self.layers) and self.layers[0].takes_tokens()

    def streams(self) -> int:
        return self.layers[0].streams() if self.layers else 1

    def resized(self, new: Callable[[int, bool], int], *, last: bool) -> tuple[Layer, bool]:
        layers = []
        for layer in reversed(self.layers):
            layer, last = layer.resized(new, last=last)
            layers.append(layer)
        return Serial(*reversed(layers)), last

    def amplified(self, amplitude: float) -> Layer:
        if not self.layers:
            return super().amplified(amplitude)
        return Serial(*self.layers[:-1], self.layers[-1].amplified(amplitude))

    def draw(self, examples: Example, need: Need, key: Key[Array, ""], scheme: Any):
        layers, memos = [], []
        needs = self._encode_needs(need, noisy=is_noisy(examples))[1:]
        keys = split_key(key, len(self.layers))
        for layer, after, subkey in zip(self.layers, needs, keys, strict=True):
            layer, memo, examples = layer.draw(examples, after, subkey, scheme)
            layers.append(layer)
            memos.append(memo)
        return Serial(*layers), tuple(memos), jax.vmap(lambda one: trimmed(one, need))(examples)


def _chain(trees: Iterable[Any], needs: list[Need]) -> list[Link]:
    return [Link(tree, after) for tree, after in zip(trees, needs, strict=True)]


def is_noisy(example: Any) -> bool:
    """Whether entries of an example, or of a stream of it, were dropped."""
    streams = example if isinstance(example, tuple) else (example,)
    return any(stream.outline.noisy for stream in streams)


def trimmed(example: Any, need: Need) -> Any:
    """An example, or each stream of one, without what no later layer looks at."""
    if isinstance(example, tuple):
        return tuple(stream.trimmed(need) for stream in example)
    return example.trimmed(need)


def Repeat(layer: Layer, times: int) -> Serial:
    """The layer `times` times, each with its own weights."""
    return Serial(*(layer,) * whole("times", times, least=0))


class Parallel(Composite):
    """One network for each stream of an input that is a tuple of arrays."""

    networks: tuple[Layer, ...]

    def __init__(self, *networks: Layer):
        """As many networks as there are streams; `Serial()` leaves a stream as it is."""
        require_layers(networks, "Parallel")
        self.networks = networks

    @property
    def parts(self) -> tuple[Layer, ...]:
        return self.networks

    def rebuilt(self, parts: tuple[Layer, ...]) -> "Parallel":
        return Parallel(*parts)

    @property
    def arrangement(self) -> Arrangement:
        return Arrangement.STREAMS

    @property
    def linear(self) -> bool:
        return True

    @property
    def label(self) -> Label:
        count = len(self.networks)
        return Label("streams", f"{count} networks, one for each", Family.WEIGHTS)

    def streams(self) -> int:
        return len(self.networks)

    def outline(self, before: Any) -> Any:
        if not isinstance(before, tuple) or len(before) != len(self.networks):
            raise ShapeError(
                "Parallel takes one stream for each of its networks.",
                got=f"{len(before) if isinstance(before, tuple) else 1} streams",
                remedy=f"pass x as a tuple of {len(self.networks)} arrays",
            )
        return tuple(net.outline(o) for net, o in zip(self.networks, before, strict=True))

    def init_params(self, key: Key[Array, ""], before: Any) -> Params:
        keys = split_key(key, len(self.networks))
        parts = zip(self.networks, keys, before, strict=True)
        return tuple(net.init_params(subkey, outline) for net, subkey, outline in parts)

    def run(self, params: Params, x: Any, mask: Any, key: Any) -> tuple[Any, Any]:
        count = len(self.networks)
        masks = (None,) * count if mask is None else mask
        parts = zip(self.networks, params, x, masks, split_key(key, count), strict=True)
        ends = [net.run(own, a, m, subkey) for net, own, a, m, subkey in parts]
        return tuple(y for y, _ in ends), tuple(m for _, m in ends)

    def checked_mask(self, mask: Any, name: str) -> Any:
        if mask is None:
            return None
        parts = zip(self.networks, mask, strict=True)
        return tuple(net.checked_mask(stream, name) for net, stream in parts)

    def encode(self, example: Any, need: Need, anchors: Memo) -> tuple[Memo, Any]:
        anchors = (None,) * len(self.networks) if anchors is None else anchors
        parts = zip(self.networks, example, anchors, strict=True)
        ends = [net.encode(stream, need, anchor) for net, stream, anchor in parts]
        return tuple(memo for memo, _ in ends), tuple(end for _, end in ends)

    def step(self, pair: Any, memo1: Memo, memo2: Memo, need: Need) -> Any:
        parts = zip(self.networks, pair, memo1, memo2, strict=True)
        return tuple(net.step(p, own1, own2, need) for net, p, own1, own2 in parts)

    def draw(self, examples: Any, need: Need, key: Key[Array, ""], scheme: Any):
        keys = split_key(key, len(self.networks))
        parts = zip(self.networks, examples, keys, strict=True)
        drawn = [net.draw(stream, need, subkey, scheme) for net, stream, subkey in parts]
        networks, memos, ends = zip(*drawn, strict=True)
        return Parallel(*networks), memos, ends


def split_key(key: Any, parts: int) -> list[Any]:
    """One key for each part; no key stays none."""
    return [None] * parts if key is None else list(jax.random.split(key, parts)) if parts else []


def require_layers(branches: tuple[Any, ...], name: str) -> None:
    """Raise unless there is at least one, and all are layers."""
    if not branches or not all(isinstance(branch, Layer) for branch in branches):
        raise NetworkError(
            f"{name} takes one or more layers as separate arguments.",
            got=repr(branches),
            remedy=f"write {name}(first, second); Serial() is the identity",
        )
