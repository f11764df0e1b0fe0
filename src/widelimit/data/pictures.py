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
    paths: Sequence[Path | str], *, size: tuple[int, int] | None = None, grey: bool = False
) -> np.ndarray:
    """Images as one array `(N, height, width, channels)`; without `size` all must be alike."""
    return _read_all([Path(path) for path in paths], size=size, grey=grey)[1]


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
    paths, x = read_classes(Path(directory), size=size, grey=grey, skip=skip)
    labels = [path.parent.name for path in paths]
    names = class_names(labels)
    return Labelled(x, class_numbers(labels, names), names)


def load_image_folder_split(
    directory: Path | str,
    *,
    size: tuple[int, int] | None = None,
    grey: bool = False,
    skip: bool = False,
) -> Dataset:
    """Images in `directory/train/<class>/` and `directory/test/<class>/`."""
    folders = [Path(directory) / part for part in ("train", "test")]
    paths, x = read_classes(*folders, size=size, grey=grey, skip=skip)
    labels = np.array([path.parent.name for path in paths])
    held = np.array([path.parent.parent == folders[1] for path in paths])
    names = class_names(labels[~held].tolist())
    parts = (
        Labelled(x[rows], class_numbers(labels[rows].tolist(), names), names)
        for rows in (~held, held)
    )
    return Dataset.join(*parts)


def read_classes(*directories: Path, skip: bool, **how: Any) -> tuple[list[Path], np.ndarray]:
    """The images of all folders of classes, and their files, `directory/<class>/<image>`."""
    hidden = (".", *SYSTEM_FILES)
    paths, folders = [], [folder for one in directories for folder in _class_folders(one)]
    for folder in folders:
        paths += [p for p in sorted(folder.iterdir()) if not p.name.lower().startswith(hidden)]
    paths, x = _read_all(paths, skip=skip, **how)
    if empty := set(folders) - {path.parent for path in paths}:
        raise DataError(
            f"The folder '{min(empty)}' holds no images.",
            got="none",
            remedy="add images or remove the folder",
        )
    return paths, x


def _class_folders(directory: Path) -> list[Path]:
    entries = sorted(directory.iterdir()) if directory.is_dir() else []
    folders = [path for path in entries if path.is_dir() and not path.name.startswith(".")]
    kinds = {path: mimetypes.guess_type(path.name)[0] or "" for path in entries if path.is_file()}
    stray = [path.name for path, kind in kinds.items() if kind.startswith("image/")]
    if stray or not folders:
        beside = f"images beside the class folders of '{directory}': {some(stray)}"
        raise DataError(
            "The folder is not one of a folder of images for each class.",
            got=beside if folders else f"no folder in '{directory}'",
            remedy="arrange the images as <directory>/<class>/<image>.png",
        )
    return folders


def _read_all(
    paths: Sequence[Path], *, skip: bool = False, **how: Any
) -> tuple[list[Path], np.ndarray]:
    """Images of one size and their paths, as many as fit into the memory that is allowed."""
    read, images, total = [], [], 0
    for path in paths:
        try:
            image = read_image(path, **how)
        except DataError:
            if not skip:
                raise
            continue
        total += image.nbytes
        require("bytes", total, f"images up to '{path}'")
        read.append(path)
        images.append(image)
    if not images:
        raise DataError(
            "There is no image to read.",
            got=f"{len(paths)} files",
            remedy="give the paths of image files",
        )
    shape, pairs = images[0].shape, zip(read, images, strict=True)
    if other := [f"'{path}' {image.shape[:2]}" for path, image in pairs if image.shape != shape]:
        raise DataError(
            "Images have different sizes.",
            got=f"{shape[:2]} first, then {some(other)}",
            remedy="give a (height, width) to resize them",
            option="size",
        )
    return read, np.stack(images)
