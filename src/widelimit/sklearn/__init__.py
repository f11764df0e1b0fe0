"""scikit-learn's language: estimators, transformers, a kernel object."""

import importlib.util

from ..errors import MissingExtraError

if importlib.util.find_spec("sklearn") is None:
    raise MissingExtraError("scikit-learn", "sklearn")

from .estimators import InfiniteNetworkClassifier, InfiniteNetworkRegressor
from .kernel import NetworkKernel
from .networks import Kind, NetworkName
from .transformers import (
    DateFeatures,
    ImageResizer,
    SequenceScaler,
    WordVectorizer,
    prepare_columns,
)

__all__ = [
    "DateFeatures",
    "ImageResizer",
    "InfiniteNetworkClassifier",
    "InfiniteNetworkRegressor",
    "Kind",
    "NetworkKernel",
    "NetworkName",
    "SequenceScaler",
    "WordVectorizer",
    "prepare_columns",
]
