"""Points of the curves of a training run: loss, rate and speed, some for every epoch.

Receives what steps lost, hands on means over a stretch of them through `Progress.measure`. It draws and writes nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swivel.runtime.progress import Progress
from swivel.training.objective import Loss

POINTS_PER_EPOCH = 20  # enough for a curve; more would cost a GPU's host, whose rounds take milliseconds


class TrainingMetrics:
    """Adds losses up until a stretch of steps is over, and tells their means.

    The stretch is a twentieth of an epoch, so that points lie as close in a run of five epochs as in one of a hundred.
    """

    def __init__(
        self, progress: Progress, steps_per_epoch: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._progress, self._clock = progress, clock
        self._stretch = max(1, steps_per_epoch // POINTS_PER_EPOCH)
        self._loss, self._steps, self._since = Loss(), 0, clock()

    def add(self, loss: Loss, steps: int, cells: float, learning_rate: float, step: int) -> None:
        """Take the loss of some steps of `cells` cells each, `step` the last of them, made at a learning rate."""
        self._loss, self._steps = self._loss + loss, self._steps + steps
        if self._steps < self._stretch:
            return
        now = self._clock()
        seconds = max(now - self._since, 1e-9)
        values = {
            "loss/all": self._loss.mean,
            "loss/observed": self._loss.mean_observed,
            "loss/unobserved": self._loss.mean_unobserved,
            "learning rate": learning_rate,
            "cells per second": self._steps * cells / seconds,
        }
        self._progress.measure(step, values)
        self._loss, self._steps, self._since = Loss(), 0, now
