"""Kills: commands that are ended at random moments, and started again until they end by themselves.

`run`, `count`, `import` and `train` (every backend that a CPU has) get SIGKILL, SIGTERM or SIGINT at a moment uniform
over the duration of an undisturbed run, several times a run. Every run must end with files that are those of the
undisturbed run, bit for bit, times apart; no finished stage may be made again; SIGTERM and SIGINT must be answered
within 5 seconds, with the right status and one true line.
"""

from __future__ import annotations

import random
import shutil
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments, work_folder

sys.path.insert(0, str(ROOT / "tests"))

import crash_runs
from crash_runs import Broken, Case, Outcome, differing, digest_output, make_world, run_to_end, run_undisturbed

MEASURES = (
    "swivel.cli.terminal",
    "swivel.pipeline.train_job",
    "swivel.runtime.signals",
    "swivel.storage.output_folder",
    "swivel.training.checkpoint",
    "swivel.training.loop",
)
SHARES = {"count": 5, "import": 5, "train cpu": 6, "train torch": 4, "train reference": 3, "run": 10}
MOST_BROKEN = 5


@dataclass(frozen=True, slots=True)
class Expected:
    """A case and what an undisturbed run of it left."""

    case: Case
    seconds: float
    files: dict[str, str]


@dataclass(slots=True)
class Tally:
    """What all runs came to, and which is the next."""

    each: int  # kills in a run, at most
    goals: dict[str, int]  # kills by case
    until: float  # when no more runs are begun
    begun: Counter[str] = field(default_factory=Counter)  # runs by case
    runs: list[tuple[str, Outcome]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def choose(self) -> tuple[str, int, int] | None:
        """Return the case that is farthest behind, the number of its run and its kills; None where all is done."""
        with self.lock:
            planned = {name: goal - self._kills(name) for name, goal in self.goals.items()}
            left = {name: kills for name, kills in planned.items() if kills > 0}
            if not left or len(self.broken) >= MOST_BROKEN or time.monotonic() > self.until:
                return None
            name = max(left, key=lambda each: left[each] / self.goals[each])
            self.begun[name] += 1
            return name, self.begun[name], min(self.each, left[name])

    def _kills(self, name: str) -> int:
        """Return the kills of a case, those that runs which are under way may still get among them."""
        ended = [len(outcome.kills) for case, outcome in self.runs if case == name]
        return sum(ended) + self.each * (self.begun[name] - len(ended))


def look_at_calm(folder: Path, case: Case) -> Expected:
    """Run a case undisturbed."""
    out = folder / f"{case.name.replace(' ', '-')}-calm"
    seconds = run_undisturbed(case, out)
    print(case.name, f"{seconds:.1f} s undisturbed", flush=True)
    return Expected(case, seconds, digest_output(out))


def kill_runs(folder: Path, expected: dict[str, Expected], seed: int, tally: Tally) -> None:
    """Run cases until enough were killed."""
    while (chosen := tally.choose()) is not None:
        name, number, kills = chosen
        out = folder / f"{name.replace(' ', '-')}-{number}"
        rng, known = random.Random(f"{seed} {out.name}"), expected[name]
        try:
            outcome = run_to_end(known.case, out, known.seconds, kills, rng)
        except Broken as error:
            tally.broken.append(f"{out.name}: {error}")
            print("BROKEN", tally.broken[-1], flush=True)
            continue
        found = list(differing(digest_output(out), known.files))
        with tally.lock:
            tally.runs.append((name, outcome))
        if found:
            tally.unlike.append(f"{out.name}: {', '.join(found)}")
            print("UNLIKE", tally.unlike[-1], flush=True)
        else:
            shutil.rmtree(out)
        print(out.name, outcome.kills, flush=True)


def summarize(tally: Tally, calm: dict[str, float]) -> dict[str, Any]:
    outcomes = [outcome for _, outcome in tally.runs]
    kills = [kill for outcome in outcomes for kill in outcome.kills]
    stages = Counter(f"{name}: {stage}" for name, outcome in tally.runs for _, stage in outcome.kills)
    leaving = sorted(seconds for outcome in outcomes for seconds in outcome.leaving)
    return {
        "kills": len(kills),
        "runs": len(outcomes),
        "runs_bit_for_bit": len(outcomes) - len(tally.unlike),
        "broken": tally.broken,
        "unlike": tally.unlike,
        "signals": dict(Counter(name for name, _ in kills)),
        "stages": dict(sorted(stages.items())),
        "lives": sum(outcome.lives for outcome in outcomes),
        "files_of_finished_stages_kept": sum(outcome.kept_stages for outcome in outcomes),
        "seconds_to_leave_median": round(leaving[len(leaving) // 2], 2) if leaving else None,
        "seconds_to_leave_longest": round(leaving[-1], 2) if leaving else None,
        "undisturbed_seconds": calm,
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--count", type=int, default=300, help="kills in all")
    parser.add_argument("--each", type=int, default=6, help="kills in a run, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=1e6, help="begin no run after that; there are fewer kills then"
    )
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--only", help="the cases of which the name begins so")
    parser.add_argument("--lines", type=int, default=8_000, help="of the text that the commands read")
    options = parse_arguments(parser, count=1, each=1, jobs=1, only="count", lines=500)

    if options.smoke:
        crash_runs.LEAVE_SECONDS = 60.0  # A test must not depend on how busy the machine is.

    started, folder = time.monotonic(), work_folder() / f"crashes-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    world = make_world(folder, lines=options.lines)
    cases = [case for case in world if case.name.startswith(options.only or "")]

    with ThreadPoolExecutor(options.jobs) as pool:  # as many at a time as later: moments are drawn from these durations
        expected = {each.case.name: each for each in pool.map(partial(look_at_calm, folder), cases)}

    shares = sum(SHARES[case.name] for case in cases)
    goals = {case.name: -(-options.count * SHARES[case.name] // shares) for case in cases}
    tally = Tally(options.each, goals, started + 60 * options.minutes)
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = [pool.submit(kill_runs, folder, expected, options.seed, tally) for _ in range(options.jobs)]
        for future in waiting:
            future.result()

    calm = {name: round(each.seconds, 1) for name, each in expected.items()}
    keep(options, summarize(tally, calm) | {"seconds": round(time.monotonic() - started)}, name="faults/crashes")
    if tally.broken or tally.unlike:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
