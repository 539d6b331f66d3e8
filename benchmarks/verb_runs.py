"""Every verb that writes, run in forks of one process, with the file system failing or the process killed at a call.

`write_failures.py` and `crash_points.py` use it. What the verbs read is made first; each case starts from the same
folder, and what it leaves is compared with what an undisturbed run leaves. `containers.py` has the same inputs and
compares files in the same way.
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
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments, scratch_in_memory, script_name
from faults import Call, Control, Fault, build_library, why_not

LIMIT_SECONDS = 120  # for one command: more is a hang
HOME = scratch_in_memory("verbs")
CASE = HOME / "case"  # the folder in which calls fail
READY = HOME / "ready"  # what verbs read
LEFTOVER = re.compile(r"(^|/)(scratch-[^/]*|lock|[^/]*\.part)(/|$)")
OLD = re.compile(r"checkpoint-[12]|plan\.json|tuning\.json")
REFUSING = ("export", "encode", "phrases", "plot map")  # verbs that do not replace a result
TIMED = ("report.html",)  # hold what a run took
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


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """What a verb does when nothing fails: its calls, what its files hold, and the names of all files and folders."""

    calls: list[Call]
    files: dict[str, Any]
    names: set[str]


@dataclass(frozen=True, slots=True)
class Case:
    """A verb of which one call has a fault."""

    verb: Verb
    nth: int
    call: Call
    fault: Fault

    def __str__(self) -> str:
        return f"{self.verb.name}, call {self.nth}, {self.call.kind} {self.call.path}, {self.fault}"


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
    """Return whether a file is of a training or search that has ended: it could not be removed, and nobody reads it."""
    folder = next((above.parent for above in (file, *file.parents) if OLD.fullmatch(above.name)), None)
    return folder is not None and (folder / "manifest.json").exists()


def list_names() -> set[str]:
    """Return the names of all files and folders in the folder of the case."""
    return {str(file.relative_to(CASE)) for file in CASE.rglob("*")}


def read_without_times(file: Path) -> Any:
    """Return what a file holds, times apart."""
    if file.name in TIMED:
        return "there"
    if file.name != "manifest.json":
        return file.read_bytes()
    fields = json.loads(file.read_bytes())
    fields.pop("checksum")
    for name in ("training_seconds", "sources"):
        fields["facts"].pop(name, None)
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


def last_line(text: str) -> str:
    return text.strip().split("\n")[-1]


def write_inputs(folder: Path) -> None:
    """Write two texts, two tables of counts and a folder with a test set into a new folder."""
    lines = [" ".join(WORDS[(n * step + n) % len(WORDS)] for step in range(1, 7)) for n in range(200)]
    cells = [f"{a}\t{b}\t{1 + (i * j) % 5}\n" for i, a in enumerate(WORDS) for j, b in enumerate(WORDS)]

    ratings = [f"user{i}\titem{j}\t{1 + (i * j) % 5}\n" for i in range(16) for j in range(12) if (i + j) % 3]

    (folder / "sets").mkdir(parents=True)
    (folder / "ratings.tsv").write_text("".join(ratings))
    (folder / "text.txt").write_text("\n".join(lines) + "\n")
    (folder / "more.txt").write_text("\n".join(line.replace("red", "pink") for line in lines) + "\n")
    (folder / "counts.tsv").write_text("".join(cells))
    (folder / "sets" / "pairs.txt").write_text("red\tgreen\t3\nblue\tround\t1\nsweet\tsour\t2\nwarm\tcold\t5\n")


def make_ready(bench: Bench) -> list[Verb]:
    """Make what the verbs read, and return the verbs."""
    shutil.rmtree(READY, ignore_errors=True)
    write_inputs(READY)
    text, more, table = (READY / name for name in ("text.txt", "more.txt", "counts.tsv"))
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
        ("import", str(READY / "ratings.tsv"), "-o", f"{READY}/table", *one),
        ("train", f"{READY}/table", "-o", f"{READY}/tuned", *small, *one, "--no-report", "--tune"),
    ):
        run_in_process(arguments)
    exports = {name: f"{CASE}/out{suffix}" for name, suffix in EXPORTS.items()}
    for arguments in (
        ("import", str(table), "-o", f"{READY}/imported", *one),
        ("add", matrix, f"{matrix}-2", "-o", f"{READY}/added", *one),
        ("extend", vectors, str(more), "-o", f"{READY}/extended", *one),
        ("plot", "epochs", vectors, "-o", f"{READY}/epochs.png"),
        ("export", vectors, f"{READY}/v.parquet"),
    ):
        run_in_process(arguments)
    return [
        Verb("count", count),
        Verb("count, spilled", (*count, "--memory", "2200KiB", "--columns", "symmetric")),
        Verb("count --overwrite", (*count, "--overwrite"), prepare(bench, "finished", count)),
        Verb("import", ("import", str(table), "-o", out, *one)),
        Verb("add", ("add", matrix, f"{matrix}-2", "-o", out, *one)),
        Verb("train", train),
        Verb("train --tune", ("train", f"{READY}/table", "-o", out, *small, *one, "--no-report", "--tune")),
        Verb("run", ("run", str(text), "-o", out, *small, *one, "--no-report")),
        Verb("report", train[:-1], prepare(bench, "trained", train)),
        Verb("extend", ("extend", vectors, str(more), "-o", out, *one)),
        Verb("compare", ("compare", vectors, f"{vectors}-2", "--min-count", "1", "-o", f"{CASE}/moved.tsv")),
        Verb("plot png", ("plot", "epochs", vectors, "-o", f"{CASE}/epochs.png")),
        Verb("plot svg", ("plot", "epochs", vectors, "-o", f"{CASE}/epochs.svg")),
        Verb("plot map", ("plot", "map", vectors, "--layout", "pca", "-o", f"{CASE}/map.html")),
        Verb("encode", ("encode", vectors, str(text), "-o", f"{CASE}/texts.npy")),
        Verb("phrases", ("phrases", str(text), "-o", f"{CASE}/phrases.txt", *one)),
        Verb("count --phrases", (*count, "--phrases", "npmi")),
        *(Verb(f"export {name}", ("export", vectors, file, "--format", name)) for name, file in exports.items()),
        resumed(bench, train),
    ]


EXPORTS = {
    "word2vec": ".bin",
    "word2vec-text": ".txt",
    "gensim": ".kv",
    "npy": ".npy",
    "npz": ".npz",
    "safetensors": ".safetensors",
    "parquet": ".parquet",
    "arrow": ".arrow",
    "projector": "-projector",
    "model2vec": "-model2vec",
    "swivel": "-folder",
}


def run_in_process(arguments: Iterable[str]) -> None:
    """Run a command in this process, so that forks find its kernels compiled and loaded."""
    from swivel.cli import cli

    cli.main([*arguments, "--quiet"], standalone_mode=False)


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
    for name in ("torch", "gensim.models", "pyarrow.parquet", "safetensors.numpy", "matplotlib.pyplot", "scipy.sparse"):
        importlib.import_module(name)


def run_undisturbed(bench: Bench, verb: Verb) -> Undisturbed:
    """Run a verb with nothing failing."""
    lay_out(verb)
    ended = bench.run(verb.arguments)
    must(ended)
    files, left = take_picture()
    if left:
        raise SystemExit(f"{verb.name} leaves {left} behind when nothing fails")
    return Undisturbed(ended.log, files, list_names())


def check_again(bench: Bench, verb: Verb, undisturbed: Undisturbed, finished: dict[str, tuple[int, int]]) -> str | None:
    """Run a verb again after one that failed; return what is wrong then, or None.

    It must end with the files of an undisturbed run and no others. `finished` are the folders that were finished
    before: they must not be made again.
    """
    again = bench.run(verb.arguments)
    is_refusal = verb.name.startswith(REFUSING) and "exists already" in again.errors  # The result is complete.
    if "Traceback" in again.errors or (again.code != 0 and not is_refusal):
        return f"the same command again: {again.code}, {last_line(again.errors)}"

    after = take_picture()[0]
    whole = undisturbed.files
    differing = sorted(name for name in {*after, *whole} if after.get(name) != whole.get(name))
    if differing:
        return f"differing: {differing}"

    left = sorted(list_names() - undisturbed.names)
    if left:
        return f"left behind: {left}"
    is_kept = all(find_finished().get(name) == stamp for name, stamp in finished.items())
    return None if is_kept or "--overwrite" in verb.arguments else "a finished folder was made again"


ListFaults = Callable[[Call], Iterable[Fault]]
CheckCase = Callable[[Bench, Case, Undisturbed], str | None]  # runs a case; what is wrong with how it ended, or None


def run_cases(description: str | None, list_faults: ListFaults, check_case: CheckCase) -> None:
    """Run every verb with every fault of each of its calls, keep the result, and end with status 1 if one is wrong."""
    parser = make_parser(description)
    parser.add_argument("--only", help="only verbs whose name begins so; several by commas")
    parser.add_argument("--every", type=int, default=1, help="do only every n-th case")
    options = parse_arguments(parser, every=23, only="add,export npy")
    if why_not():
        if options.smoke:
            keep(options, {"skipped": why_not()})
            return
        raise SystemExit(f"skipped: {why_not()}")

    bench, verbs = open_bench(options.only)
    found = {verb.name: run_verb(bench, verb, options.every, list_faults, check_case) for verb in verbs}

    wrong = [line for each in found.values() for line in each.pop("wrong")]
    done, all_cases = (sum(each[name] for each in found.values()) for name in ("done", "cases"))
    kinds = sum((each["kinds"] for each in found.values()), Counter[str]())
    passed = f"{done - len(wrong)} of {done}"
    result = {"passed": passed, "all_cases": all_cases, "kinds": kinds, "verbs": found, "wrong": wrong[:40]}
    keep(options, result, name=f"faults/{script_name()}")
    sys.exit(1 if wrong else 0)


def run_verb(bench: Bench, verb: Verb, every: int, list_faults: ListFaults, check_case: CheckCase) -> dict[str, Any]:
    """Run every n-th case of a verb; return the numbers of cases and what went wrong."""
    started = time.monotonic()
    undisturbed = run_undisturbed(bench, verb)
    calls = enumerate(undisturbed.calls, 1)
    cases = [Case(verb, nth, call, fault) for nth, call in calls for fault in list_faults(call)]
    chosen = cases[::every]

    wrong = []
    for case in chosen:
        problem = check_case(bench, case, undisturbed)
        if problem:
            wrong.append(f"{case}: {problem}")
            print(wrong[-1], flush=True)

    seconds = round(time.monotonic() - started, 1)
    print(f"{verb.name}: {len(chosen)} of {len(cases)} cases, {len(wrong)} wrong, {seconds} s", flush=True)
    return {
        "calls": len(undisturbed.calls),
        "cases": len(cases),
        "done": len(chosen),
        "seconds": seconds,
        "kinds": Counter(case.call.kind for case in chosen),
        "wrong": wrong,
    }


def open_bench(only: str | None) -> tuple[Bench, list[Verb]]:
    """Return the bench and the verbs whose names begin with one of those in `only`, which commas separate.

    The process replaces itself once, because the library has to be loaded before anything else.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    control = Control(HOME / "control")
    if "FAULTS_CONTROL" not in os.environ:
        # The process is forked, so it must not have threads of its own.
        os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        os.execve(sys.executable, [sys.executable, *sys.argv], control.environment(build_library(HOME)))

    import_all()
    bench = Bench(control)
    wanted = tuple(only.split(",")) if only else ("",)
    return bench, [verb for verb in make_ready(bench) if verb.name.startswith(wanted)]
