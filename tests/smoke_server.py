"""Runs benchmarks with `--smoke`, each in a fork of one process that has imported the heavy libraries.

The names of scripts come on standard input, one per line. For each, one line of JSON answers on standard output: the
exit status and what the script printed.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import sys
import tempfile
import traceback
from pathlib import Path


def run_script(script: Path, folder: Path) -> int:
    """Run a script in a child process with `folder` as its working folder, and return its exit status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    status = 1
    atexit._clear()  # Handlers of the parent run in the parent.
    try:
        os.chdir(folder)
        for stream, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(f"{folder}.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
        sys.argv = [str(script), "--smoke"]
        sys.path.insert(0, str(script.parent))
        runpy.run_path(str(script), run_name="__main__")
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def main() -> None:
    import numba  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch  # noqa: F401

    import swivel.cli  # noqa: F401

    with tempfile.TemporaryDirectory() as home:
        for number, line in enumerate(sys.stdin):
            folder = Path(home) / str(number)
            folder.mkdir()
            status = run_script(Path(line.strip()), folder)
            printed = {name: Path(f"{folder}.{name}").read_text(encoding="utf-8") for name in ("stdout", "stderr")}
            left = sorted(file.name for file in folder.iterdir())
            sys.stdout.write(json.dumps({"status": status, "left": left, **printed}) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
