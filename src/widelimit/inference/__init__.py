"""Prediction from kernel matrices: posteriors, training dynamics, classes, expansions."""

from widelimit.inference.calibration import (
    Binning,
    Reliability,
    expected_calibration_error,
    reliability,
)
from widelimit.inference.classify import Temperature, centred_one_hot
from widelimit.inference.conventions import Optimizer, Reduction
from widelimit.inference.cross_entropy import (
    CrossEntropyPath,
    cross_entropy_path,
    sample_initial_functions,
)
from widelimit.inference.dynamics import (
    Dynamics,
    TestDynamics,
    TestKernels,
    TrainingCurve,
    largest_stable_learning_rate,
)
from widelimit.inference.expand import linearize, taylor_expand
from widelimit.inference.gp import GPPosterior, KernelKind, LeaveOneOut, Prediction
from widelimit.inference.objectives import (
    LeaveOneOutDensity,
    LeaveOneOutError,
    LogEvidence,
    Objective,
)
from widelimit.inference.solve import Factor, Jitter, JitterWarning, factorise

__all__ = [
    "Binning",
    "CrossEntropyPath",
    "Dynamics",
    "Factor",
    "GPPosterior",
    "Jitter",
    "JitterWarning",
    "KernelKind",
    "LeaveOneOut",
    "LeaveOneOutDensity",
    "LeaveOneOutError",
    "LogEvidence",
    "Objective",
    "Optimizer",
    "Prediction",
    "Reduction",
    "Reliability",
    "Temperature",
    "TestDynamics",
    "TestKernels",
    "TrainingCurve",
    "centred_one_hot",
    "cross_entropy_path",
    "expected_calibration_error",
    "factorise",
    "largest_stable_learning_rate",
    "linearize",
    "reliability",
    "sample_initial_functions",
    "taylor_expand",
]
