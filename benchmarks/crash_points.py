"""Every crash point: each verb that writes, killed before, halfway through and after each of its file operations.

A verb is run once to count the calls that change files below its folder (open for writing, write, fsync, rename,
mkdir, truncate, reserve, map, remove). It is then killed before and after each of them, and halfway through each
write. The same command must then end with the files of an undisturbed run, bit for bit, and with no other file; a
finished folder must not be damaged, or made again. Nothing is sampled.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable

from faults import KILLS, Call, Fault
from verb_runs import Bench, Case, Undisturbed, check_again, find_finished, last_line, lay_out, run_cases

MEASURES = (
    "swivel.storage.files",
    "swivel.storage.lock",
    "swivel.storage.manifest",
    "swivel.storage.output_folder",
    "swivel.training.checkpoint",
)


def list_kills(call: Call) -> Iterable[Fault]:
    """Return the moments at which a process is killed: only a write can be half done."""
    return [kill for kill in KILLS if kill.mode != "kill halfway" or call.kind == "write"]


def check_case(bench: Bench, case: Case, undisturbed: Undisturbed) -> str | None:
    """Kill a verb once and run it again; return what is wrong then, or None."""
    lay_out(case.verb)
    ended = bench.run(case.verb.arguments, case.nth, case.fault)
    if ended.code != -signal.SIGKILL:
        return f"not killed: status {ended.code}, {last_line(ended.errors)}"

    try:
        finished = find_finished()
    except Exception as error:
        return f"damaged: {error}"
    return check_again(bench, case.verb, undisturbed, finished)


def main() -> None:
    run_cases(__doc__, list_kills, check_case)


if __name__ == "__main__":
    main()
