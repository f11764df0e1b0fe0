"""Ctrl-C at any moment: exit code 130, one line, soon."""

import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from command_line import call, write_flowers

from widelimit.app.cli import learn

PROGRAM = (sys.executable, "-m", "widelimit_command")


def interrupted(arguments, after, folder):
    """Run a program, press Ctrl-C after some seconds: exit code, what it said, and how long it took
    to end: after that, or by itself.
    """
    with subprocess.Popen(
        [*PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, stdout=subprocess.PIPE, cwd=folder
    ) as program:
        begin = time.monotonic()
        try:
            program.wait(after)
        except subprocess.TimeoutExpired:
            pass
        else:
            return program.returncode, program.stderr.read().decode(), time.monotonic() - begin
        begin = time.monotonic()
        program.send_signal(signal.SIGINT)
        program.wait(120)
        return program.returncode, program.stderr.read().decode(), time.monotonic() - begin


def test_while_importing(tmp_path):
    code, said, _ = interrupted(("info",), 0.3, tmp_path)
    assert (code, said) == (130, "interrupted\n")


def test_in_python_code(capsys, tmp_path, monkeypatch):
    def waits(*_, **__):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    monkeypatch.setattr(learn, "run", waits)
    handler = signal.getsignal(signal.SIGINT)
    file = write_flowers(tmp_path / "t.csv")
    said = call(capsys, "classify", file, "--out", tmp_path / "out", code=130).err
    assert said.startswith("interrupted")
    assert said.count("\n") == 1
    assert signal.getsignal(signal.SIGINT) is handler
    assert not (tmp_path / "out" / ".lock").exists()


DEAF = """
import ctypes, os, signal, sys, threading, time
from widelimit.app.cli.ending import ended_well
from widelimit.data.files import writing

def press():
    time.sleep(0.2)
    os.kill(os.getpid(), signal.SIGINT)

lock, library = ctypes.create_string_buffer(256), ctypes.CDLL(None)
with ended_well(), writing(sys.argv[1]) as file:
    file.write(b"half")
    threading.Thread(target=press).start()
    library.pthread_mutex_lock(lock)
    library.pthread_mutex_lock(lock)  # waits for ever, and does not listen to signals
"""


@pytest.mark.skipif(sys.platform != "linux", reason="made of Linux's locks")
def test_in_compiled_code_that_does_not_listen(tmp_path):
    """Also then nothing half written is left behind."""
    program = [sys.executable, "-c", DEAF, str(tmp_path / "file")]
    found = subprocess.run(program, capture_output=True, timeout=100, check=False)
    assert found.returncode == 130, found.stderr
    assert found.stderr.startswith(b"interrupted")
    assert list(tmp_path.iterdir()) == []


def test_in_a_clean_up_where_python_forgets_it(tmp_path):
    """Python would print a traceback, and go on."""
    program = """
import os, signal, time
from widelimit.app.cli.ending import ended_well

class Last:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)

with ended_well():
    Last()
    time.sleep(60)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert found.returncode == 130
    assert found.stderr.startswith(b"interrupted")
    assert found.stderr.count(b"\n") == 1


LONG = """
import sys
import numpy as np
from widelimit.app.cli.ending import ended_well
from widelimit.inference.solve import factorise

n = 9000
with ended_well():
    matrix = np.full((n, n), 0.5)
    np.fill_diagonal(matrix, 2.0)
    print("begun", flush=True)
    factorise(matrix)
    print("ended", flush=True)
"""


@pytest.mark.slow
def test_in_a_long_factorisation():
    """Nine thousand examples take several seconds, in one call of LAPACK."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LONG], **pipes) as program:
        assert program.stdout.readline() == b"begun\n"
        time.sleep(1)
        begin = time.monotonic()
        program.send_signal(signal.SIGINT)
        rest, said = program.communicate(timeout=100)
        print(f"{time.monotonic() - begin:.2f} s")
    assert (program.returncode, rest) == (130, b"")
    assert said.startswith(b"interrupted")
    assert said.count(b"\n") == 1


@pytest.mark.slow
def test_at_random_moments(tmp_path):
    rng = np.random.default_rng(0)
    file = write_flowers(tmp_path / "t.csv", count=1500)
    arguments = ("classify", file, "--label", "species", "--out", tmp_path / "out")
    whole = interrupted(arguments, 600, tmp_path)
    assert whole[0] == 0, whole[1]
    expected = (tmp_path / "out" / "predictions.csv").read_bytes()
    shutil.rmtree(tmp_path / "out" / "kernel_nngp")
    took = []
    for after in rng.uniform(0.1, whole[2], size=30):
        code, said, seconds = interrupted(arguments, after, tmp_path)
        assert code in (0, 130), said
        assert "Traceback" not in said
        if code == 130:
            assert said.rstrip().splitlines()[-1].startswith("interrupted")
            took.append(seconds)
        assert (tmp_path / "out" / "predictions.csv").read_bytes() == expected
    assert took
    print(f"{len(took)} times interrupted, gone after {max(took):.1f} s at most")
    assert interrupted(arguments, 600, tmp_path)[0] == 0
    assert (tmp_path / "out" / "predictions.csv").read_bytes() == expected
    assert not [path for path in (tmp_path / "out").iterdir() if ".part" in path.name]
