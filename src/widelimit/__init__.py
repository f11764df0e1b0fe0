"""widelimit: what attention networks become when they are infinitely wide.

Describe a network once, and get its finite network (`init`, `apply`), its NNGP and tangent kernels
(`kernel`), and the law of its outputs when heads are finite (`law`).
"""

from typing import Any

from . import netsor, scale
from .app.drawing import diagram as _diagram  # noqa: F401

# Rooms whose functions are methods of every network: `net.init`, `net.apply`, `net.kernel`.
from .engine import kernel as _kernel  # noqa: F401
from .engine.propagation import (
    Quantity,
    SignalProfile,
    phase_diagram,
    plot_phase_diagram,
    signal,
)
from .engine.sampling import ResidualWarning, Sampler
from .errors import (
    AccuracyWarning,
    MissingExtraError,
    NetworkError,
    NumericalError,
    OptionError,
    ShapeError,
    WidelimitError,
)
from .finite import network as _network  # noqa: F401
from .finite import summary as _summary  # noqa: F401
from .finite.empirical import empirical_ntk
from .finite.monte_carlo import monte_carlo_kernel
from .finite.widths import with_heads, with_width
from .inference import (
    GP,
    BlockedCholesky,
    Cholesky,
    Classifier,
    CollapsedWeightsWarning,
    ConjugateGradients,
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
    Nystrom,
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
from .layers.attention.cross import AttentionPool, CrossAttention
from .layers.attention.heads import INFINITE
from .layers.attention.layer import Attention
from .layers.attention.positional import (
    AdditiveBias,
    Alibi,
    Combine,
    Decay,
    Profile,
    Rotary,
)
from .layers.attention.projections import Projections
from .layers.attention.scores import (
    Allowed,
    Causal,
    ElementwiseMap,
    IdentityMap,
    Local,
    Pattern,
    RowwiseMap,
    Scaling,
    ScoreMap,
    Softmax,
)
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
from .layers.dense import Dense, Embedding, Parameterization
from .layers.norm import Dropout, LayerNorm, RMSNorm
from .layers.pool import Flatten, MeanPool, Select, SumPool
from .layers.windows import Padding
from .persist import ModelFileError, load, register, save
from .scale import readings as _readings  # noqa: F401
from .state import Kernels
from .statistics import Estimate
from .trace import trace

__version__ = "0.1.0"

# What needs scikit-learn is imported when somebody asks for it.
_ESTIMATORS = {
    "InfiniteNetworkClassifier": "sklearn.estimators",
    "NNGPRegressor": "sklearn.estimators",
    "NTKRegressor": "sklearn.estimators",
    "NetworkKernel": "sklearn.kernel",
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
    "BlockedCholesky",
    "Causal",
    "Cholesky",
    "Classifier",
    "CollapsedWeightsWarning",
    "Combine",
    "Concat",
    "ConjugateGradients",
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
    "Estimate",
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
    "Nystrom",
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
    "Projections",
    "Quantity",
    "RMSNorm",
    "Reduction",
    "Relu",
    "Repeat",
    "Residual",
    "ResidualWarning",
    "Rotary",
    "RowwiseMap",
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
    "scale",
    "search",
    "signal",
    "taylor_expand",
    "trace",
    "tune",
    "with_heads",
    "with_hyperparameters",
    "with_width",
]
