"""widelimit: what attention networks become when they are infinitely wide.

Describe a network once, and get its finite network (`init`, `apply`), its NNGP and tangent kernels
(`kernel`), and the law of its outputs when heads are finite (`law`).
"""

from typing import TYPE_CHECKING, Any

from . import engine, errors, inference, laws, layers, netsor, persist, scale
from .engine import Sampler, phase_diagram
from .errors import WidelimitError
from .finite.empirical import empirical_ntk
from .finite.monte_carlo import monte_carlo_kernel
from .finite.widths import with_heads, with_width
from .inference import GP, Classifier, Engine, MixtureGP, Training, grid, search, tune
from .laws import Law, law_from_covariance
from .layers import (
    INFINITE,
    Alibi,
    Attention,
    AttentionPool,
    Causal,
    Concat,
    Conv,
    CrossAttention,
    Decay,
    Dense,
    Dropout,
    Elementwise,
    ElementwiseMap,
    Embedding,
    Erf,
    Flatten,
    Gelu,
    IdentityMap,
    Layer,
    LayerNorm,
    LeakyRelu,
    Local,
    MeanPool,
    Mlp,
    Parallel,
    Product,
    Relu,
    Repeat,
    Residual,
    RMSNorm,
    Rotary,
    Scaling,
    Select,
    Serial,
    Sigmoid,
    Silu,
    Softmax,
    Sum,
    SumPool,
    Tanh,
    TextEncoder,
    TransformerBlock,
    TransformerEncoder,
    VisionTransformer,
)
from .lift import lift
from .persist import load, save
from .registry import register
from .state import Kernels
from .statistics import Estimate
from .trace import trace

if TYPE_CHECKING:
    from . import sklearn as sklearn

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # The room of the estimators needs scikit-learn: it is imported on first use.
    if name != "sklearn":
        hint = f"; there is widelimit.layers.{name}" if name in layers.__all__ else ""
        raise AttributeError(f"module 'widelimit' has no attribute {name!r}{hint}")
    from importlib import import_module

    return import_module("widelimit.sklearn")


__all__ = [
    "GP",
    "INFINITE",
    "Alibi",
    "Attention",
    "AttentionPool",
    "Causal",
    "Classifier",
    "Concat",
    "Conv",
    "CrossAttention",
    "Decay",
    "Dense",
    "Dropout",
    "Elementwise",
    "ElementwiseMap",
    "Embedding",
    "Engine",
    "Erf",
    "Estimate",
    "Flatten",
    "Gelu",
    "IdentityMap",
    "Kernels",
    "Law",
    "Layer",
    "LayerNorm",
    "LeakyRelu",
    "Local",
    "MeanPool",
    "MixtureGP",
    "Mlp",
    "Parallel",
    "Product",
    "RMSNorm",
    "Relu",
    "Repeat",
    "Residual",
    "Rotary",
    "Sampler",
    "Scaling",
    "Select",
    "Serial",
    "Sigmoid",
    "Silu",
    "Softmax",
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
    "engine",
    "errors",
    "grid",
    "inference",
    "law_from_covariance",
    "laws",
    "layers",
    "lift",
    "load",
    "monte_carlo_kernel",
    "netsor",
    "persist",
    "phase_diagram",
    "register",
    "save",
    "scale",
    "search",
    "sklearn",
    "trace",
    "tune",
    "with_heads",
    "with_width",
]
