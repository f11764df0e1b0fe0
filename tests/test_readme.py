"""Every Python block of the README runs, in order, in one namespace."""

import re
import warnings
from pathlib import Path

import jax

README = Path(__file__).parent.parent / "README.md"


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 4
    namespace: dict[str, object] = {}
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, str(README), "exec"), namespace)
    assert namespace["mean"].shape == (5,)
    assert namespace["outputs"].shape == (20, 1)
