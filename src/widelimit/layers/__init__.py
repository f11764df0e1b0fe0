"""Layers: each with its finite network and its infinite-width rule side by side.

Every layer and every option of a layer is here; those that most networks need stand at the top of
the package as well.
"""

from .activations import (
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
from .attention.heads import INFINITE
from .attention.layer import Attention, AttentionPool, CrossAttention
from .attention.placement import Projections
from .attention.positional import AdditiveBias, Alibi, Combine, Decay, Encoding, Profile, Rotary
from .attention.scores import (
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
from .base import Layer
from .blocks import (
    AttentionOptions,
    BlockOptions,
    Mlp,
    Norm,
    Pooling,
    TextEncoder,
    TransformerBlock,
    TransformerEncoder,
    VisionTransformer,
)
from .branches import Concat, Product, Residual, Sum
from .compose import Parallel, Repeat, Serial
from .configs import from_config
from .contract import Contract
from .conv import Conv, ConvLocal, ConvTranspose
from .dense import Dense, Embedding, Parameterization
from .graph import Aggregate, Graph
from .groups import HeadGroups
from .layout import Rearrange
from .norm import Dropout, LayerNorm, RMSNorm
from .pool import Flatten, MeanPool, Resampling, Resize, Select, SumPool
from .scale import Scale
from .streams import AddStreams
from .tokens import ClassToken, PositionTable
from .windows import Padding

__all__ = [
    "INFINITE",
    "ABRelu",
    "Abs",
    "Activation",
    "AddStreams",
    "AdditiveBias",
    "Aggregate",
    "Alibi",
    "Allowed",
    "Attention",
    "AttentionOptions",
    "AttentionPool",
    "BlockOptions",
    "Causal",
    "ClassToken",
    "Combine",
    "Concat",
    "Contract",
    "Conv",
    "ConvLocal",
    "ConvTranspose",
    "Cos",
    "CrossAttention",
    "Decay",
    "Dense",
    "Dropout",
    "Elementwise",
    "ElementwiseMap",
    "Embedding",
    "Encoding",
    "Erf",
    "Exp",
    "Flatten",
    "Gaussian",
    "Gelu",
    "Graph",
    "HeadGroups",
    "Hermite",
    "IdentityMap",
    "Layer",
    "LayerNorm",
    "LeakyRelu",
    "Local",
    "MeanPool",
    "Mlp",
    "Monomial",
    "Norm",
    "Padding",
    "Parallel",
    "Parameterization",
    "Pattern",
    "Polynomial",
    "Pooling",
    "PositionTable",
    "Product",
    "Profile",
    "Projections",
    "RMSNorm",
    "Rearrange",
    "Relu",
    "Repeat",
    "Resampling",
    "Residual",
    "Resize",
    "Rotary",
    "RowwiseMap",
    "Scale",
    "Scaling",
    "ScoreMap",
    "Select",
    "Serial",
    "Sigmoid",
    "Sign",
    "Silu",
    "Sin",
    "Softmax",
    "Softplus",
    "Sum",
    "SumPool",
    "Tanh",
    "TextEncoder",
    "TransformerBlock",
    "TransformerEncoder",
    "VisionTransformer",
    "from_config",
]
