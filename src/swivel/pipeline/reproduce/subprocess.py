"""A job in a process of its own, so that the memory it took is its own.

Receives a job that can be pickled, hands on what it took; its progress is told here as if it ran here, its errors are
raised here. Ctrl-C is heard by this process alone, which hands it on once: a job that saves what it has then does so.
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
_KILLED = -9  # by the system, as a rule because memory ran out


class SubprocessJob(Protocol):
    """Something to be done that takes long."""

    def run(self, options: RunOptions) -> None:
        """Do it."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a job took: seconds, and the most memory its process held, mapped files included; None: not known."""

    seconds: float | None = None
    peak_bytes: int | None = None


Runner = Callable[[SubprocessJob, RunOptions], Measure]


def run_here(job: SubprocessJob, options: RunOptions) -> Measure:
    """Run a job in this process, whose memory is not the job's own."""
    started = time.perf_counter()
    job.run(options)
    return Measure(time.perf_counter() - started)


def run_in_process(job: SubprocessJob, options: RunOptions) -> Measure:
    """Run a job in a new process and return what it took.

    Raises what the job raised, TrainingError where its process was ended from outside, and KeyboardInterrupt or
    SystemExit, after the job has saved what it can, where this process was asked to stop.
    """
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    allowed = {"threads": options.threads, "memory": options.memory, "overwrite": options.overwrite}
    process = context.Process(target=_work, args=(theirs, job, allowed))
    with stop_on_signals() as should_stop:
        with _deaf_children():
            process.start()
        theirs.close()
        try:
            measure = _Relay(ours, process, options.progress).listen(should_stop)
        finally:
            if process.is_alive() and not _ends_soon(process):
                process.kill()
            process.join()
    if measure is None:
        raise _died(process.exitcode)
    return measure


@contextlib.contextmanager
def _deaf_children() -> Iterator[None]:
    """Start processes that do not hear a Ctrl-C in the terminal, from their first moment on: it goes to them, too."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # Started later, by multiprocessing, it would lift the mask.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ends_soon(process: Any) -> bool:
    process.join(5)
    return not process.is_alive()


def _died(status: int | None) -> TrainingError:
    why = "; the system ends a process so when memory runs out: pass a smaller --memory, --max-size or --dim"
    return TrainingError(f"the process of this stage ended with status {status}{why if status == _KILLED else ''}")


class _Relay:
    """The parent's end: what the job reports, told to whoever watches."""

    def __init__(self, connection: Connection, process: Any, progress: Progress) -> None:
        self.connection, self.process, self.progress = connection, process, progress
        self._tasks: dict[int, Task] = {}

    def listen(self, should_stop: StopRequest) -> Measure | None:
        """Return what the job took, or None where its process ended without a word; raise what it raised."""
        is_asked = False
        try:
            while True:
                if should_stop() and not is_asked:
                    self.process.terminate()
                    is_asked = True
                if not self.connection.poll(_POLL_SECONDS):
                    continue
                kind, *values = self.connection.recv()
                if kind == "done":
                    return Measure(*values)
                if kind == "failed":
                    should_stop.raise_if_set()
                    raise values[0]
                self._tell(kind, *values)
        except EOFError:
            return None
        finally:
            for number in list(self._tasks):
                self._tell("end", number)

    def _tell(self, kind: str, *values: Any) -> None:
        if kind == "say":
            self.progress.message(*values)
        elif kind == "begin":
            self._tasks[values[0]] = self.progress.begin(*values[1:])
        elif kind == "advance":
            self._tasks[values[0]].advance(*values[1:])
        else:
            self.progress.end(self._tasks.pop(values[0]))


class _Reports:
    """The job's end: a Progress that sends what it is told."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self._lock, self._begun = connection, threading.Lock(), 0

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
        self.send("say", text)

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        pass  # Nobody draws curves of an experiment's jobs.


@dataclass(frozen=True, slots=True)
class _ReportedTask:
    reports: _Reports
    number: int

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.reports.send("advance", self.number, amount, note)


def _work(connection: Connection, job: SubprocessJob, allowed: dict[str, Any]) -> None:
    """Run a job: the whole life of the new process."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reports = _Reports(connection)
    started = time.perf_counter()
    try:
        with leave_in_time(lambda number: None):
            job.run(RunOptions(**allowed, progress=reports))
        reports.send("done", time.perf_counter() - started, peak_memory())
    except BrokenPipeError:
        pass  # The parent is gone, and with it whoever wanted this.
    except BaseException as error:
        error.add_note(traceback.format_exc())
        with contextlib.suppress(BrokenPipeError):
            _send_error(reports, error)
        if isinstance(error, SystemExit):  # Asked to leave: libraries take long to unload, and somebody waits.
            os._exit(128 + signal.SIGTERM)


def _end_with_parent() -> None:
    """Leave when the parent was killed: a job that waits for others, as gensim's does, would never notice."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _send_error(reports: _Reports, error: BaseException) -> None:
    try:
        reports.send("failed", error)
    except (TypeError, AttributeError, ValueError):  # It cannot be pickled.
        reports.send("failed", RuntimeError(f"{type(error).__name__}: {error}"))


def peak_memory() -> int | None:
    """Return the most bytes that this process has held at a time, where the system says so.

    The kernel's own mark comes first: `getrusage` gives a child the parent's peak at the time it was born.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if os.uname().sysname == "Darwin" else most * 1024
