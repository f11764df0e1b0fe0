"""Questions of our own, beside the claims that `widelimit reproduce` tests: run from a clone."""

from widelimit.app.studies import Study

from . import (
    ablations,
    convergence,
    head_width,
    landmarks,
    learning_curve,
    length,
    moving_kernel,
    sampled_heads,
    scaling_softmax,
    sentences,
    signal_propagation,
    small_data,
    trained,
)

_MODULES = (
    signal_propagation,
    head_width,
    convergence,
    length,
    moving_kernel,
    sampled_heads,
    landmarks,
    learning_curve,
    ablations,
    trained,
    scaling_softmax,
    sentences,
    small_data,
)
STUDIES: dict[str, Study] = {module.STUDY.name: module.STUDY for module in _MODULES}
