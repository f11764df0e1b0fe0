"""Networks in neural-tangents' words, and the calls that are made with them.

Each case is an expression over `stax` that both libraries evaluate, inputs, and options of
`kernel_fn`. Some are listed (networks.txt), some are drawn; their numbers stand in
tests/reference/neural_tangents.
"""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

PADDING = 10.0
"""The constant that marks padding."""

_SHAPES = {
    "vectors": (5,),
    "sequences": (5, 4),
    "images": (4, 5, 3),
    "volumes": (3, 2, 3, 2),
    "padded": (6, 4),
    "padded images": (4, 5, 3),
    "padded channels": (6, 4),
    "channels first": (3, 4, 5),
}


@dataclass(frozen=True)
class Network:
    """One network, and how its kernel function is called."""

    expression: str
    inputs: str
    options: dict[str, Any] = field(default_factory=dict)
    get: Any = ("nngp", "ntk")
    alone: bool = False
    """One batch with itself."""

    @property
    def name(self) -> str:
        given = [f"get={self.get!r}"] if self.get != ("nngp", "ntk") else []
        given += [f"{name}={value!r}" for name, value in self.options.items()]
        batches = "one batch" if self.alone else "two batches"
        return " | ".join([self.expression, self.inputs, batches, *given])

    def triple(self, stax: Any) -> Any:
        """The functions of the network in either library."""
        return eval(self.expression, {**vars(stax), **_WORDS, **_compounds(stax)})

    def kernel(self, nt: Any) -> Any:
        """What `kernel_fn` returns."""
        x1, x2 = batches(self.inputs)
        kernel_fn = self.triple(nt.stax)[2]
        options = dict(self.options)
        if self.inputs.startswith("padded"):
            options["mask_constant"] = PADDING
        return kernel_fn(x1, None if self.alone else x2, self.get, **options)


def batches(inputs: str) -> tuple[np.ndarray, np.ndarray]:
    """Three and two examples of a kind; the first of both are equal."""
    if inputs == "pairs":
        (a1, a2), (b1, b2) = batches("vectors"), batches("vectors")
        return (a1, 0.5 - b1), (a2, 0.5 - b2)  # type: ignore[return-value]
    if inputs.startswith("transposed"):
        one, two = batches(inputs.removeprefix("transposed "))
        axes = (3, 2, 1, 0) if one.ndim == 4 else (1, 0)
        return one.transpose(axes), two.transpose(axes)
    rng = np.random.default_rng(len(inputs))
    x = np.round(rng.normal(size=(5, *_SHAPES[inputs])) * 16) / 16
    x[3] = x[0]
    if inputs == "padded":
        for example, length in zip(x, (6, 3, 5, 6, 4), strict=True):
            example[length:] = PADDING
    if inputs == "padded images":
        for example, (high, wide) in zip(x, ((4, 5), (3, 4), (2, 5), (4, 5), (4, 2)), strict=True):
            example[high:] = example[:, wide:] = PADDING
    return x[:3], x[3:]


def _rational(d):
    return 1 / (1 + d**2)


def _exponential(d):
    return jnp.exp(-d / 2)


def _square_nngp(cov12, var1, var2):
    return var1 * var2 + 2 * cov12**2


def _square_d_nngp(cov12, var1, var2):
    return 4 * cov12


_WORDS = {
    "jnp": jnp,
    "rational": _rational,
    "exponential": _exponential,
    "square": lambda x: x**2,
    "square_nngp": _square_nngp,
    "square_d_nngp": _square_d_nngp,
}


def _compounds(stax: Any) -> dict[str, Any]:
    def residual(*layers: Any) -> Any:
        both = stax.parallel(stax.Identity(), stax.serial(*layers))
        return stax.serial(stax.FanOut(2), both, stax.FanInSum())

    def attention(*args: Any, **options: Any) -> Any:
        return stax.GlobalSelfAttention(6, 5, 4, 2, *args, **options)

    def fork(merge: Any, *branches: Any) -> Any:
        return stax.serial(stax.FanOut(len(branches)), stax.parallel(*branches), merge)

    return {"residual": residual, "attention": attention, "fork": fork}


# --- the cases ------------------------------------------------------------------------------------

