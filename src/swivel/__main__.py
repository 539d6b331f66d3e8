"""`python -m swivel`, and the command `swivel`, are the command line as a process."""

from __future__ import annotations

import atexit
import os
import sys

ASKED = (130, 143)  # SIGINT, SIGTERM


def main() -> None:
    """Run the command line; asked to leave, leave: neither while it loads nor at its end does that take long."""
    try:
        from swivel.cli import main as run

        run()
    except KeyboardInterrupt:
        os._exit(130)
    except SystemExit as leave:
        if leave.code in ASKED:
            _leave(int(leave.code))
        raise


def _leave(status: int) -> None:
    """End the process: libraries take seconds to unload, and threads that compute are not waited for."""
    atexit._run_exitfuncs()  # temporary folders
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
