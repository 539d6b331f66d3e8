"""`python -m swivel`, and the command `swivel`: the command line as a process."""

from __future__ import annotations

import os
import signal


def main() -> None:
    """Run the command line. A signal ends the process at once, without waiting for threads and libraries to unload."""
    try:
        from swivel.cli import main as run
        from swivel.cli.exit import end_process
        from swivel.cli.terminal import protect_streams
    except KeyboardInterrupt:
        os._exit(128 + signal.SIGINT)

    protect_streams()
    try:
        run()
    except SystemExit as leave:
        if leave.code not in (128 + signal.SIGINT, 128 + signal.SIGTERM):
            raise
        end_process(int(leave.code))


if __name__ == "__main__":
    main()
