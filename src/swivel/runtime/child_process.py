"""Calls of functions in a new Python process, which imports and computes without waiting for this one.

Threads share the interpreter: while one of them imports a large library such as torch, all others wait for it most of
the time. A process has an interpreter of its own.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from swivel.errors import SwivelError, first_line
from swivel.runtime.parallel import take_short_turns
from swivel.runtime.progress import Progress, Task, warnings_as_messages

Result = TypeVar("Result")

# The terminal sends Ctrl-C to all processes; the parent decides what it means.
MAIN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from swivel.runtime.child_process import serve_calls; serve_calls({})"
)

PROGRESS = "progress of this process"  # as the argument `progress` of a call, stands for a `SentProgress`


def can_start_processes() -> bool:
    """Return whether `ChildProcess` works here."""
    return os.name == "posix" and bool(sys.executable)


class ProcessEnded(SwivelError):
    """The process that ran a call has ended, or was killed."""


class ChildProcess:
    """A Python process that calls functions for this one, in order; it ends with the block, or with this process."""

    def __init__(self) -> None:
        # The child ends when its end of this pair is closed, even if this process is killed.
        here, there = socket.socketpair()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

        with here, there:
            number = there.fileno()
            # -P: modules of the current folder must not replace those of libraries.
            command = [sys.executable, "-P", "-c", MAIN.format(number)]
            self._process = subprocess.Popen(command, env=environment, pass_fds=[number], stdin=subprocess.DEVNULL)
            self._connection = Connection(here.detach())

    def call(self, function: Callable[..., Result], *arguments: Any, **keywords: Any) -> ChildCall[Result]:
        """Start a call with picklable arguments; its result must be waited for before that of the next call."""
        with contextlib.suppress(OSError):  # A process that has ended already is reported by `wait`.
            self._connection.send((function, arguments, keywords))
        return ChildCall(self._process, self._connection)

    def __enter__(self) -> ChildProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        self._connection.close()


class ChildCall(Generic[Result]):
    """A call that runs in another process."""

    def __init__(self, process: subprocess.Popen[bytes], connection: Connection) -> None:
        self._process = process
        self._connection = connection

    def wait(self, progress: Progress, check: Callable[[], None] | None = None) -> Result:
        """Return the result, or raise the error of the function; `check` is called after every event."""
        tasks: dict[int, Task] = {}  # that have begun and not ended, by the id of the task that reports them
        try:
            while True:
                event, *values = self._receive()

                match event:
                    case "begin":
                        tasks[values[0]] = progress.begin(*values[1:])
                    case "advance":
                        tasks[values[0]].advance(*values[1:])
                    case "end":
                        progress.end(tasks.pop(values[0]))
                    case "message":
                        progress.message(*values)
                    case "error":
                        raise values[0]
                    case "result":
                        result: Result = values[0]
                        return result

                if check is not None:
                    check()
        finally:
            for task in tasks.values():
                progress.end(task)

    def _receive(self) -> Any:
        """Return the next event, or raise ProcessEnded."""
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            status = self._process.wait()

        how = f"ended with status {status}"
        if status < 0:
            how = f"was killed by signal {-status}, perhaps because memory ran out"
        raise ProcessEnded(f"a process that this command started {how}; run the command again")


def serve_calls(descriptor: int) -> None:
    """Run the calls that the parent sends through a socket, and send their events and results, until it ends."""
    take_short_turns()
    connection = Connection(descriptor)
    calls: SimpleQueue[bytes] = SimpleQueue()
    # A thread of its own notices the end of the parent while a call is running.
    threading.Thread(target=_receive_calls, args=(connection, calls), daemon=True).start()

    while True:
        try:
            # A call is unpickled when it is its turn, so that the arrays of waiting calls are in memory once.
            function, arguments, keywords = pickle.loads(calls.get())
            if keywords.get("progress") == PROGRESS:
                keywords["progress"] = SentProgress(connection)
            with warnings_as_messages(SentProgress(connection)):
                result = function(*arguments, **keywords)
            connection.send(("result", result))  # pickled whole before anything is sent
        except Exception as error:
            connection.send(("error", _as_sendable(error)))


def _receive_calls(connection: Connection, calls: SimpleQueue[bytes]) -> None:
    """Put all calls into a queue; end this process when the parent has closed the connection."""
    try:
        while True:
            calls.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)


def _as_sendable(error: Exception) -> Exception:
    """Return an error that is the same in another process, or a SwivelError with its message."""
    with contextlib.suppress(Exception):  # Errors of libraries may need other arguments than their message.
        if type(pickle.loads(pickle.dumps(error))) is type(error):
            return error
    return SwivelError(f"{type(error).__name__}: {first_line(error)}")


class SentProgress(Progress):
    """Progress that is sent to the parent process."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        """Send the event and return a task that sends its reports."""
        task = _SentTask(self._connection)
        self._connection.send(("begin", id(task), job, total, unit))
        return task

    def end(self, task: Task) -> None:
        """Send the event."""
        self._connection.send(("end", id(task)))

    def message(self, text: str) -> None:
        """Send the event."""
        self._connection.send(("message", text))


class _SentTask(Task):
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def advance(self, amount: float = 1, note: str = "") -> None:
        self._connection.send(("advance", id(self), amount, note))
