"""Run the numerical tests as if on other machines: `make test-variants`.

Environment variables choose other numbers of threads, and the code that torch (ATen, MKL, oneDNN), numpy, OpenBLAS and
numba would run on other CPUs. Each variant is one run of pytest; the last line is JSON, with the failures of each.

    python tools/variants.py [--only NAME ...] [--processes N] [TESTS ...]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
# Tests whose results pass through matrix products, decompositions or fast-math kernels, below tests/.
TESTS = (
    "cli",
    "evaluation",
    "explorer/test_maps.py",
    "pipeline",
    "reports/test_run_report.py",
    "test_crashes.py",
    "test_docs.py",
    "test_estimator.py",
    "test_golden_bits.py",
    "test_recipes.py",
    "training",
    "vectors",
)
IS_X86 = platform.machine().lower() in ("x86_64", "amd64")
# MKL takes no more threads than there are cores unless it is told to.
THREADS = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "three threads": {"OMP_NUM_THREADS": "3", "MKL_DYNAMIC": "FALSE"},
}


def numpy_features() -> str:
    """Return the names of all instruction sets that the installed numpy chooses between."""
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    return " ".join(found)


def list_variants(cache: Path) -> dict[str, dict[str, str]]:
    """Return the variables of each variant; `cache` is for kernels that numba compiles for another CPU."""
    compiled = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(cache)}
    others = {"numba for any CPU": compiled, "ATen for any CPU": {"ATEN_CPU_CAPABILITY": "default"}}
    if numpy_features():
        others["numpy for any CPU"] = {"NPY_DISABLE_CPU_FEATURES": numpy_features()}
    if IS_X86:
        others["MKL for any CPU"] = {"MKL_CBWR": "COMPATIBLE"}
        others["oneDNN with AVX2"] = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
        others["ATen with AVX2"] = {"ATEN_CPU_CAPABILITY": "avx2"}
        others["OpenBLAS of 2008"] = {"OPENBLAS_CORETYPE": "Nehalem"}
    oldest = {name: value for each in reversed(others.values()) for name, value in each.items()}
    return {**THREADS, "all for any CPU": {**oldest, "ATEN_CPU_CAPABILITY": "default"}, **others}


def run_tests(variables: dict[str, str], tests: list[str], processes: int) -> dict[str, object]:
    """Run the tests once and return how that ended."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        str(processes),
        "--max-worker-restart=0",
        "-m",
        "not slow",
        "-p",
        "no:cacheprovider",
        *tests,
    ]
    started = time.monotonic()
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **variables}  # as `make test` sets it
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    if failed or done.returncode:
        print("\n".join(lines[-200:]), done.stderr[-2000:], sep="\n", flush=True)
    counts = re.findall(r"(\d+) (passed|failed|skipped|error)", lines[-1] if lines else "")
    return {
        "status": done.returncode,
        "seconds": round(time.monotonic() - started),
        **{kind: int(number) for number, kind in counts},
        "failures": failed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tests", nargs="*", help="files or tests; by default all that are numerical")
    parser.add_argument("--only", action="append", metavar="NAME", help="variants to run; by default all")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()

    tests = given.tests or [f"tests/{name}" for name in TESTS]
    results: dict[str, object] = {}
    has_failed = False
    with tempfile.TemporaryDirectory(prefix="numba-") as cache:
        variants = list_variants(Path(cache))
        unknown = set(given.only or ()) - set(variants)
        if unknown:
            parser.error(f"no variant {sorted(unknown)}; there are {', '.join(variants)}")
        for name in given.only or variants:
            print(name, variants[name], flush=True)
            ended = run_tests(variants[name], tests, given.processes)
            print(ended, flush=True)
            has_failed |= ended["status"] != 0
            results[name] = ended
    print(json.dumps(results))
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
