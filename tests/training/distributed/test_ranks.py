"""Ring of ranks: runs that change the number of ranks, and the command line. Each test starts its own ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import swivel
from rotation_runs import CONFIG, job_of, run_ranks, train_alone
from swivel.counts import Matrix
from swivel.runtime.progress import Progress, Task
from swivel.training.loop import train_matrix
from tolerances import assert_equal_but_for_rounding


class StopAlone(Progress, Task):
    """Sends SIGINT to this process after a number of rounds."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def begin(self, job: str, total: float | None, unit: str) -> StopAlone:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.rounds -= bool(note)
        if note and self.rounds == 0:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_run_moves_from_one_process_to_three_ranks_and_back(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, epochs=4)
    home = tmp_path / "run"
    home.mkdir()
    with pytest.raises(KeyboardInterrupt):
        train_matrix(planted, config, folder=home, threads=1, progress=StopAlone(3))
    results = run_ranks(3, {"run": job_of(planted, config, stop=[6, 2])}, tmp_path)
    assert results["run"] == {"ended": "KeyboardInterrupt"}

    trained = train_matrix(planted, config, folder=home, threads=1)
    assert trained is not None

    whole = train_alone(planted, config, tmp_path / "whole")
    assert len(trained.history) == 4
    assert trained.history[-1].mean == pytest.approx(whole.history[-1].mean, rel=0.05)

    cells = [loss.observed_cells + loss.unobserved_cells for loss in trained.history]
    assert np.allclose(cells, 62 * 62), "every block once per epoch"


def test_command_line_on_ranks_prints_one_result(planted: Matrix, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "swivel"]
    flags = ["--dim", "4", "--epochs", "2", "--block-size", "13", "--seed", "3", "--backend", "cpu"]
    arguments = ["train", str(planted.path), "-o", str(tmp_path / "two"), *flags, "--json"]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.splitlines()) == 1

    alone = swivel.train(planted, tmp_path / "one", dim=4, epochs=2, block_size=13, seed=3, backend="cpu", ranks=2)
    two = swivel.load(tmp_path / "two")

    assert two.columns is not None
    assert alone.columns is not None
    assert (two.rows.tobytes(), two.columns.tobytes()) == (alone.rows.tobytes(), alone.columns.tobytes())
    # NumPy combines rows and columns on one thread in ranks: torchrun sets OMP_NUM_THREADS.
    assert_equal_but_for_rounding(two.vectors, alone.vectors, terms=62 * 62)
