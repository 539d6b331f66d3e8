"""Every write fails once: each verb that writes, with the file system failing at its first, second, third ... call.

A verb is run once to count the calls that change files below its folder (open, write, fsync, rename, mkdir, truncate,
reserve, map, remove), then again for each of them and each way in which it may fail. Every one must end as
`check_case` says. Verbs run in forks of one process that has imported everything.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from typing import Any

from common import keep, make_parser, parse_arguments
from faults import FAULTS, Call, Fault, why_not
from verb_runs import (
    CASE,
    Bench,
    Ended,
    Verb,
    count_calls,
    find_finished,
    is_old_checkpoint,
    last_line,
    lay_out,
    open_bench,
    take_picture,
)

MEASURES = (
    "swivel.training.checkpoint",
    "swivel.storage.manifest",
    "swivel.vectors.formats",
    "swivel.pipeline.train_job",
    "swivel.storage.npy",
    "swivel.storage",
    "swivel.pipeline.reproduce.stages",
    "swivel.pipeline.reproduce.report",
)


def check_case(bench: Bench, verb: Verb, nth: int, call: Call, fault: Fault, whole: dict[str, Any]) -> str | None:
    """Run one case; return what is wrong with how it ended, or None.

    It says so in one line that names a file and the reason, with status 1, or nothing is wrong and all is written. No
    finished folder is damaged, nothing half written stays behind where it could be removed, and the same command
    then ends with the same files, bit for bit, without making a finished folder again.
    """
    lay_out(verb)
    ended = bench.run(verb.arguments, nth, fault)
    if not ended.failed:
        return "the call was not made again"
    try:
        finished = find_finished()
    except Exception as error:
        return f"damaged: {error}"
    picture, left = take_picture()
    wrong = check_end(ended, fault, picture == whole)
    left = [name for name in left if not is_harmless(name)]
    if wrong is None and left and call.kind != "remove" and fault.mode == "once":
        wrong = f"left behind: {left}"
    if wrong is not None:
        return wrong
    if ended.code == 0 and verb.name.startswith("export"):
        return None  # A folder of another tool is not written twice.
    again = bench.run(verb.arguments)
    after, left = take_picture()
    differing = sorted(name for name in {*after, *whole} if after.get(name) != whole.get(name))
    if again.code != 0 or differing:
        return f"the same command again: {again.code} {last_line(again.errors)}; differing: {differing}"
    is_kept = all(find_finished().get(name) == stamp for name, stamp in finished.items())
    return None if is_kept or "--overwrite" in verb.arguments else "a finished folder was made again"


def is_harmless(name: str) -> bool:
    """Return whether nobody reads what was left: a lock's file, for the system holds the lock; old checkpoints."""
    return name.endswith("lock") or is_old_checkpoint(CASE / name)


def check_end(ended: Ended, fault: Fault, is_whole: bool) -> str | None:
    line, reason = last_line(ended.errors), os.strerror(fault.error)
    if "Traceback" in ended.errors:
        return f"a traceback: {line}"
    if ended.code == 0:
        told = re.search(rf"no report: .*{re.escape(reason)}", ended.errors)
        return None if is_whole or told else f"status 0, and not all is there: {line}"
    if ended.code != 1:
        return f"status {ended.code}: {line}"
    is_told = line.startswith("error: ") and str(CASE) in line and (reason in line or "short" in fault.mode)
    return None if is_told else f"the line names no file or no reason: {line}"


def run_verb(bench: Bench, verb: Verb, every: int, deadline: float) -> dict[str, Any]:
    """Fail each call of a verb in turn; return what was found."""
    first, whole = count_calls(bench, verb)
    cases = [(nth, call, fault) for nth, call in enumerate(first.log, 1) for fault in FAULTS[call.kind]]
    wrong, done, kinds, started = [], 0, Counter[str](), time.monotonic()
    for nth, call, fault in cases[::every]:
        if time.monotonic() > deadline:
            break
        told = check_case(bench, verb, nth, call, fault, whole)
        done += 1
        kinds[call.kind] += 1
        if told:
            wrong.append(f"{verb.name}, call {nth}, {call.kind} {call.path}, {fault}: {told}")
            print(wrong[-1], flush=True)
    seconds = round(time.monotonic() - started, 1)
    found = {"calls": first.calls, "cases": len(cases), "done": done, "wrong": len(wrong), "seconds": seconds}
    print(verb.name, found, dict(kinds), flush=True)
    return {**found, "kinds": dict(kinds), "told": wrong}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="do only every n-th case")
    parser.add_argument("--only", help="only verbs whose name begins so; several by commas")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no case after so long")
    options = parse_arguments(parser, every=23, only="add,export npy")
    if why_not():
        if options.smoke:
            keep(options, {"skipped": why_not()})
            return
        raise SystemExit(f"skipped: {why_not()}")

    bench, verbs = open_bench(options.only)
    deadline = time.monotonic() + options.seconds
    found = {verb.name: run_verb(bench, verb, options.every, deadline) for verb in verbs}
    wrong = [line for each in found.values() for line in each.pop("told")]
    kinds = sum((Counter(each["kinds"]) for each in found.values()), Counter[str]())
    done, cases = (sum(each[name] for each in found.values()) for name in ("done", "cases"))
    handled = f"{done - len(wrong)} of {done}"
    keep(options, {"handled": handled, "all_cases": cases, "kinds": kinds, "verbs": found, "wrong": wrong[:40]})
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
