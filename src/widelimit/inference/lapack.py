"""LAPACK's long steps without the interpreter's lock.

SciPy's own wrappers hold the lock until a factorisation is done, minutes for large matrices: no
other thread runs meanwhile, so that neither progress is shown nor Ctrl-C answered. The same
routines, called through their addresses, let others work.

Matrices are float64 and stand column by column; of triangles the lower one counts.
"""

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.linalg import cython_lapack  # pyright: ignore[reportAttributeAccessIssue] compiled

Square = Float[np.ndarray, "n n"]
Columns = Float[np.ndarray, "n *m"]

_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(
    ("PyCapsule_GetName", ctypes.pythonapi)
)
_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


def factorise(matrix: Square) -> int:
    """`A = L Lᵀ` in place; the row, counted from 1, at which A is not positive, or 0."""
    assert matrix.dtype == np.float64
    assert matrix.flags.f_contiguous
    return _run("dpotrf", b"L", len(matrix), matrix, len(matrix))


def inverse_of_product(factor: Square) -> Square:
    """`(L Lᵀ)⁻¹`, its lower triangle."""
    found = np.array(factor, order="F")
    _run("dpotri", b"L", len(found), found, len(found))
    return found


def inverse(factor: Square) -> Square:
    """`L⁻¹`."""
    found = np.array(factor, order="F")
    _run("dtrtri", b"L", b"N", len(found), found, len(found))
    return found


def solve_product(factor: Square, right: Columns) -> Columns:
    """`(L Lᵀ)⁻¹ B`."""
    factor, found = np.asfortranarray(factor), _as_columns(right)
    size, count = found.shape
    _run("dpotrs", b"L", size, count, factor, max(size, 1), found, max(size, 1))
    return found.reshape(np.shape(right), order="F")


def solve(factor: Square, right: Columns) -> Columns:
    """`L⁻¹ B`."""
    factor, found = np.asfortranarray(factor), _as_columns(right)
    size, count = found.shape
    _run("dtrtrs", b"L", b"N", b"N", size, count, factor, max(size, 1), found, max(size, 1))
    return found.reshape(np.shape(right), order="F")


def _as_columns(right: Columns) -> Float[np.ndarray, "n m"]:
    """A copy to be overwritten; one column may come without an axis of its own."""
    return np.array(right.reshape(len(right), -1), np.float64, order="F")


def _run(name: str, *arguments: bytes | int | np.ndarray) -> int:
    """Everything is passed by its address, as Fortran wants it; the last argument is the result."""
    result = ctypes.c_int()
    numbers = [ctypes.c_int(a) if isinstance(a, int) else a for a in arguments]
    places = [
        ctypes.byref(a)
        if isinstance(a, ctypes.c_int)
        else a.ctypes.data
        if isinstance(a, np.ndarray)
        else a
        for a in numbers
    ]
    _function(name, len(places) + 1)(*places, ctypes.byref(result))
    return result.value


@cache
def _function(name: str, count: int) -> Callable[..., Any]:
    capsule = cython_lapack.__pyx_capi__[name]
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * count)
    return kind(_address(capsule, _name(capsule)))
