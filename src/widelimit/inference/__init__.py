"""Prediction: posteriors, training dynamics, classes, hyperparameters, expansions.

`GP`, `Training`, `Classifier`, `tune` and `search` take networks and examples; what they are made
of takes kernel matrices and works with kernels from anywhere.
"""

from .blocked import BlockedCholesky
from .calibration import Reliability, Temperature, reliability
from .classify import Classifier, FittedClassifier, centred_one_hot
from .conventions import Optimizer, Reduction
from .cross_entropy import CrossEntropyPath, cross_entropy_path, sample_initial_functions
from .dynamics import Dynamics, TrainingCurve, largest_stable_learning_rate
from .expand import linearize, taylor_expand
from .gp import GPPosterior, KernelKind, LeaveOneOut, Prediction
from .iterative import ConjugateGradients
from .leaves import Hyperparameter, Range, grid, hyperparameters, with_hyperparameters
from .mixture import (
    CollapsedWeightsWarning,
    EllipticalSlice,
    FittedMixture,
    Importance,
    MixtureGP,
    MixturePrediction,
)
from .network_kernels import Engine, NetworkKernels
from .noise import LeaveOneOutNoise, NoiseTrial, Relative, noise_trials
from .objectives import LeaveOneOutDensity, LeaveOneOutError, LogEvidence, Objective
from .process import GP, FittedGP
from .repeats import count_repeats, input_groups
from .search import Trial, accuracy, log_density, negative_error, search
from .solve import Factor, Jitter, JitterWarning, factorise
from .solvers import Cholesky, Nystrom, Solver
from .training import FittedTraining, Training
from .tune import Tuned, tune

__all__ = [
    "GP",
    "BlockedCholesky",
    "Cholesky",
    "Classifier",
    "CollapsedWeightsWarning",
    "ConjugateGradients",
    "CrossEntropyPath",
    "Dynamics",
    "EllipticalSlice",
    "Engine",
    "Factor",
    "FittedClassifier",
    "FittedGP",
    "FittedMixture",
    "FittedTraining",
    "GPPosterior",
    "Hyperparameter",
    "Importance",
    "Jitter",
    "JitterWarning",
    "KernelKind",
    "LeaveOneOut",
    "LeaveOneOutDensity",
    "LeaveOneOutError",
    "LeaveOneOutNoise",
    "LogEvidence",
    "MixtureGP",
    "MixturePrediction",
    "NetworkKernels",
    "NoiseTrial",
    "Nystrom",
    "Objective",
    "Optimizer",
    "Prediction",
    "Range",
    "Reduction",
    "Relative",
    "Reliability",
    "Solver",
    "Temperature",
    "Training",
    "TrainingCurve",
    "Trial",
    "Tuned",
    "accuracy",
    "centred_one_hot",
    "count_repeats",
    "cross_entropy_path",
    "factorise",
    "grid",
    "hyperparameters",
    "input_groups",
    "largest_stable_learning_rate",
    "linearize",
    "log_density",
    "negative_error",
    "noise_trials",
    "reliability",
    "sample_initial_functions",
    "search",
    "taylor_expand",
    "tune",
    "with_hyperparameters",
]
