"""A long run in short: hundreds of checkpointed steps hold as many file handles, threads and files as the first ones.

`benchmarks/long_run.py` is the long one, with memory.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from swivel.config import TrainConfig
from swivel.counts import Matrix
from swivel.runtime.progress import Progress
from swivel.training.loop import train_matrix

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc says what a process holds")


class Watch(Progress):
    """Open file handles, threads and files of the run, some times an epoch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.held = folder, list[tuple[int, ...]]()

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        handles, threads = (len(list(Path("/proc/self", kind).iterdir())) for kind in ("fd", "task"))
        self.held.append((handles, threads, sum(len(names) for _, _, names in os.walk(self.folder))))


def count_files_and_threads() -> tuple[int, int]:
    return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))


@linux
def test_handles_threads_and_files_stay_as_many(planted: Matrix, tmp_path: Path) -> None:
    watch = Watch(tmp_path / "run")
    config = TrainConfig(dim=4, block_size=16, epochs=25, backend="cpu", dtype="float32", checkpoint_minutes=1e-9)
    train_matrix(
        planted, replace(config, epochs=1), folder=tmp_path / "first", threads=2
    )  # maps the matrix, which stays
    files, threads = count_files_and_threads()
    trained = train_matrix(planted, config, folder=tmp_path / "run", threads=2, progress=watch)
    files_after, threads_after = count_files_and_threads()
    assert trained is not None
    assert len(watch.held) >= 100  # 400 steps; the first epochs open what stays open
    assert set(watch.held[20:]) == {watch.held[-1]}
    assert files_after == files
    assert threads_after <= threads  # A thread of an earlier test may have ended meanwhile.


@pytest.fixture(scope="module")
def long_run() -> ModuleType:
    benchmarks = Path(__file__).parent.parent / "benchmarks"
    sys.path.insert(0, str(benchmarks))
    spec = importlib.util.spec_from_file_location("long_run", benchmarks / "long_run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.remove(str(benchmarks))
    return module


def test_a_slope_is_told_from_noise(long_run: ModuleType) -> None:
    rng = np.random.default_rng(8)
    steps = np.arange(1, 161) * 500.0
    noise = np.cumsum(rng.standard_normal(160) * 0.2) + rng.standard_normal(160)
    flat = long_run.fit_slope(steps, 4e8 + 4096 * np.round(noise))
    leak = long_run.fit_slope(steps, 4e8 + 4096 * np.round(noise) + 20 * steps)  # 20 bytes a step
    assert flat["is_flat"]
    assert not leak["is_flat"]
    assert leak["slope_per_1000_steps"] == pytest.approx(20_000, rel=0.1)
    assert not long_run.fit_slope(steps, 13 + np.floor(steps / 20_000))["is_flat"]  # a handle in 20,000 steps
    assert long_run.fit_slope(steps, np.full(160, 13.0))["is_flat"]
