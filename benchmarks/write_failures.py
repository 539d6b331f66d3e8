"""Every write fails once: each verb that writes, with the file system failing at its first, second, third ... call.

A verb is run once to count the calls that change files below its folder (open, write, fsync, rename, mkdir, truncate,
reserve, map, remove), then again for each of them and each way in which it may fail. Every one must end as
`check_case` says. Verbs run in forks of one process that has imported everything.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments, scratch_in_memory
from faults import FAULTS, Call, Control, Fault, build_library, why_not

MEASURES = (
    "swivel.training.checkpoint",
    "swivel.storage.manifest",
    "swivel.vectors.formats",
    "swivel.storage.processes",
    "swivel.pipeline.train_job",
    "swivel.storage.npy",
    "swivel.storage",
    "swivel.pipeline.reproduce.stages",
    "swivel.pipeline.reproduce.write",
)
LIMIT_SECONDS = 120  # for one command: more is a hang
HOME = scratch_in_memory("write-failures")
CASE = HOME / "case"  # the folder in which calls fail
READY = HOME / "ready"  # what verbs read
LEFTOVER = re.compile(r"(^|/)(scratch-[^/]*|lock|[^/]*\.part)(/|$)")
OLD = re.compile(r"checkpoint-[12]|plan\.json")
TIMED = ("report.html", "report.md", "measures.json", "results.json")  # hold what a run took
WORDS = ["red", "green", "blue", "round", "square", "flat", "sweet", "sour", "salt", "warm", "cold", "wet"]


@dataclass(frozen=True, slots=True)
class Verb:
    """A command, and what lies in its folder before it begins."""

    name: str
    arguments: tuple[str, ...]
    before: Path | None = None


@dataclass(slots=True)
class Ended:
    """How a command ended."""

    code: int
    errors: str
    calls: int = 0
    failed: int = 0
    log: list[Call] = field(default_factory=list)


class Bench:
    """Runs commands in forks, with a fault or without."""

    def __init__(self, control: Control) -> None:
        self.control = control

    def run(self, arguments: tuple[str, ...], nth: int = 0, fault: Fault | None = None) -> Ended:
        """Run a command; return how it ended, with what it wrote to standard error."""
        errors = HOME / "stderr.txt"
        self.control.arm(CASE, nth, fault)
        child = os.fork()
        if child == 0:
            run_child(arguments, errors)
        code = wait_for(child)
        calls, failed = self.control.calls, self.control.failed
        self.control.disarm()
        return Ended(code, errors.read_text(errors="replace"), calls, failed, [] if nth else self.control.log())


def run_child(arguments: tuple[str, ...], errors: Path) -> None:
    """Run the command line in this process, which ends with it."""
    code: Any = 70
    try:
        for number, file in ((1, os.devnull), (2, errors)):
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            os.dup2(handle, number)
        sys.argv = ["swivel", *arguments]
        from swivel.cli import main
        from swivel.pipeline.reproduce import run
        from swivel.pipeline.reproduce.subprocess import run_here

        assert run.reproduce.__kwdefaults__ is not None
        run.reproduce.__kwdefaults__["runner"] = run_here  # A process for each stage would take hours here.
        main()
        code = 0
    except SystemExit as leave:
        code = leave.code or 0
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def wait_for(child: int) -> int:
    """Return the exit status; one that hangs is killed."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def lay_out(verb: Verb) -> None:
    """Make the folder what it is before the verb."""
    shutil.rmtree(CASE, ignore_errors=True)
    if verb.before is None:
        CASE.mkdir(parents=True)
    else:
        shutil.copytree(verb.before, CASE)


def take_picture() -> tuple[dict[str, Any], list[str]]:
    """Return what every file of the folder holds, times apart, and the names of what was left behind."""
    picture: dict[str, Any] = {}
    left = []
    for file in sorted(CASE.rglob("*")):
        name = str(file.relative_to(CASE))
        if LEFTOVER.search(name) or is_old_checkpoint(file):
            left.append(name)
        elif file.is_file():
            picture[name] = read_without_times(file)
    return picture, left


def is_old_checkpoint(file: Path) -> bool:
    """Return whether a file is of a training that has ended: it could not be removed, and nobody reads it."""
    folder = next((above.parent for above in (file, *file.parents) if OLD.fullmatch(above.name)), None)
    return folder is not None and (folder / "manifest.json").exists()


