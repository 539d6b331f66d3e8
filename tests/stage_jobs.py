"""Jobs for the tests of stages, in a module that a new process can import."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions


def write_options(out: Path, megabytes: int, *, options: RunOptions) -> None:
    """Allocate memory, and write the number of threads and the process."""
    np.ones(megabytes << 17).sum()
    out.write_text(f"{options.threads} {os.getpid()}")


def fail(out: Path, *, options: RunOptions) -> None:
    raise ConfigError("dim must be positive")


def kill_itself(out: Path, *, options: RunOptions) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
