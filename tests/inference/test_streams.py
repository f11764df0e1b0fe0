"""Models of networks with two streams of inputs, and the one door that all models read through."""

import numpy as np
import pytest
from inference.problems import WIDE

import widelimit as wl
from widelimit.engine import kernel as kernel_module
from widelimit.errors import NetworkError, ShapeError, WidelimitError
from widelimit.inference import GP, Classifier, Engine, KernelKind, Training
from widelimit.inference.leaves import hyperparameters
from widelimit.inference.tune import Criterion
from widelimit.layers.compose import is_sampled

RELU = wl.ElementwiseMap(wl.Relu())


def two_streams(**options):
    part = wl.Serial(wl.Dense(16, w_std=1.3, b_std=0.2), wl.Erf())
    cross = wl.CrossAttention(8, **options)
    return wl.Serial(wl.Parallel(part, part), cross, wl.MeanPool(), wl.Dense(1))


def streams(rows, *, lengths=(3, 5), seed=0):
    """Two streams (rows, length, 2); the second has its own mask."""
    rng = np.random.default_rng(seed)
    x = tuple(rng.normal(size=(rows, length, 2)) for length in lengths)
    mask = np.arange(lengths[1])[None, :] < rng.integers(2, lengths[1] + 1, size=rows)[:, None]
    return x, (None, mask)


X, MASK = streams(12)
TEST, TEST_MASK = streams(5, lengths=(4, 6), seed=1)
Y = np.sin(X[0][:, 0, 0]) + X[1][:, 0, 1]


def by_hand(net, kind):
    """Mean, covariance and evidence from kernels of the public `kernel` alone."""
    options = {"ntk": kind is KernelKind.NTK}
    if is_sampled(net):
        options["sampler"] = WIDE.sampler(net, kernel_module.read_inputs(net, X, MASK))

    def matrix(*args, **masks):
        return getattr(net.kernel(*args, **masks, **options), kind.value)

    noisy = matrix(X, mask=MASK) + 0.05 * np.eye(12)
    cross = matrix(TEST, X, mask=TEST_MASK, mask2=MASK)
    corner = matrix(TEST, mask=TEST_MASK)
    evidence = -0.5 * (
        Y @ np.linalg.solve(noisy, Y) + np.linalg.slogdet(noisy)[1] + 12 * np.log(2 * np.pi)
    )
    return (
        cross @ np.linalg.solve(noisy, Y),
        corner - cross @ np.linalg.solve(noisy, cross.T),
        evidence,
    )


@pytest.mark.parametrize(
    ("score_map", "kind"),
    [(RELU, KernelKind.NTK), (None, KernelKind.NNGP)],
    ids=["tangent", "sampled"],
)
def test_a_process_on_two_streams(score_map, kind):
    net = two_streams(score_map=score_map)
    mean, covariance, evidence = by_hand(net, kind)
    fitted = GP(net, kind=kind, noise=0.05, engine=WIDE).fit(X, Y, MASK)
    found, std = fitted.predict(TEST, TEST_MASK)
    np.testing.assert_allclose(found, mean, rtol=1e-8)
    np.testing.assert_allclose(std, np.sqrt(np.diag(covariance)), rtol=1e-6)
    np.testing.assert_allclose(fitted.covariance(TEST, TEST_MASK), covariance, rtol=1e-6, atol=1e-9)
    assert fitted.log_evidence == pytest.approx(evidence, rel=1e-8)


def test_more_examples_with_other_lengths():
    net = two_streams(score_map=RELU)
    model = GP(net, noise=0.05, engine=WIDE)
    more = np.linspace(-1, 1, 5)
    extended = model.fit(X, Y, MASK).extend(TEST, more, TEST_MASK)
    assert len(extended) == 17

    def wide(x, mask, length):
        grown = tuple(
            np.pad(s, ((0, 0), (0, n - s.shape[1]), (0, 0))) for s, n in zip(x, length, strict=True)
        )
        masks = tuple(
            np.pad(np.ones(s.shape[:2], bool) if m is None else m, ((0, 0), (0, n - s.shape[1])))
            for s, m, n in zip(x, mask, length, strict=True)
        )
        return grown, masks

    (x1, m1), (x2, m2) = wide(X, MASK, (4, 6)), wide(TEST, TEST_MASK, (4, 6))
    x, mask = (
        tuple(map(np.concatenate, zip(*sides, strict=True))) for sides in ((x1, x2), (m1, m2))
    )
    together = model.fit(x, np.concatenate([Y, more]), mask)
    other, other_mask = streams(4, seed=2)
    np.testing.assert_allclose(
        extended.predict(other, other_mask).mean,
        together.predict(other, other_mask).mean,
        rtol=1e-8,
    )