_NONLINEARITIES = [
    *("Relu()", "Relu(do_stabilize=True)", "ABRelu(-0.3, 1.2)", "ABRelu(0.5, 0.5, True)"),
    *("LeakyRelu(0.1)", "LeakyRelu(-0.4, do_stabilize=True)", "Abs()", "Abs(do_stabilize=True)"),
    *("Sign()", "Erf()", "Erf(1.3, 0.7, 0.2)", "Erf(a=0.5, c=-1.)", "Sigmoid_like()", "Gelu()"),
    "Gelu(approximate=True)",
    *("Sin()", "Sin(1.2, 0.8, 0.3)", "Cos()", "Cos(a=0.7, b=1.4, c=-0.5)", "Rbf()", "Rbf(0.3)"),
    *("Exp()", "Exp(0.8, 0.3)", "Gaussian()", "Gaussian(1.1, -0.4)", "Gabor()"),
    *("ExpNormalized()", "ExpNormalized(0.8, -0.5)", "ExpNormalized(2, -1, do_clip=True)"),
    *(f"Monomial({degree})" for degree in range(6)),
    *(f"RectifiedMonomial({degree})" for degree in range(5)),
    *("Polynomial([0.3, -1.0, 0.5])", "Polynomial([0., 0., 0., 0.2])", "Polynomial([1.5])"),
    "Elementwise(square, square_nngp, square_d_nngp)",
    "Elementwise(nngp_fn=square_nngp)",
    "Elementwise(nngp_fn=square_nngp, d_nngp_fn=square_d_nngp)",
    "ElementwiseNumerical(jnp.sin, deg=40)",
    "ElementwiseNumerical(square, 10, df=lambda x: 2 * x)",
    "Identity()",
]

_CALLS: list[Network] = [
    *(
        Network("serial(Dense(6, 1.3, 0.2), Relu(), Dense(1))", "vectors", get=get, alone=alone)
        for get, alone in (
            ("nngp", False),
            ("ntk", False),
            ("NNGP", True),
            ("ntk", True),
            (("ntk", "nngp"), False),
            (("ntk",), True),
            (("cov1", "nngp", "cov2"), False),
            (("cov1", "cov2"), True),
            (("shape1", "ntk", "is_gaussian", "x1_is_x2"), False),
            (None, False),
            (None, True),
        )
    ),
    *(
        Network(expression, inputs, options, get=get, alone=alone)
        for expression, inputs in (
            ("serial(Conv(5, (2, 2), W_std=1.3, b_std=0.2), Relu(), Conv(4, (1, 2)))", "images"),
            ("serial(Dense(5, W_std=1.3, b_std=0.2), Erf(), Dense(2))", "sequences"),
            ("serial(Conv(5, (2, 2)), Relu(), Flatten(), Dense(1))", "images"),
            ("serial(Dense(5), Relu())", "sequences"),
        )
        for options in (
            {},
            {"diagonal_batch": False},
            {"diagonal_batch": False, "diagonal_spatial": False},
            {"diagonal_batch": True, "diagonal_spatial": False},
        )
        for get, alone in ((None, False), (None, True))
    ),
    *(
        Network(expression, "sequences", {"diagonal_spatial": True}, get=get)
        for expression in (
            "serial(Dense(5, W_std=1.3), Erf(), Dense(2))",
            "serial(Dense(5, W_std=1.3), Erf(), Flatten(), Dense(2))",
        )
        for get in ("nngp", ("ntk", "cov1", "cov2"))
    ),
    *(
        Network(expression, "channels first")
        for expression in (
            "serial(Conv(4, (2, 2), dimension_numbers=('NCHW', 'OIHW', 'NCHW')), Relu(), "
            "GlobalAvgPool(channel_axis=1), Dense(1))",
            "serial(Conv(4, (2, 3), dimension_numbers=('NCHW', 'OIHW', 'NCHW')), Relu(), "
            "AvgPool((2, 1), channel_axis=1), Flatten(), Dense(1))",
            "serial(Dense(4, channel_axis=1), LayerNorm(1, channel_axis=1), Relu(), Flatten())",
            "serial(Conv(4, (1, 2), dimension_numbers=('NCHW', 'OIHW', 'NCHW')), Erf(), "
            "attention(channel_axis=1), GlobalSumPool(channel_axis=1))",
            "serial(Conv(4, (2, 2), dimension_numbers=('NCHW', 'OIHW', 'NCHW')), Relu())",
        )
    ),
    *(
        Network(f"serial(Conv(4, (2, 3), (1, 2), dimension_numbers={spec}), Relu(), "
                "GlobalAvgPool())", "images")
        for spec in (("NHWC", "OIWH", "NHWC"), ("NWHC", "HWIO", "NWHC"))
    ),
    Network("serial(Dense(4, batch_axis=1, channel_axis=0), Relu(), Dense(1, batch_axis=1, "
            "channel_axis=0))", "transposed vectors"),
    Network("serial(Conv(4, (2, 2), dimension_numbers=('CWHN', 'OIHW', 'CWHN')), Relu(), "
            "GlobalAvgPool(batch_axis=3, channel_axis=0))", "transposed images"),
    *(
        Network(expression, "padded", options, get=None, alone=alone)
        for expression in (
            "serial(Conv(5, (3,), padding='SAME', W_std=1.2), Relu())",
            "serial(Dense(5, 1.2, 0.1), Relu(), GlobalAvgPool(), Dense(1, b_std=0.2))",
        )
        for options in ({}, {"diagonal_batch": False})
        for alone in (False, True)
    ),
]  # fmt: skip


