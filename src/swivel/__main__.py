"""`python -m swivel` is the command line."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; a Ctrl-C while it is being loaded is no traceback."""
    try:
        from swivel.cli import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
