"""scikit-learn's language: estimators with fit, predict and score, and a kernel object."""

from .estimators import InfiniteNetworkClassifier, NNGPRegressor, NTKRegressor
from .kernel import NetworkKernel

__all__ = ["InfiniteNetworkClassifier", "NNGPRegressor", "NTKRegressor", "NetworkKernel"]