def read_without_times(file: Path) -> Any:
    if file.name in TIMED:
        return "there"
    if file.name != "manifest.json":
        return file.read_bytes()
    fields = json.loads(file.read_bytes())
    fields.pop("checksum")
    fields["facts"].pop("training_seconds", None)
    if fields["stage"] == "checkpoint":
        fields["facts"].pop("seconds")
    return fields


def find_finished() -> dict[str, tuple[int, int]]:
    """Return what tells one writing of each finished folder from another; raise where one is damaged."""
    from swivel.storage.manifest import MANIFEST, open_folder, read_manifest

    finished = {}
    for file in CASE.rglob(MANIFEST):
        if is_old_checkpoint(file) or LEFTOVER.search(str(file.relative_to(CASE))):
            continue
        open_folder(file.parent, read_manifest(file.parent).stage).verify()
        if not file.parent.name.startswith("checkpoint-"):
            status = file.stat()
            finished[str(file.relative_to(CASE))] = (status.st_ino, status.st_mtime_ns)
    return finished


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
    is_told = re.match(r"\w+: ", line) and str(CASE) in line and (reason in line or "short" in fault.mode)
    return None if is_told else f"the line names no file or no reason: {line}"


def last_line(text: str) -> str:
    return (text.strip().split("\n") or [""])[-1]


def make_ready(bench: Bench) -> list[Verb]:
    """Make what the verbs read, and return the verbs."""
    shutil.rmtree(READY, ignore_errors=True)
    READY.mkdir(parents=True)
    text, more, table = READY / "text.txt", READY / "more.txt", READY / "counts.tsv"
    lines = [" ".join(WORDS[(n * step + n) % len(WORDS)] for step in range(1, 7)) for n in range(200)]
    text.write_text("\n".join(lines) + "\n")
    more.write_text("\n".join(line.replace("red", "pink") for line in lines) + "\n")
    table.write_text(
        "".join(f"{a}\t{b}\t{1 + (i * j) % 5}\n" for i, a in enumerate(WORDS) for j, b in enumerate(WORDS))
    )
    small = ("--dim", "4", "--epochs", "2", "--backend", "cpu", "--dtype", "float32", "--device", "cpu")
    one = ("--threads", "1")
    out, matrix, vectors = str(CASE / "out"), str(READY / "matrix"), str(READY / "vectors")
    saving = (*small, "--epochs", "3", "--checkpoint-minutes", "0.0000001", *one, "--no-report")
    count = ("count", str(text), "-o", out, *one)
    train = ("train", matrix, "-o", out, *saving)
    arguments: tuple[str, ...]
    for arguments in (
        ("count", str(text), "-o", matrix, *one),
        ("count", str(more), "-o", f"{matrix}-2", *one),
        ("train", matrix, "-o", vectors, *small, *one, "--no-report"),
        ("train", f"{matrix}-2", "-o", f"{vectors}-2", *small, *one, "--no-report"),
    ):
        warm(arguments)
    sets = READY / "sets"
    sets.mkdir()
    (sets / "pairs.txt").write_text("red\tgreen\t3\nblue\tround\t1\nsweet\tsour\t2\nwarm\tcold\t5\n")
    exports = {name: f"{CASE}/out{suffix}" for name, suffix in EXPORTS.items()}
    for arguments in (
        ("import", str(table), "-o", f"{READY}/imported", *one),
        ("add", matrix, f"{matrix}-2", "-o", f"{READY}/added", *one),
        ("extend", vectors, str(more), "-o", f"{READY}/extended", *one),
        ("plot", "loss", "-o", f"{READY}/loss.png"),
        ("export", vectors, f"{READY}/v.parquet"),
    ):
        warm(arguments)
    verbs = [
        Verb("count", count),
        Verb("count, spilled", (*count, "--memory", "2200KiB", "--columns", "symmetric")),
        Verb("count --overwrite", (*count, "--overwrite"), prepare(bench, "finished", count)),
        Verb("import", ("import", str(table), "-o", out, *one)),
        Verb("add", ("add", matrix, f"{matrix}-2", "-o", out, *one)),
        Verb("train", train),
        Verb("run", ("run", str(text), "-o", out, *small, *one, "--no-report")),
        Verb("report", train[:-1], prepare(bench, "trained", train)),
        Verb("extend", ("extend", vectors, str(more), "-o", out, *one)),
        Verb("compare", ("compare", vectors, f"{vectors}-2", "--min-count", "1", "-o", f"{CASE}/moved.tsv")),
        Verb("plot png", ("plot", "loss", "-o", f"{CASE}/loss.png")),
        Verb("plot svg", ("plot", "epochs", vectors, "-o", f"{CASE}/epochs.svg")),
        *(Verb(f"export {name}", ("export", vectors, file, "--format", name)) for name, file in exports.items()),
    ]
    reproduce = ("reproduce", str(text), "-o", out, "--data", str(sets), "--methods", "fast,paper", "--dim", "4", *one)
    return [Verb("reproduce", (*reproduce, "--min-count", "2")), *verbs, resumed(bench, train)]


