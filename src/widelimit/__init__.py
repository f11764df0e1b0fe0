"""widelimit: what attention networks become when they are infinitely wide.

Describe a network once, and get its finite network (`init`, `apply`), its NNGP and tangent kernels
(`kernel`), and the law of its outputs when heads are finite (`law`).
"""

from typing import Any

from . import netsor
from .empirical import empirical_ntk
from .errors import (
    AccuracyWarning,
    MissingExtraError,
    NetworkError,
    NumericalError,
    OptionError,
    ShapeError,
    WidelimitError,
)
from .heads import INFINITE
from .inference import (
    GP,
    Classifier,
    CollapsedWeightsWarning,
    EllipticalSlice,
    Engine,
    Importance,
    Jitter,
    JitterWarning,
    KernelKind,
    LeaveOneOutDensity,
    LeaveOneOutError,
    LogEvidence,
    MixtureGP,
    Optimizer,
    Reduction,
    Training,
    grid,
    hyperparameters,
    linearize,
    random_choices,
    search,
    taylor_expand,
    tune,
    with_hyperparameters,
)
from .kernels import Kernels
from .laws import Law, law_from_covariance
from .layers.activations import (
    ABRelu,
    Abs,
    Activation,
    Cos,
    Elementwise,
    Erf,
    Exp,
    Gaussian,
    Gelu,
    Hermite,
    LeakyRelu,
    Monomial,
    Polynomial,
    Relu,
    Sigmoid,
    Sign,
    Silu,
    Sin,
    Softplus,
    Tanh,
)
from .layers.attention import Attention
from .layers.base import Layer
from .layers.blocks import (
    Mlp,
    Norm,
    Pooling,
    TextEncoder,
    TransformerBlock,
    TransformerEncoder,
    VisionTransformer,
)
from .layers.branches import Concat, Product, Residual, Sum
from .layers.compose import Parallel, Repeat, Serial
from .layers.conv import Conv
from .layers.cross_attention import AttentionPool, CrossAttention
from .layers.dense import Dense, Embedding, Parameterization
from .layers.norm import Dropout, LayerNorm
from .layers.pool import Flatten, MeanPool, Select, SumPool
from .layers.positional import AdditiveBias, Alibi, Combine, Decay, Profile, Rotary
from .layers.scores import (
    Allowed,
    Causal,
    ElementwiseMap,
    IdentityMap,
    Local,
    Pattern,
    Scaling,
    ScoreMap,
    Softmax,
)
from .layers.windows import Padding
from .monte_carlo import monte_carlo_kernel
from .persist import ModelFileError, load, register, save
from .propagation import Quantity, SignalProfile, phase_diagram, plot_phase_diagram, signal
from .sampling import ResidualWarning, Sampler
from .trace import trace
from .widths import with_heads, with_width

__version__ = "0.1.0"

# What needs scikit-learn is imported when somebody asks for it.
_ESTIMATORS = {
    "InfiniteNetworkClassifier": "estimators",
    "NNGPRegressor": "estimators",
    "NTKRegressor": "estimators",
    "NetworkKernel": "sklearn_kernel",
}


def __getattr__(name: str) -> Any:
    if name not in _ESTIMATORS:
        raise AttributeError(f"module 'widelimit' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"widelimit.{_ESTIMATORS[name]}"), name)


__all__ = [
    "GP",
    "INFINITE",
    "ABRelu",
    "Abs",
    "AccuracyWarning",
    "Activation",
    "AdditiveBias",
    "Alibi",
    "Allowed",
    "Attention",
    "AttentionPool",
    "Causal",
    "Classifier",
    "CollapsedWeightsWarning",
    "Combine",
    "Concat",
    "Conv",
    "Cos",
    "CrossAttention",
    "Decay",
    "Dense",
    "Dropout",
    "Elementwise",
    "ElementwiseMap",
    "EllipticalSlice",
    "Embedding",
    "Engine",
    "Erf",
    "Exp",
    "Flatten",
    "Gaussian",
    "Gelu",
    "Hermite",
    "IdentityMap",
    "Importance",
    "Jitter",
    "JitterWarning",
    "KernelKind",
    "Kernels",
    "Law",
    "Layer",
    "LayerNorm",
    "LeakyRelu",
    "LeaveOneOutDensity",
    "LeaveOneOutError",
    "Local",
    "LogEvidence",
    "MeanPool",
    "MissingExtraError",
    "MixtureGP",
    "Mlp",
    "ModelFileError",
    "Monomial",
    "NetworkError",
    "Norm",
    "NumericalError",
    "Optimizer",
    "OptionError",
    "Padding",
    "Parallel",
    "Parameterization",
    "Pattern",
    "Polynomial",
    "Pooling",
    "Product",
    "Profile",
    "Quantity",
    "Reduction",
    "Relu",
    "Repeat",
    "Residual",
    "ResidualWarning",
    "Rotary",
    "Sampler",
    "Scaling",
    "ScoreMap",
    "Select",
    "Serial",
    "ShapeError",
    "Sigmoid",
    "Sign",
    "SignalProfile",
    "Silu",
    "Sin",
    "Softmax",
    "Softplus",
    "Sum",
    "SumPool",
    "Tanh",
    "TextEncoder",
    "Training",
    "TransformerBlock",
    "TransformerEncoder",
    "VisionTransformer",
    "WidelimitError",
    "empirical_ntk",
    "grid",
    "hyperparameters",
    "law_from_covariance",
    "linearize",
    "load",
    "monte_carlo_kernel",
    "netsor",
    "phase_diagram",
    "plot_phase_diagram",
    "random_choices",
    "register",
    "save",
    "search",
    "signal",
    "taylor_expand",
    "trace",
    "tune",
    "with_heads",
    "with_hyperparameters",
    "with_width",
]
