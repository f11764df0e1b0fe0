"""The tests check shapes in signatures: a wrong one is noticed where it is given or returned."""

import sys
from importlib.util import module_from_spec

import numpy as np
import pytest
from jaxtyping import TypeCheckError

SOURCE = """
import numpy as np
from jaxtyping import Float

def add(x: Float[np.ndarray, "n"], y: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    return x + y

def cut(x: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    return x[1:]

def size(x: int) -> int:
    return x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module as those of the package are imported."""
    hook = next(finder for finder in sys.meta_path if type(finder).__module__.startswith("jaxtyp"))
    (tmp_path / "stranger.py").write_text(SOURCE)
    monkeypatch.setattr(hook, "modules", ["stranger"])
    spec = hook.find_spec("stranger", [str(tmp_path)])
    loaded = module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_right_arrays_pass(module):
    np.testing.assert_array_equal(module.add(np.ones(3), np.ones(3)), 2 * np.ones(3))


def test_wrong_arguments_and_results_are_noticed(module):
    with pytest.raises(TypeCheckError, match="parameters of"):
        module.add(np.ones(3), np.ones(4))
    with pytest.raises(TypeCheckError, match="return value"):
        module.cut(np.ones(3))


def test_what_names_no_array_is_left_as_it_is(module):
    assert module.size("three") == "three"
    assert not hasattr(module.size, "__wrapped__")
