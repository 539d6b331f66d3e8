"""Copies beside the computation: queues of their own, and host memory that a device reads and writes by itself.

Knows no cells and no parameters. On a CPU everything happens at once, in order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from swivel.errors import TrainingError
from swivel.runtime.resources import format_bytes

Tensor = torch.Tensor
Mark = Any  # a point in a queue of the device: a CUDA event, or None where there are no queues


class Lane:
    """A queue of copies of its own."""

    def __init__(self, device: torch.device) -> None:
        self._stream = _make_stream(device) if device.type == "cuda" else None

    def submit(self, job: Callable[[], None], after: Iterable[Mark]) -> Mark:
        """Do a job once all marks are passed; return a mark that is passed when it is done."""
        if self._stream is None:
            job()
            return None
        for mark in after:
            if mark is not None:
                self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            job()
        return self._stream.record_event()


def _make_stream(device: torch.device) -> Any:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def mark_here(device: torch.device) -> Mark:
    """Return a mark that is passed when the computation so far is done."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_here(device: torch.device, mark: Mark) -> None:
    """Let the computation from here on wait for a mark."""
    if mark is not None:
        torch.cuda.current_stream(device).wait_event(mark)


def wait_for(mark: Mark) -> None:
    """Wait for a mark."""
    if mark is not None:
        mark.synchronize()


def free_memory(device: torch.device, share: float) -> int | None:
    """Return a share of the bytes that are free on a device; None: there is no limit to heed."""
    if device.type != "cuda":
        return None
    return int(share * torch.cuda.mem_get_info(device)[0])


class HostMemory:
    """Host memory that a device copies from and to by itself: its pages are locked, no more than asked for.

    (torch's own pinned memory comes in powers of two.)
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._close = weakref.finalize(self, _unlock, self._arrays)
        self._close.atexit = False

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Return a new tensor; it lives until the memory is closed."""
        array = np.empty(shape, dtype)
        if self._device.type == "cuda" and array.nbytes:
            if _lock(array) != 0:
                raise TrainingError(
                    f"{format_bytes(array.nbytes)} of host memory cannot be locked for copies to the device; "
                    "free some memory, or raise the limit of locked memory (ulimit -l)"
                )
            self._arrays.append(array)
        return torch.from_numpy(array)

    def close(self) -> None:
        """Unlock everything; nothing may be on its way."""
        self._close()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _lock(array: np.ndarray[Any, Any]) -> int:
    return int(_runtime().cudaHostRegister(array.ctypes.data, array.nbytes, 0))


def _unlock(arrays: list[np.ndarray[Any, Any]]) -> None:
    while arrays:
        _runtime().cudaHostUnregister(arrays.pop().ctypes.data)
