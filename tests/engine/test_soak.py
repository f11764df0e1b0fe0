"""Kernels of mixed shapes from several threads for a long time: all right, and none for ever.

XLA's threads once waited for each other for ever, in a run of some hours; `compilation` says which
steps can. The program runs as a user's would, without any flag of these tests. `WIDELIMIT_SOAK=300`
makes it five minutes instead of an hour.
"""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

SECONDS = float(os.environ.get("WIDELIMIT_SOAK", "3600"))
# A busy machine may take minutes for one kernel with its compilation, and uses its processor for
# it, which the program says. A stall is silent.
PATIENCE = 180.0

PROGRAM = """
import faulthandler, itertools, signal, sys, threading, time
import numpy as np
import widelimit as wl

faulthandler.register(signal.SIGUSR1, all_threads=True)

end = time.monotonic() + float(sys.argv[1])
networks = {
    "dense": wl.Serial(wl.Dense(8), wl.Relu(), wl.MeanPool(), wl.Dense(8), wl.Erf(), wl.Dense(1)),
    "conv": wl.Serial(wl.Conv(8, 3), wl.Relu(), wl.Conv(8, 3), wl.Flatten(), wl.Dense(1)),
    "linear": wl.Serial(wl.Attention(8, scaling="linear"), wl.Relu(), wl.MeanPool(), wl.Dense(1)),
    "softmax": wl.Serial(wl.Attention(8), wl.MeanPool(), wl.Dense(1)),
    # Large random frames in two layers at once: many factorisations in one program.
    "frames": wl.Serial(wl.Attention(8), wl.Attention(8), wl.MeanPool(), wl.Dense(1)),
}
finite = wl.Serial(wl.Conv(16, 3), wl.Relu(), wl.Conv(16, 3), wl.MeanPool(), wl.Dense(1))
shapes = [(3, 5), (17, 12), (60, 24), (130, 9), (40, 48)]
few = [(3, 5), (8, 9)]
both, memories = (np.float32, np.float64), (2**22, 2**30)
cases = list(itertools.product(["frames"], few, both, memories))
cases += list(itertools.product(list(networks)[:4], shapes, both, memories))
cases += list(itertools.product(["finite"], shapes[:3], (np.float32,), memories))
known, lock = {}, threading.Lock()

def say(*words):
    with lock:  # whole lines
        print(*words, flush=True)

def kernel(name, x, memory):
    if name == "finite":  # convolutions, which the limits have not
        return wl.monte_carlo_kernel(finite, x, draws=32, key=0, memory=memory).ntk
    options = {"softmax": {"samples": 8}, "frames": {"samples": 256}}.get(name, {})
    return networks[name].kernel(x, memory=memory, **options).ntk

def work(number):
    rng = np.random.default_rng(number)
    while time.monotonic() < end:
        case = cases[rng.integers(len(cases))]
        name, (count, length), dtype, memory = case
        x = np.random.default_rng(count).normal(size=(count, length, 3)).astype(dtype)
        again = time.monotonic() + 10  # most of the time is for threads, not for the compiler
        while True:
            found = kernel(name, x, memory)
            assert np.isfinite(found).all()
            with lock:
                first = known.setdefault((name, count, length, dtype), found)
            assert np.allclose(found, first, rtol=0, atol=2e-5 * np.abs(first).max()), case
            say("alive", name)
            if time.monotonic() > min(again, end):
                break

def report_use():
    before = time.process_time()
    while True:
        time.sleep(20)
        if time.process_time() > before + 0.2:
            before = time.process_time()
            say("busy")

threading.Thread(target=report_use, daemon=True).start()

def guarded(number):
    try:
        work(number)
    except BaseException as error:
        say("wrong", repr(error))

threads = [threading.Thread(target=guarded, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("end", flush=True)
"""


@pytest.mark.slow
def test_nothing_waits_for_ever(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    with (
        open(tmp_path / "stacks", "wb") as stacks,
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(SECONDS)],
            stdout=subprocess.PIPE,
            stderr=stacks,
            text=True,
            env=environment,
        ) as program,
    ):
        lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        assert program.stdout is not None
        reader = threading.Thread(target=lambda: [lines.put(line) for line in program.stdout])
        reader.start()
        counts: Counter[str] = Counter()
        line = ""
        try:
            while line != "end\n":
                line = lines.get(timeout=PATIENCE)
                assert not line.startswith("wrong"), line
                counts.update(line.split()[1:])
        except queue.Empty:
            if program.poll() is None:
                program.send_signal(signal.SIGUSR1)  # says where all threads are
                time.sleep(2)
            said = (tmp_path / "stacks").read_text()
            pytest.fail(f"nothing for {PATIENCE:.0f} s after {dict(counts)}:\n{said}")
        finally:
            program.kill()
            reader.join()
    print(f"kernels in {SECONDS:.0f} s: {dict(counts)}")
    assert counts.total()
