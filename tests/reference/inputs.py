"""The inputs that the cases share.

Values are standard normal, rounded to multiples of 1/64: exact in float32 as in float64, so that
a comparison in single precision measures the kernel and not the input. The first example of `x2`
is the first example of `x1`, so that every case holds one pair of identical inputs.
"""

from typing import NamedTuple

import numpy as np

PADDING = 7.0
"""What stands at padded positions; neural-tangents is told so by `mask_constant`."""


class Inputs(NamedTuple):
    """Two batches, with masks (True: the position is real) where the examples are padded."""

    text: str
    x1: np.ndarray
    x2: np.ndarray
    mask1: np.ndarray | None = None
    mask2: np.ndarray | None = None
    pattern1: np.ndarray | None = None
    pattern2: np.ndarray | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """What goes into the fixture."""
        named = self._asdict()
        del named["text"]
        return {name: array for name, array in named.items() if array is not None}


def _rounded(values: np.ndarray) -> np.ndarray:
    return np.round(values * 64) / 64


def _normal(text: str, seed: int, *shape: int) -> Inputs:
    x = _rounded(np.random.default_rng(seed).normal(size=(7, *shape)))
    x1, x2 = x[:4], x[4:]
    x2[0] = x1[0]
    return Inputs(text, x1, x2)


def _masked(text: str, plain: Inputs, mask1: np.ndarray, mask2: np.ndarray) -> Inputs:
    x1 = np.where(mask1[..., None], plain.x1, PADDING)
    x2 = np.where(mask2[..., None], plain.x2, PADDING)
    return Inputs(text, x1, x2, mask1, mask2)


def _lengths(total: int, lengths: list[int]) -> np.ndarray:
    return np.arange(total) < np.array(lengths)[:, None]


def _graphs(plain: Inputs, *shape: int) -> Inputs:
    """With weights of edges, of which half are zero; none lead to padding or from it."""
    rng = np.random.default_rng(6)
    weights = _rounded(rng.normal(size=(7, *shape, *shape))) * rng.integers(0, 2, (7, *shape * 2))
    patterns = [weights[:4], weights[4:]]
    for i, mask in enumerate((plain.mask1, plain.mask2)):
        if mask is not None:
            patterns[i] = patterns[i] * mask[:, :, None] * mask[:, None]
    text = f"{plain.text}, with a pattern over axes of {' × '.join(map(str, shape))}"
    return plain._replace(text=text, pattern1=patterns[0], pattern2=patterns[1])


def _nearly_identical() -> Inputs:
    x = _rounded(np.random.default_rng(5).normal(size=(2, 3)))
    step = np.array([1.0, -1.0, 2.0])
    x2 = np.stack([x[0] + step * 2.0**-k for k in (10, 13, 17)])
    return Inputs("2 × 3 against x1[0] moved by 2⁻¹⁰, 2⁻¹³, 2⁻¹⁷ times (1, −1, 2)", x, x2)


def _two_dimensional_mask() -> Inputs:
    rows1, columns1 = _lengths(4, [4, 3, 2, 4]), _lengths(4, [4, 4, 3, 1])
    rows2, columns2 = _lengths(4, [4, 1, 3]), _lengths(4, [4, 3, 2])
    return _masked(
        "images 4 × 4 × 3, padded below and at the right",
        IMAGES,
        rows1[:, :, None] & columns1[:, None, :],
        rows2[:, :, None] & columns2[:, None, :],
    )


VECTORS = _normal("vectors, 3 channels", 0, 3)
SEQUENCES = _normal("sequences 5 × 4", 1, 5, 4)
IMAGES = _normal("images 4 × 4 × 3", 2, 4, 4, 3)
ODD_IMAGES = _normal("images 5 × 5 × 3", 3, 5, 5, 3)
SMALL_IMAGES = _normal("images 2 × 3 × 3", 4, 2, 3, 3)
MASKED_SEQUENCES = _masked(
    "sequences 5 × 4, lengths 5 3 1 4 and 5 2 3",
    SEQUENCES,
    _lengths(5, [5, 3, 1, 4]),
    _lengths(5, [5, 2, 3]),
)
MASKED_IMAGES = _two_dimensional_mask()
NEARLY_IDENTICAL = _nearly_identical()
GRAPHS = _graphs(SEQUENCES, 5)
MASKED_GRAPHS = _graphs(MASKED_SEQUENCES, 5)
IMAGES_OF_PIXELS = _graphs(SMALL_IMAGES, 2, 3)
IMAGES_OF_ROWS = _graphs(SMALL_IMAGES, 2)
