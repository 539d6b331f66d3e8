"""Counting on a local Ray cluster against one process with the same cores: seconds, private memory of a task, bits.

What a cluster costs where it gains nothing: text is read twice, cells go through Ray's store, processes are started.
"""

from __future__ import annotations

import lzma
import threading
import time
from pathlib import Path
from typing import Any

import swivel
from common import keep, make_parser, parse_arguments, work_folder, write_corpus
from swivel.runtime.options import RunOptions
from swivel.runtime.ray import connect
from swivel.storage.lock import remove_tree
from swivel.storage.manifest import read_manifest

MEASURES = (
    "swivel.counts.cooccurrence.cluster_count",
    "swivel.runtime.ray",
    "swivel.counts.cooccurrence",
)
SETTINGS: dict[str, Any] = {"recipe": "default", "min_count": 12}
BUDGET = "512MiB"


def write_sample(corpus: Path, megabytes: int) -> Path:
    """Return a file with the first megabytes of the corpus, whole lines."""
    source = sorted(corpus.iterdir())[0] if corpus.is_dir() else corpus
    file = work_folder() / f"sample-{megabytes}.txt"
    with lzma.open(source) if source.suffix == ".xz" else source.open("rb") as text:
        file.write_bytes(b"".join(text.readlines(megabytes << 20)))
    return file


def private_bytes(pid: int) -> int:
    """Return the memory of a process that is its own and no file's: what Ray's store shares is not."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


class TaskMemory(threading.Thread):
    """Watches the processes of Ray's tasks; `peak` is the most that one of them had, the interpreter included."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.is_over = 0, False

    def run(self) -> None:
        while not self.is_over:
            for process in Path("/proc").glob("[0-9]*/cmdline"):
                self._look_at(process)
            time.sleep(0.05)

    def _look_at(self, process: Path) -> None:
        try:
            name = process.read_bytes()
        except OSError:
            return
        if name.startswith(b"ray::") and b"IDLE" not in name:
            self.peak = max(self.peak, private_bytes(int(process.parent.name)))


def time_count(text: Path, name: str, options: RunOptions) -> float:
    out = work_folder() / name
    remove_tree(out)
    started = time.perf_counter()
    swivel.count(text, out, options=options, **SETTINGS)
    return time.perf_counter() - started


def main() -> None:
    parser = make_parser(__doc__, "corpus", "repeats", "threads")
    arguments = parse_arguments(parser, corpus=write_corpus, repeats=1)

    text = write_sample(arguments.corpus, 32)
    cores = arguments.threads
    alone = [time_count(text, "alone", RunOptions(threads=cores)) for _ in range(arguments.repeats)]

    started = time.perf_counter()
    with connect("local", cores=cores):
        connecting = time.perf_counter() - started
        watched = TaskMemory()
        watched.start()
        many = [time_count(text, "many", RunOptions(ray="local", memory=BUDGET)) for _ in range(arguments.repeats)]
        watched.is_over = True
        watched.join()

    work = work_folder()
    found = {
        "cores": cores,
        "text_bytes": text.stat().st_size,
        "alone_seconds": alone,
        "connect_seconds": connecting,
        "ray_seconds": many,
        "task_budget": BUDGET,
        "task_private_mib": watched.peak / 2**20,
        "same_bits": read_manifest(work / "alone").parts == read_manifest(work / "many").parts,
        "cells": swivel.open_matrix(work / "many").cell_count,
    }
    keep(arguments, found)


if __name__ == "__main__":
    main()
