"""Kernels times a number: the network whose last weights are scaled by its root."""

from functools import singledispatch

from ..errors import NetworkError
from ..layers.base import Layer, with_fields
from ..layers.compose import Serial
from ..layers.conv import Convolution
from ..layers.dense import Dense, Parameterization
from ..layers.streams import AddStreams


@singledispatch
def amplify(net: Layer, amplitude: float) -> Layer:
    """The network with `amplitude` times the kernels: its last, linear layer is scaled."""
    raise NetworkError(
        "Kernels are scaled by the network's last weights.",
        got=f"a network that ends in {type(net).__name__}",
        remedy="end the network in Dense",
    )


@amplify.register
def _(net: Serial, amplitude: float) -> Layer:
    if not net.layers:
        return amplify.dispatch(Layer)(net, amplitude)
    return Serial(*net.layers[:-1], amplify(net.layers[-1], amplitude))


@amplify.register
def _(net: AddStreams, amplitude: float) -> Layer:
    return AddStreams(net.shares * amplitude)


@amplify.register(Dense)
@amplify.register(Convolution)
def _(net: Dense | Convolution, amplitude: float) -> Layer:
    weights, factor = net.weights, amplitude**0.5
    if weights.parameterization is Parameterization.STANDARD:
        # Θ = fan_in κ + 1 + σ_w² Θ' there, of which only the last part has σ_w in it.
        raise NetworkError(
            "Both kernels are scaled by the network's last weights, in the NTK parameterisation.",
            got="last weights in the standard parameterisation",
            remedy="end the network in Dense(width, parameterization=Parameterization.NTK)",
        )
    stds = {"w_std": weights.w_std * factor, "b_std": weights.b_std * factor}
    return with_fields(net, weights=with_fields(weights, **stds))
