import sys

import numpy as np
import pytest
from PIL import Image

from widelimit.data import (
    DataError,
    load_image_folder,
    load_image_folder_split,
    read_image,
    read_images,
)
from widelimit.errors import MissingExtraError


@pytest.fixture
def folder(tmp_path, rng):
    pixels = rng.integers(0, 256, (4, 6, 8, 3), dtype=np.uint8)
    for name, image in zip(["cat/1", "cat/2", "dog/1", "dog/2"], pixels, strict=True):
        path = tmp_path / "pets" / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return tmp_path / "pets", pixels


def test_folder_of_images(folder):
    path, pixels = folder
    (path / "dog" / ".DS_Store").write_bytes(b"x")
    (path / "dog" / "Thumbs.db").write_bytes(b"x")
    (path / "README.txt").write_text("pets")
    data = load_image_folder(path)
    np.testing.assert_array_equal(data.x, pixels)
    assert data.class_names == ("cat", "dog")
    assert data.y.tolist() == [0, 0, 1, 1]


def test_resize_is_the_area_average(folder):
    path, pixels = folder
    data = load_image_folder(path, size=(3, 4))
    mean = pixels.reshape(4, 3, 2, 4, 2, 3).mean(axis=(2, 4))
    assert np.abs(data.x - mean).max() <= 1  # Pillow rounds up to twice, once for each axis


def test_grey(folder):
    path, pixels = folder
    data = load_image_folder(path, grey=True)
    weights = np.array([0.299, 0.587, 0.114])
    assert data.x.shape == (4, 6, 8, 1)
    assert np.abs(data.x[..., 0] - pixels @ weights).max() <= 1


def test_photographs_are_turned_upright(tmp_path):
    image = Image.new("RGB", (8, 4))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held sideways
    image.save(tmp_path / "a.jpg", exif=exif)
    assert read_image(tmp_path / "a.jpg").shape == (8, 4, 3)


def test_a_file_that_is_no_image(folder):
    path, _ = folder
    (path / "dog" / "notes.txt").write_text("good dog")
    with pytest.raises(DataError, match=r"notes.txt' .*skip="):
        load_image_folder(path)
    assert load_image_folder(path, skip=True).y.tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_cut_off_images(folder, rng, kind, share):
    path, _ = folder
    broken = path / "cat" / f"0.{kind}"
    Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).save(broken)
    whole = broken.read_bytes()
    broken.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DataError, match=rf"0.{kind}' is no complete 8-bit image"):
        load_image_folder(path)


def test_deep_images_are_not_clipped_silently(tmp_path):
    Image.fromarray(np.full((4, 4), 40_000, dtype=np.uint16)).save(tmp_path / "a.png")
    with pytest.raises(DataError, match="more than 8 bits"):
        read_image(tmp_path / "a.png", grey=True)


def test_different_sizes(folder):
    path, _ = folder
    Image.new("RGB", (5, 5)).save(path / "dog" / "3.png")
    with pytest.raises(DataError, match=r"3.png' \(5, 5\).*to resize them \(size="):
        load_image_folder(path)
    assert load_image_folder(path, size=(5, 5)).x.shape == (5, 5, 5, 3)


def test_folders_that_are_not_arranged(folder, tmp_path):
    path, _ = folder
    Image.new("RGB", (8, 6)).save(path / "stray.png")
    with pytest.raises(DataError, match=r"beside the class folders.*stray.png"):
        load_image_folder(path)
    with pytest.raises(DataError, match="no folder in"):
        load_image_folder(path / "cat")
    with pytest.raises(DataError, match="no folder in"):
        load_image_folder(tmp_path / "nowhere")


def test_empty_class_folder(folder):
    path, _ = folder
    (path / "fox").mkdir()
    with pytest.raises(DataError, match=r"fox' holds no images"):
        load_image_folder(path)


def test_train_and_test_folders(folder, tmp_path):
    path, pixels = folder
    both = tmp_path / "both"
    both.mkdir()
    path.rename(both / "train")
    (both / "test" / "dog").mkdir(parents=True)
    Image.fromarray(pixels[0]).save(both / "test" / "dog" / "x.png")
    data = load_image_folder_split(both)
    assert data.y_test.tolist() == [1]
    np.testing.assert_array_equal(data.x_test[0], pixels[0])
    Image.new("RGB", (5, 5)).save(both / "test" / "dog" / "x.png")
    with pytest.raises(DataError, match="different sizes"):
        load_image_folder_split(both)


def test_images_without_labels(folder):
    path, pixels = folder
    np.testing.assert_array_equal(
        read_images([path / "dog" / "2.png", path / "cat" / "1.png"]), pixels[[3, 0]]
    )


def test_repeated_and_missing_paths(folder):
    path = folder[0] / "cat" / "1.png"
    assert len(read_images([path, path])) == 2
    with pytest.raises(DataError, match="no image to read"):
        read_images([])


def test_without_pillow(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingExtraError, match=r"pillow.*widelimit\[cli\]"):
        load_image_folder(folder[0])
