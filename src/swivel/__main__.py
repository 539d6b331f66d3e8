"""`python -m swivel`, and the command `swivel`: the command line as a process."""

from __future__ import annotations

import os


def main() -> None:
    """Run the command line; asked to leave, leave: neither loading nor unloading libraries holds that up."""
    try:
        from swivel.cli import main as run
        from swivel.cli.exit import leave_at_once
    except KeyboardInterrupt:
        os._exit(130)
    with leave_at_once():
        run()


if __name__ == "__main__":
    main()
