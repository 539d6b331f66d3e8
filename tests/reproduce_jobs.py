"""Jobs for the tests of processes: a new process finds them by this module's name."""

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
class TellingJob:
    """Tells what it is given and what it does, and takes memory."""

    megabytes: int = 0

    def run(self, options: RunOptions) -> None:
        options.progress.message(
            f"{options.threads} threads, {options.memory} of memory, overwrite {options.overwrite}"
        )
        with track(options.progress, "counting", 3, "sheep") as task:
            task.advance(2, "two")
            task.advance()
        np.ones(self.megabytes << 17).sum()


class NobodysError(Exception):
    """Cannot be pickled: what it is made of is not what it keeps."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")
        self.kept = lambda: second


@dataclass(frozen=True)
class FailingJob:
    """Fails in a way of its own."""

    how: str

    def run(self, options: RunOptions) -> None:
        if self.how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "left":
            os._exit(3)
        options.progress.begin("never ended", None, "sheep")
        raise ConfigError("no sheep") if self.how == "config" else NobodysError("one", "two")


@dataclass(frozen=True)
class InterruptedJob:
    """Gets what a Ctrl-C in the terminal sends to everyone."""

    def run(self, options: RunOptions) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        options.progress.message("went on")


@dataclass(frozen=True)
class LonelyJob:
    """Starts a job that waits, and is killed without a word to it."""

    file: Path

    def run(self, options: RunOptions) -> None:
        threading.Thread(target=self._be_killed, daemon=True).start()
        run_in_process(SigningJob(self.file), options)

    def _be_killed(self) -> None:
        while not self.file.exists():
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class SigningJob:
    """Writes down its process, and waits."""

    file: Path

    def run(self, options: RunOptions) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(str(os.getpid()))
        part.rename(self.file)
        time.sleep(30)


@dataclass(frozen=True)
class WaitingJob:
    """Waits until it is asked to stop, and saves before it does."""

    file: Path

    def run(self, options: RunOptions) -> None:
        with stop_on_signals() as should_stop:
            options.progress.message("waiting")
            until = time.monotonic() + 30
            while not should_stop() and time.monotonic() < until:
                time.sleep(0.02)
            self.file.write_text("saved")
        should_stop.raise_if_set()
