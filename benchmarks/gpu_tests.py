"""The tests that need a CUDA device, shared among several processes: `make gpu-test`.

Most of the time Triton compiles on one core; the GPU has memory for all processes. A process takes every M-th test
(`--shard`, tests/conftest.py) and writes a log to `work/benchmarks/gpu_tests`. The exit status is 1 if a test fails or
none runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

from common import ROOT, keep, make_parser, parse_arguments, work_folder
from swivel.runtime.resources import count_cores

MEASURES = (
    "swivel.training.backends",
    "swivel.training.objective",
    "swivel.training.objective_triton",
    "swivel.training.fold_in",
    "swivel.counts.cooccurrence.gpu",
)
TESTS = (
    "tests/training/backends",
    "tests/counts/cooccurrence/test_count_on_gpu.py",
    "tests/training/distributed/test_parameter_server.py",
    "tests/training/test_fold_in.py",
)
SMOKE_TESTS = "tests/runtime/test_numbers.py"  # they need no GPU


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--processes", type=int, default=count_cores(), help="number of processes that share the tests")
    parser.add_argument("tests", nargs="*", help="files or folders of tests; default: all that run on a device")
    arguments = parse_arguments(parser, processes=2, tests=[SMOKE_TESTS])

    started = time.perf_counter()
    tests = arguments.tests or list(TESTS)
    logs = [work_folder() / "gpu_tests" / f"{number}.log" for number in range(arguments.processes)]
    shards = [start_shard(number, len(logs), tests, log) for number, log in enumerate(logs)]
    codes = [shard.wait() for shard in shards]
    outputs = [log.read_text() for log in logs]
    seconds = round(time.perf_counter() - started)

    counts = Counter[str]()
    for output in outputs:
        summary = output.strip().rpartition("\n")[2]  # such as "2 failed, 40 passed, 3 skipped in 61.2s"
        for number, kind in re.findall(r"(\d+) (passed|failed|skipped|error)", summary):
            counts[kind] += int(number)

    is_green = counts["passed"] > 0 and not any(codes)
    if not is_green:
        print("\n".join(outputs))
    keep(arguments, {"is_green": is_green, **counts, "seconds": seconds}, name="gpu/tests")
    sys.exit(not is_green)


def start_shard(number: int, shards: int, tests: list[str], log: Path) -> subprocess.Popen[bytes]:
    """Start pytest on one part of the tests."""
    command = [sys.executable, "-m", "pytest", "-v", "--durations", "5", "-p", "no:cacheprovider"]
    command += ["--shard", f"{number}/{shards}", *tests]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)


if __name__ == "__main__":
    main()
