"""Points of the training curves: loss, learning rate and speed, several times per epoch."""

from __future__ import annotations

import time
from collections.abc import Callable

from swivel.runtime.progress import Progress
from swivel.training.objective import Loss

POINTS_PER_EPOCH = 20  # enough for a curve; more would slow down the host of a GPU, whose rounds take milliseconds


class TrainingMetrics:
    """Averages losses over a twentieth of an epoch and reports the means through `Progress.measure`.

    The interval is a share of an epoch, so that short and long runs get the same number of points per epoch.
    """

    def __init__(
        self, progress: Progress, steps_per_epoch: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._interval = max(1, steps_per_epoch // POINTS_PER_EPOCH)

        # Sums since the last point.
        self._loss = Loss()
        self._steps = 0
        self._since = clock()

    def add(self, loss: Loss, steps: int, cells: float, learning_rate: float, step: int) -> None:
        """Add the loss of some steps, and report a point if the interval is complete.

        Parameters
        ----------
        loss : Loss
            Sum over the steps.
        steps : int
            Number of steps.
        cells : float
            Number of cells per step.
        learning_rate : float
            Learning rate of the steps.
        step : int
            Number of the last step, counted from the start of training.
        """
        self._loss += loss
        self._steps += steps
        if self._steps < self._interval:
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

        self._loss = Loss()
        self._steps = 0
        self._since = now
