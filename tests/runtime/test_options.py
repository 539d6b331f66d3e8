"""Run options: threads and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions


@pytest.mark.parametrize("threads", [0, -1, 1.5, True, "2", 4097, 10**30])
def test_threads_must_be_a_positive_integer(threads: Any) -> None:
    with pytest.raises(ConfigError, match=r"threads must be a positive integer up to 4,096, got"):
        RunOptions(threads=threads)


@pytest.mark.parametrize("memory", ["nonsense", "0", "-1GiB", "1 PB", "", 0, -5, 1.5, True])
def test_memory_must_be_a_positive_size(memory: Any) -> None:
    with pytest.raises(ConfigError, match="memory must be"):
        RunOptions(memory=memory)


def test_options_default_to_the_resources_of_the_machine() -> None:
    assert RunOptions().thread_count >= 1
    assert RunOptions().memory_bytes >= 256 * 2**20
    assert RunOptions(memory="1GiB").memory_bytes == RunOptions(memory=2**30).memory_bytes == 2**30
    assert RunOptions(threads=3).thread_count == 3


def test_options_may_be_numbers_of_numpy() -> None:
    numbers: dict[str, Any] = {"threads": np.int64(3), "memory": np.int32(1 << 30)}
    options = RunOptions(**numbers)
    assert (type(options.threads), type(options.memory)) == (int, int)
    assert options == RunOptions(threads=3, memory=1 << 30, progress=options.progress)
