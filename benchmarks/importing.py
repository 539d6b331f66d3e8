"""Importing triples from Parquet: seconds, CPU seconds and memory, against a plain scan of the same file by pyarrow.

100 million triples by default, of string labels (100,000 a side, the commonest far commoner than the rest), made once
in the work folder. Goals, on 2 cores with --memory 1GiB: 60 s, 1.5 GiB resident. Private memory is the process's own;
resident is that and the pages of mapped files, which the system takes back when it needs them. Other work on the
machine lengthens the seconds, so the load before the run is kept, too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import swivel
from common import keep, make_parser, parse_arguments, work_folder
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import parse_bytes

MEASURES = (
    "swivel.counts.builder",
    "swivel.counts.importers.arrow",
    "swivel.counts.importers.import_tables",
)
GROUP = 1 << 20  # rows of a row group
GOALS = {"seconds": 60.0, "resident_bytes": 1.5 * 2**30}


def make_triples(path: Path, rows: int, labels: int) -> None:
    """Write so many triples, in row groups as pyarrow makes them by default."""
    rng = np.random.default_rng(1)
    words = pa.array([f"word{number:06d}" for number in range(labels)])
    schema = pa.schema([("row", pa.string()), ("column", pa.string()), ("count", pa.int32())])
    part = path.with_suffix(".part")
    with parquet.ParquetWriter(part, schema) as writer:
        for start in range(0, rows, GROUP):
            size = min(GROUP, rows - start)
            sides = [words.take(pa.array((labels * rng.random(size) ** 2).astype(np.int32))) for _ in range(2)]
            counts = pa.array(rng.geometric(0.5, size).astype(np.int32))
            writer.write_table(pa.table([*sides, counts], schema=schema))
    part.rename(path)


def scan(path: Path) -> int:
    """Decode every column of every row group, as the import does, and throw it away."""
    with parquet.ParquetFile(path) as opened:
        groups = range(opened.num_row_groups)
        return sum(len(batch) for group in groups for batch in opened.iter_batches(row_groups=[group]))


class Watch:
    """Peaks of this process's memory while a job runs, sampled every 20 ms."""

    KINDS = ("RssAnon", "VmRSS")

    def __init__(self) -> None:
        self.peaks = dict.fromkeys(self.KINDS, 0)
        self._stop = threading.Event()

    def run(self, job: Callable[[], Any]) -> dict[str, float]:
        """Return seconds, CPU seconds and the peaks of a job."""
        thread = threading.Thread(target=self._sample, daemon=True)
        thread.start()
        began, cpu = time.perf_counter(), time.process_time()
        job()
        seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
        self._stop.set()
        thread.join()
        private, resident = (self.peaks[kind] for kind in self.KINDS)
        return {
            "seconds": round(seconds, 2),
            "cpu_seconds": round(cpu_seconds, 2),
            "private_bytes": private,
            "resident_bytes": resident,
        }

    def _sample(self) -> None:
        while not self._stop.wait(0.02):
            for line in Path("/proc/self/status").read_text().splitlines():
                kind, _, rest = line.partition(":")
                if kind in self.KINDS:
                    self.peaks[kind] = max(self.peaks[kind], int(rest.split()[0]) * 1024)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--triples", type=int, default=100_000_000)
    parser.add_argument("--labels", type=int, default=100_000)
    parser.add_argument("--memory", default="1GiB")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parse_arguments(parser, triples=5_000, labels=100, memory="64MiB")
    parse_bytes(arguments.memory)

    path = work_folder() / f"triples-{arguments.triples}-{arguments.labels}.parquet"
    if not path.exists():
        make_triples(path, arguments.triples, arguments.labels)
    load = os.getloadavg()[0]
    out = Path(tempfile.mkdtemp(dir=work_folder()))
    try:
        scanned = Watch().run(lambda: scan(path))
        print(f"scan by pyarrow: {scanned}", flush=True)
        options = RunOptions(memory=arguments.memory, threads=arguments.threads)
        imported = Watch().run(lambda: swivel.import_counts(path, out / "matrix", options=options))
        cells = swivel.open_matrix(out / "matrix").cell_count
    finally:
        shutil.rmtree(out)

    result = {
        "file_bytes": path.stat().st_size,
        "cells": cells,
        "load_before": load,
        "scan": scanned,
        "import": imported,
        "ratio_of_seconds": round(imported["seconds"] / max(scanned["seconds"], 0.01), 2),
        "ratio_of_cpu_seconds": round(imported["cpu_seconds"] / max(scanned["cpu_seconds"], 0.01), 2),
        "goals_reached": {name: imported[name] <= goal for name, goal in GOALS.items()},
    }
    keep(arguments, result)


if __name__ == "__main__":
    main()
