"""Every case of stax_networks.py and stax_calls.py: neural-tangents' numbers, to 1e-8.

The code of a case is the same in both libraries; tests/reference/neural_tangents holds the results.
Where one of the two solves an equation or an integral by steps, 1e-6.
"""

import re
from typing import Any

import jax
import numpy as np
import pytest
from stax_calls import CALLS
from stax_examples import EXAMPLES
from stax_networks import NETWORKS
from stax_numbers import flatten, load

import widelimit.neural_tangents as nt
from widelimit.errors import WidelimitError

_NETWORKS = {name: network.kernel for name, network in NETWORKS.items()}
_CASES: dict[str, Any] = _NETWORKS | CALLS | EXAMPLES
_THEIRS = load()

_BY_STEPS = ("ElementwiseNumerical", "gradient_descent(", "function_space", "elementwise")

_REFUSED = {
    r"FanInConcat\([12]\)": "does not join channels",
    r"FanInProd\(\), Dense\(1\)\) \| pairs": "of several inputs is not known",
    r"Flatten\(\).* \| padded": "Flatten met a mask",
    r"Index\(Slice\[0:2\]\)": "idx=",
}
"""Names of cases that are refused here, and words of the error."""

_DIFFERENT = {
    r"^(Identity|ImageResize)\(.*\) \| (images|sequences)": "Θ of raw inputs: the number 0 there",
    "RectifiedMonomial": "NaN there; see test_stax_finite.py",
    r"Conv\(4, \(2, 2\)\), (Relu\(\), )?ImageResize": "one convolution turns its images",
}
"""Names of cases whose numbers differ, and why."""


def _reason(table: dict[str, str], name: str) -> str | None:
    return next((words for part, words in table.items() if re.search(part, name)), None)


_SAME = [
    name
    for name in _CASES
    if not isinstance(_THEIRS.get(name, ""), str)
    and _reason(_REFUSED, name) is None
    and _reason(_DIFFERENT, name) is None
]
_FAST = set(_SAME[::6])


def _some(names: list[str]) -> list[Any]:
    """All of them; most with the slow tests."""
    return [name if name in _FAST else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.fixture(autouse=True)
def double():
    """JAX in double precision, as the numbers are; scripts may add arrays of different ranks."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        yield


def _near(found: np.ndarray, expected: np.ndarray) -> bool:
    return np.allclose(found, expected, rtol=1e-6)


def _turned(kernel: np.ndarray, name: str) -> np.ndarray:
    """After an odd number of convolutions neural-tangents has width before height."""
    pairs = kernel.ndim - 2
    if pairs != 4 or name not in NETWORKS or NETWORKS[name].expression.count("Conv") % 2 == 0:
        return kernel
    return kernel.transpose(0, 1, 4, 5, 2, 3)


@pytest.mark.parametrize("name", _some(_SAME))
@pytest.mark.filterwarnings("ignore:.*not accurate")
def test_the_same_numbers(name):
    theirs, ours = _THEIRS[name], flatten(_CASES[name](nt))
    assert not isinstance(theirs, str)
    assert set(ours) == set(theirs)
    tolerance = 1e-6 if any(word in name for word in _BY_STEPS) else 1e-8
    largest = max(np.abs(leaf).max(initial=0) for leaf in theirs.values() if leaf is not None)
    for path, expected in theirs.items():
        found = ours[path]
        if found is None or expected is None:
            assert found is expected or ("mask" in path and not np.any(expected)), path
            continue
        if expected.shape != found.shape or not _near(found, expected):
            expected = _turned(expected, name)
        assert found.shape == expected.shape, path
        scale = max(np.abs(expected).max(initial=0), 1e-6 * largest)
        np.testing.assert_allclose(
            found, expected, rtol=tolerance, atol=tolerance * scale, err_msg=path
        )


@pytest.mark.parametrize("name", [n for n in _CASES if _reason(_REFUSED, n) is not None])
def test_refused_here(name):
    with pytest.raises(WidelimitError, match=_reason(_REFUSED, name)):
        _CASES[name](nt)


def test_every_case_has_numbers_or_a_reason():
    assert set(_THEIRS) == set(_CASES)
    assert len(_SAME) >= 250
