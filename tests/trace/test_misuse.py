"""What `trace` and `audit` are given: numbers too large, laws without a variance, broken files."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

from widelimit.app.cli import app
from widelimit.errors import NumericalError, OptionError, WidelimitError
from widelimit.trace import RefusedError, Verdict, trace
from widelimit.trace.alignment import MOST_STEPS

X = np.random.default_rng(0).standard_normal((2, 3))


def readout(function, *, embed=jax.random.normal, scale=1.0):
    """`make` of one hidden layer."""

    def make(n, key):
        a, b, c = jax.random.split(key, 3)
        first = scale * embed(a, (3, n))
        other = jax.random.normal(c, (3, n))
        last = jax.random.normal(b, (n,)) / n**0.5
        return lambda x: last @ function(x @ first, x @ other)

    return make


# ---- numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e155, 1e200, 1e300])
@pytest.mark.parametrize("place", ["embedding", "hidden", "readout"])
def test_weights_whose_variance_overflows_are_refused(size, place):
    def make(n, key):
        keys = jax.random.split(key, 3)
        scale = {"embedding": 1.0, "hidden": 1.0, "readout": 1.0, place: size}
        first = scale["embedding"] * jax.random.normal(keys[0], (3, n))
        hidden = scale["hidden"] * jax.random.normal(keys[1], (n, n)) / n**0.5
        last = scale["readout"] * jax.random.normal(keys[2], (n,)) / n**0.5
        return lambda x: last @ jax.nn.relu(hidden @ jax.nn.relu(x @ first))

    with pytest.raises(WidelimitError, match=r"overflow|infinite"):
        trace(make, X).limit()


FAMILIES = {
    "Cauchy": (lambda a, b: a, jax.random.cauchy),
    "relu of Cauchy": (lambda a, b: jax.nn.relu(a), jax.random.cauchy),
    "Cauchy beside normal": (lambda a, b: a * b, jax.random.cauchy),
    "1/h": (lambda a, b: 1 / a, jax.random.normal),
    "1/(h − 0.3)": (lambda a, b: 1 / (a - 0.3), jax.random.normal),
    "|h|^(−1/2)": (lambda a, b: jnp.abs(a) ** -0.5, jax.random.normal),
    "1/h beside another": (lambda a, b: b / a, jax.random.normal),
    "h/h'": (lambda a, b: jnp.tanh(b) / a, jax.random.normal),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_laws_without_a_variance_are_refused(name):
    function, embed = FAMILIES[name]
    with pytest.raises(NumericalError, match="no square mean"):
        trace(readout(function, embed=embed), X).limit()


@pytest.mark.parametrize(
    ("function", "embed"),
    [
        (lambda a, b: jnp.abs(a) ** -0.25, jax.random.normal),
        (lambda a, b: jnp.tanh(a), jax.random.cauchy),
        (lambda a, b: jnp.exp(-200 * a**2), jax.random.normal),
        (lambda a, b: 1 / (0.05 + a**2), jax.random.normal),
        (lambda a, b: jnp.exp(a + b), jax.random.normal),
    ],
)
def test_steep_functions_that_have_a_variance_are_read(function, embed):
    law = trace(readout(function, embed=embed), 0.3 * X).limit()
    assert np.isfinite(law.covariance().value).all()


def test_complex_numbers_are_refused():
    plain = readout(lambda a, b: jnp.tanh(a))
    with pytest.raises(WidelimitError, match="real numbers"):
        trace(plain, X + 1j)
    turned = readout(lambda a, b: jnp.real(jnp.exp(1j * a)))
    with pytest.raises(RefusedError, match="complex"):
        trace(turned, X).limit()


# ---- options --------------------------------------------------------------------------------

PLAIN = readout(lambda a, b: jnp.tanh(a))


@pytest.mark.parametrize(
    "act",
    [
        lambda: trace(None, X),
        lambda: trace(3.0, X),
        lambda: trace(PLAIN, None),
        lambda: trace(PLAIN, "text"),
        lambda: trace(PLAIN, 3.0),
        lambda: trace(PLAIN, X, widths=64),
        lambda: trace(PLAIN, X, widths=None),
        lambda: trace(PLAIN, X, widths=(64, 96, 160.5)),
        lambda: trace(lambda n, key: None, X).limit(),
        lambda: trace(lambda n, key: jnp.ones(3), X).limit(),
        lambda: trace(PLAIN, X).limit(draws=0),
        lambda: trace(PLAIN, X).limit(draws=2.5),
        lambda: trace(PLAIN, X).ntk(draws=0),
        lambda: trace(PLAIN, X).compare(widths=64),
        lambda: trace(PLAIN, X).compare(widths=(0,)),
        lambda: trace(PLAIN, X).compare(draws=0),
        lambda: trace(PLAIN, X).compare(draws="many"),
    ],
)
def test_misuse_is_named(act):
    with pytest.raises(WidelimitError):
        act()


@pytest.mark.parametrize("rounds", [(10**9,), (10**5, 10**5), (MOST_STEPS + 1,)])
def test_endless_empty_loops_are_refused_at_once(rounds):
    def make(n, key):
        inner = PLAIN(n, key)

        def run(x):
            def loop(depth, carry):
                if depth == len(rounds):
                    return carry

                def turn(carry, _):
                    return loop(depth + 1, carry), None

                return jax.lax.scan(turn, carry, None, length=rounds[depth])[0]

            return inner(loop(0, x))

        return run

    with pytest.raises(RefusedError, match=str(MOST_STEPS)):
        trace(make, X).limit()
    with pytest.raises(RefusedError, match=str(MOST_STEPS)):
        trace(make, X).audit()


@pytest.mark.parametrize("factor", [1.0, 1e3])
@pytest.mark.parametrize("way", ["product", "sum"])
def test_a_readout_of_zeros_neither_diverges_nor_vanishes(way, factor):
    def make(n, key):
        first, last = jax.random.normal(key, (3, n)), jnp.zeros(n)

        def run(x):
            h = jnp.tanh(x @ first)
            return factor * n * (last @ h if way == "product" else jnp.sum(last * h))

        return run

    audit = trace(make, X).audit()
    (row,) = audit.of("output")
    assert row.verdict is Verdict.ZERO
    assert audit.healthy
    assert "diverges" not in str(audit)
    assert "vanishes" not in str(audit)


# ---- files ----------------------------------------------------------------------------------

GOOD = """
import jax, jax.numpy as jnp

