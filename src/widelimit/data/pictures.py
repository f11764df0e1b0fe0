"""Folders of images, one folder per class (needs Pillow)."""

import math
import mimetypes
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import MissingExtraError
from .datasets import Dataset, Labelled
from .errors import DataError, some
from .labels import class_names, class_numbers
from .limits import require

DEEP_MODES = ("I", "F")  # 16- and 32-bit images; 8 bits would clip them silently
SYSTEM_FILES = ("thumbs.db", "desktop.ini")


def read_image(
    path: Path | str, *, size: tuple[int, int] | None = None, grey: bool = False
) -> np.ndarray:
    """One image as `uint8` `(height, width, 3)`, or `(height, width, 1)` if `grey`.

    `size` is `(height, width)`; the image is resized to it by area averaging.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise MissingExtraError("pillow", "cli") from error
    path = Path(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd remarks inside the file, and of its size
            with Image.open(path) as file:
                require("pixels", math.prod(file.size), f"'{path}'")
                if file.mode.startswith(DEEP_MODES):
                    raise ValueError(f"mode {file.mode}, more than 8 bits per channel")
                image = ImageOps.exif_transpose(file).convert("L" if grey else "RGB")
    except (DataError, MissingExtraError):
        raise
    except Exception as error:  # a damaged image fails in any of its many decoders
        raise DataError(
            f"'{path}' is no complete 8-bit image (PNG, JPEG, ...).",
            got=str(error) or type(error).__name__,
            remedy="remove, replace or convert this file, or leave such files out",
            option="skip",
        ) from error
    if size is not None:
        height, width = size
        require("pixels", height * width, f"an image resized to {height}×{width}")
        image = image.resize((width, height), Image.Resampling.BOX)
    array = np.asarray(image, dtype=np.uint8)
    return array[:, :, None] if grey else array


def read_images(
    paths: Sequence[Path | str],
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
) -> np.ndarray:
    """Images as one array `(N, height, width, channels)`; without `size` all must be alike."""
    return _stacked(_read_all([Path(path) for path in paths], size=size, grey=grey))


def load_image_folder(
    directory: Path | str,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    skip: bool = False,
) -> Labelled:
    """Images in `directory/<class>/`, classes and files in alphabetical order.

    A file that is no image is an error unless `skip`.
    """
    return named_image_folder(directory, size=size, grey=grey, skip=skip)[0]


def named_image_folder(
    directory: Path | str, *, names: tuple[str, ...] | None = None, skip: bool = False, **how: Any
) -> tuple[Labelled, tuple[str, ...]]:
    """What `load_image_folder` loads, and the files as `class/file`; classes are among `names`."""
    folders = _class_folders(Path(directory))
    found = [folder.name for folder in folders]
    names = names or class_names(found)
    class_numbers(found, names)  # wrong names are found before reading
    images: list[tuple[Path, np.ndarray]] = []
    for folder in folders:
        inside = _folder_images(folder, skip=skip, **how)
        if not inside:
            raise DataError(
                f"The folder '{folder}' holds no images.",
                got="none",
                remedy="add images or remove the folder",
            )
        images += inside
    y = class_numbers([path.parent.name for path, _ in images], names)
    files = tuple(f"{path.parent.name}/{path.name}" for path, _ in images)
    return Labelled(_stacked(images), y, names), files


def load_image_folder_split(
    directory: Path | str,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    skip: bool = False,
) -> Dataset:
    """Images in `directory/train/<class>/` and `directory/test/<class>/`."""
    return named_image_folder_split(directory, size=size, grey=grey, skip=skip)[0]


def named_image_folder_split(directory: Path | str, **how: Any) -> tuple[Dataset, tuple[str, ...]]:
    """What `load_image_folder_split` loads, and the files as `part/class/file`, training first."""
    directory = Path(directory)
    train, train_files = named_image_folder(directory / "train", **how)
    test, test_files = named_image_folder(directory / "test", names=train.class_names, **how)
    if train.x.shape[1:] != test.x.shape[1:]:
        raise _sizes_differ(f"{train.x.shape[1:3]} in train, {test.x.shape[1:3]} in test")
    files = (*(f"train/{name}" for name in train_files), *(f"test/{name}" for name in test_files))
    return Dataset.join(train, test), files


def _class_folders(directory: Path) -> list[Path]:
    entries = sorted(directory.iterdir()) if directory.is_dir() else []
    folders = [path for path in entries if path.is_dir() and not path.name.startswith(".")]
    if not folders:
        raise _not_arranged(f"no folder in '{directory}'")
    kinds = {path: mimetypes.guess_type(path.name)[0] or "" for path in entries if path.is_file()}
    if stray := [path.name for path, kind in kinds.items() if kind.startswith("image/")]:
        raise _not_arranged(f"images beside the class folders of '{directory}': {some(stray)}")
    return folders


def _folder_images(folder: Path, *, skip: bool, **how: Any) -> list[tuple[Path, np.ndarray]]:
    hidden = (".", *SYSTEM_FILES)
    paths = [p for p in sorted(folder.iterdir()) if not p.name.lower().startswith(hidden)]
    return _read_all(paths, skip=skip, **how)


def _read_all(
    paths: Sequence[Path], *, skip: bool = False, **how: Any
) -> list[tuple[Path, np.ndarray]]:
    """Images with their paths, as many as fit into the memory that is allowed."""
    images, total = [], 0
    for path in paths:
        try:
            images.append((path, read_image(path, **how)))
        except DataError:
            if not skip:
                raise
            continue
        total += images[-1][1].nbytes
        require("bytes", total, f"images up to '{path}'")
    return images


def _stacked(images: list[tuple[Path, np.ndarray]]) -> np.ndarray:
    if not images:
        raise DataError(
            "There is no image to read.",
            got="an empty list of paths",
            remedy="give the paths of image files",
        )
    shape = images[0][1].shape
    if other := [f"'{path}' {image.shape[:2]}" for path, image in images if image.shape != shape]:
        raise _sizes_differ(f"{shape[:2]} first, then {some(other)}")
    return np.stack([image for _, image in images])


def _sizes_differ(got: str) -> DataError:
    return DataError(
        "Images have different sizes.",
        got=got,
        remedy="give a (height, width) to resize them",
        option="size",
    )


def _not_arranged(got: str) -> DataError:
    return DataError(
        "The folder is not one of a folder of images for each class.",
        got=got,
        remedy="arrange the images as <directory>/<class>/<image>.png",
    )