def _listed() -> list[tuple[str, str]]:
    """Those of networks.txt, which stand below the inputs that they take."""
    found, inputs = [], ""
    for line in (Path(__file__).parent / "networks.txt").read_text().splitlines():
        if line.startswith("    "):
            found.append((line.strip(), inputs))
        else:
            inputs = line.removesuffix(":")
    return found


def _drawn() -> list[Network]:
    """Options in random combinations."""
    draw = random.Random(33)
    pick, found = draw.choice, []

    def weights(width: Any = 4) -> str:
        given = [f"W_std={pick((0.7, 1.0, 1.4))}", f"b_std={pick((None, 0.0, 0.3))}"]
        if pick((True, False, False)):
            given.append("parameterization='standard'")
        return f"{width}", ", ".join(given)

    def conv(kind: str, window: tuple[int, ...], strides: Any, padding: str) -> str:
        width, given = weights()
        return f"{kind}({width}, {window}, {strides}, '{padding}', {given})"

    def window(rank: int, most: int = 3) -> tuple[int, ...]:
        return tuple(pick(range(1, most + 1)) for _ in range(rank))

    end = ("", "Relu(), Flatten(), Dense(1)", "GlobalAvgPool(), Dense(1, b_std=0.1)", "Flatten()")
    activations = ("Relu()", "Erf()", "Gelu()", "Abs()", "Sin(1.1, 0.7)", "Identity()")
    for kind, count in (("Conv", 36), ("ConvLocal", 14), ("ConvTranspose", 14)):
        for place in range(count):
            rank, inputs = pick(((1, "sequences"), (2, "images")))
            padding = ("VALID", "SAME", "CIRCULAR")[place % 3]
            strides = pick((None, (1,) * rank, window(rank, 2)))
            first = conv(kind, window(rank), strides, padding)
            second = conv("Conv", window(rank, 2), None, pick(("SAME", "CIRCULAR")))
            layers = [first, pick(activations), pick((second, "Dense(3)")), pick(end)]
            found.append(Network(f"serial({', '.join(filter(None, layers))})", inputs))
    for place in range(30):
        rank, inputs = pick(((1, "sequences"), (2, "images")))
        padding = ("VALID", "SAME", "CIRCULAR")[place % 3]
        edges = [f"normalize_edges={pick((True, False))}"] if place % 2 else []
        kind = "AvgPool" if place % 2 else "SumPool"
        options = ", ".join(
            [str(window(rank)), str(pick((None, window(rank, 2)))), f"'{padding}'", *edges]
        )
        layers = ["Dense(4)", pick(activations), f"{kind}({options})", "Dense(3)", pick(end)]
        found.append(Network(f"serial({', '.join(filter(None, layers))})", inputs))
    for place in range(44):
        mechanism = ("SOFTMAX", "IDENTITY", "ABS", "RELU")[place % 4]
        given = [f"attention_mechanism='{mechanism}'"]
        if place % 8 == 1:
            given.append("linear_scaling=False")
        for name in ("W_key_std", "W_value_std", "W_query_std", "W_out_std"):
            given += [f"{name}={pick((0.5, 0.8, 1.2))}"] if pick((True, False)) else []
        given += [f"b_std={pick((None, 0.0, 0.3))}"]
        embedding = ("NONE", "SUM", "CONCAT")[place % 3]
        given.append(f"pos_emb_type='{embedding}'")
        if embedding != "NONE":
            given.append(f"pos_emb_decay_fn={pick((None, 'rational', 'exponential'))}")
            given.append(f"pos_emb_p_norm={pick((1, 2, 1.5))}, W_pos_emb_std={pick((0.6, 1.1))}")
            given.append(f"val_pos_emb={pick((True, False))}")
            if embedding == "CONCAT" and pick((True, False)):
                given.append(f"n_chan_pos_emb={pick((2, 5))}")
        inputs = pick(("sequences", "images", "padded") if place % 2 else ("sequences",))
        first = "Dense(4, 1.2, 0.1)" if inputs == "padded" or pick((True, False)) else "Identity()"
        last = ("", "GlobalAvgPool(), Dense(1)", "Relu(), GlobalAvgPool()", "Flatten()")
        layers = [first, f"attention({', '.join(given)})", pick(last)]
        found.append(Network(f"serial({', '.join(filter(None, layers))})", inputs))
    return found


def _every() -> list[Network]:
    found = []
    for nonlinearity in _NONLINEARITIES:
        found.append(
            Network(f"serial(Dense(7, 1.2, 0.3), {nonlinearity}, Dense(2, 0.9, 0.2))", "vectors")
        )
        found.append(Network(f"serial(Conv(7, (2,), b_std=0.1), {nonlinearity})", "sequences"))
    found += [Network(expression, inputs) for expression, inputs in _listed()]
    return [*found, *_drawn(), *_CALLS]


NETWORKS: dict[str, Network] = {network.name: network for network in _every()}
