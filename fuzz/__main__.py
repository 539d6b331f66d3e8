"""All targets, on all cores: `python -m fuzz` (`make fuzz`), from a checkout, with `src` on the path or installed.

The executions are shared out between the targets as `targets` says, and run in processes, several at a time. The
corpus and the findings stay in `work/fuzz`, so that a later run goes on where this one ended. The last line is one JSON
object; a finding makes the exit status 1.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

from fuzz.running import ROOT, Job, Tally, gather_findings, report, run_job, share_out
from fuzz.targets import MISSING, TARGETS
from swivel.runtime.resources import count_cores

sys.path.append(str(ROOT / "benchmarks"))

from common import keep, make_parser, parse_arguments

# What reads files and folders of others; the targets are in `fuzz/of_*.py`.
MEASURES = (
    "swivel.corpus.streams",
    "swivel.corpus.tokenizer_kernels",
    "swivel.corpus.vocabulary",
    "swivel.counts.importers.delimited",
    "swivel.evaluation.datasets",
    "swivel.storage.arrays",
    "swivel.storage.manifest",
    "swivel.vectors.formats",
)


def read_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--executions", type=int, default=10_000_000, help="of all targets together")
    parser.add_argument("--processes", type=int, default=count_cores())
    parser.add_argument("--targets", default=",".join(TARGETS), help="names, with commas between them; default: all")
    parser.add_argument("--work", type=Path, default=ROOT / "work" / "fuzz")
    parser.add_argument("--seed", type=int, default=1)
    given = parse_arguments(parser, executions=1_000, processes=1, targets="vocabulary", work=lambda folder: folder)
    given.targets = given.targets.split(",")
    unknown = [name for name in given.targets if name not in TARGETS]
    if unknown:
        parser.error(f"no target {', '.join(unknown)}; there are {', '.join(TARGETS)}")
    return given


def run_all(jobs: Sequence[Job], tallies: dict[str, Tally], given: argparse.Namespace) -> None:
    """Run jobs, so many processes at a time, and say how far they are."""
    started = time.perf_counter()
    with ThreadPoolExecutor(given.processes) as pool:
        for number, _ in enumerate(pool.map(lambda job: run_job(job, given.work, tallies[job.target.name]), jobs), 1):
            done, seconds = sum(tally.executions for tally in tallies.values()), time.perf_counter() - started
            print(f"{number} of {len(jobs)} jobs, {done:,} executions, {seconds:,.0f} s", flush=True)


def main() -> int:
    given = read_arguments()
    print(f"{len(given.targets)} targets; left out for want of a library: {', '.join(MISSING) or 'none'}", flush=True)
    tallies = {name: Tally(name) for name in given.targets}
    started = time.perf_counter()
    run_all(share_out([TARGETS[name] for name in given.targets], given.executions, given.seed), tallies, given)
    seconds = time.perf_counter() - started
    for tally in tallies.values():
        gather_findings(given.work, tally)
        report(tally)
    findings = [finding for tally in tallies.values() for finding in tally.findings]
    executions = sum(tally.executions for tally in tallies.values())
    is_whole = executions >= given.executions and not any(tally.ends for tally in tallies.values())
    result = {
        "executions": executions,
        "seconds": round(seconds),
        "executions_per_second": round(executions / seconds),
        "processes": given.processes,
        "findings": findings,
        "is_whole": is_whole,
        "left_out": MISSING,
        "targets": [{**asdict(tally), "ends": len(tally.ends)} for tally in tallies.values()],
    }
    keep(given, result, name="faults/fuzz")
    return 0 if is_whole and not findings else 1


if __name__ == "__main__":
    sys.exit(main())
