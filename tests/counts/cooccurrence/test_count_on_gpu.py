"""Counting on a GPU: Triton writes the right keys, and the files equal those of the CPU within the memory budget."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stored import folder_of
from swivel.config import CountConfig

pytest.importorskip("numba")  # needed by counting on the CPU
from device_counts import compare_writers, count_on_cores, count_on_device, digest, make_corpus


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.storage.files.flush", lambda path: None)


def test_triton_writes_the_same_pairs_under_its_interpreter() -> None:
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("with CUDA the next test runs the compiled kernel")
    assert sum(compare_writers("triton", seed, "cpu") for seed in range(4)) > 5_000


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(8))
def test_triton_writes_the_same_pairs_on_a_gpu(seed: int) -> None:
    assert compare_writers("triton", seed, "cuda") >= 0


@pytest.mark.gpu
@pytest.mark.parametrize("columns", ["symmetric", "directional"])
@pytest.mark.parametrize("writer", ["torch", "triton"])
def test_files_of_a_gpu_equal_those_of_the_cpu_within_the_budget(tmp_path: Path, columns: str, writer: str) -> None:
    ids = make_corpus(7, 1_000_000, words=20_000)
    config = CountConfig(columns=columns)
    expected = digest(folder_of(count_on_cores(tmp_path / "cores", ids, config, words=20_000)))

    for memory in (100 << 20, 1 << 30, 8 << 30):
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        path = tmp_path / f"{memory}"
        matrix = count_on_device(
            path,
            ids,
            config,
            words=20_000,
            device_name="cuda",
            device_memory=memory,
            writer=writer,
            threads=2,
            memory=64 << 20,
        )
        assert digest(folder_of(matrix)) == expected
        assert torch.cuda.max_memory_allocated() - before <= memory
