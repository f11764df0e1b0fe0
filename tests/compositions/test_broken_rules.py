"""The comparisons see: rules of the library, broken on purpose, are all noticed."""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import pytest
from comparisons import compared, has_padding, sampled
from draw import Composition, draw

import widelimit as wl

# So many compositions in which the rule takes part are enough to notice that it is broken.
ENOUGH = 8

Break = Callable[[pytest.MonkeyPatch], None]


def _kinds(c: Composition) -> set[str]:
    return {p.kind for p in c.part.all()}


def conv_leaves_padding_real(patch: pytest.MonkeyPatch) -> None:
    right = wl.Conv.mask
    patch.setattr(wl.Conv, "mask", lambda self, mask: jnp.ones_like(right(self, mask)))


def bias_in_padding(patch: pytest.MonkeyPatch) -> None:
    right = wl.Dense.memo

    def wrong(self, example):
        unmasked = eqx.tree_at(lambda e: e.mask, example, None, is_leaf=lambda n: n is None)
        return right(self, unmasked)

    patch.setattr(wl.Dense, "memo", wrong)


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

    def wrong(self, pair, memo1, memo2):
        after = right(self, pair, memo1, memo2).forced()
        return after if after.ntk is None else after.to(after.nngp, after.ntk - after.nngp)

    patch.setattr(wl.Attention, "cross", wrong)


def last_position_of_the_array(patch: pytest.MonkeyPatch) -> None:
    right = wl.Select.mix
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
    conv_leaves_padding_real: lambda c: "conv" in _kinds(c) and has_padding(c),
    bias_in_padding: lambda c: "dense" in _kinds(c) and has_padding(c),
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
        if sampled(c.part) or not takes_part(c):
            continue
        try:
            if compared(c)[0]:  # a rule that is broken already proves nothing
                continue
            with monkeypatch.context() as patch:
                broken(patch)
                jax.clear_caches()
                findings, _ = compared(c)
            jax.clear_caches()
        except wl.WidelimitError:
            continue
        if findings:
            return
        seen += 1
        assert seen < ENOUGH, f"{broken.__name__} changes nothing in {seen} compositions"
