"""Run a job in a separate process, to measure its memory.

The process sends its progress and its errors through a pipe, and the parent reports and raises them. Only the parent
handles Ctrl-C; it sends SIGTERM to the process once, so that the job can save a checkpoint.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from swivel.errors import TrainingError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress, SilentProgress, Task, warnings_as_messages
from swivel.runtime.signals import StopRequest, exit_with_parent, leave_in_time, stop_on_signals

_POLL_SECONDS = 0.1
_KILLED = -9  # SIGKILL, usually sent by the kernel because memory ran out


@dataclass(frozen=True, slots=True)
class Measure:
    """Seconds and peak memory of a job, including mapped files; None if unknown."""

    seconds: float | None = None
    peak_bytes: int | None = None


Job = Callable[..., object]  # called with `options`; it must be possible to pickle it
Runner = Callable[[Job, RunOptions], Measure]


def run_here(job: Job, options: RunOptions) -> Measure:
    """Run a job in this process; its memory is not measured."""
    started = time.perf_counter()
    job(options=options)
    return Measure(time.perf_counter() - started)


def run_in_process(job: Job, options: RunOptions) -> Measure:
    """Run a job in a new process and return its time and peak memory.

    Errors of the job are raised in this process.

    Raises
    ------
    TrainingError
        The process was killed.
    KeyboardInterrupt, SystemExit
        This process was asked to stop; raised after the job has saved its checkpoint.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    job_options = {"threads": options.threads, "memory": options.memory, "overwrite": options.overwrite}
    process = context.Process(target=_work, args=(sender, job, job_options))

    with stop_on_signals() as should_stop:
        with _block_interrupts():
            process.start()
        sender.close()  # Only the child holds it now, so that `recv` raises EOFError when the child ends.

        try:
            measure = _listen(receiver, process, options.progress, should_stop)
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()
            process.join()

    if measure is None:
        message = f"the process of this stage ended with status {process.exitcode}"
        if process.exitcode == _KILLED:
            message += "; memory probably ran out: pass a smaller memory, max_size or dim"
        raise TrainingError(message)
    return measure


@contextlib.contextmanager
def _block_interrupts() -> Iterator[None]:
    """Block SIGINT in the processes that are started in this context.

    The terminal sends Ctrl-C to the whole process group. Children inherit the signal mask, so that they are protected
    from the start.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return

    resource_tracker.ensure_running()  # If multiprocessing starts it later, it unblocks SIGINT.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _listen(connection: Connection, process: Any, progress: Progress, should_stop: StopRequest) -> Measure | None:
    """Forward the progress of the job, and return its measure or raise its error; None if its process ended early."""
    tasks: dict[int, Task] = {}  # open tasks, by their number in the job
    is_terminated = False
    try:
        while True:
            if should_stop() and not is_terminated:
                process.terminate()
                is_terminated = True

            # Poll with a timeout, because a signal does not interrupt `recv`.
            if not connection.poll(_POLL_SECONDS):
                continue

            match connection.recv():
                case "done", seconds, peak_bytes:
                    return Measure(seconds, peak_bytes)
                case "failed", error:
                    should_stop.raise_if_set()
                    raise error
                case "message", text:
                    progress.message(text)
                case "begin", number, *description:
                    tasks[number] = progress.begin(*description)
                case "advance", number, *amount:
                    tasks[number].advance(*amount)
                case "end", number:
                    progress.end(tasks.pop(number))
    except EOFError:
        return None
    finally:
        for task in tasks.values():
            progress.end(task)


class _PipeProgress(SilentProgress):
    """Progress that sends its events to the parent, except curves, which the report of an experiment does not have."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # Threads of the job report concurrently; a message must not be interleaved.
        self._begun = 0

    def send(self, *event: Any) -> None:
        with self._lock:
            self._connection.send(event)

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self._begun += 1
        self.send("begin", self._begun, job, total, unit)
        return _PipeTask(self, self._begun)

    def end(self, task: Any) -> None:
        self.send("end", task.number)

    def message(self, text: str) -> None:
        self.send("message", text)


@dataclass(frozen=True, slots=True)
class _PipeTask:
    progress: _PipeProgress
    number: int

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.progress.send("advance", self.number, amount, note)


def _work(connection: Connection, job: Job, job_options: dict[str, Any]) -> None:
    """Run a job and send its measure or its error: the main function of the new process."""
    exit_with_parent()  # A job that waits for its threads (gensim) would never notice that the parent has ended.
    progress = _PipeProgress(connection)
    started = time.perf_counter()
    try:
        with leave_in_time(lambda number: None), warnings_as_messages(progress):
            job(options=RunOptions(**job_options, progress=progress))
        progress.send("done", time.perf_counter() - started, peak_memory())
    except BrokenPipeError:
        pass  # The parent has ended, and the result is not needed.
    except BaseException as error:
        error.add_note(traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            _send_error(progress, error)
        if isinstance(error, SystemExit):  # Terminated: exit at once, because unloading libraries takes seconds.
            os._exit(128 + signal.SIGTERM)


def _send_error(progress: _PipeProgress, error: BaseException) -> None:
    try:
        progress.send("failed", error)
    except (TypeError, AttributeError, ValueError):  # The error cannot be pickled.
        progress.send("failed", RuntimeError(f"{type(error).__name__}: {error}"))


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes, None if the system does not provide it.

    On Linux, VmHWM is preferred: `getrusage` of a child includes the peak of its parent at the fork.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024

    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if os.uname().sysname == "Darwin" else peak * 1024  # bytes on macOS, kilobytes elsewhere
