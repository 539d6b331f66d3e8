"""A resumed run gives the same bits as one that never stopped: after Ctrl-C, SIGTERM and SIGKILL."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.errors import Diverged, TrainingError
from swivel.storage.manifest import seal, unseal
from swivel.training.checkpoint import SLOTS, CheckpointStore
from swivel.training.loop import run_provenance
from training_runs import RunRecorder, bits, train

CONFIG = TrainConfig(dim=8, block_size=21, epochs=6, backend="cpu", device="cpu", checkpoint_minutes=0)
SAMPLED = replace(CONFIG, zeros="sampled", zeros_common=0.1, zeros_middle=0.4, zeros_share=0.1, weight_decay=1e-4)


class Interrupting:
    """A matrix that sends SIGINT while its n-th block is loaded, which is in the middle of a round."""

    def __init__(self, matrix: Matrix, after: int) -> None:
        self.matrix = matrix
        self.loads = itertools.count(1)
        self.after = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self.matrix, name)

    def cells(self, i: int, j: int) -> Any:
        if next(self.loads) == self.after:
            os.kill(os.getpid(), signal.SIGINT)
        return self.matrix.cells(i, j)

    def reblocked(self, row_blocks: int, column_blocks: int, *, scratch: Path, threads: int) -> Any:
        self.matrix = self.matrix.reblocked(row_blocks, column_blocks, scratch=scratch, threads=threads)
        return self


@pytest.fixture(scope="module")
def whole(planted: Matrix, tmp_path_factory: pytest.TempPathFactory) -> dict[TrainConfig, Any]:
    folder = tmp_path_factory.mktemp("whole")
    return {config: bits(train(planted, config, folder / config.zeros)) for config in (CONFIG, SAMPLED)}


@pytest.mark.parametrize("config", [CONFIG, SAMPLED], ids=["all zeros", "sampled zeros"])
@pytest.mark.parametrize(("rounds", "steps"), [(1, 6), (2, 9), (3, 9), (8, 27), (17, 54)])
def test_interrupted_and_resumed_equals_uninterrupted(
    planted: Matrix, whole: dict[TrainConfig, Any], config: TrainConfig, rounds: int, steps: int, tmp_path: Path
) -> None:
    """When a round is reported, the next one has already started, except at the end of an epoch."""
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, RunRecorder(rounds))
    again = RunRecorder(-1)
    assert bits(train(planted, config, tmp_path, again, threads=3)) == whole[config]
    assert f"resuming after {steps} of 54 steps" in again.lines


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("block", [1, 2, 5, 13, 53])
def test_interrupted_inside_a_round_equals_uninterrupted(
    planted: Matrix, whole: dict[TrainConfig, Any], block: int, threads: int, tmp_path: Path
) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(Interrupting(planted, block), SAMPLED, tmp_path, threads=threads)
    assert bits(train(planted, SAMPLED, tmp_path)) == whole[SAMPLED]


def test_interrupted_several_times_equals_uninterrupted(
    planted: Matrix, whole: dict[TrainConfig, Any], tmp_path: Path
) -> None:
    for _ in range(5):
        with pytest.raises(KeyboardInterrupt):
            train(planted, CONFIG, tmp_path, RunRecorder(3))
    assert bits(train(planted, CONFIG, tmp_path)) == whole[CONFIG]


def test_sigterm_exits_with_its_status_and_the_run_resumes(
    planted: Matrix, whole: dict[TrainConfig, Any], tmp_path: Path
) -> None:
    with pytest.raises(SystemExit) as caught:
        train(planted, CONFIG, tmp_path, RunRecorder(4, signal.SIGTERM))
    assert caught.value.code == 143
    assert bits(train(planted, CONFIG, tmp_path)) == whole[CONFIG]


def test_seconds_of_all_sessions_are_summed(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(planted, CONFIG, tmp_path, RunRecorder(9))
    saved = store_of(planted, CONFIG, tmp_path).load()
    assert saved is not None
    assert train(planted, CONFIG, tmp_path).seconds > saved[0].seconds > 0


def store_of(matrix: Matrix, config: TrainConfig, folder: Path) -> CheckpointStore:
    return CheckpointStore(folder, run_provenance(matrix, config, None))


def test_other_settings_start_from_the_beginning(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(planted, CONFIG, tmp_path, RunRecorder(4))
    other = replace(CONFIG, seed=5)
    progress = RunRecorder(-1)
    trained = train(planted, other, tmp_path, progress)
    assert not any(line.startswith("resuming") for line in progress.lines)
    assert bits(trained) == bits(train(planted, other, tmp_path / "alone"))


def test_damaged_newest_checkpoint_costs_one_interval(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, checkpoint_minutes=1e-9)
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, RunRecorder(7))
    slots = sorted(tmp_path / name for name in SLOTS)
    newest = max(slots, key=lambda slot: (slot / "manifest.json").stat().st_mtime_ns)
    (newest / "rows.npy").write_bytes(b"")
    progress = RunRecorder(-1)
    trained = train(planted, config, tmp_path, progress)

    assert "resuming after 18 of 54 steps" in progress.lines
    assert any(re.search(rf"{newest.name}/rows\.npy: 0 bytes, .*: using checkpoint-.", line) for line in progress.lines)
    assert bits(trained) == bits(train(planted, config, tmp_path / "alone"))


def test_checkpoint_survives_divergence(planted: Matrix, tmp_path: Path) -> None:
    config = replace(CONFIG, learning_rate=1e30, stop="converged", checkpoint_minutes=1e-9)
    with pytest.raises(Diverged):
        train(planted, config, tmp_path)
    saved = store_of(planted, config, tmp_path).load()
    assert saved is not None
    state, done, *_ = saved
    assert math.isfinite(state.loss.mean)
    assert 0 < np.count_nonzero(done) < done.size


KILLED = """
import os, signal, sys
from pathlib import Path
from swivel.config import TrainConfig, result_settings
from swivel.counts import open_matrix
from swivel.runtime.progress import Progress
from swivel.training.loop import train_matrix

