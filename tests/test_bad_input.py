"""Every mistake gets an error that says the rule, what came, and the remedy."""

import functools
import re

import jax
import numpy as np
import pytest

import widelimit as wl

POOLED = wl.Serial(wl.Conv(8, 3), wl.Relu(), wl.MeanPool(), wl.Dense(1))
VECTORS = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
SAMPLED = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))
BOTH = np.empty((3, 2))
TOKENS = wl.Serial(wl.Embedding(8, vocabulary=5), wl.Relu(), wl.MeanPool())


def _nan():
    x = np.ones((2, 3))
    x[1, 2] = np.nan
    return x


CASES = {
    "no examples": (lambda: VECTORS.kernel(np.ones((0, 3))), "at least one example"),
    "empty list": (lambda: POOLED.kernel([]), "at least one example"),
    "one axis": (lambda: VECTORS.kernel(np.ones(3)), "(N, positions…, channels)"),
    "zero positions": (lambda: POOLED.kernel(np.ones((2, 0, 3))), "at least one position"),
    "zero length in a list": (
        lambda: POOLED.kernel([np.ones((0, 3)), np.ones((4, 3))]),
        "at least one real position",
    ),
    "nan": (lambda: VECTORS.kernel(_nan()), "finite numbers"),
    "strings": (lambda: VECTORS.kernel(np.array([["a", "b"]])), "does not hold numbers"),
    "complex": (lambda: VECTORS.kernel(np.ones((2, 3)) * 1j), "real numbers"),
    "channels differ": (
        lambda: VECTORS.kernel(np.ones((2, 3)), np.ones((2, 4))),
        "same channels",
    ),
    "axes differ": (
        lambda: POOLED.kernel(np.ones((2, 4, 3)), np.ones((2, 4, 4, 3))),
        "number of position axes",
    ),
    "channels differ in a list": (
        lambda: POOLED.kernel([np.ones((3, 3)), np.ones((4, 2))]),
        "differ in length only",
    ),
    "mask shape": (
        lambda: POOLED.kernel(np.ones((2, 4, 3)), mask=np.ones((2, 5), bool)),
        "one entry for each position",
    ),
    "mask dtype": (
        lambda: POOLED.kernel(np.ones((2, 4, 3)), mask=np.ones((2, 4))),
        "is not boolean",
    ),
    "fully masked": (
        lambda: POOLED.kernel(np.ones((2, 4, 3)), mask=np.zeros((2, 4), bool)),
        "at least one real position",
    ),
    "NumPy in an activation": (lambda: wl.Elementwise(np.tanh), "fails on JAX arrays"),
    "a branch in an activation": (
        lambda: wl.Elementwise(lambda x: x if x > 0 else 0 * x),
        "fails on JAX arrays",
    ),
    "NumPy in a score map": (
        lambda: wl.Serial(
            wl.Attention(8, score_map=wl.layers.RowwiseMap(lambda g, _: np.tanh(g))), wl.MeanPool()
        ).kernel(np.ones((2, 4, 3))),
        "fails on JAX arrays",
    ),
    "degree": (lambda: wl.layers.Hermite(200), "at most 100"),
    "degree of a monomial": (lambda: wl.layers.Monomial(101), "at most 100"),
    "norm": (lambda: wl.Decay(norm="a"), "norm= is not a positive number"),
    "sampler of other channels": (
        lambda: SAMPLED.kernel(
            np.ones((2, 4, 5)), sampler=SAMPLED.sampler(np.ones((2, 4, 3)), samples=2)
        ),
        "inputs of other channels",
    ),
    "no sampler": (lambda: SAMPLED.kernel(np.ones((2, 4, 3)), sampler=3), "not a sampler"),
    "samples": (lambda: SAMPLED.kernel(np.ones((2, 4, 3)), samples=10**12), "at most 1,048,576"),
    "parameters": (lambda: VECTORS.apply("f", np.ones((2, 3))), "those of another network"),
    "parameters of another": (
        lambda: VECTORS.apply(POOLED.init(0, (4, 3)), np.ones((2, 3))),
        "those of another network",
    ),
    "no function": (
        lambda: wl.empirical_ntk("f", VECTORS.init(0, (3,)), np.ones((2, 3))),
        "not a function",
    ),
    "thousands of unequal layers": (
        lambda: wl.Serial(*(wl.Dense(8), wl.Relu()) * 2500, wl.Dense(1)).kernel(np.ones((2, 3))),
        "5,001 layers in a row",
    ),
    "mask2 alone": (
        lambda: POOLED.kernel(np.ones((2, 4, 3)), mask2=np.ones((2, 4), bool)),
        "mask2= is given without x2",
    ),
    "flatten with mask": (
        lambda: wl.Serial(wl.Conv(8, 3), wl.Flatten()).kernel([np.ones((2, 3)), np.ones((4, 3))]),
        "Flatten",
    ),
    "circular with mask": (
        lambda: wl.Serial(wl.Conv(8, 3, padding="circular"), wl.MeanPool()).kernel(
            [np.ones((4, 3)), np.ones((5, 3))]
        ),
        "Circular padding",
    ),
    "window too large": (
        lambda: wl.Serial(wl.Conv(8, 5, padding="valid"), wl.MeanPool()).kernel(np.ones((2, 4, 3))),
        "window is longer than the positions",
    ),
    "sequence shorter than a valid window": (
        lambda: wl.Serial(wl.Conv(8, 3, padding="valid"), wl.MeanPool()).kernel(
            [np.ones((2, 3)), np.ones((5, 3))]
        ),
        "leaves no real position",
    ),
    "no positions to convolve": (lambda: POOLED.kernel(np.ones((2, 3))), "move over positions"),
    "no positions to pool": (
        lambda: wl.Serial(wl.MeanPool()).kernel(np.ones((2, 3))),
        "met an input without positions",
    ),
    "padding name": (lambda: wl.Conv(8, 3, padding="mirror"), "'same', 'valid', 'circular'"),
    "width": (lambda: wl.Dense(0), "positive integer"),
    "window per axis": (
        lambda: wl.Conv(8, (3, 3)).kernel(np.ones((2, 4, 3))),
        "one for each position axis",
    ),
    "dropout rate": (lambda: wl.Dropout(1.0), "probability below 1"),
    "residual weight": (lambda: wl.Residual(wl.Dense(3), weight=1.5), "between 0 and 1"),
    "repeat": (lambda: wl.Repeat(wl.Dense(3), -1), "non-negative integer"),
    "not a layer": (lambda: wl.Serial([wl.Dense(3)]), "separate arguments"),
    "no branches": (lambda: wl.Sum(), "one or more layers"),
    "residual around an activation": (
        lambda: wl.Serial(wl.Dense(3), wl.Residual(wl.Relu())).kernel(np.ones((2, 3))),
        "fresh weights",
    ),
    "product without weights": (
        lambda: wl.Serial(wl.Dense(3), wl.Product(wl.Relu(), wl.Serial())).kernel(np.ones((2, 3))),
        "weights of their own",
    ),
    "branches of different widths": (
        lambda: wl.Sum(wl.Dense(3), wl.Dense(4)).kernel(np.ones((2, 3))),
        "same number of channels",
    ),
    "branches of different positions": (
        lambda: wl.Sum(wl.Conv(3, 2), wl.Conv(3, 2, padding="valid")).kernel(np.ones((2, 4, 3))),
        "same positions",
    ),
    "activation of raw inputs": (
        lambda: wl.Serial(wl.Relu()).kernel(np.ones((2, 3))),
        "Gaussian pre-activations",
    ),
    "activation after activation": (
        lambda: wl.Serial(wl.Dense(3), wl.Relu(), wl.Relu()).kernel(np.ones((2, 3))),
        "Gaussian pre-activations",
    ),
    "floats as tokens": (lambda: TOKENS.kernel(np.ones((2, 3))), "integer token ids"),
    "embedding in the middle": (
        lambda: wl.Serial(wl.Dense(4), wl.Embedding(8, vocabulary=5)).kernel(np.ones((2, 3))),
        "Embedding is not the first layer",
    ),
    "select outside": (
        lambda: wl.Serial(wl.Select(9)).kernel(np.ones((2, 4, 3))),
        "does not lie within the positions",
    ),
    "output of another shape": (
        lambda: VECTORS.kernel_into((np.empty((3, 3)), np.empty((3, 3))), np.ones((2, 3))),
        "of shape (3, 3), not (2, 2)",
    ),
    "one output for both kernels": (
        lambda: VECTORS.kernel_into([np.empty((2, 2))] * 2, np.ones((2, 3))),
        "the same memory",
    ),
    "overlapping outputs": (
        lambda: VECTORS.kernel_into((BOTH[:2], BOTH[1:]), np.ones((2, 3))),
        "the same memory",
    ),
    "no place for kernels": (lambda: VECTORS.kernel_into(5, np.ones((2, 3))), "no place"),
    "workers without a store": (
        lambda: VECTORS.kernel_into(print, np.ones((2, 3)), client=3),
        "client= is set, and the kernels do not go",
    ),
    "negative tokens": (lambda: TOKENS.kernel(np.array([[1, -1]])), "do not count from 0"),
    "tokens beyond the vocabulary": (
        lambda: TOKENS.kernel(np.array([[1, 5]])),
        "smaller than the vocabulary",
    ),
    "half precision": (
        lambda: VECTORS.kernel(np.ones((2, 3)), dtype=np.float16),
        "neither single nor double precision",
    ),
    "memory": (
        lambda: VECTORS.kernel(np.ones((2, 3)), memory=0),
        "memory= is not a positive",
    ),
    "memory below one pair": (
        lambda: POOLED.kernel(np.ones((2, 64, 3)), memory=1000),
        "fit into the memory",
    ),
    "overflow": (
        lambda: VECTORS.kernel(np.full((2, 3), 1e30, np.float32)),
        "that float32 holds",
    ),
    "a hyperparameter that is no number": (lambda: wl.Dense(3, w_std="big"), "finite real number"),
    "several hyperparameters for one": (lambda: wl.Dense(3, w_std=[1, 2]), "finite real number"),
    "no hyperparameter": (lambda: wl.Dense(3, w_std=None), "finite real number"),
    "no hyperparameter of attention": (lambda: wl.Attention(3, qk_std=None), "finite real number"),
    "a hyperparameter that is infinite": (lambda: wl.Dense(3, b_std=np.inf), "finite real number"),
    "parameters for other channels": (
        lambda: VECTORS.apply(VECTORS.init(jax.random.key(0), (3,)), np.ones((2, 4))),
        "drawn for other channels than they meet",
    ),
    "select beyond a short sequence": (
        lambda: wl.Serial(wl.Dense(4), wl.Select(3)).kernel([np.ones((2, 3)), np.ones((5, 3))]),
        "reads padding alone",
    ),
    "a tuple for one stream": (
        lambda: wl.Serial(wl.Parallel(wl.Dense(3), wl.Dense(3)), wl.CrossAttention(3)).kernel(
            np.ones((2, 4, 3))
        ),
        "tuple of 2 streams",
    ),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_error_says_rule_got_remedy(name):
    call, rule = CASES[name]
    with pytest.raises(wl.WidelimitError, match=re.escape(rule)) as caught:
        call()
    message = str(caught.value)
    assert "Got: " in message
    assert "Remedy: " in message
    assert caught.value.remedy


def test_unknown_options_are_refused_by_python():
    with pytest.raises(TypeError, match="unexpected keyword argument 'progres'"):
        VECTORS.kernel(np.ones((2, 3)), progres=True)


def test_padding_may_hold_anything():
    mask = np.array([[True, True, False]])
    x = np.ones((1, 3, 2))
    x[0, 2] = np.nan
    clean = POOLED.kernel(x[:, :2])
    np.testing.assert_allclose(POOLED.kernel(x, mask=mask).ntk, clean.ntk, rtol=1e-12)


def test_shape_of_one_example_has_channels():
    with pytest.raises(wl.errors.ShapeError, match="positions…, channels"):
        VECTORS.init(jax.random.key(0), ())


# --- what JAX alone would answer in its own words -------------------------------------------------


@pytest.mark.parametrize(
    "around",
    [
        wl.Serial,
        wl.Residual,
        wl.Sum,
        wl.Concat,
        wl.Parallel,
        lambda net: wl.Product(net, wl.Dense(3)),
        lambda net: wl.Repeat(net, 1),
    ],
)
def test_a_thousand_nested_layers_are_refused(around):
    with pytest.raises(wl.errors.NetworkError, match="more than 40 deep"):
        functools.reduce(lambda net, _: around(net), range(1000), wl.Dense(3))


def test_layers_nested_too_deeply_spoil_nothing():
    net = wl.Dense(3)
    for _ in range(40):
        net = wl.Serial(net)
    with pytest.raises(wl.errors.NetworkError, match="more than 40 deep"):
        wl.Serial(net)
    found = net.kernel(np.ones((2, 3)))  # the deepest that is allowed
    np.testing.assert_array_equal(found.nngp, wl.Dense(3).kernel(np.ones((2, 3))).nngp)


@pytest.mark.parametrize("shape", [np.ones((4, 3)), 3, None, (2.5, 3), "ab"], ids=repr)
def test_the_shape_of_an_example_is_a_tuple_of_integers(shape):
    streams = wl.Serial(wl.Parallel(wl.Dense(3), wl.Dense(3)), wl.CrossAttention(3))
    for use in (wl.Dense(3).summary, lambda shape: wl.Dense(3).init(0, shape)):
        with pytest.raises(wl.errors.ShapeError, match=re.escape("x.shape[1:]")):
            use(shape)
    for one in (shape, (shape, shape), (shape,) * 3):
        with pytest.raises(wl.errors.ShapeError, match=re.escape(".shape[1:]")):
            streams.init(0, one)


def test_shapes_and_keys_that_are_none():
    net = wl.Dense(3)
    for shape in ((-3,), (0, 3)):
        with pytest.raises(wl.errors.ShapeError, match="not that of one example"):
            net.init(0, shape)
    with pytest.raises(wl.errors.OptionError, match="key= is"):
        net.kernel(np.ones((2, 3)), key="a")


def test_the_sampler_of_another_network():
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    one = wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1))
    deep = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(8), one)
    for net, other in ((deep, one), (wl.Serial(wl.Attention(8), one), deep)):
        with pytest.raises(wl.errors.NetworkError, match="fitted for another network"):
            net.kernel(x, sampler=other.sampler(x, samples=2, replicates=2), ntk=False)
