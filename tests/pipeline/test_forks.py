"""Training in processes that were forked from one that has trained: `multiprocessing` on Linux, grids of seeds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Enough words for n-grams, which torch fits with all threads, and several threads on any machine.
SCRIPT = """
import multiprocessing, os, signal, sys, time
import numpy as np
import swivel

words = [f"word{number}" for number in range(1_100)]
rng = np.random.default_rng(1)
text = [" ".join(rng.permutation(words)[:20]) for _ in range(400)]
matrix = swivel.count(text, min_count=1, window=2, progress=False)

def train(seed, epochs=1):
    settings = {"recipe": "fast", "device": "cpu", "backend": sys.argv[1], "dtype": "float32", "threads": 2}
    return swivel.train(matrix, dim=4, epochs=epochs, seed=seed, progress=False, **settings).vectors

first = train(1)
with multiprocessing.get_context("fork").Pool(2) as pool:
    again, other = pool.map(train, (1, 2))
np.testing.assert_allclose(again, first, rtol=1e-4, atol=1e-5)
assert not np.allclose(other, first, rtol=1e-4, atol=1e-5)

endless = multiprocessing.get_context("fork").Process(target=train, args=(3, 10**6))
endless.start()
time.sleep(1)
endless.terminate()
endless.join()
assert endless.exitcode in (-signal.SIGTERM, 128 + signal.SIGTERM), endless.exitcode
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_forked_processes_train_and_end_at_a_signal(backend: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, backend]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
