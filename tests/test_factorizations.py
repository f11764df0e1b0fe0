"""Factorisations that never wait for each other: right, differentiable, and one by one."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import widelimit
from widelimit.factorizations import cholesky, eigh, lower_inverse, qr

RNG = np.random.default_rng(0)
SQUARE = RNG.normal(size=(3, 2, 5, 5))
POSITIVE = SQUARE @ SQUARE.swapaxes(-1, -2) + 0.5 * np.eye(5)


def lower(matrix):
    return jnp.tril(matrix) + 3 * jnp.eye(5)


def inverse_of_lower(matrix):
    return jnp.linalg.inv(lower(matrix))


FUNCTIONS = {
    "qr": (qr, jnp.linalg.qr, SQUARE),
    "cholesky": (cholesky, jnp.linalg.cholesky, POSITIVE),
    "inverse": (lambda m: lower_inverse(lower(m)), inverse_of_lower, SQUARE),
    "eigh": (lambda m: eigh(m)[0], lambda m: jnp.linalg.eigh(m)[0], POSITIVE),
}


def twice_mapped(function):
    return jax.vmap(jax.vmap(function))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_are_what_they_are_one_by_one(name):
    ours, plain, matrices = FUNCTIONS[name]
    with jax.enable_x64(True):
        x = jnp.asarray(matrices)
        found, expected = jax.jit(twice_mapped(ours))(x), twice_mapped(plain)(x)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["cholesky", "inverse", "eigh"])
def test_derivatives_of_first_and_second_order(name):
    ours, plain, matrices = FUNCTIONS[name]
    with jax.enable_x64(True):
        x = jnp.asarray(matrices[:2, 0])

        def total(function, x):
            symmetric = (x + x.swapaxes(-1, -2)) / 2 if name != "inverse" else x
            return jnp.sum(jnp.sin(jax.vmap(function)(symmetric)))

        check_grads(lambda x: total(ours, x), (x,), order=2, modes=["fwd", "rev"])
        slopes = [jax.jit(jax.grad(lambda x, f=f: total(f, x)))(x) for f in (ours, plain)]
    np.testing.assert_allclose(*slopes, rtol=1e-9, atol=1e-11)


def test_eigenvectors_have_derivatives():
    """Of `V f(λ) Vᵀ`, which does not depend on their signs."""

    def root(m):
        values, vectors = eigh(jnp.asarray(m + m.T) / 2)
        return (vectors * jnp.sqrt(values)[None, :]) @ vectors.T

    with jax.enable_x64(True):
        check_grads(root, (jnp.asarray(POSITIVE[0, 0]),), order=1)


def test_no_batch_reaches_lapack():
    @jax.jit
    def program(x):
        return twice_mapped(lambda m: (qr(m), cholesky(m @ m.T), eigh(m), lower_inverse(m)))(x)

    text = program.lower(jnp.asarray(SQUARE, jnp.float32)).as_text()
    calls = re.findall(r"custom_call @lapack_\w+\(.*->.*", text)
    calls += re.findall(r"custom_call @blas_\w+\(.*->.*", text)
    assert len(calls) >= 4
    for call in calls:
        ranks = [shape.count("x") for shape in re.findall(r"tensor<([\dx]*)f32>", call)]
        assert ranks
        assert max(ranks) == 2, call  # "5x5x": a matrix


WAITING = {"cholesky", "qr", "eigh", "eigvalsh", "svd", "inv", "solve", "lstsq", "pinv", "det"}
WAITING |= {"solve_triangular", "cho_factor", "cho_solve", "orthogonal", "multivariate_normal"}


def test_no_other_module_calls_them():
    """In compiled programs; factorisations of whole kernels are NumPy's and SciPy's."""
    root = Path(widelimit.__file__).parent
    for path in sorted(root.rglob("*.py")):
        if path.name == "factorizations.py":
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in WAITING:
                whole = ast.unparse(node)
                assert not whole.startswith(("jnp.linalg", "jax.")), f"{path.name}: {whole}"


PROGRAM = """
import sys, threading
import jax, jax.numpy as jnp
from widelimit import factorizations

function = {"ours": factorizations.cholesky, "jax": jnp.linalg.cholesky}[sys.argv[1]]

@jax.jit
def several(x):
    parts = [jax.vmap(function)(x + i * jnp.eye(x.shape[-1])) for i in range(8)]
    return sum(part.sum() for part in parts)

x = jnp.broadcast_to(100 * jnp.eye(90), (32, 90, 90))
threads = [threading.Thread(target=lambda: [several(x).block_until_ready() for _ in range(40)])
           for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("end", flush=True)
"""


@pytest.mark.slow
def test_many_batches_at_once_end():
    """JAX's own do not, on two processors: within a second, with jaxlib 0.10.2."""
    program = [sys.executable, "-c", PROGRAM, "ours"]
    found = subprocess.run(program, capture_output=True, timeout=600, check=True)
    assert found.stdout == b"end\n"