def test_training_and_classes_on_two_streams():
    net = two_streams(score_map=RELU)
    flow = Training(net, ridge=0.05, engine=WIDE).fit(X, Y, MASK)
    mean, _, _ = by_hand(net, KernelKind.NTK)
    np.testing.assert_allclose(flow.predict(TEST, TEST_MASK).mean, mean, rtol=1e-7)
    classifier = Classifier(GP(net, noise=0.05, engine=WIDE)).fit(X, Y > 0, MASK)
    assert classifier.predict_proba(TEST, TEST_MASK).shape == (5, 2)


def test_the_gradient_of_the_evidence_on_two_streams():
    net = two_streams(score_map=RELU)
    gp = GP(net, noise=0.05, engine=WIDE)
    data = gp.fit(X, Y, MASK).data
    free = tuple(h for h in hyperparameters(net) if h.scale and not h.absent)
    criterion = Criterion(gp, data, Y, wl.inference.LogEvidence(), free, True)
    start = criterion.start()
    slope = criterion(start)[1]
    for index in (0, len(start) - 1):
        step = np.zeros_like(start)
        step[index] = 1e-5
        ends = [criterion.posterior(start + sign * step).log_evidence for sign in (-1, 1)]
        assert slope[index] == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-5)


@pytest.mark.parametrize(
    "read",
    [
        lambda net, x, y: GP(net).fit(x, y),
        lambda net, x, y: Training(net).fit(x, y),
        lambda net, x, y: Classifier(GP(net)).fit(x, y > 0),
        lambda net, x, y: wl.MixtureGP(net).fit(x, y),
        lambda net, x, y: wl.tune(GP(net), x, y),
        lambda net, x, y: net.law(x),
        lambda net, x, y: wl.sklearn.InfiniteNetworkRegressor(net).fit(x, y),
        lambda net, x, y: wl.sklearn.NetworkKernel(net)(x),
    ],
)
def test_every_model_checks_the_vocabulary(read):
    net = wl.Serial(wl.Embedding(8, vocabulary=4), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(ShapeError, match="smaller than the vocabulary"):
        read(net, np.array([[0, 1], [2, 4], [3, 3]]), np.array([0.0, 1.0, 2.0]))


def test_laws_take_one_stream():
    net = two_streams(heads=2)
    with pytest.raises(NetworkError, match="one stream"):
        net.law(X)
    with pytest.raises(NetworkError, match="one stream"):
        GP(net).fit(X, Y)


def test_the_memory_of_an_engine_bounds_its_kernels(monkeypatch):
    seen = []
    pairs = kernel_module.Pairs

    def recorded(*args, **options):
        seen.append(options["memory"])
        return pairs(*args, **options)

    monkeypatch.setattr(kernel_module, "Pairs", recorded)
    net = two_streams(score_map=RELU)
    fitted = GP(net, engine=Engine(dtype=np.float64, memory=2**20)).fit(X, Y, MASK)
    fitted.predict(TEST, TEST_MASK)
    fitted.covariance(TEST, TEST_MASK)
    assert len(seen) == 4
    assert set(seen) == {2**20}


def test_an_engine_without_memory_for_one_pair_says_so():
    long = np.zeros((2, 64, 2)) + 1.0
    net = wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(WidelimitError, match="fit into the memory"):
        GP(net, engine=Engine(memory=2**16)).fit(long, np.zeros(2))


def test_token_kernels_have_the_precision_of_the_engine():
    net = wl.Serial(wl.Embedding(8, vocabulary=7), wl.MeanPool(), wl.Dense(1))
    tokens = np.random.default_rng(0).integers(0, 7, size=(6, 5))
    data = GP(net, engine=WIDE).fit(tokens, np.zeros(6)).data
    assert data.train(ntk=False).nngp.dtype == np.float64
