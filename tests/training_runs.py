"""Training runs for tests: a recorder that can interrupt them, and their bits."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from message_recorder import MessageRecorder
from step_contract import HAS_GPU
from swivel.config import TrainConfig
from swivel.runtime.progress import Task
from swivel.training import training_plan as planning
from swivel.training.loop import TrainingResult, train_matrix
from swivel.training.training_plan import choose_backend


class RunRecorder(MessageRecorder, Task):
    """Records messages, the notes of rounds and the number of cells; sends a signal after a number of notes."""

    def __init__(self, after: int = -1, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.after = after
        self.number = number
        self.notes: list[str] = []
        self.cells = 0.0

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.cells += amount
        if note:
            self.notes.append(note)
            if len(self.notes) == self.after:
                os.kill(os.getpid(), self.number)


def train(
    matrix: Any, config: TrainConfig, folder: Path | None, progress: Any = None, threads: int = 2
) -> TrainingResult:
    progress = progress or MessageRecorder()
    trained = train_matrix(matrix, config, folder=folder, threads=threads, progress=progress)
    assert trained is not None
    return trained


def bits(trained: TrainingResult) -> tuple[bytes, bytes, tuple[object, ...]]:
    return trained.rows.tobytes(), trained.columns.tobytes(), trained.history


def allow_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow the triton backend without a GPU, in its interpreter."""
    if not HAS_GPU:

        def choose(config: TrainConfig) -> tuple[str, str]:
            return ("triton", "cpu") if config.backend == "triton" else choose_backend(config)

        monkeypatch.setattr(planning, "choose_backend", choose)
