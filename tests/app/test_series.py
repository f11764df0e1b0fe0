"""Series of one channel: windows reach what the same numbers reach as columns."""

import numpy as np
import pytest

import widelimit as wl
from widelimit.app.workflow import NetworkName, Settings, Task, run
from widelimit.data import save_npz
from widelimit.errors import ShapeError, WidelimitError


def write_series(folder, count=900):
    """The next value of two waves, a slow drift and noise, from thirty values before it."""
    rng = np.random.default_rng(0)
    t = np.arange(count + 30)
    drift = 0.03 * np.cumsum(rng.normal(size=len(t)))
    fast = 0.6 * np.sin(2 * np.pi * t / 7.3) * (1 + 0.5 * np.sin(t / 80))
    s = np.sin(2 * np.pi * t / 24) + fast + drift + 0.25 * rng.normal(size=len(t))
    windows = np.stack([s[i : i + 30] for i in range(count)])
    save_npz(folder / "columns.npz", x=windows, y=s[30:])
    save_npz(folder / "windows.npz", x=windows[..., None], y=s[30:])
    return folder / "windows.npz", folder / "columns.npz"


@pytest.mark.slow
@pytest.mark.optimised
def test_windows_reach_what_columns_reach(tmp_path):
    windows, columns = write_series(tmp_path)
    settings = Settings(folds=0, max_train=600)
    as_windows = run(windows, Task.REGRESS, settings=settings)
    as_columns = run(columns, Task.REGRESS, settings=settings)
    assert as_windows.model.estimator.summary_.startswith("cnn")
    assert as_windows.score.value > as_columns.score.value - 0.01
    assert as_windows.score.value > 0.88


def test_series_of_different_lengths_are_averaged(tmp_path):
    rng = np.random.default_rng(0)
    x, lengths = rng.normal(size=(40, 12, 1)), rng.integers(4, 12, 40)
    mask = np.arange(12)[None, :] < lengths[:, None]
    y = np.where(mask, x[..., 0], 0).sum(axis=1)
    save_npz(tmp_path / "s.npz", x=x, mask=mask, y=y)
    found = run(tmp_path / "s.npz", Task.REGRESS, settings=Settings(folds=0))
    assert "average" in found.model.estimator.summary_
    assert np.isfinite(found.predicted.answers).all()


def test_networks_of_vectors_are_refused(tmp_path):
    windows, _ = write_series(tmp_path, count=40)
    with pytest.raises(WidelimitError, match=r"series of 1 channels.*linear, fcn, cnn"):
        run(windows, Task.REGRESS, settings=Settings(network=NetworkName.TRANSFORMER))


def test_layer_norm_of_one_raw_channel_is_refused_where_it_is_built():
    net = wl.Serial(wl.LayerNorm(), wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(1))
    with pytest.raises(ShapeError, match="one channel"):
        net.kernel(np.zeros((2, 5, 1)))
    with pytest.raises(ShapeError, match="one channel"):
        net.init(0, (5, 1))
    wl.Serial(wl.Dense(8), wl.LayerNorm(), wl.Relu(), wl.MeanPool(), wl.Dense(1)).kernel(
        np.ones((2, 5, 1))
    )
