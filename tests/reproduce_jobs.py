"""Jobs for the tests of `run_in_process`, in a module that a spawned process can import."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swivel.errors import ConfigError
from swivel.pipeline.reproduce import run_in_process
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import track
from swivel.runtime.signals import stop_on_signals


@dataclass(frozen=True)
class ReportingJob:
    """Report the options and some progress, and allocate memory."""

    megabytes: int = 0

    def __call__(self, options: RunOptions) -> None:
        options.progress.message(
            f"{options.threads} threads, {options.memory} of memory, overwrite {options.overwrite}"
        )
        with track(options.progress, "counting", 3, "sheep") as task:
            task.advance(2, "two")
            task.advance()
        np.ones(self.megabytes << 17).sum()


class UnpicklableError(Exception):
    """An error that cannot be pickled, because of its arguments and its attribute."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.kept = lambda: second


@dataclass(frozen=True)
class FailingJob:
    """Fail by SIGKILL, by an exit, or by an error."""

    how: str

    def __call__(self, options: RunOptions) -> None:
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "left":
            os._exit(3)
        options.progress.begin("never ended", None, "sheep")
        if self.how == "config":
            raise ConfigError("no sheep")
        raise UnpicklableError("one", "two")


@dataclass(frozen=True)
class InterruptedJob:
    """Send SIGINT to its own process, as Ctrl-C in a terminal does."""

    def __call__(self, options: RunOptions) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        options.progress.message("not interrupted")


@dataclass(frozen=True)
class OrphaningJob:
    """Start a job in a child process, and be killed while it runs."""

    file: Path

    def __call__(self, options: RunOptions) -> None:
        threading.Thread(target=self._be_killed, daemon=True).start()
        run_in_process(SleepingJob(self.file), options)

    def _be_killed(self) -> None:
        while not self.file.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class SleepingJob:
    """Write the id of its process to a file, and sleep."""

    file: Path

    def __call__(self, options: RunOptions) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(self.file)
        time.sleep(30)


@dataclass(frozen=True)
class WaitingJob:
    """Wait for a stop signal, and write a file before stopping."""

    file: Path

    def __call__(self, options: RunOptions) -> None:
        with stop_on_signals() as should_stop:
            options.progress.message("waiting")
            deadline = time.monotonic() + 30
            while not should_stop() and time.monotonic() < deadline:
                time.sleep(0.02)
            self.file.write_text("saved")
        should_stop.raise_if_set()
