"""Predictions from given kernels: each case is a function that returns the arrays to store."""

import jax.nn
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from described import stax

Arrays = dict[str, np.ndarray]

TIMES = np.array([0.0, 0.5, 3.0, 20.0, 400.0])
LEARNING_RATE = 0.7

_NETWORK = stax.serial(
    *[stax.Dense(8, W_std=1.5, b_std=0.3), stax.Erf()],
    *[stax.Dense(8, W_std=1.5, b_std=0.3), stax.Erf()],
    stax.Dense(1, W_std=1.2, b_std=0.1),
)
_RNG = np.random.default_rng(11)
_X_TRAIN = np.round(_RNG.normal(size=(6, 3)) * 64) / 64
_X_TEST = np.round(_RNG.normal(size=(4, 3)) * 64) / 64
_Y_TRAIN = np.round(_RNG.normal(size=(6, 2)) * 64) / 64
_KERNEL_FN = _NETWORK.value[2]
_BOTH = ("nngp", "ntk")


def _kernels() -> Arrays:
    """The problem, so that a predictor can be tested on the kernels alone."""
    train_train = _KERNEL_FN(_X_TRAIN, None, _BOTH)
    test_train = _KERNEL_FN(_X_TEST, _X_TRAIN, _BOTH)
    test_test = _KERNEL_FN(_X_TEST, None, _BOTH)
    return {
        "x_train": _X_TRAIN,
        "x_test": _X_TEST,
        "y_train": _Y_TRAIN,
        "nngp_train_train": train_train.nngp,
        "nngp_test_train": test_train.nngp,
        "nngp_test_test": test_test.nngp,
        "ntk_train_train": train_train.ntk,
        "ntk_test_train": test_train.ntk,
        "ntk_test_test": test_test.ntk,
    }


def _gp(diag_reg: float, absolute: bool) -> Arrays:
    predict = nt.predict.gp_inference(
        _KERNEL_FN(_X_TRAIN, None, _BOTH), _Y_TRAIN, diag_reg, absolute
    )
    results = predict(
        ("nngp", "ntk", "ntkgp"),
        _KERNEL_FN(_X_TEST, _X_TRAIN, _BOTH),
        _KERNEL_FN(_X_TEST, None, _BOTH),
    )
    arrays = _kernels() | {"diag_reg": diag_reg}
    for kind, gaussian in results._asdict().items():
        arrays |= {f"{kind}_mean": gaussian.mean, f"{kind}_cov": gaussian.covariance}
    return arrays


def _ensemble(diag_reg: float) -> Arrays:
    predict = nt.predict.gradient_descent_mse_ensemble(
        _KERNEL_FN, _X_TRAIN, _Y_TRAIN, LEARNING_RATE, diag_reg
    )
    arrays = _kernels() | {"times": TIMES, "learning_rate": LEARNING_RATE, "diag_reg": diag_reg}
    for x, where in ((_X_TEST, "test"), (_X_TRAIN, "train")):
        for times, when in ((TIMES, ""), (None, "_inf")):
            results = predict(times, x, _BOTH, compute_cov=True)
            for kind, gaussian in results._asdict().items():
                arrays[f"{kind}_{where}_mean{when}"] = gaussian.mean
                arrays[f"{kind}_{where}_cov{when}"] = gaussian.covariance
    return arrays


def _initial_outputs() -> Arrays:
    rng = np.random.default_rng(12)
    return {
        "f_train_0": np.round(rng.normal(size=_Y_TRAIN.shape) * 64) / 64,
        "f_test_0": np.round(rng.normal(size=(len(_X_TEST), _Y_TRAIN.shape[1])) * 64) / 64,
    }


def gp() -> Arrays:
    return _gp(0.0, False)


def gp_relative_noise() -> Arrays:
    return _gp(0.1, False)


def gp_absolute_noise() -> Arrays:
    return _gp(0.1, True)


def ensemble() -> Arrays:
    return _ensemble(0.0)


def ensemble_noise() -> Arrays:
    return _ensemble(0.1)


def gradient_flow() -> Arrays:
    start = _initial_outputs()
    arrays = _kernels() | start | {"times": TIMES, "learning_rate": LEARNING_RATE}
    predict = nt.predict.gradient_descent_mse(arrays["ntk_train_train"], _Y_TRAIN, LEARNING_RATE)
    for times, when in ((TIMES, ""), (None, "_inf")):
        f_train, f_test = predict(
            times, start["f_train_0"], start["f_test_0"], arrays["ntk_test_train"]
        )
        arrays |= {f"f_train{when}": f_train, f"f_test{when}": f_test}
    arrays["max_learning_rate"] = nt.predict.max_learning_rate(
        arrays["ntk_train_train"], y_train_size=_Y_TRAIN.size
    )
    return arrays


def gradient_flow_cross_entropy() -> Arrays:
    def loss(outputs, labels):
        return -jnp.mean(jnp.sum(labels * jax.nn.log_softmax(outputs), axis=-1))

    start = _initial_outputs()
    arrays = _kernels() | start | {"times": TIMES, "learning_rate": LEARNING_RATE}
    arrays["y_train"] = np.eye(2)[(_Y_TRAIN[:, 0] > _Y_TRAIN[:, 1]).astype(int)]
    predict = nt.predict.gradient_descent(
        loss, arrays["ntk_train_train"], arrays["y_train"], LEARNING_RATE
    )
    f_train, f_test = predict(
        TIMES, start["f_train_0"], start["f_test_0"], arrays["ntk_test_train"]
    )
    return arrays | {"f_train": f_train, "f_test": f_test}


CASES = {
    f"predict_{case.__name__}": case
    for case in (
        gp,
        gp_relative_noise,
        gp_absolute_noise,
        ensemble,
        ensemble_noise,
        gradient_flow,
        gradient_flow_cross_entropy,
    )
}
