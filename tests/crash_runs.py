"""Commands that are killed: real processes, real signals, and what must be there in the end.

`make_world` makes small data and the cases over it. `run_to_end` starts a case's command, sends it signals at random
moments, starts it again until it ends, and returns what happened; `Broken` is a promise that was not kept. The test
and the benchmark of crashes share this.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from swivel.cli.terminal import RESUMES, STARTS_OVER
from swivel.runtime.options import RunOptions

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
LEAVE_SECONDS = 5.0  # from SIGINT or SIGTERM to the end of the process
LIMIT_SECONDS = 300  # for a process that nobody disturbs: more is a hang
WORDS = 300
TIMES = ("training_seconds", "sources")  # facts of a manifest that differ from run to run
UNLIKE = {"report.html"}  # files that tell what a run took
LINE = re.compile(rf"^(interrupted|terminated); ({re.escape(RESUMES)}|{re.escape(STARTS_OVER)})$")
STEPS = re.compile(r"^resuming after ([\d,]+) of [\d,]+ steps$", re.MULTILINE)
SAID = {  # the last of these that was said is the stage
    r"^reading ": "reading",
    r"vocabulary of [\d,]+$": "counting",
    r"^re-blocking ": "preparing",
    r"^training [\d,]+ x ": "training",
    r": [\d,]+ (x|vectors) [^:]*$": "done",
    r"^the report: ": "report",
}


class Broken(AssertionError):
    """A promise that was not kept."""


@dataclass(frozen=True, slots=True)
class Case:
    """A command to be killed; `{out}` stands for its folder."""

    name: str
    arguments: tuple[str, ...]

    def command(self, out: Path) -> list[str]:
        return [sys.executable, "-m", "swivel", *(text.replace("{out}", str(out)) for text in self.arguments)]


@dataclass(slots=True)
class Outcome:
    """What happened to one run: each kill as (signal, stage), the seconds that leaving took, lives."""

    kills: list[tuple[str, str]] = field(default_factory=list)
    leaving: list[float] = field(default_factory=list)
    lives: int = 0
    kept_stages: int = 0  # finished before a kill, and not made again


def make_world(folder: Path, *, epochs: int = 12, lines: int = 8_000) -> list[Case]:
    """Write small data and return the cases: every verb that takes long, and training with every CPU backend."""
    rng = np.random.default_rng(3)
    folder.mkdir(parents=True)
    words = [f"word{n}" for n in range(WORDS)]
    chances = 1 / np.arange(1, WORDS + 1)
    drawn = rng.choice(WORDS, (lines, 20), p=chances / chances.sum())
    text, triples = folder / "text.txt", folder / "triples.tsv"
    text.write_text("".join(" ".join(words[n] for n in line) + "\n" for line in drawn))
    cells = rng.integers(0, WORDS, (20 * lines, 2)).tolist()
    triples.write_text("".join(f"row{row}\tcolumn{column}\t{1 + row % 7}\n" for row, column in cells))
    matrix, one = folder / "matrix", ("--threads", "1")
    swivel.count(str(text), matrix, options=RunOptions(threads=1))
    small = ("--dim", "16", "--block-size", "64", "--epochs", str(epochs), "--checkpoint-minutes", "0.008", *one)
    cpu = ("--backend", "cpu", "--dtype", "float32", "--epochs", str(3 * epochs))  # It is faster than the others.
    training = ("train", str(matrix), "-o", "{out}", "--no-report", *small)
    return [
        Case("count", ("count", str(text), "-o", "{out}", *one)),
        Case("import", ("import", str(triples), "-o", "{out}", *one)),
        Case("train cpu", (*training, *cpu)),
        Case("train torch", (*training, "--backend", "torch", "--device", "cpu", "--dtype", "float32")),
        Case("train reference", (*training, "--backend", "reference")),
        Case("run", ("run", str(text), "-o", "{out}", *small, *cpu)),
    ]


class Life:
    """The command, once, in a session of its own; what it says goes to a file."""

    def __init__(self, case: Case, out: Path) -> None:
        self.case, self.out, self.said = case, out, out.with_name(out.name + "-said.txt")
        self.started = time.monotonic()
        with self.said.open("wb") as file:
            # SIGINT may be ignored by who started us, and would then be by the command, too.
            self.process = subprocess.Popen(
                case.command(out), stdout=file, stderr=file, start_new_session=True, preexec_fn=_hear_signals
            )

    def text(self) -> str:
        return self.said.read_text(errors="replace")

    def stage(self) -> str:
        """Return what the command was at, from what it said."""
        stage = "working" if self._has_lock() else "starting"
        for line in self.text().splitlines():
            for pattern, name in SAID.items():
                if re.search(pattern, line):
                    stage = name
        return stage

    def _has_lock(self) -> bool:
        try:
            return bool(json.loads((self.out / "lock").read_text())["pid"] == self.process.pid)
        except (OSError, ValueError):
            return False

    def send(self, number: int) -> None:
        """Send a signal: Ctrl-C goes to all processes of the terminal, the others to the command alone."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    def wait(self, seconds: float = LIMIT_SECONDS) -> int | None:
        """Return how it ended, or None where it did not in that time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def _hear_signals() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_undisturbed(case: Case, out: Path) -> float:
    """Run a case to its end and return the seconds it took."""
    life = Life(case, out)
    try:
        if life.wait() != 0:
            raise Broken(f"{case.name}, undisturbed, ended with {life.process.returncode}: {life.text()[-500:]}")
    finally:
        life.end()
    return time.monotonic() - life.started


def run_to_end(case: Case, out: Path, seconds: float, kills: int, rng: random.Random) -> Outcome:
    """Run a case with up to so many kills on the way, each at a moment uniform over `seconds` of its life."""
    outcome, finished, steps = Outcome(), dict[str, tuple[int, int]](), 0
    shutil.rmtree(out, ignore_errors=True)
    while True:
        life = Life(case, out)
        outcome.lives += 1
        try:
            has_ended = _live(life, outcome, out, rng, rng.uniform(0, seconds) if len(outcome.kills) < kills else None)
        finally:
            life.end()
        steps = _check_steps(life, steps)
        check_kept(case, out, finished)
        outcome.kept_stages = len(finished)
        finished |= stamp_stages(out)
        if has_ended:
            return outcome


def _live(life: Life, outcome: Outcome, out: Path, rng: random.Random, until: float | None) -> bool:
    """See a life to its end or kill it; return whether the command has done its work."""
    code = life.wait() if until is None else life.wait(until)
    if code is None and until is None:
        raise Broken(f"{life.case.name} hangs: {life.text()[-500:]}")
    if code is None:
        number = rng.choice(SIGNALS)
        stage, at = life.stage(), time.monotonic()
        life.send(number)
        code = life.wait(60)
        took = time.monotonic() - at
        outcome.kills.append((signal.Signals(number).name, stage))
        if number != signal.SIGKILL:
            outcome.leaving.append(took)
            _check_farewell(life, out, number, code, took)
        return code == 0
    if code != 0:
        raise Broken(f"{life.case.name} ended with {code}: {life.text()[-1000:]}")
    return True


def _check_farewell(life: Life, out: Path, number: int, code: int | None, took: float) -> None:
    """Hold a command that was asked to leave to its promises: in time, the right status, one true line."""
    text, stage = life.text(), life.stage()
    name = f"{life.case.name} at {stage}, {signal.Signals(number).name}"
    if code is None or took > LEAVE_SECONDS:
        raise Broken(f"{name}: left after {took:.1f} s with {code}: {text[-500:]}")
    if code == 0 or (code == -number and stage in ("starting", "done", "report")):
        return  # It had ended, or was just ending; or Python itself was not up yet.
    if stage == "starting" and "Traceback" in text and "/swivel/" not in text:
        return  # Python was loading its own modules: no line of ours had run.
    lines = text.strip().splitlines()
    if code != 128 + number or "Traceback" in text or "Exception ignored" in text:
        raise Broken(f"{name}: left with {code}: {text[-1500:]}")
    if stage == "starting" and lines in ([], ["interrupted"], ["terminated"]):
        return  # before the command was loaded, or had read its arguments
    found = LINE.match(lines[-1])
    if found is None or sum(LINE.match(line) is not None for line in lines) != 1:
        raise Broken(f"{name}: its last line is {lines[-1]!r}")
    is_kept = any(out.rglob("manifest.json"))
    if (found[2] == RESUMES) != is_kept:
        raise Broken(f"{name}: it says {lines[-1]!r}, but something is kept: {is_kept}")


def _check_steps(life: Life, before: int) -> int:
    """Return how many steps of training a life went on after; what is saved is never lost."""
    found = STEPS.search(life.text())
    steps = int(found[1].replace(",", "")) if found else before
    if steps < before:
        raise Broken(f"{life.case.name} went on after {steps} steps, and had saved {before}")
    return steps


def stamp_stages(out: Path) -> dict[str, tuple[int, int]]:
    """Return inode and time of every file of every finished stage."""
    stamps = {}
    for manifest in out.rglob("manifest.json"):
        if manifest.parent.name.startswith(("checkpoint-", "scratch-")) or ".part" in str(manifest):
            continue
        for name in ("manifest.json", *json.loads(manifest.read_text())["parts"]):
            status = (manifest.parent / name).stat()
            stamps[str((manifest.parent / name).relative_to(out))] = status.st_ino, status.st_mtime_ns
    return stamps


def check_kept(case: Case, out: Path, finished: dict[str, tuple[int, int]]) -> None:
    now = stamp_stages(out)
    for name, stamp in finished.items():
        if now.get(name) != stamp:
            raise Broken(f"{case.name}: {name} was finished, and was made again or lost")


def digest_output(out: Path) -> dict[str, str]:
    """Return a digest of every file below a folder, what tells times left out; names alone where all of it does."""
    return {str(file.relative_to(out)): _digest(file) for file in sorted(out.rglob("*")) if file.is_file()}


def _digest(file: Path) -> str:
    if file.name in UNLIKE:
        return ""
    data = file.read_bytes()
    if file.name == "manifest.json":
        data = json.dumps(_without_times(json.loads(data)), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _without_times(manifest: dict[str, Any]) -> dict[str, Any]:
    facts = {name: fact for name, fact in manifest["facts"].items() if name not in TIMES}
    return manifest | {"facts": facts, "checksum": ""}  # which is of the times, too


def differing(found: dict[str, str], expected: dict[str, str]) -> Iterator[str]:
    """Yield the files that are not what they should be: changed, missing, or left behind."""
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            yield name
