"""Jobs and their tallies: executions shared out between the targets, each some in a process of its own.

Receives targets, hands on what their processes said. It prints a line for each target and keeps nothing.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fuzz.guard import Target

ROOT = Path(__file__).resolve().parent.parent
SHARED_MEMORY = Path("/dev/shm")  # quick, where it is there
MOST_A_PROCESS = 200_000  # executions: then another one begins, with what the others have found meanwhile
MOST_ENDS = 20  # processes of one target that may end before their time
_LINE = re.compile(r"(INITED|DONE)\s+cov: (\d+) ft: (\d+) corp: (\d+)")


@dataclass(slots=True)
class Tally:
    """What is known of one target."""

    target: str
    executions: int = 0
    seconds: float = 0.0  # of fuzzing, summed over processes
    coverage_before: int | None = None
    coverage: int = 0
    features: int = 0
    corpus: int = 0
    ends: list[str] = field(default_factory=list)  # processes that ended before their time, and why
    findings: list[str] = field(default_factory=list)

    def add(self, log: str, seconds: float) -> int:
        """Take what a process said; return its executions."""
        for kind, coverage, features, corpus in _LINE.findall(log):
            if kind == "INITED" and self.coverage_before is None:
                self.coverage_before = int(coverage)
            self.coverage = max(self.coverage, int(coverage))
            self.features, self.corpus = max(self.features, int(features)), max(self.corpus, int(corpus))
        done = [int(number) for number in re.findall(r"^#(\d+)\s", log, re.MULTILINE)]
        done += [int(number) for number in re.findall(r"number_of_executed_units: (\d+)", log)]
        executed = max(done, default=0)
        self.executions, self.seconds = self.executions + executed, self.seconds + seconds
        return executed


@dataclass(frozen=True, slots=True)
class Job:
    """Some executions of one target."""

    target: Target
    runs: int
    seed: int


def share_out(targets: Iterable[Target], executions: int, seed: int) -> list[Job]:
    """Return the executions of all targets as jobs, the first of each first, so that all have had a turn early."""
    chosen = list(targets)
    whole = sum(target.share for target in chosen)
    jobs = []
    for target in chosen:
        left, number = -(-executions * target.share // whole), 0
        while left > 0:
            runs = min(left, MOST_A_PROCESS)
            jobs.append((number, Job(target, runs, seed + number)))
            left, number = left - runs, number + 1
    return [job for _, job in sorted(jobs, key=lambda each: each[0])]


def run_job(job: Job, work: Path, tally: Tally) -> None:
    """Run a job; where its process ends before its time, the rest in another one."""
    left, seed = job.runs, job.seed
    while left > 0 and len(tally.ends) < MOST_ENDS:
        command = [sys.executable, "-m", "fuzz.one", job.target.name, "--work", str(work), "--runs", str(left)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "PYTHONHASHSEED": "0"}
        environment |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}  # less address space
        with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None) as folder:
            environment["TMPDIR"] = folder
            ended = subprocess.run([*command, "--seed", str(seed)], cwd=ROOT, env=environment, capture_output=True)
        log = ended.stderr.decode(errors="replace")
        spent = re.findall(r"^Done \d+ runs in (\d+) second", log, re.MULTILINE)
        executed = tally.add(log, float(spent[-1]) if spent else 0.0)
        if ended.returncode == 0:
            return
        tally.ends.append(log[-1500:])
        left, seed = left - max(executed, 1), seed + 1000


def gather_findings(work: Path, tally: Tally) -> None:
    """Add what lies in the folder of a target, of earlier runs too: a finding is gone when its files are."""
    folder = work / tally.target
    for file in sorted((folder / "findings").glob("*.json")):
        found = json.loads(file.read_text())
        tally.findings.append(f"{found['signature']}: {found['input'][:200]}")
    for kind in ("crash", "timeout", "oom", "leak"):
        tally.findings += [f"{tally.target}: {file}" for file in sorted(folder.glob(f"{kind}-*"))]


def report(tally: Tally) -> None:
    """Print one line, and the findings."""
    rate = tally.executions / max(tally.seconds, 1)
    print(
        f"{tally.target:22} {tally.executions:>11,} executions {rate:>8,.0f}/s  coverage {tally.coverage_before} -> "
        f"{tally.coverage}  inputs kept {tally.corpus:,}  findings {len(tally.findings)}",
        flush=True,
    )
    for finding in tally.findings:
        print(f"  {finding}")
    if tally.ends:
        print(f"  {len(tally.ends)} processes ended before their time; the last said: {tally.ends[-1][-600:]}")
