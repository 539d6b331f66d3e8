"""Asynchronous copies: CUDA streams beside the computation, and page-locked host memory.

On a CPU there are no streams: every job runs at once, in order, and a mark is None.
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
Mark = Any  # a point in a stream: a CUDA event, or None on a CPU. It is passed when all work before it is complete.


class CopyQueue:
    """A CUDA stream for copies that run beside the computation."""

    def __init__(self, device: torch.device) -> None:
        self._stream: Any = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def submit(self, job: Callable[[], None], after: Iterable[Mark]) -> Mark:
        """Run a job on the device when all marks in `after` are passed; return a mark at its end."""
        if self._stream is None:
            job()
            return None

        for mark in after:
            if mark is not None:
                self._stream.wait_event(mark)
        with torch.cuda.stream(self._stream):
            job()
        return self._stream.record_event()


def record_mark(device: torch.device) -> Mark:
    """Return a mark that is passed when the computation submitted so far is complete."""
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def wait_on_device(device: torch.device, mark: Mark) -> None:
    """Make the computation that is submitted from now on wait for a mark; the host does not wait."""
    if mark is not None:
        torch.cuda.current_stream(device).wait_event(mark)


def wait_on_host(mark: Mark) -> None:
    """Block the host until a mark is passed."""
    if mark is not None:
        mark.synchronize()


def usable_memory(device: torch.device, share: float, limit: int | None) -> int | None:
    """Return the limit in bytes or, if there is none, a share of the free memory of a GPU; None: no limit."""
    if limit is not None or device.type != "cuda":
        return limit
    return int(share * torch.cuda.mem_get_info(device)[0])


class HostMemory:
    """Page-locked host memory, which a device can read and write without the CPU.

    torch's pinned memory is rounded up to a power of two; this class locks exactly the bytes that are requested.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arrays: list[np.ndarray[Any, Any]] = []
        self._close = weakref.finalize(self, _unlock, self._arrays)
        self._close.atexit = False

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Tensor:
        """Return a new tensor, which is valid until `close`."""
        array = np.empty(shape, dtype)
        if self._device.type == "cuda" and array.nbytes:
            if int(_runtime().cudaHostRegister(array.ctypes.data, array.nbytes, 0)) != 0:
                raise TrainingError(
                    f"{format_bytes(array.nbytes)} of host memory cannot be locked for copies to the device; "
                    "free some memory, or raise the limit of locked memory (ulimit -l)"
                )
            self._arrays.append(array)
        return torch.from_numpy(array)

    def close(self) -> None:
        """Unlock all memory; no copy may be running."""
        self._close()


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _unlock(arrays: list[np.ndarray[Any, Any]]) -> None:
    while arrays:
        _runtime().cudaHostUnregister(arrays.pop().ctypes.data)
