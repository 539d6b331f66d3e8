"""The labels of a matrix are part of the memory that training compares with what is free; vectors may wait on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import swivel
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import MatrixBuilder, MatrixSpec, open_matrix
from swivel.errors import MemoryBudgetError, StorageError
from swivel.training import loop, training_plan

LABELS = 12_000
SETTINGS: dict[str, Any] = {"recipe": "fast", "dim": 2, "epochs": 1, "backend": "reference", "progress": False}


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    spec = MatrixSpec(
        rows=Vocabulary([f"row{number}" for number in range(LABELS)]), columns=Vocabulary(["a", "b"]), unit=1
    )
    with MatrixBuilder(tmp_path / "matrix", spec, memory_bytes=1 << 20) as builder:
        rows = np.arange(LABELS)
        builder.add(rows, rows % 2, np.ones(LABELS, np.int64))
        builder.finish()
    return tmp_path / "matrix"


def test_labels_are_read_before_the_memory_of_training_is_estimated(
    stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimate = training_plan.estimate_needs
    is_read: list[bool] = []

    def note(matrix: swivel.Matrix, *arguments: Any, **keywords: Any) -> Any:
        is_read.append("rows" in vars(matrix))
        return estimate(matrix, *arguments, **keywords)

    monkeypatch.setattr(loop, "estimate_needs", note)
    swivel.train(open_matrix(stored), **SETTINGS)
    assert is_read == [True]


def test_labels_that_do_not_fit_are_refused_before_they_are_read(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = open_matrix(stored)
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: LABELS * 100)
    monkeypatch.setattr("swivel.pipeline.train.check_libraries", lambda *_, **__: None)
    with pytest.raises(MemoryBudgetError, match=r"^reading the labels needs about 1\.9 MiB of memory, but 1\.1 MiB"):
        swivel.train(matrix, **SETTINGS)
    assert "rows" not in vars(matrix)


def test_vectors_that_cannot_wait_on_disk_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = swivel.count(["tea milk sugar", "milk sugar tea", "sugar tea milk"] * 20, min_count=1)
    expected = swivel.train(matrix, tmp_path / "usual", dim=2, epochs=1).vectors

    def fail(path: Path, *_: object) -> None:
        path.touch()
        raise StorageError(f"{path}: no space left on device")

    monkeypatch.setattr("swivel.pipeline.train_job.create_array", fail)
    found = swivel.train(matrix, tmp_path / "full", dim=2, epochs=1)
    assert found.vectors.tobytes() == expected.tobytes()
    assert not list((tmp_path / "full").glob("scratch-*"))