class Killing(Progress):
    rounds = 0
    def begin(self, job, total, unit):
        return self
    def advance(self, amount=1, note=""):
        self.rounds += bool(note)
        if self.rounds == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

config = TrainConfig(**eval(sys.argv[4]))
train_matrix(open_matrix(sys.argv[1]), config, folder=Path(sys.argv[2]), threads=2, progress=Killing())
"""


def test_killed_and_resumed_equals_uninterrupted(planted: Matrix, tmp_path: Path) -> None:
    config = replace(SAMPLED, checkpoint_minutes=1e-9)
    arguments = [str(planted.path), str(tmp_path), "8", repr(asdict(config))]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False, capture_output=True, text=True)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert any(path.name.startswith("scratch-") for path in tmp_path.iterdir())

    progress = RunRecorder(-1)
    trained = train(planted, config, tmp_path, progress)

    assert "resuming after 21 of 54 steps" in progress.lines
    assert bits(trained) == bits(train(planted, config, tmp_path / "alone"))
    assert not any(path.name.startswith("scratch-") for path in tmp_path.iterdir())


KILL_WHILE_SAVING = """
import os, signal
from swivel.storage.files import FolderWriter

finish = FolderWriter.finish

def kill(self, **contents):
    if self.stage == "checkpoint":
        os.kill(os.getpid(), signal.SIGKILL)
    finish(self, **contents)

FolderWriter.finish = kill
"""


def test_kill_during_the_first_checkpoint_after_a_resume_leaves_the_loaded_one_whole(
    planted: Matrix, tmp_path: Path
) -> None:
    config = replace(CONFIG, checkpoint_minutes=1e-9)
    with pytest.raises(KeyboardInterrupt):
        train(planted, config, tmp_path, RunRecorder(2))
    expected = store_of(planted, config, tmp_path).load()
    assert expected is not None

    arguments = [str(planted.path), str(tmp_path), "-1", repr(asdict(config))]
    command = [sys.executable, "-c", KILL_WHILE_SAVING + KILLED, *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr

    left = store_of(planted, config, tmp_path).load()
    assert left is not None
    assert left[0] == expected[0]
    assert np.array_equal(left[1], expected[1])
    for name, array in expected[2].items():
        assert np.array_equal(left[2][name], array)


def test_another_checkpoint_interval_resumes_the_same_run(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(planted, CONFIG, tmp_path, RunRecorder(4))
    progress = RunRecorder(-1)
    train(planted, replace(CONFIG, checkpoint_minutes=9), tmp_path, progress)
    assert any(line.startswith("resuming") for line in progress.lines)


def test_run_that_started_on_an_unavailable_device_is_rejected(planted: Matrix, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(planted, CONFIG, tmp_path, RunRecorder(3))
    (slot,) = (tmp_path / name for name in SLOTS if (tmp_path / name).exists())
    fields = unseal((slot / "manifest.json").read_bytes())
    fields["config"]["plan"] |= {"backend": "torch", "device": "cuda:77"}
    (slot / "manifest.json").write_bytes(seal(fields))
    line = "this run started on 'cuda:77' .torch., which is not available here; resume it on a machine that has it"
    with pytest.raises(TrainingError, match=line):
        train(planted, CONFIG, tmp_path)
