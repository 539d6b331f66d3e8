"""What every benchmark shares: where the data is, what the machine is, how a result is kept.

Benchmarks need a corpus and test sets that are not in the repository: `--corpus` (files or a folder) and `--eval` (a
folder); by default the folder `../shared/data` beside the project. The last line printed is one JSON object; it is
also kept in `benchmarks/results`.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import platform
import shutil
import statistics
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import swivel
from swivel.resources import count_cores

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
SHARED = ROOT.parent / "shared" / "data"
WORK = ROOT / "work" / "benchmarks"
REFERENCE_RATE = 210e6  # cells/s of the three bf16 products on the machine that the goals are set for


def scratch_home(name: str) -> Path:
    """Return a folder for many small files: in memory where the system has that, for a flush takes no time there."""
    memory = Path("/dev/shm")
    return memory / f"swivel-{name}-{ROOT.name}" if os.access(memory, os.W_OK) else WORK / name


def parse_arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--corpus", type=Path, default=SHARED / "corpus")
    parser.add_argument("--eval", type=Path, default=SHARED / "eval")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=count_cores())
    parser.add_argument("--name", help="keep the result under this name")
    return parser.parse_args()


def plain_corpus(source: Path) -> list[Path]:
    """Return the corpus as plain files, decompressed once into the work folder."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    plain = []
    for file in files:
        if file.suffix != ".xz":
            plain.append(file)
            continue
        target = WORK / "corpus" / file.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with lzma.open(file) as packed, target.with_suffix(".part").open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 24)
            target.with_suffix(".part").rename(target)
        plain.append(target)
    return plain


def describe_machine() -> dict[str, Any]:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "cpu": names[0].split(":")[1].strip() if names else platform.processor(),
        "cores": count_cores(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "numba", "torch")} | {"swivel": swivel.__version__},
        "commit": commit.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def keep(name: str, result: dict[str, Any]) -> None:
    """Keep a result and print it as the last line."""
    data = {"benchmark": name, **result, "machine": describe_machine()}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    print(json.dumps(data))


def median_seconds(job: Callable[[], Any], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        job()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def products_rate(dtype: str, threads: int, seconds: float = 3.0) -> float:
    """Return cells a second of a step's three products (k = 1,024, d = 300), warmed, on so many threads at once."""
    import torch

    k, d = 1024, 300
    kind = getattr(torch, dtype)

    def work(_: int) -> float:
        w, c, g = (torch.randn(*shape).to(kind) for shape in ((k, d), (k, d), (k, k)))
        outs = torch.empty(k, k, dtype=kind), torch.empty(k, d, dtype=kind)
        steps, started = -1, time.perf_counter()
        while steps < 0 or time.perf_counter() - started < seconds:
            torch.mm(w, c.t(), out=outs[0])
            torch.mm(g, c, out=outs[1])
            torch.mm(g.t(), w, out=outs[1])
            steps += 1
            if steps == 0:  # The first warms.
                started = time.perf_counter()
        return steps * k * k / (time.perf_counter() - started)

    with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return sum(pool.map(work, range(threads)))


class PrivateMemory:
    """Peak of the anonymous memory of this process (mapped files apart), sampled every 20 ms."""

    def __enter__(self) -> PrivateMemory:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                if line.startswith("RssAnon:"):
                    self.peak = max(self.peak, int(line.split()[1]) * 1024)
