"""Every write fails once: each verb that writes, with the file system failing at its first, second, third ... call.

A verb is run once to count the calls that change files below its folder (open, write, fsync, rename, mkdir, truncate,
reserve, map, remove), then again for each of them and each way in which it may fail. Every one must end as
`check_case` says. Verbs run in forks of one process that has imported everything.
"""

from __future__ import annotations

import os
import re

from faults import FAULTS, Fault
from verb_runs import (
    CASE,
    Bench,
    Case,
    Ended,
    Undisturbed,
    check_again,
    find_finished,
    is_old_checkpoint,
    last_line,
    lay_out,
    run_cases,
    take_picture,
)

MEASURES = (
    "swivel.storage.arrays",
    "swivel.storage.files",
    "swivel.storage.manifest",
    "swivel.storage.output_folder",
    "swivel.training.checkpoint",
)


def check_case(bench: Bench, case: Case, undisturbed: Undisturbed) -> str | None:
    """Run one case; return what is wrong with how it ended, or None.

    It says so in one line that names a file and the reason, with status 1, or nothing is wrong and all is written. No
    finished folder is damaged, nothing half written stays behind where it could be removed, and the same command
    then ends with the same files, bit for bit, without making a finished folder again.
    """
    lay_out(case.verb)
    ended = bench.run(case.verb.arguments, case.nth, case.fault)
    if not ended.failed:
        return "the call was not made again"
    try:
        finished = find_finished()
    except Exception as error:
        return f"damaged: {error}"

    files, left = take_picture()
    wrong = check_end(ended, case.fault, files == undisturbed.files)
    if wrong is not None:
        return wrong
    left = [name for name in left if not is_harmless(name)]
    if left and case.call.kind != "remove" and case.fault.mode == "once":
        return f"left behind: {left}"
    return check_again(bench, case.verb, undisturbed, finished)


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


def main() -> None:
    run_cases(__doc__, lambda call: FAULTS[call.kind], check_case)


if __name__ == "__main__":
    main()
