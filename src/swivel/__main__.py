"""`python -m swivel`, and the command `swivel`: the command line as a process."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line and end the process at once, without waiting for threads and libraries to unload."""
    try:
        from swivel.cli import main as run
        from swivel.cli.exit import end_process
        from swivel.cli.terminal import protect_streams
        from swivel.runtime.parallel import take_short_turns
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)

    protect_streams()
    take_short_turns()
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
