import os
from pathlib import Path

import numpy as np
import pytest

NEEDED = ("cifar10.npz", "imdb.jsonl.gz", "glove_100d.npz", "rt_polarity.jsonl.gz")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The directory of the large real files, from WIDELIMIT_DATA or beside the project."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    root = Path(os.environ.get("WIDELIMIT_DATA") or beside)
    if missing := [name for name in NEEDED if not (root / name).is_file()]:
        pytest.skip(f"needs {', '.join(missing)}: set WIDELIMIT_DATA to a directory with them")
    return root


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _no_data_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Searches without a directory see an empty cache, not the files of whoever runs the tests."""
    monkeypatch.delenv("WIDELIMIT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
