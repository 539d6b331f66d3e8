"""The harness of all benchmarks: options, data, smoke runs, and how a result is kept.

Each script prints one JSON object as its last line and keeps it in `benchmarks/results` with the machine, the versions
and the commit. It declares in `MEASURES` which code it measures; `tools/claims.py` lists the results that are out of
date.

Real runs need a corpus and evaluation sets that are not in the repository: `--corpus` (files or a folder) and `--eval`
(a folder), by default those in `../shared/data`, or in the folder that the variable SWIVEL_SHARED names. With `--smoke`
a script runs the same code within seconds on tiny synthetic data in a temporary folder and keeps nothing;
`tests/test_benchmarks.py` does that with every script.
"""

from __future__ import annotations

import argparse
import atexit
import json
import lzma
import os
import platform
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from swivel.runtime.resources import count_cores

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT)]  # `experiments` is beside the package, not in it

from claims import digest_source, find_script, find_source, read_measures, run_git  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
SHARED = Path(os.environ.get("SWIVEL_SHARED", ROOT.parent / "shared" / "data"))
REFERENCE_RATE = 210e6  # cells/s of the three bf16 products on the machine that the goals are set for

# Options that several benchmarks share, by name.
OPTIONS: dict[str, dict[str, Any]] = {
    "corpus": {"type": Path, "default": SHARED / "corpus", "help": "text: a file or a folder of files"},
    "eval": {"type": Path, "default": SHARED / "eval", "help": "folder of evaluation sets"},
    "megabytes": {"type": int, "help": "take only so many MB of the text, to the end of a line"},
    "repeats": {"type": int, "default": 3, "help": "number of times that each measurement is repeated"},
    "threads": {"type": int, "default": count_cores(), "help": "number of threads"},
}
COMMIT_VARIABLE = "SWIVEL_COMMIT"  # the commit, on a machine without git
WORK_VARIABLE = "SWIVEL_SMOKE_FOLDER"  # set by a smoke run, for itself and for the processes that it starts
NOT_RECORDED = ("smoke", "name", "started", "drive")