EXPORTS = {
    "word2vec": ".bin",
    "word2vec-text": ".txt",
    "npy": ".npy",
    "npz": ".npz",
    "safetensors": ".safetensors",
    "parquet": ".parquet",
    "arrow": ".arrow",
    "projector": "-projector",
    "model2vec": "-model2vec",
    "swivel": "-folder",
}


def warm(arguments: tuple[str, ...]) -> None:
    """Run a command in this process, on this one thread, so that the forks find its kernels compiled and loaded."""
    from swivel.cli import cli

    cli.main(list(arguments), standalone_mode=False)


def must(ended: Ended) -> None:
    if ended.code:
        raise SystemExit(f"cannot make ready: {ended.errors}")


def prepare(bench: Bench, name: str, arguments: tuple[str, ...], nth: int = 0, fault: Fault | None = None) -> Path:
    """Keep what a command leaves in the folder."""
    shutil.rmtree(CASE, ignore_errors=True)
    CASE.mkdir(parents=True)
    ended = bench.run(arguments, nth, fault)
    if not nth:
        must(ended)
    shutil.rmtree(READY / name, ignore_errors=True)
    return CASE.rename(READY / name)


def resumed(bench: Bench, train: tuple[str, ...]) -> Verb:
    """Return the training that goes on from checkpoints, which a full disk stopped after the second."""
    prepare(bench, "counted", train)
    log = bench.control.log()
    last = max(number for number, call in enumerate(log, 1) if "/checkpoint-" in call.path and call.kind == "write")
    return Verb("train, going on", train, prepare(bench, "stopped", train, last, Fault("once", errno.ENOSPC)))


def run_verb(bench: Bench, verb: Verb, every: int, deadline: float) -> dict[str, Any]:
    """Fail each call of a verb in turn; return what was found."""
    lay_out(verb)
    first = bench.run(verb.arguments)
    must(first)
    whole, left = take_picture()
    if left:
        raise SystemExit(f"{verb.name} leaves {left} behind when nothing fails")
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

    HOME.mkdir(parents=True, exist_ok=True)
    control = Control(HOME / "control")
    if "FAULTS_CONTROL" not in os.environ:
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")  # for forks
        os.execve(sys.executable, [sys.executable, *sys.argv], control.environment(build_library(HOME)))

    import_all()
    bench, deadline = Bench(control), time.monotonic() + options.seconds
    wanted = tuple(options.only.split(",")) if options.only else ("",)
    verbs = [verb for verb in make_ready(bench) if verb.name.startswith(wanted)]
    found = {verb.name: run_verb(bench, verb, options.every, deadline) for verb in verbs}
    wrong = [line for each in found.values() for line in each.pop("told")]
    kinds = sum((Counter(each["kinds"]) for each in found.values()), Counter[str]())
    shutil.rmtree(HOME)
    done, cases = (sum(each[name] for each in found.values()) for name in ("done", "cases"))
    handled = f"{done - len(wrong)} of {done}"
    keep(options, {"handled": handled, "all_cases": cases, "kinds": kinds, "verbs": found, "wrong": wrong[:40]})
    sys.exit(1 if wrong else 0)


def import_all() -> None:
    """Import what verbs import, so that forks need not."""
    import importlib

    from swivel import cli  # noqa: F401

    packages = ("counts", "corpus", "pipeline", "reports", "training", "vectors")
    for package in packages:
        folder = ROOT / "src" / "swivel" / package
        for file in sorted(folder.rglob("*.py")):
            name = ".".join(file.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
            if "gpu" not in name and "triton" not in name and "ray" not in name and "distributed" not in name:
                importlib.import_module(name)
    for name in ("torch", "pyarrow.parquet", "safetensors.numpy", "matplotlib.pyplot", "scipy.sparse"):
        importlib.import_module(name)


if __name__ == "__main__":
    main()
