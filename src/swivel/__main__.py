"""`python -m swivel`, and the command `swivel`: the command line as a process."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and end the process at once, without waiting for threads and libraries to unload."""
    try:
        from swivel.cli import main as run
        from swivel.cli.terminal import end_process, print_message, protect_streams
        from swivel.errors import SwivelError
        from swivel.runtime.parallel import take_short_turns
        from swivel.runtime.resources import MIN_THREADS, check_threads, count_cores
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)

    protect_streams()
    take_short_turns()
    try:
        # Before anything imports NumPy, which starts a thread per core, and raises SIGINT if that fails.
        check_threads("a command", MIN_THREADS + count_cores())
    except SwivelError as error:
        print_message(f"error: {error}")
        end_process(1)
    status = 0
    try:
        run()
    except SystemExit as leave:
        if leave.code is not None and not isinstance(leave.code, int):
            raise
        status = leave.code or 0
    end_process(status)


if __name__ == "__main__":
    main()
