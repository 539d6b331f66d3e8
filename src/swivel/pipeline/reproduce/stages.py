"""Run the stages of an experiment, each once, and record their time and memory in `measures.json`.

A stage is finished if its folder has a manifest and its record has the same provenance. Otherwise its job runs, and
resumes if it can.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from swivel.errors import DamagedFolder, clear_errors
from swivel.pipeline.reproduce.subprocess import Job, Measure, Runner
from swivel.runtime.options import RunOptions
from swivel.storage import MANIFEST, fingerprint, one_line, seal, sweep_folder, unseal, write_file
from swivel.training.checkpoint import PLAN, SLOTS

MEASURES = "measures.json"


@dataclass(frozen=True, slots=True)
class StageJob:
    """A call that writes the folder `out`.

    `provenance` has the settings and inputs that the folder depends on. `run` is a function with its arguments
    (`functools.partial`), because it may be called in another process. `resumes` is whether it continues after an
    interruption or starts again.
    """

    out: Path
    provenance: Mapping[str, Any]
    run: Job
    resumes: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a stage: a digest of its provenance, and its time, peak memory and attempts so far.

    `seconds` and `peak_bytes` are None if they are unknown.
    """

    identity: str
    seconds: float | None = 0.0
    peak_bytes: int | None = None
    attempts: int = 0
    is_finished: bool = False

    def after(self, measure: Measure, *, is_finished: bool) -> Record:
        """Return the record with the measure of one more attempt added."""
        seconds = None
        if self.seconds is not None and measure.seconds is not None:
            seconds = round(self.seconds + measure.seconds, 3)

        return replace(
            self,
            seconds=seconds,
            peak_bytes=max(self.peak_bytes or 0, measure.peak_bytes or 0) or None,
            is_finished=is_finished,
        )


@dataclass(slots=True)
class Stages:
    """Runs stages in the folder of an experiment and keeps their records."""

    path: Path
    options: RunOptions
    runner: Runner
    records: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.records = read_records(self.path / MEASURES)

    def do(self, name: str, job: StageJob) -> Path:
        """Run a stage unless it is finished, and return its folder."""
        stamp_before = _stamp(job.out)
        record = Record(fingerprint(job.provenance))
        saved = self.records.get(name)
        if saved is not None and saved.identity == record.identity and not self.options.overwrite:
            if saved.is_finished and stamp_before is not None:
                sweep_folder(job.out, *SLOTS, PLAN)  # The process of the stage may have been killed after its manifest.
                return job.out
            if job.resumes and not saved.is_finished:
                record = saved

        self.options.progress.message(f"{name}: " + ("resuming" if record.attempts else "starting"))
        record = replace(record, attempts=record.attempts + 1)
        if stamp_before is None:  # The job may reject an existing folder, and then its old record must be kept.
            self._save(name, record)

        started = time.perf_counter()
        try:
            measure = self.runner(job.run, self.options)
        except BaseException:  # An interrupted attempt counts, too.
            stamp = _stamp(job.out)
            if stamp is None or stamp != stamp_before:
                spent = Measure(time.perf_counter() - started)
                self._save(name, record.after(spent, is_finished=stamp is not None))
            raise

        # If the job kept an existing folder, nothing was computed, and the time of the folder is unknown.
        if stamp_before is not None and _stamp(job.out) == stamp_before:
            measure = Measure()
        self._save(name, record.after(measure, is_finished=True))
        return job.out

    def _save(self, name: str, record: Record) -> None:
        self.records[name] = record
        plain = {"stages": {key: asdict(value) for key, value in self.records.items()}}
        write_file(self.path / MEASURES, seal(plain))


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return a value that changes when a finished folder is written again; None if the folder is not finished."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def read_records(file: Path) -> dict[str, Record]:
    """Return the records in a file by stage; empty if the file does not exist."""
    with clear_errors(file):
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return {}

    try:
        fields = unseal(data)
        stages = fields.pop("stages")
        if fields:
            raise ValueError(f"unknown {', '.join(fields)}")
        return {name: Record(**fields) for name, fields in stages.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedFolder(
            f"{file}: not a record of stages ({one_line(error)}); remove it (the times in it are lost)"
        ) from error