def make(width, key):
    a, b = jax.random.split(key)
    w, v = jax.random.normal(a, (width, 4)), jax.random.normal(b, (1, width)) / width**0.5
    return lambda x: jnp.tanh(x @ w.T) @ v.T
"""

BROKEN = {
    "syntax": ("def make(:\n", "SyntaxError"),
    "import": ("import not_there_at_all\n" + GOOD, "ModuleNotFoundError"),
    "exception": ("raise RuntimeError('first line')\n" + GOOD, "RuntimeError"),
    "exit": ("import sys\nsys.exit(0)\n" + GOOD, "SystemExit"),
    "no make": ("x = 1\n", "no function 'make'"),
    "make is a number": ("make = 3\n", "no function 'make'"),
    "make raises": ("def make(width, key):\n    raise KeyError('gone')\n", "KeyError"),
    "make exits": ("def make(width, key):\n    raise SystemExit(7)\n", "SystemExit"),
    "make has other arguments": ("def make():\n    return None\n", "TypeError"),
    "make gives nothing": ("def make(width, key):\n    return None\n", "cannot be called"),
    "model raises": ("def make(width, key):\n    return lambda x: x[99999:][0] / {}\n", "Error"),
    "not text": ("\x00\x01", "Error"),
}


def run(tmp_path, text, *options):
    path = tmp_path / "a_model_of_mine.py"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["audit", f"{path}:make", *(options or ("--shape", "3,4"))])


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_one_sentence(tmp_path, name):
    text, word = BROKEN[name]
    found = run(tmp_path, text)
    assert isinstance(found.exception, WidelimitError)
    assert word in str(found.exception)
    assert "\n" not in str(found.exception)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--shape", "3,5"),
        ("--shape", "0,4"),
        ("--shape", "-1,4"),
        ("--shape", "a"),
        ("--inputs", "missing.npy"),
        ("--shape", "3,4", "--widths", "64"),
    ],
)
def test_wrong_shapes_and_inputs_are_one_sentence(tmp_path, options):
    path = tmp_path / "model.py"
    path.write_text(GOOD)
    found = CliRunner().invoke(app, ["audit", f"{path}:make", *options])
    assert isinstance(found.exception, WidelimitError)


@pytest.mark.parametrize("content", [b"", b"no array", b"PK\x03\x04 cut"])
def test_inputs_that_are_no_arrays(tmp_path, content):
    inputs = tmp_path / "x.npy"
    inputs.write_bytes(content)
    found = run(tmp_path, GOOD, "--inputs", str(inputs))
    assert isinstance(found.exception, WidelimitError)
    assert "holds no examples" in str(found.exception)


OWN_CLASSES = """
from __future__ import annotations
import dataclasses, pickle
import jax, jax.numpy as jnp

@dataclasses.dataclass
class Sizes:
    width: int
    inner: dataclasses.InitVar[int] = 0

def make(width, key):
    sizes = pickle.loads(pickle.dumps(Sizes(width)))
    a, b = jax.random.split(key)
    w, v = jax.random.normal(a, (sizes.width, 4)), jax.random.normal(b, (1, width)) / width**0.5
    return lambda x: jnp.tanh(x @ w.T) @ v.T
"""


def test_files_that_look_for_their_own_classes(tmp_path):
    for _ in range(2):  # the name is taken the second time
        found = run(tmp_path, OWN_CLASSES)
        assert found.exit_code == 0, found.exception


def test_escape_sequences_do_not_reach_the_terminal(tmp_path):
    text = GOOD.replace("@ v.T", "@ v.T  # \x1b[31mred\x1b]0;title\x07")
    found = run(tmp_path, text)
    assert found.exit_code == 0, found.exception
    assert "\x1b" not in found.output
    assert "\x07" not in found.output
    assert "\\x1b[31mred" in found.output


def test_the_help_says_that_the_file_is_run():
    said = " ".join(CliRunner().invoke(app, ["audit", "--help"]).output.split())
    assert "The file is run, once, and make(width, key) three times" in said


def test_how_often_the_file_runs(tmp_path):
    count = tmp_path / "count"
    say = f"with open({str(count)!r}, 'a') as f: f.write('%s ')\n"
    text = say % "file" + GOOD.replace("    a, b =", "    " + say % "make" + "    a, b =")
    assert run(tmp_path, text).exit_code == 0
    assert count.read_text().split() == ["file", "make", "make", "make"]


def test_options_are_named():
    with pytest.raises(OptionError, match="draws="):
        trace(PLAIN, X).limit(draws=0)
