"""Real data where they are, the sample where that is enough, and a remedy where it is not."""

import numpy as np
import pytest

from widelimit.app.studies import cifar10, sources
from widelimit.app.studies.study import Size
from widelimit.data import DataError


@pytest.fixture
def no_data(monkeypatch, tmp_path):
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))


@pytest.mark.usefixtures("no_data")
def test_small_sizes_fall_back_on_the_sample():
    data, name = sources.images(Size.SMALL, side=8, train=40, test=10_000)
    assert "sample" in name
    assert data.x_train.shape == (40, 8, 8, 3)
    assert sources.imdb(Size.SMALL)[1] is False
    assert sources.rt_polarity(Size.SMALL)[1] is False


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize(
    "load",
    [
        lambda: sources.images(Size.LARGE, side=8, train=40, test=40),
        lambda: sources.imdb(Size.LARGE),
        lambda: sources.rt_polarity(Size.PAPER),
        lambda: sources.glove(Size.LARGE),
    ],
)
def test_larger_sizes_say_what_to_do(load):
    with pytest.raises(DataError, match=r"WIDELIMIT_DATA.*small size.*data_dir="):
        load()


@pytest.mark.usefixtures("no_data")
def test_views_are_scaled_by_the_training_part():
    data, _ = sources.images(Size.SMALL, side=8, train=120, test=40)
    for view in sources.image_views(data).values():
        np.testing.assert_allclose(view.x_train.mean(axis=(0, 1, 2)), 0, atol=1e-5)
        np.testing.assert_allclose(view.x_train.std(axis=(0, 1, 2)), 1, rtol=1e-4)


def test_patches_keep_neighbours_together():
    x = np.arange(16.0).reshape(1, 4, 4, 1)
    np.testing.assert_array_equal(cifar10.patches(x, 2)[0, 0, 1], [2, 3, 6, 7])
    np.testing.assert_array_equal(cifar10.patches(x, 1), x)


@pytest.mark.parametrize(
    ("name", "load"),
    [
        ("cifar-10-binary.tar.gz", lambda: sources.images(Size.SMALL, side=8, train=40, test=40)),
        ("cifar10.npz", lambda: sources.images(Size.SMALL, side=8, train=40, test=40)),
        ("imdb.csv", lambda: sources.imdb(Size.SMALL)),
        ("rt_polarity.jsonl.gz", lambda: sources.rt_polarity(Size.SMALL)),
        ("glove_100d.npz", lambda: sources.glove(Size.SMALL)),
    ],
)
def test_damaged_data_are_not_replaced_by_the_sample(monkeypatch, tmp_path, name, load):
    monkeypatch.setenv("WIDELIMIT_DATA", str(tmp_path))
    (tmp_path / name).write_bytes(b"half of what it should be")
    with pytest.raises(DataError, match=name):
        load()
