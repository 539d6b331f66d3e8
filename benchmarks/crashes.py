"""Kills: commands that are ended at random moments, and started again until they end by themselves.

`run`, `count`, `import`, `train` (every backend that a CPU has) and `reproduce` (gensim's stage with one worker) get
SIGKILL, SIGTERM or SIGINT at a moment uniform over the duration of an undisturbed run, several times a run. Every run
must end with files that are those of the undisturbed run, bit for bit, times apart; no finished stage may be made
again; SIGTERM and SIGINT must be answered within 5 seconds, with the right status and one true line.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, WORK, keep

sys.path.insert(0, str(ROOT / "tests"))

from crash_runs import Broken, Case, Outcome, differing, digest_output, make_world, run_to_end, run_undisturbed

SHARES = {"count": 5, "import": 5, "train cpu": 6, "train torch": 4, "train reference": 3, "run": 10, "reproduce": 7}


@dataclass(frozen=True, slots=True)
class Expected:
    """A case and what an undisturbed run of it left."""

    case: Case
    seconds: float
    files: dict[str, str]


@dataclass(slots=True)
class Tally:
    """What all runs came to."""

    runs: list[tuple[str, Outcome]] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)

    def kills_of(self, name: str) -> int:
        return sum(len(outcome.kills) for case, outcome in self.runs if case == name)


def kill_case(folder: Path, expected: Expected, kills: int, each: int, rng: random.Random, tally: Tally) -> None:
    """Run one case until it was killed so often."""
    case, number = expected.case, 0
    while tally.kills_of(case.name) < kills and len(tally.broken) < 5:
        number += 1
        out = folder / f"{case.name.replace(' ', '-')}-{number}"
        most = min(each, kills - tally.kills_of(case.name))
        try:
            outcome = run_to_end(case, out, expected.seconds, most, rng)
        except Broken as error:
            tally.broken.append(str(error))
            print("BROKEN", error, flush=True)
            continue
        tally.runs.append((case.name, outcome))
        found = list(differing(digest_output(out), expected.files))
        if found:
            tally.unlike.append(f"{out.name}: {', '.join(found)}")
            print("UNLIKE", tally.unlike[-1], flush=True)
        else:
            shutil.rmtree(out)
        print(case.name, tally.kills_of(case.name), "of", kills, outcome.kills, flush=True)


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
        "refused_while_the_killed_parents_stage_ended": sum(outcome.refused for outcome in outcomes),
        "seconds_to_leave_median": round(leaving[len(leaving) // 2], 2) if leaving else None,
        "seconds_to_leave_longest": round(leaving[-1], 2) if leaving else None,
        "undisturbed_seconds": calm,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="kills in all")
    parser.add_argument("--each", type=int, default=4, help="kills in a run, at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2, help="commands at a time")
    parser.add_argument("--only", help="the cases of which the name begins so")
    parser.add_argument("--name", help="keep the result under this name")
    options = parser.parse_args()
    started, folder = time.monotonic(), WORK / f"crashes-{options.seed}"
    shutil.rmtree(folder, ignore_errors=True)
    cases = [case for case in make_world(folder) if case.name.startswith(options.only or "")]
    expected = []
    for case in cases:
        out = folder / f"{case.name.replace(' ', '-')}-calm"
        seconds = run_undisturbed(case, out)
        expected.append(Expected(case, seconds, digest_output(out)))
        print(case.name, f"{seconds:.1f} s undisturbed", flush=True)
    tally, shares = Tally(), sum(SHARES[case.name] for case in cases)
    with ThreadPoolExecutor(options.jobs) as pool:
        waiting = []
        for each in reversed(expected):  # the longest first
            kills = -(-options.count * SHARES[each.case.name] // shares)
            rng = random.Random(f"{options.seed} {each.case.name}")
            waiting.append(pool.submit(kill_case, folder, each, kills, options.each, rng, tally))
        for future in waiting:
            future.result()
    calm = {each.case.name: round(each.seconds, 1) for each in expected}
    keep(options.name or "crashes", summarize(tally, calm) | {"seconds": round(time.monotonic() - started)})
    if tally.broken or tally.unlike:
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
