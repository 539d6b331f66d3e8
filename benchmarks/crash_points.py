"""Every crash point: each verb that writes, killed before, halfway through and after each of its file operations.

A verb is run once to count the calls that change files below its folder (open for writing, write, fsync, rename,
mkdir, truncate, reserve, map, remove). It is then killed before and after each of them, and halfway through each
write. The same command must then end with the files of an undisturbed run, bit for bit, and with no other file; a
finished folder must not be damaged, or made again. Nothing is sampled.
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from typing import Any

from common import keep, make_parser, parse_arguments
from faults import KILLS, Fault, why_not
from verb_runs import CASE, Bench, Verb, count_calls, find_finished, last_line, lay_out, open_bench, take_picture

MEASURES = ("swivel.storage", "swivel.pipeline", "swivel.training.checkpoint", "swivel.vectors.formats")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", help="only verbs whose name begins so; several by commas")
    parser.add_argument("--every", type=int, default=1, help="do only every n-th case")
    options = parse_arguments(parser, every=23, only="add,export npy")
    if why_not():
        if options.smoke:
            keep(options, {"skipped": why_not()})
            return
        raise SystemExit(f"skipped: {why_not()}")

    bench, verbs = open_bench(options.only)
    found = {verb.name: run_verb(bench, verb, options.every) for verb in verbs}

    wrong = [line for each in found.values() for line in each.pop("wrong")]
    kinds = sum((Counter(each["kinds"]) for each in found.values()), Counter[str]())
    done = sum(kinds.values())
    result = {"passed": f"{done - len(wrong)} of {done}", "kinds": kinds, "verbs": found, "wrong": wrong[:40]}
    keep(options, result)
    sys.exit(1 if wrong else 0)


def run_verb(bench: Bench, verb: Verb, every: int) -> dict[str, Any]:
    """Kill a verb at each of its calls; return the numbers of cases and what went wrong."""
    first, whole = count_calls(bench, verb)
    expected = list_files()
    cases = [
        (nth, call, kill)
        for nth, call in enumerate(first.log, 1)
        for kill in KILLS
        if kill.mode != "kill halfway" or call.kind == "write"
    ]

    kinds = Counter[str]()
    wrong = []
    started = time.monotonic()
    for nth, call, kill in cases[::every]:
        kinds[call.kind] += 1
        problem = check_case(bench, verb, nth, kill, whole, expected)
        if problem:
            wrong.append(f"{verb.name}, call {nth}, {call.kind} {call.path}, {kill.mode}: {problem}")
            print(wrong[-1], flush=True)

    seconds = round(time.monotonic() - started, 1)
    print(
        f"{verb.name}: {len(first.log)} calls, {sum(kinds.values())} kills, {len(wrong)} wrong, {seconds} s", flush=True
    )
    return {"calls": len(first.log), "kinds": dict(kinds), "seconds": seconds, "wrong": wrong}


def list_files() -> set[str]:
    """Return the names of all files and folders in the folder of the case."""
    return {str(file.relative_to(CASE)) for file in CASE.rglob("*")}


def check_case(
    bench: Bench, verb: Verb, nth: int, kill: Fault, whole: dict[str, Any], expected: set[str]
) -> str | None:
    """Kill the verb once and run it again; return what is wrong then, or None."""
    lay_out(verb)
    ended = bench.run(verb.arguments, nth, kill)
    if ended.code != -signal.SIGKILL:
        return f"not killed: status {ended.code}, {last_line(ended.errors)}"
    try:
        finished = find_finished()
    except Exception as error:
        return f"damaged: {error}"

    again = bench.run(verb.arguments)
    is_refusal = verb.name.startswith("export") and "exists already" in again.errors  # The folder is complete.
    if "Traceback" in again.errors or (again.code != 0 and not is_refusal):
        return f"the same command again: {again.code}, {last_line(again.errors)}"

    after = take_picture()[0]
    differing = sorted(name for name in {*after, *whole} if after.get(name) != whole.get(name))
    if differing:
        return f"differing: {differing}"
    left = sorted(list_files() - expected)
    if left:
        return f"left behind: {left}"
    is_kept = all(find_finished().get(name) == stamp for name, stamp in finished.items())
    return None if is_kept or "--overwrite" in verb.arguments else "a finished folder was made again"


if __name__ == "__main__":
    main()