def make_parser(description: str | None, *options: str) -> argparse.ArgumentParser:
    """Return a parser with `--smoke`, `--name`, and those of the shared `OPTIONS` that are named."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--smoke", action="store_true", help="run in seconds on tiny synthetic data, and keep nothing")
    parser.add_argument("--name", help="keep the result under this name; default: the name of the script")

    for option in options:
        parser.add_argument(f"--{option}", **OPTIONS[option])
    return parser


def parse_arguments(parser: argparse.ArgumentParser, **smoke: Any) -> argparse.Namespace:
    """Parse the command line.

    `smoke` holds the default values of a smoke run. A function among them is called with the temporary folder of the
    run, and returns the value.
    """
    if "--smoke" in sys.argv[1:]:
        folder = make_smoke_folder()
        parser.set_defaults(**{name: value(folder) if callable(value) else value for name, value in smoke.items()})

    arguments = parser.parse_args()
    arguments.started = {
        **find_commit(),
        "date": time.strftime("%Y-%m-%d"),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
    }
    return arguments


def make_smoke_folder() -> Path:
    """Return the temporary work folder of a smoke run, which is removed when this process ends."""
    if WORK_VARIABLE not in os.environ:  # It is set already where a script has replaced its own process.
        os.environ[WORK_VARIABLE] = tempfile.mkdtemp(prefix="swivel-smoke-")
    folder = os.environ[WORK_VARIABLE]
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def work_folder() -> Path:
    """Return the folder for intermediate files: `work/benchmarks`, or the temporary one of a smoke run."""
    folder = Path(os.environ.get(WORK_VARIABLE, ROOT / "work" / "benchmarks"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def scratch_in_memory(name: str) -> Path:
    """Return the path of a folder for many small files of this process; it is removed when the process ends.

    It is in memory where the system has a folder for that, because flushing a file takes no time there.
    """
    memory = Path("/dev/shm")
    home = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    folder = home / f"swivel-{name}-{os.getpid()}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def write_text(folder: Path) -> Path:
    """Write a small synthetic text for a smoke run, compressed as the real corpus is, and return the file.

    It has 120 words in 12 groups; the words of a line are of one group, the frequent words of a group first.
    """
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 12, 2_000)
    ranks = (10 * rng.random((len(groups), 10)) ** 2).astype(int)

    lines = [
        " ".join(f"word{12 * rank + group}" for rank in line)
        for group, line in zip(groups.tolist(), ranks.tolist(), strict=True)
    ]
    file = folder / "text" / "text.txt.xz"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(lzma.compress("".join(f"{line} .\n" for line in lines).encode(), preset=0))
    return file


def write_corpus(folder: Path) -> Path:
    """Write a small corpus for a smoke run and return its folder."""
    return write_text(folder).parent


def write_sets(folder: Path) -> Path:
    """Write the eight evaluation sets, tiny and over the words of `write_text`, and return their folder."""
    from swivel.evaluation.datasets import PAPER_ORDER

    rng = np.random.default_rng(2)
    sets = folder / "sets"
    sets.mkdir(exist_ok=True)

    for name in PAPER_ORDER:
        if name.endswith("analogies"):
            rows = [rng.choice(120, 4, replace=False).tolist() for _ in range(24)]
            lines = ["\t".join(f"word{n}" for n in row) for row in rows]
        else:
            rows = [rng.choice(120, 2, replace=False).tolist() for _ in range(24)]
            lines = [f"word{a}\tword{b}\t{score}" for score, (a, b) in enumerate(rows)]
        (sets / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return sets


def write_table(folder: Path) -> Path:
    """Write a small table of row, column and count for a smoke run, tab-separated, and return the file."""
    rng = np.random.default_rng(3)
    cells = {(row, int(column)) for row in range(60) for column in rng.choice(40, 12, replace=False)}
    lines = [f"row{row}\tcolumn{column}\t{1 + (row + column) % 5}" for row, column in sorted(cells)]

    file = folder / "table.tsv"
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def plain_corpus(source: Path, megabytes: int | None = None) -> list[Path]:
    """Return the corpus, or its first `megabytes`, as plain files, made once in the work folder."""
    files = sorted(source.iterdir()) if source.is_dir() else [source]
    plain = []
    for file in files:
        if file.suffix != ".xz":
            plain.append(file)
            continue
        target = work_folder() / "corpus" / file.stem
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists():
            with lzma.open(file) as packed, target.with_suffix(".part").open("wb") as out:
                shutil.copyfileobj(packed, out, 1 << 24)
            target.with_suffix(".part").rename(target)
        plain.append(target)
    return plain if megabytes is None else [cut_corpus(plain, megabytes)]


def cut_corpus(files: list[Path], megabytes: int) -> Path:
    """Return a file of the first lines of a corpus, of so many MB."""
    target = work_folder() / f"corpus-{megabytes}mb.txt"
    left = megabytes * 1_000_000
    with target.open("wb") as out:
        for file in files:
            with file.open("rb") as lines:
                while left > 0 and (line := lines.readline()):
                    left -= out.write(line)
    return target


def script_name() -> str:
    """Return the name of the benchmark that runs: the stem of its script, or the package that `python -m` runs."""
    script = Path(sys.argv[0])
    return script.parent.name if script.stem == "__main__" else script.stem


def find_commit() -> dict[str, Any]:
    """Return the commit of the checkout, and whether the measured sources differ from it.

    Where the commit of the checkout is not known, as on a machine that has a copy of the files alone, the variable
    SWIVEL_COMMIT names it, as `git describe --always --dirty` prints it.
    """
    given, _, suffix = os.environ.get(COMMIT_VARIABLE, "").partition("-")
    if given:
        return {"commit": given} | ({"modified": True} if suffix else {})
    commit = run_git("rev-parse", "--short", "HEAD") if shutil.which("git") else None
    if commit is None:
        print(f"no git here: set {COMMIT_VARIABLE} so that the result names its commit", file=sys.stderr)
        return {"commit": None}

    sources = [str(find_source(entry)) for entry in measured_sources()]
    modified = run_git("status", "--porcelain", "--", *sources) if sources else None
    return {"commit": commit.strip()} | ({"modified": True} if modified else {})


def measured_sources() -> tuple[str, ...]:
    """Return the entries of `MEASURES` of the script that runs."""
    return read_measures(find_script(script_name()))


def describe_machine(started: dict[str, Any]) -> dict[str, Any]:
    """Return the processor, the versions and what was noted at the start of the run."""
    torch = sys.modules.get("torch")  # Asking for the GPU is no reason to import it.
    has_gpu = torch is not None and torch.cuda.is_available()
    return {
        "cpu": find_processor(),
        "cores": count_cores(),
        **({"gpu": torch.cuda.get_device_name()} if torch is not None and has_gpu else {}),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("numpy", "numba", "torch")} | {"swivel": swivel.__version__},
        **started,
    }


def find_processor() -> str:
    """Return the name of the processor."""
    information = Path("/proc/cpuinfo")  # Linux
    lines = information.read_text().splitlines() if information.exists() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def keep(arguments: argparse.Namespace, result: dict[str, Any], *, name: str | None = None) -> None:
    """Keep a result in `benchmarks/results`, unless this is a smoke run, and print it as one line of JSON.

    `name` is that of the file, if the command line names none; without both it is the name of the script. "A/B" is the
    entry B of the file A, which holds the results of one table of the documentation.
    """
    data = {
        "benchmark": script_name(),
        **result,
        "arguments": describe_arguments(arguments),
        "measured": {entry: digest_source(entry) for entry in measured_sources()},
        "machine": describe_machine(arguments.started),
    }
    if not getattr(arguments, "smoke", False):
        title, _, entry = (arguments.name or name or script_name()).partition("/")
        file = RESULTS / f"{title}.json"
        others = json.loads(file.read_text(encoding="utf-8")) if entry and file.exists() else {}
        kept = {**others, entry: data} if entry else data
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(data), flush=True)


def describe_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the values of all options that were given or have a default, as JSON has them."""

    def simplify(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [simplify(each) for each in value]
        if not isinstance(value, Path):
            return value
        is_near = value.is_absolute() and value.is_relative_to(ROOT.parent)
        return os.path.relpath(value, ROOT) if is_near else str(value)

    given = {name: value for name, value in vars(arguments).items() if name not in NOT_RECORDED}
    return {name: simplify(value) for name, value in given.items() if value is not None}


def cpu_seconds() -> float:
    """Return the processor time of this process so far, its threads included."""
    return time.process_time()


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
    """Peak of the anonymous memory (mapped files apart) of a process and those that it started, every 20 ms."""

    def __init__(self, process: int | None = None) -> None:
        self._process = process or os.getpid()

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
            with suppress(OSError):  # The process may have ended.
                self._read()

    def _read(self) -> None:
        total, processes = 0, [self._process]
        while processes:
            folder = Path(f"/proc/{processes.pop()}")
            with suppress(OSError):
                lines = (folder / "status").read_text().splitlines()
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))
                for task in (folder / "task").iterdir():
                    processes += map(int, (task / "children").read_text().split())
        self.peak = max(self.peak, total)
