import numpy as np
import pytest
from inference.problems import WIDE, dense, examples, sampled, sequences

import widelimit as wl
from widelimit.errors import NetworkError, NumericalError, OptionError
from widelimit.inference import (
    GP,
    Engine,
    Jitter,
    KernelKind,
    LeaveOneOutDensity,
    LeaveOneOutError,
    LogEvidence,
    Nystrom,
    hyperparameters,
    tune,
    with_hyperparameters,
)
from widelimit.inference.network_kernels import NetworkKernels
from widelimit.inference.tune import Criterion

X = examples(20)
Y = np.sin(2 * X[:, 0]) + 0.1 * X[:, 1]


def criterion(net, x, y, objective, *, kind=KernelKind.NNGP, noise=0.05, engine=WIDE):
    data = NetworkKernels.make(net, x, engine=engine)
    free = tuple(h for h in hyperparameters(net) if not h.absent)
    return Criterion(GP(net, kind=kind, noise=noise, engine=engine), data, y, objective, free, True)


def gaps(f, u, step=1e-3, directions=4):
    """Directional derivatives by gradient and by differences of fourth order, and their scale."""

    def value(v):
        return f.objective(f.posterior(v))[0]

    gradient = f(u)[1]
    found, expected = [], []
    for d in np.random.default_rng(0).normal(size=(directions, len(u))):
        one, two = (value(u + k * step * d) - value(u - k * step * d) for k in (1, 2))
        found.append(gradient @ d)
        expected.append((8 * one - two) / (12 * step))
    return np.abs(np.subtract(found, expected)).max() / np.abs(expected).max(), gradient


BRANCH = wl.Serial(wl.Dense(8, w_std=0.8, b_std=0.2), wl.Erf(), wl.Dense(8))
DEEP = wl.Serial(wl.Dense(8, w_std=1.5), wl.Residual(BRANCH, weight=0.4), wl.Dense(1))


@pytest.mark.parametrize(
    ("objective", "kind"),
    [
        (LogEvidence(), KernelKind.NNGP),
        (LogEvidence(), KernelKind.NTK),
        (LeaveOneOutDensity(), KernelKind.NNGP),
        (LeaveOneOutError(), KernelKind.NTK),
    ],
)
def test_gradients_equal_finite_differences(objective, kind):
    """In every leaf of the network (deviations, weights, constants of erf) and in the noise."""
    f = criterion(DEEP, X, np.stack([Y, Y**2], axis=1), objective, kind=kind)
    gap, gradient = gaps(f, f.start() + 0.1)
    assert len(gradient) == 10
    assert np.abs(gradient).min() > 1e-3  # every leaf takes part
    assert gap < 1e-6


@pytest.mark.slow
def test_gradients_with_sampled_heads_and_noise_per_example():
    """Heads are drawn once: the criterion is smooth in the network's hyperparameters."""
    x = np.stack(sequences([4] * 8))
    engine = Engine(dtype=np.float64, samples=4, replicates=2)
    noise = np.linspace(0.05, 0.2, 8)
    f = criterion(sampled(), x, np.arange(8.0) / 4, LogEvidence(), noise=noise, engine=engine)
    gap, gradient = gaps(f, f.start())
    assert len(gradient) == 4  # qk_std, ov_std, the readout, the noise
    assert gap < 1e-6
    np.testing.assert_allclose(f.model(f.start() + np.log(2.0)).noise, 2 * noise, rtol=1e-12)


def test_float32_gradients_are_close():
    wide = criterion(DEEP, X, Y, LogEvidence())
    narrow = criterion(DEEP, X, Y, LogEvidence(), engine=Engine())
    u = wide.start()
    np.testing.assert_allclose(narrow(u)[1], wide(u)[1], rtol=2e-3, atol=1e-2)


def test_known_hyperparameters_are_recovered():
    """From data drawn from the model: within four standard errors (Fisher information)."""
    truth = wl.Serial(wl.Dense(8, w_std=2.0, b_std=0.5), wl.Erf(), wl.Dense(1, w_std=1.5))
    rng, outputs = np.random.default_rng(1), 40
    x = examples(30, channels=2, seed=3)
    cov = truth.kernel(x, ntk=False).nngp + 0.04 * np.eye(len(x))
    y = np.linalg.cholesky(cov) @ rng.normal(size=(len(x), outputs))
    start = wl.Serial(wl.Dense(8, w_std=1.0, b_std=1.0), wl.Erf(), wl.Dense(1, w_std=1.0))
    result = tune(GP(start, noise=0.2, engine=WIDE), x, y, steps=60)
    found = result.numbers
    assert result.best > GP(truth, noise=0.04, engine=WIDE).fit(x, y).log_evidence - 0.1
    wanted = {"0.w_std": 2.0, "0.b_std": 0.5, "2.w_std": 1.5, "noise": 0.04}
    assert set(found) == set(wanted)
    f = criterion_at(result, x, y)
    curvature = np.array(
        [(f(e)[1] - f(-e)[1]) / 2e-3 for e in 1e-3 * np.eye(4)]  # in log coordinates
    )
    errors = np.sqrt(np.diag(np.linalg.inv(-(curvature + curvature.T) / 2)))
    last = {name: path[int(np.argmax(result.values))] for name, path in found.items()}
    gaps = np.array([np.log(last[name] / wanted[name]) for name in wanted])
    assert errors.max() < 0.15
    assert np.abs(gaps / errors).max() < 4.0
    wrong = np.array([np.log(last[n] / (1.6 * v)) for n, v in wanted.items()])
    assert (np.abs(wrong / errors) > 4.0).sum() >= 3


