"""Forked processes, and errors that travel between processes."""

import pickle
import subprocess
import sys

import pytest

import widelimit as wl
from widelimit.data import DataError

PROGRAM = """
import multiprocessing
import sys
import warnings

import numpy as np

import widelimit as wl

net = wl.Serial(wl.Dense(8), wl.Relu(), wl.Dense(1))
x = np.ones((4, 3), np.float32)
# JAX warns its own way when a process with its threads is forked; here nobody should depend on it.
warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)


def work(call):
    try:
        call()
        return "done"
    except wl.errors.ForkError as error:
        return error


CALLS = {
    "kernel": lambda: net.kernel(x),
    "init": lambda: net.init(0, (3,)),
    "fit": lambda: wl.GP(net).fit(x, x[:, 0]),
    "law": lambda: net.law(x),
    "key": lambda: wl.trace(lambda width, key: None, x),
}


def in_child(name):
    return work(CALLS[name])


def in_pool(method, names):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.map_async(in_child, names).get(timeout=60)


if __name__ == "__main__":
    assert in_pool("fork", ["kernel"]) == ["done"]  # nothing has been started yet
    net.kernel(x)
    for answer in in_pool("fork", list(CALLS)):
        assert isinstance(answer, wl.errors.ForkError), answer
        assert "forkserver" in str(answer), answer
    assert in_pool("forkserver", ["kernel"]) == ["done"]
    print("whole")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_fork_after_the_start_is_refused_and_a_fork_before_it_works(tmp_path):
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    found = subprocess.run(
        [sys.executable, str(file)], capture_output=True, timeout=200, check=False, text=True
    )
    assert found.stdout == "whole\n", found.stderr


def test_errors_can_be_sent_between_processes():
    for kind in (wl.errors.ShapeError, wl.errors.OptionError, DataError):
        error = kind("A rule.", got="something", remedy="this")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is kind
        assert (str(again), again.remedy) == (str(error), "this")
    missing = wl.errors.MissingExtraError("zarr", "scale")
    assert str(pickle.loads(pickle.dumps(missing))) == str(missing)
