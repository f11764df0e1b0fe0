"""The Flax example of the page runs; the others are run with all pages."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "your-model.md"


@pytest.mark.slow
def test_the_flax_example_runs(capsys):
    pytest.importorskip("flax")
    code = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.S | re.M)
    assert len(code) == 1
    names = "import jax\nimport jax.numpy as jnp\nimport numpy as np\nimport widelimit as wl\n"
    exec(compile(names + code[0], "page", "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.strip() == "(3, 10)"