def criterion_at(result, x, y):
    """The evidence about the tuned model, as a function of log coordinates."""
    net, noise = result.gp.net, result.gp.noise
    data = NetworkKernels.make(net, x, engine=WIDE)
    free = tuple(h for h in hyperparameters(net) if h.scale and not h.absent)
    f = Criterion(GP(net, noise=noise, engine=WIDE), data, y, LogEvidence(), free, True)
    return lambda u: f(f.start() + u)


def test_early_stop_progress_and_the_picture():
    import matplotlib

    matplotlib.use("Agg")
    seen = []
    options = {"steps": 40, "tolerance": 0.1, "progress": lambda *told: seen.append(told)}
    result = tune(GP(dense(), noise=0.3, engine=WIDE), X, Y, **options)
    assert len(result.values) < 40
    assert "no further" in result.stopped
    assert result.numbers["0.w_std"][0] == pytest.approx(1.5)
    assert seen == [(done, 40) for done in range(1, len(result.values))]
    np.testing.assert_allclose(result.fitted.log_evidence, result.best, rtol=1e-10)
    left, right = result.plot()
    np.testing.assert_array_equal(left.lines[0].get_ydata(), result.values)
    assert {text.get_text() for text in right.get_legend().texts} == set(result.numbers)
    matplotlib.pyplot.close(left.figure)


def test_what_is_not_selected_stays():
    chosen = tune(
        GP(dense(), noise=0.1), X, Y, select=lambda h: h.name == "2.w_std", noise=False, steps=3
    )
    old = {h.name: h.value for h in hyperparameters(dense())}
    new = {h.name: h.value for h in hyperparameters(chosen.gp.net)}
    assert [name for name in old if old[name] != new[name]] == ["2.w_std"]
    assert chosen.gp.noise == 0.1
    with pytest.raises(NetworkError, match="at least one number"):
        tune(GP(dense(), noise=0.0), X, Y, select=lambda h: False)
    absent = with_hyperparameters(dense(), {"0.w_std": 1.0})
    assert "2.b_std" in {h.name for h in hyperparameters(absent) if h.absent}


def test_noise_moves_where_there_is_some():
    noise = np.where(np.arange(20) < 3, 0.0, 0.3)
    tuned = tune(GP(dense(), noise=noise, engine=WIDE), X, Y, select=lambda h: False, steps=3)
    share = tuned.gp.noise[3:] / noise[3:]
    assert np.ptp(share) < 1e-12
    assert abs(share[0] - 1) > 0.01
    assert (tuned.gp.noise[:3] == 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {"tolerance": np.nan},
        {"tolerance": -1.0},
        {"objective": "evidence"},
        {"objective": LogEvidence},
        {"select": ["0.w_std"]},
        {"gp": dense()},
    ],
    ids=lambda options: next(iter(options)),
)
def test_unusable_options_are_named(options):
    model = {"gp": GP(dense()), "x": X, "y": Y, **options}
    with pytest.raises(OptionError, match=f"{next(iter(options))}= is"):
        tune(**model)
    landmarks = GP(dense(), solver=Nystrom(landmarks=5))
    with pytest.raises(NetworkError, match="exact process"):
        tune(landmarks, X, Y)


def test_starts_that_cannot_be_fitted_are_named():
    x, y = np.concatenate([X, X]), np.concatenate([Y, -Y])
    with pytest.raises(NumericalError, match="Tuning needs a start"):
        tune(GP(dense(), noise=0.0, jitter=Jitter(limit=0.0), engine=WIDE), x, y, steps=2)


def test_a_run_takes_no_more_evaluations_than_allowed():
    short = tune(GP(dense(), noise=0.3, engine=WIDE), X, Y, steps=4)
    assert (len(short.values), short.stopped) == (4, "after 4 steps")


def test_equal_examples_are_left_out_together_while_tuning():
    """One of two equal rows predicts the other: without noise, were it not left out with it."""
    x = np.concatenate([X, X])
    y = np.concatenate([Y, Y]) + np.tile([0.5, -0.5], len(X))
    f = criterion(dense(), x, y, LeaveOneOutDensity(), noise=0.1)
    fitted = f.gp.fit(x, y)
    assert f(f.start())[0] == pytest.approx(fitted.leave_one_out.log_density.sum(), rel=1e-9)
    error, _ = gaps(f, f.start())
    assert error < 1e-5
