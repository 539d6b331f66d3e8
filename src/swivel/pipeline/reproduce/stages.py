"""The stages of an experiment: each a folder, done once, and what it took, kept in `measures.json`.

Receives jobs, hands on measures. A stage is done when its folder has a manifest and the measures say that it was made
from the same things; otherwise its job runs, and goes on where it was if it can.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from swivel.errors import DamagedFolder, clear_errors
from swivel.pipeline.reproduce.subprocess import Measure, Runner, SubprocessJob
from swivel.runtime.options import RunOptions
from swivel.storage import MANIFEST, fingerprint, one_line, seal, unseal, write_file

MEASURES = "measures.json"


class StageJob(SubprocessJob, Protocol):
    """A job that makes a folder; `resumes`: interrupted, it goes on where it was, or it begins again."""

    resumes: ClassVar[bool]

    @property
    def out(self) -> Path:
        """The folder."""

    def provenance(self) -> Mapping[str, Any]:
        """Return what the result depends on."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of a stage: what it is made from, what it took so far, in how many attempts."""

    identity: str
    seconds: float | None = 0.0
    peak_bytes: int | None = None
    attempts: int = 0
    is_finished: bool = False

    def after(self, measure: Measure, *, is_finished: bool) -> Record:
        """Return the record after one more attempt."""
        unknown = self.seconds is None or measure.seconds is None
        return replace(
            self,
            seconds=None if unknown else round((self.seconds or 0) + (measure.seconds or 0), 3),
            peak_bytes=max(self.peak_bytes or 0, measure.peak_bytes or 0) or None,
            is_finished=is_finished,
        )


@dataclass(slots=True)
class Stages:
    """Does stages in the folder of an experiment."""

    path: Path
    options: RunOptions
    runner: Runner
    records: dict[str, Record] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.records = read_records(self.path / MEASURES)

    def do(self, name: str, job: StageJob) -> Path:
        """Do a stage unless it is done, and return its folder."""
        before, found = self.records.get(name), _stamp(job.out)
        record = Record(fingerprint(job.provenance()))
        if before is not None and before.identity == record.identity and not self.options.overwrite:
            if before.is_finished and found:
                return job.out
            record = before if job.resumes and not before.is_finished else record
        self.options.progress.message(f"{name}: " + ("going on" if record.attempts else "beginning"))
        record = replace(record, attempts=record.attempts + 1)
        if not found:  # What is there may be refused, and its record must not be lost then.
            self._keep(name, record)
        started = time.perf_counter()
        try:
            measure = self.runner(job, self.options)
        except BaseException:  # also when interrupted: the time was spent
            left = _stamp(job.out)
            if left is None or left != found:
                self._keep(name, record.after(Measure(time.perf_counter() - started), is_finished=left is not None))
            raise
        # What was there already, without a record, was found in no time: what it took is not known.
        was_found = found is not None and _stamp(job.out) == found
        self._keep(name, record.after(Measure() if was_found else measure, is_finished=True))
        return job.out

    def _keep(self, name: str, record: Record) -> None:
        self.records[name] = record
        plain = {"stages": {key: asdict(value) for key, value in self.records.items()}}
        write_file(self.path / MEASURES, seal(plain))


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return what tells one writing of a finished folder from another; None where it is not finished."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def read_records(file: Path) -> dict[str, Record]:
    """Return what is known of each stage; nothing where there is no file yet."""
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
            f"{file}: not a list of stages ({one_line(error)}); remove it, the times in it are lost"
        ) from error
