"""Seconds of `import swivel` and of `swivel --help`, beside an empty Python. Goals: 0.15 s and 0.4 s."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from common import keep, make_parser, median_seconds, parse_arguments

MEASURES = ("swivel.__init__", "swivel.__main__", "swivel.cli")


def main() -> None:
    arguments = parse_arguments(make_parser(__doc__, "repeats"), repeats=1)
    runs = 1 if arguments.smoke else 5 * arguments.repeats
    swivel = Path(sys.executable).with_name("swivel")

    def seconds(*command: str) -> float:
        return median_seconds(lambda: subprocess.run(command, capture_output=True, check=True), runs)

    seconds(str(swivel), "--help")
    empty = seconds(sys.executable, "-c", "pass")
    keep(
        arguments,
        {
            "empty_python_seconds": empty,
            "import_seconds": seconds(sys.executable, "-c", "import swivel") - empty,
            "help_seconds": seconds(str(swivel), "--help"),
        },
    )


if __name__ == "__main__":
    main()
