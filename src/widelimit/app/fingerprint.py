"""Names for networks, arrays and options: what a kept kernel is known by."""

import hashlib
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_FORMAT = 3  # of the files that are known by such names


def fingerprint(*things: Any) -> str:
    """A name for networks, arrays and plain values: equal exactly when all of them are equal.

    Functions inside a network count by identity, so a kernel with them is never mistaken for
    another; such kernels are not found again by a later process.
    """
    digest = hashlib.sha256(f"{_FORMAT} {version('widelimit')}".encode())
    leaves, structure = jax.tree.flatten(things)
    digest.update(str(structure).encode())
    for piece in _pieces(leaves):
        digest.update(piece)
    return digest.hexdigest()[:24]


def _pieces(leaves: list[Any]) -> Iterator[bytes]:
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, str):
            yield leaf.encode("utf-8", "backslashreplace")
            continue
        array = np.asarray(leaf)
        yield f"{array.dtype} {array.shape}".encode()
        yield repr(leaf).encode() if array.dtype == object else array.tobytes()
