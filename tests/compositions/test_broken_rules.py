"""The comparisons see: rules of the library, broken on purpose, are all noticed."""

import warnings
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from comparisons import Finding, compared, has_padding, sampled
from draw import Composition, draw
from parts import build

import widelimit as wl
from widelimit.engine import kernel, walk
from widelimit.layers.base import Facts
from widelimit.layers.dense import Weights

# A broken rule must be noticed within this number of compositions in which it takes part.
ENOUGH = 8

Break = Callable[[pytest.MonkeyPatch], None]


def _kinds(c: Composition) -> set[str]:
    return {p.kind for p in c.part.all()}


def _lengths_disagree(c: Composition) -> bool:
    masks = tuple(mask for _, mask in c.streams)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wl.errors.AccuracyWarning)
            walk.check_masks(build(c.part), masks[0] if len(masks) == 1 else masks, "x")
    except wl.errors.ShapeError as error:
        return "keep the same real positions" in str(error)
    return False


def padding_left_after_a_convolution(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wl.Conv, "facts", Facts(linear=True, keeps_zeros=True))


def bias_left_in_padding(patch: pytest.MonkeyPatch) -> None:
    """Dense says itself that it keeps zeros: the mask of its memo puts biases at real positions."""
    right = Weights.memo
    patch.setattr(Weights, "memo", lambda self, mask, fan_in: right(self, None, fan_in))


def mask_of_the_first_branch(patch: pytest.MonkeyPatch) -> None:
    """Branches whose masks disagree are merged as if the first one's held for all."""

    patch.setattr(walk._Masks, "merge", lambda self, layer, state, ends, *_: (ends[0], None))
    patch.setattr(walk, "merge_masks", lambda masks: (masks[0], None))


def layer_norm_without_mean(patch: pytest.MonkeyPatch) -> None:
    right = wl.LayerNorm.memo

    def wrong(self, example):
        if example.mean is None:
            return right(self, example)
        return right(self, eqx.tree_at(lambda e: e.mean, example, jnp.zeros_like(example.mean)))

    patch.setattr(wl.LayerNorm, "memo", wrong)


def one_matrix_of_attention_not_trained(patch: pytest.MonkeyPatch) -> None:
    """Θ ← ov² (AΘA'ᵀ + AκA'ᵀ): the factor 2 becomes 1."""
    right = wl.Attention.cross

    def wrong(self, pair, memo1, memo2, *drawn):
        after = right(self, pair, memo1, memo2, *drawn).compute()
        return after if after.ntk is None else after.to(after.nngp, after.ntk - after.nngp)

    patch.setattr(wl.Attention, "cross", wrong)


def last_position_of_the_array(patch: pytest.MonkeyPatch) -> None:
    """Also when a padded position is read, which would be refused."""
    right = wl.Select.mix
    patch.setattr(kernel, "check_masks", lambda net, mask, name: None)
    patch.setattr(wl.Select, "mix", lambda self, f, mask: right(self, f, None))


def dropout_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wl.Dropout, "own", lambda self, pair, memo: pair)


def residual_weight_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(wl.Residual, "coefficients", lambda self: [1.0, 1.0])


def average_over_padding(patch: pytest.MonkeyPatch) -> None:
    right = wl.MeanPool.memo

    def wrong(self, example):
        mask, real = right(self, example)
        return mask, None if real is None else jnp.full_like(real, mask.size)

    patch.setattr(wl.MeanPool, "memo", wrong)


BROKEN: dict[Break, Callable[[Composition], bool]] = {
    padding_left_after_a_convolution: lambda c: "conv" in _kinds(c) and has_padding(c),
    bias_left_in_padding: lambda c: "dense" in _kinds(c) and has_padding(c),
    mask_of_the_first_branch: lambda c: has_padding(c) and _lengths_disagree(c),
    layer_norm_without_mean: lambda c: {"layer_norm", "activation"} <= _kinds(c),
    one_matrix_of_attention_not_trained: lambda c: "attention" in _kinds(c),
    last_position_of_the_array: lambda c: (
        any(p.kind == "select" and p["index"] == -1 for p in c.part.all()) and has_padding(c)
    ),
    dropout_ignored: lambda c: {"dropout", "activation"} <= _kinds(c),
    residual_weight_ignored: lambda c: any(
        p.kind == "residual" and p["weight"] for p in c.part.all()
    ),
    average_over_padding: lambda c: "mean_pool" in _kinds(c) and has_padding(c),
}


@pytest.fixture
def fresh_programs():
    """Compiled programs do not know that a rule has changed."""
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_programs")
@pytest.mark.parametrize("broken", BROKEN, ids=lambda b: b.__name__)
def test_a_broken_rule_is_noticed(broken, monkeypatch):
    takes_part, seen = BROKEN[broken], 0
    for seed in range(10_000):
        c = draw(seed)
        if sampled(c.part) or not takes_part(c) or _findings(c):
            continue  # what is noticed already proves nothing
        with monkeypatch.context() as patch:
            broken(patch)
            jax.clear_caches()
            findings = _findings(c)
        jax.clear_caches()
        if findings:
            return
        seen += findings is not None
        assert seen < ENOUGH, f"{broken.__name__} changes nothing in {seen} compositions"
    raise AssertionError(f"{broken.__name__} takes part in too few compositions")


def _findings(c: Composition) -> list[Finding] | None:
    """What the comparisons find; None where the library refuses the composition."""
    try:
        return compared(c)[0]
    except wl.WidelimitError:
        return None
