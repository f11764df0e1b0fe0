"""Noise is chosen by leave-one-out, and examples that repeat are left out together."""

import numpy as np
import pytest
from problems import WIDE, dense

import widelimit as wl
from widelimit.engine.inputs import as_inputs, as_streams
from widelimit.errors import OptionError
from widelimit.inference import (
    GP,
    BlockedCholesky,
    Classifier,
    ConjugateGradients,
    Engine,
    GPPosterior,
    LeaveOneOutDensity,
    LeaveOneOutError,
    LeaveOneOutNoise,
    MixtureGP,
    Nystrom,
    count_repeats,
    input_groups,
    noise_trials,
)
from widelimit.inference.noise import best_trial
from widelimit.inference.spectrum import Spectrum


def wine(rows=400, repeats=60, seed=0, near=0.0):
    """A table like that of red wines: noisy marks, and rows that were written down twice."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows - repeats, 5))
    y = np.tanh(x @ rng.normal(size=5)) + rng.normal(size=rows - repeats)
    again = rng.integers(rows - repeats, size=repeats)
    twice = x[again] + near * rng.normal(size=(repeats, 5))
    order = rng.permutation(rows)
    x, y = np.concatenate([x, twice])[order], np.concatenate([y, y[again]])[order]
    return x, (y - y.mean()) / y.std()


@pytest.mark.parametrize("near", [0.0, 1e-7])
def test_repeated_rows_do_not_break_the_choice_of_noise(near):
    x, y = wine(near=near)
    groups = input_groups(as_inputs(x, dtype=np.float64))
    assert count_repeats(groups) == 60
    kernel = np.asarray(dense().kernel(x).nngp, np.float64)
    once = np.unique(groups, return_index=True)[1]
    wanted = best_trial(noise_trials(kernel[np.ix_(once, once)], y[once]))
    found = best_trial(noise_trials(kernel, y, groups=groups))
    blind = best_trial(noise_trials(kernel, y))
    assert found.noise == pytest.approx(wanted.noise, rel=0.2)
    assert blind.noise < 0.2 * found.noise  # the table breaks it where rows are left out alone


@pytest.mark.parametrize("kind", ["nngp", "ntk"])
def test_a_model_chooses_as_the_table_without_repeats_does(kind):
    x, y = wine()
    test = np.random.default_rng(9).normal(size=(200, 5))
    model = GP(dense(), kind=kind, noise=LeaveOneOutNoise(), engine=WIDE).fit(x, y)
    once = np.unique(input_groups(as_inputs(x)), return_index=True)[1]
    alone = GP(dense(), kind=kind, noise=LeaveOneOutNoise(), engine=WIDE).fit(x[once], y[once])
    assert 0.3 < float(model.gp.noise) / float(alone.gp.noise) < 3.0
    assert len(model.trials) == 14
    assert np.corrcoef(model.mean(test), alone.mean(test))[0, 1] > 0.98


def test_a_chosen_model_is_the_model_with_what_was_chosen():
    x, y = wine(rows=80, repeats=10)
    chosen = GP(dense(), noise=LeaveOneOutNoise(), engine=WIDE).fit(x, y)
    again = GP(chosen.gp.net, noise=chosen.gp.noise, engine=WIDE).fit(x, y)
    for one, two in zip(chosen.predict(x[:5] + 0.1), again.predict(x[:5] + 0.1), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-9)
    best = best_trial(chosen.trials)
    assert chosen.leave_one_out.log_density.mean() == pytest.approx(best.score, rel=1e-9)
    for noise in (0.5, 2.0):  # on a grid of half decades
        other = GP(chosen.gp.net, noise=noise * 10 * chosen.gp.noise, engine=WIDE).fit(x, y)
        assert other.leave_one_out.log_density.mean() < best.score


def test_some_examples_choose_for_all_and_any_solver_conditions():
    x, y = wine(rows=120, repeats=10)
    how = LeaveOneOutNoise(examples=60)
    one = GP(dense(), noise=how, engine=WIDE).fit(x, y)
    two = GP(dense(), noise=how, engine=WIDE, solver=ConjugateGradients()).fit(x, y)
    assert one.gp.noise == two.gp.noise
    assert len(one) == len(two) == 120
    np.testing.assert_allclose(one.mean(x[:7]), two.mean(x[:7]), atol=1e-7)


def test_networks_whose_last_weights_take_no_scale_get_noise_alone():
    x, y = wine(rows=60, repeats=5)
    net = wl.Serial(wl.Dense(64), wl.Relu())
    model = GP(net, noise=LeaveOneOutNoise(), engine=WIDE).fit(x, y)
    assert model.gp.net is net
    assert {trial.amplitude for trial in model.trials} == {1.0}


def test_classifiers_choose_by_the_score_of_their_probabilities():
    rng = np.random.default_rng(3)
    x, y = wine(rows=120, repeats=30, seed=3)
    labels = (y + 0.3 * rng.normal(size=120) > 0).astype(int)
    model = Classifier(GP(dense(), noise=LeaveOneOutNoise(), engine=WIDE)).fit(x, labels)
    scores = [trial.score for trial in model.process.trials]
    assert max(scores) > -np.log(2)
    targets = np.eye(2)[labels] - 0.5
    kernel = np.asarray(dense().kernel(x, dtype=np.float64).nngp)
    groups = input_groups(as_inputs(x, dtype=np.float64))
    expected = noise_trials(kernel, targets, groups=groups, labels=labels)
    np.testing.assert_allclose(scores, [trial.score for trial in expected], rtol=1e-9)


def test_models_without_left_out_examples_refuse_to_choose():
    net = wl.Serial(wl.Attention(8, heads=2), wl.MeanPool(), wl.Dense(1))
    x = np.random.default_rng(0).normal(size=(4, 3, 2))
    with pytest.raises(OptionError, match="leave one example out"):
        MixtureGP(net, noise=LeaveOneOutNoise()).fit(x, np.zeros(4))


def some_groups(rng, rows):
    return rng.integers(rows // 2, size=rows)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("outputs", [None, 2])
def test_groups_are_left_out_together_whatever_the_solver(seed, outputs):
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(12, 30))
    x = rng.normal(size=(rows // 2, 3))[rng.integers(rows // 2, size=rows)]
    y = rng.normal(size=rows if outputs is None else (rows, outputs))
    noise = rng.uniform(0.1, 0.5, size=rows)
    groups = input_groups(as_inputs(x))
    kernel = np.asarray(dense().kernel(x, dtype=np.float64).nngp)
    mean, variance = np.empty(y.shape), np.empty(rows)
    for group in np.unique(groups):
        left, rest = np.flatnonzero(groups == group), np.flatnonzero(groups != group)
        others = GPPosterior.condition(kernel[np.ix_(rest, rest)], y[rest], noise=noise[rest])
        found = others.predict(kernel[np.ix_(left, rest)], np.diagonal(kernel)[left])
        mean[left], variance[left] = found.mean, found.variance + noise[left]
    solvers = [None, BlockedCholesky(block=8), Nystrom(landmarks=rows)]
    for solver in solvers:
        options = {} if solver is None else {"solver": solver}
        model = GP(dense(), noise=noise, engine=WIDE, **options).fit(x, y)
        np.testing.assert_allclose(model.leave_one_out.mean, mean, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(model.leave_one_out.variance, variance, rtol=1e-6)
    model = GP(dense(), noise=noise, engine=WIDE, solver=ConjugateGradients()).fit(x, y)
    some = np.sort(rng.choice(rows, 5, replace=False))
    found = model.posterior.left_out_at(some)
    np.testing.assert_allclose(found.mean, mean[some], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.variance, variance[some], rtol=1e-6)
    found = Spectrum.of(kernel).leave_one_out(y.reshape(rows, -1), 0.2, groups)
    exact = GPPosterior.condition(kernel, y, noise=0.2, groups=groups).leave_one_out
    np.testing.assert_allclose(found.mean.reshape(y.shape), exact.mean, atol=1e-9)
    np.testing.assert_allclose(found.variance, exact.variance, rtol=1e-9)


@pytest.mark.parametrize("objective", [LeaveOneOutDensity(), LeaveOneOutError()])
@pytest.mark.parametrize("seed", range(3))
def test_objectives_leave_groups_out_and_know_their_slope(objective, seed):
    rng = np.random.default_rng(seed)
    features, y = rng.normal(size=(9, 12)), rng.normal(size=(9, 2))
    kernel, noise, groups = features @ features.T / 12, 0.2, some_groups(rng, 9)

    def posterior(k):
        return GPPosterior.condition(k, y, noise=noise, groups=groups)

    _, gradient = objective(posterior(kernel))
    direction = rng.normal(size=kernel.shape)
    direction = direction + direction.T
    ahead, behind = (objective(posterior(kernel + h * direction))[0] for h in (1e-5, -1e-5))
    np.testing.assert_allclose(np.sum(gradient * direction), (ahead - behind) / 2e-5, rtol=1e-6)


def test_groups_of_inputs_of_every_kind():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 4, 2)).astype(np.float32)
    assert input_groups(as_inputs(x)) is None
    x[3] = x[1]
    assert count_repeats(input_groups(as_inputs(x))) == 1
    mask = np.ones((6, 4), bool)
    mask[3, 2:] = False  # a part of another example is another example
    assert input_groups(as_inputs(x, mask)) is None
    mask[1, 2:] = False
    x[1, 2:] = 7.0  # what padding holds does not matter
    assert count_repeats(input_groups(as_inputs(x, mask))) == 1
    tokens = np.array([[1, 2], [1, 3], [1, 2], [30000, 30001], [1, 2]])
    groups = input_groups(as_inputs(tokens, tokens=True))
    assert groups[0] == groups[2] == groups[4]
    assert count_repeats(groups) == 2
    streams = (x, rng.normal(size=(6, 3)).astype(np.float32))
    assert input_groups(as_streams(streams, None, 2)) is None
    streams[1][3] = streams[1][1]
    x[1] = x[3]
    assert count_repeats(input_groups(as_streams(streams, None, 2))) == 1


@pytest.mark.parametrize("width", [1, 3, 40])
@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e160])
def test_near_examples_are_found_and_dense_ones_are_not_chained(width, scale):
    rng = np.random.default_rng(width)
    x = rng.uniform(size=(1500, width))
    x[700:720] = x[:20] * (1 + 1e-8)
    x[0, 0] = 300.0  # a row far away does not make the others equal
    groups = input_groups(as_inputs(scale * x, dtype=np.float64))
    for row in range(1, 20):
        assert groups[row] == groups[700 + row]
    assert 19 <= count_repeats(groups) < 60
    assert np.bincount(groups).max() <= 4


def test_extended_models_know_what_repeats():
    x, y = wine(rows=60, repeats=6)
    engine = Engine(dtype=np.float64)
    whole = GP(dense(), noise=0.3, engine=engine).fit(x, y)
    grown = GP(dense(), noise=0.3, engine=engine).fit(x[:40], y[:40]).extend(x[40:], y[40:])
    np.testing.assert_allclose(grown.leave_one_out.mean, whole.leave_one_out.mean, atol=1e-9)
