"""The stages of an experiment: each runs once, in a process of its own, and its time and peak memory are recorded."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

from swivel.cli.terminal import CommandProgress
from swivel.errors import SwivelError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT
from swivel.storage.files import write_file

MEASURES = "measures.json"

Job = Callable[..., object]  # called in another process: `job(out, *arguments, options=...)`


@dataclass(frozen=True, slots=True)
class Measure:
    """Wall time and peak memory of a stage, mapped files included; None if unknown."""

    seconds: float | None
    peak_bytes: int | None


class Stages:
    """Runs stages, and records in `measures.json` what each finished one was made from and what it took."""

    def __init__(self, folder: Path, options: RunOptions) -> None:
        self.options = options
        self._file = folder / MEASURES
        self._records: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            self._records = json.loads(self._file.read_text(encoding="utf-8"))

    def run(
        self, name: str, out: Path, job: Job, *arguments: Any, made_from: Mapping[str, Any], after: str | None = None
    ) -> Path:
        """Let a job write the file or folder `out`, unless it has done so from the same inputs; return `out`.

        `made_from` has its settings and inputs as JSON values; `after` is the stage whose result it reads.
        """
        before = {} if after is None else {after: self._records[after]["made_from"]}
        origin = json.loads(json.dumps({**made_from, **before}))  # as it is read from the file
        if out.exists() and self._records.get(name, {}).get("made_from") == origin and not self.options.overwrite:
            return out

        self.options.progress.message(f"{name} ...")
        out.parent.mkdir(parents=True, exist_ok=True)
        # What an interrupted process left is not made again, so the time of the whole is not known.
        left = [*out.glob("manifest.json"), *out.glob("checkpoint-*")]
        is_continued = bool(left) and not self.options.overwrite
        measure = run_in_process(name, job, (out, *arguments), self.options)
        if is_continued:
            measure = Measure(None, measure.peak_bytes)

        self._records[name] = {"made_from": origin, **asdict(measure)}
        write_file(self._file, json.dumps(self._records, indent=1).encode())
        return out

    def measure(self, name: str) -> Measure:
        """Return the measure of a finished stage."""
        return Measure(self._records[name]["seconds"], self._records[name]["peak_bytes"])


def run_in_process(name: str, job: Job, arguments: tuple[Any, ...], options: RunOptions) -> Measure:
    """Run a job in a new process; its errors are raised here.

    Ctrl-C reaches both processes: training saves a checkpoint, and this process waits for that.
    """
    resources = {"threads": options.threads, "memory": options.memory, "overwrite": options.overwrite}
    is_quiet = options.progress is SILENT
    context = multiprocessing.get_context("spawn")  # A forked process would begin with the memory of this one.

    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(run_and_measure, job, arguments, resources, is_quiet).result()
        except BrokenProcessPool:
            raise SwivelError(f"{name}: the process was killed, probably because memory ran out") from None


def run_and_measure(job: Job, arguments: tuple[Any, ...], resources: Mapping[str, Any], is_quiet: bool) -> Measure:
    """Run a job in this process, which ends if the command that started it is killed."""
    exit_with_parent()
    started = time.perf_counter()
    job(*arguments, options=RunOptions(**resources, progress=SILENT if is_quiet else CommandProgress()))
    return Measure(round(time.perf_counter() - started, 3), peak_memory())


def exit_with_parent() -> None:
    """Let this child process exit as soon as its parent has ended, even if the parent was killed."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def peak_memory() -> int | None:
    """Return the peak memory of this process in bytes, None if the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else None


def digest_files(files: Iterable[Path]) -> str:
    """Return a digest of the contents of files."""
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()


def run_command(command: click.Command) -> None:
    """Run a command line; an error of the package is printed as one line."""
    try:
        command()
    except SwivelError as error:
        sys.exit(f"error: {error}")
