"""Asynchronous copies: CUDA streams beside the computation, and page-locked host memory.

On a CPU there are no streams: every job runs at once, in order, and a mark is None.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch

from swivel.errors import TrainingError
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.resources import count_cores, format_bytes

Tensor = torch.Tensor
UPLOAD_BYTES = 1 << 26  # of each buffer of `Uploader`
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

        # The stream waits, not the host: the job is submitted at once, and starts when the marks are passed.
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


def usable_memory(device: torch.device, share: float, limit: int | None) -> float:
    """Return the limit in bytes or, if there is none, a share of the free memory of a GPU; a CPU has no limit."""
    if limit is not None:
        return limit
    return int(share * torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else math.inf


class Uploader:
    """Copies host arrays to the device through two page-locked buffers: one is filled while the other is copied.

    Arrays that are mapped from files can be copied as they are; threads read them from the disk.
    """

    def __init__(self, device: torch.device, host: HostMemory) -> None:
        self._device = device
        self._host = host
        self._stages: list[Tensor] = []
        self._copied: list[Mark] = [None, None]

    def copy(self, array: np.ndarray[Any, Any]) -> Tensor:
        """Return a one-dimensional array on the device."""
        if self._device.type != "cuda":
            return torch.from_numpy(np.array(array))
        if not self._stages:
            self._stages = [self._host.empty((UPLOAD_BYTES,), np.uint8) for _ in range(2)]

        target = torch.from_numpy(np.empty(0, array.dtype)).new_empty(len(array), device=self._device)
        size = UPLOAD_BYTES // array.itemsize
        threads = count_cores()
        for number, first in enumerate(range(0, len(array), size)):
            piece = array[first : first + size]
            # The device must have read this buffer, two pieces ago, before the host overwrites it.
            wait_on_host(self._copied[number % 2])
            stage = self._stages[number % 2].numpy().view(array.dtype)[: len(piece)]
            run_in_chunks(partial(_copy_rows, stage, piece), len(piece), rows=-(-size // threads), threads=threads)

            target[first : first + size].copy_(torch.from_numpy(stage), non_blocking=True)
            self._copied[number % 2] = record_mark(self._device)
        return target


def _copy_rows(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], rows: slice) -> None:
    target[rows] = source[rows]


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
        # CUDA refuses to lock an array without bytes.
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
