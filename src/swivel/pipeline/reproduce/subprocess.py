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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

from swivel.errors import TrainingError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress, Task
from swivel.runtime.signals import StopRequest, leave_in_time, stop_on_signals

_POLL_SECONDS = 0.1
_KILLED = -9  # SIGKILL, usually sent by the kernel because memory ran out


class SubprocessJob(Protocol):
    """A job that can be pickled and run in another process."""

    def run(self, options: RunOptions) -> None:
        """Run the job."""


@dataclass(frozen=True, slots=True)
class Measure:
    """Seconds and peak memory of a job, including mapped files; None if unknown."""

    seconds: float | None = None
    peak_bytes: int | None = None


Runner = Callable[[SubprocessJob, RunOptions], Measure]


def run_here(job: SubprocessJob, options: RunOptions) -> Measure:
    """Run a job in this process; its memory is not measured."""
    started = time.perf_counter()
    job.run(options)
    return Measure(time.perf_counter() - started)


def run_in_process(job: SubprocessJob, options: RunOptions) -> Measure:
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
            measure = _Relay(receiver, process, options.progress).listen(should_stop)
        finally:
            process.join(5)
            if process.is_alive():
                process.kill()
            process.join()

    if measure is None:
        raise _describe_exit(process.exitcode)
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


def _describe_exit(status: int | None) -> TrainingError:
    message = f"the process of this stage ended with status {status}"
    if status == _KILLED:
        message += "; memory probably ran out: pass a smaller memory, max_size or dim"
    return TrainingError(message)


class _Relay:
    """The parent's end of the pipe: forwards the progress of the job to `progress`."""

    def __init__(self, connection: Connection, process: Any, progress: Progress) -> None:
        self.connection = connection
        self.process = process
        self.progress = progress
        self._tasks: dict[int, Task] = {}  # open tasks, by their number in the job

    def listen(self, should_stop: StopRequest) -> Measure | None:
        """Return the measure of the job, None if its process ended early; raise the error of the job."""
        is_terminated = False
        try:
            while True:
                if should_stop() and not is_terminated:
                    self.process.terminate()
                    is_terminated = True

                # Poll with a timeout, because a signal does not interrupt `recv`.
                if not self.connection.poll(_POLL_SECONDS):
                    continue

                kind, *values = self.connection.recv()
                if kind == "done":
                    return Measure(*values)
                if kind == "failed":
                    should_stop.raise_if_set()
                    raise values[0]
                self._forward(kind, *values)
        except EOFError:
            return None
        finally:
            for number in list(self._tasks):
                self._forward("end", number)

    def _forward(self, kind: str, *values: Any) -> None:
        if kind == "message":
            self.progress.message(*values)
        elif kind == "begin":
            self._tasks[values[0]] = self.progress.begin(*values[1:])
        elif kind == "advance":
            self._tasks[values[0]].advance(*values[1:])
        else:
            self.progress.end(self._tasks.pop(values[0]))


class _Reports:
    """The job's end of the pipe: a Progress that sends its events to the parent."""

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
        return _ReportedTask(self, self._begun)

    def end(self, task: Any) -> None:
        self.send("end", task.number)

    def message(self, text: str) -> None:
        self.send("message", text)

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        pass  # The report of an experiment has no training curves.


@dataclass(frozen=True, slots=True)
class _ReportedTask:
    reports: _Reports
    number: int

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.reports.send("advance", self.number, amount, note)


def _work(connection: Connection, job: SubprocessJob, job_options: dict[str, Any]) -> None:
    """Run a job and send its measure or its error: the main function of the new process."""
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    reports = _Reports(connection)
    started = time.perf_counter()
    try:
        with leave_in_time(lambda number: None):
            job.run(RunOptions(**job_options, progress=reports))
        reports.send("done", time.perf_counter() - started, peak_memory())
    except BrokenPipeError:
        pass  # The parent has ended, and the result is not needed.
    except BaseException as error:
        error.add_note(traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            _send_error(reports, error)
        if isinstance(error, SystemExit):  # Terminated: exit at once, because unloading libraries takes seconds.
            os._exit(128 + signal.SIGTERM)


def _exit_with_parent() -> None:
    """Exit this process when the parent has ended; a job that waits for its threads (gensim) would never notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _send_error(reports: _Reports, error: BaseException) -> None:
    try:
        reports.send("failed", error)
    except (TypeError, AttributeError, ValueError):  # The error cannot be pickled.
        reports.send("failed", RuntimeError(f"{type(error).__name__}: {error}"))


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
