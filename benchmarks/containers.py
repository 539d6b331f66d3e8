"""Containers: every verb where an image, a cluster or a careful administrator leaves it little.

The installation is a copy that nobody can write. As root, commands run as a user that the system does not know, or as
root without its powers; otherwise as this user, with the same modes. Each verb runs in every environment (no home
folder and no place for compiled kernels; TMPDIR missing or not writable; three umasks) and must print and write what it
does usually: the same bits, modes as the umask says, nothing beside its output. Then inputs and outputs belong to
somebody else: one line must name the file and the reason, with status 1, and nothing may be left behind. At last, the
user may have few processes: a verb must work, or say so in one line.
"""

from __future__ import annotations

import itertools
import os
import re
import resource
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import ROOT, keep, make_parser, parse_arguments, scratch_in_memory
from swivel.runtime.resources import count_cores
from verb_runs import last_line, read_without_times, run_in_process, write_inputs

MEASURES = (
    "swivel.cli.terminal",
    "swivel.runtime.kernels",
    "swivel.runtime.resources",
    "swivel.runtime.child_process",
    "swivel.storage.lock",
    "swivel.storage.output_folder",
)

LIMIT_SECONDS = 300  # for one command: more is a hang
IS_ROOT = os.geteuid() == 0
STRANGER = 12345  # a user that the system does not know
PROCESSES = (1, 2, 4, 8, 12)  # limits on the processes and threads of a user


def as_user(number: int) -> str:
    """Return the command that starts another one as a user.

    The user may read everything, because the interpreter of a development machine is often in somebody's home.
    """
    return (
        f"setpriv --reuid {number} --regid {number} --clear-groups "
        "--inh-caps=-all,+dac_read_search --ambient-caps=-all,+dac_read_search"
    )


AS_STRANGER = as_user(STRANGER)
AS_POWERLESS = "setpriv --bounding-set=-all --inh-caps=-all --ambient-caps=-all"  # root as a user like others
HOME = scratch_in_memory("containers")
INSTALLATION = HOME / "installation"
INPUTS = HOME / "inputs"
CACHE = HOME / "kernels"
CLOSED = HOME / "closed"  # the inputs in a folder that only its owner enters
UNREADABLE = HOME / "unreadable"  # the inputs as files that only their owner reads
FOREIGN = HOME / "foreign"  # an empty folder that only its owner writes
NUMBERS = itertools.count()  # of commands
USERS = itertools.count(STRANGER + 1_000)  # each with the processes of one command
NO_CACHE = "compiled kernels cannot be kept"

SMALL = "--dim 4 --epochs 2 --backend cpu --dtype float32 --device cpu --threads 1 --no-report"
COUNT = "--min-count 2 --threads 1"
# Inputs are in the folder {inputs}, outputs in {out}.
VERBS = {
    "count": f"count {{inputs}}/text.txt -o {{out}}/new/matrix {COUNT}",
    "import": "import {inputs}/counts.tsv -o {out}/new/matrix --threads 1",
    "add": "add {inputs}/matrix {inputs}/matrix-2 -o {out}/new/matrix --threads 1",
    "train": f"train {{inputs}}/matrix -o {{out}}/new/vectors {SMALL}",
    "run": f"run {{inputs}}/text.txt -o {{out}}/new/run --min-count 2 {SMALL}",
    "extend": f"extend {{inputs}}/vectors {{inputs}}/more.txt -o {{out}}/new/vectors {COUNT}",
    "export word2vec": "export {inputs}/vectors {out}/vectors.bin",
    "export npy": "export {inputs}/vectors {out}/vectors.npy",
    "export parquet": "export {inputs}/vectors {out}/vectors.parquet",
    "export folder": "export {inputs}/vectors.vec {out}/vectors --format swivel",
    "compare": "compare {inputs}/vectors {inputs}/vectors-2 --min-count 1 -o {out}/moved.tsv",
    "plot": "plot epochs {inputs}/vectors -o {out}/epochs.png",
    "nearest": "nearest {inputs}/vectors red",
    "analogy": "analogy {inputs}/vectors red green blue",
    "evaluate": "evaluate {inputs}/vectors {inputs}/sets/pairs.txt",
    "info": "info {inputs}/matrix --json",
    "encode": "encode {inputs}/vectors {inputs}/text.txt -o {out}/texts.npy",
    "phrases": "phrases {inputs}/text.txt -o {out}/phrases.txt --threads 1",
    "plot map": "plot map {inputs}/vectors --layout pca -o {out}/map.html",
    "train --tune": f"train {{inputs}}/table -o {{out}}/new/tuned --tune {SMALL}",
    "recommend": "recommend {inputs}/rated user1 --matrix {inputs}/table",
}
AGE = re.compile(r", [^,\"]* ago")  # of a folder, in what `info` prints
COMPILING = frozenset(
    ("count", "import", "add", "train", "train --tune", "run", "extend", "compare", "encode", "phrases", "recommend")
)


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment in which every verb must work. A variable that is None is unset."""

    name: str
    variables: Mapping[str, str | None] = field(default_factory=dict)
    umask: int = 0o022


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and what it left in its working directory: digests and modes by path."""

    status: int
    printed: str
    messages: str
    files: Mapping[str, Any]
    modes: Mapping[str, int]


SETTINGS = (
    Setting("no place for compiled kernels", {"NUMBA_CACHE_DIR": None}),
    Setting("HOME that is not writable", {"HOME": str(INPUTS)}),
    Setting("TMPDIR that does not exist", {"TMPDIR": str(HOME / "nowhere")}),
    Setting("TMPDIR that is not writable", {"TMPDIR": str(INPUTS)}),
    Setting("umask 077", umask=0o077),
    Setting("umask 002", umask=0o002),
)
USUAL = Setting("no HOME, no TMPDIR, kernels in NUMBA_CACHE_DIR")


def run(arguments: str, setting: Setting, rights: str = AS_STRANGER, processes: int | None = None) -> Ended:
    """Run a command in an empty working directory; with a limit on processes as a user that has no others."""
    case = HOME / f"case-{next(NUMBERS)}"
    case.mkdir(mode=0o755)
    user = STRANGER
    if processes is not None:
        user = next(USERS)
        rights = as_user(user)
    if IS_ROOT and rights != AS_POWERLESS:
        os.chown(case, user, user)

    def limit_processes() -> None:
        assert processes is not None
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))

    done = subprocess.run(
        [*(rights.split() if IS_ROOT else ()), sys.executable, "-m", "swivel", *arguments.split()],
        preexec_fn=None if processes is None else limit_processes,
        cwd=case,
        env=make_environment(setting),
        umask=setting.umask,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_SECONDS,
    )
    paths = sorted(case.rglob("*"))
    files = {str(path.relative_to(case)): read_without_times(path) for path in paths if path.is_file()}
    modes = {str(path.relative_to(case)): path.stat().st_mode for path in paths}
    clear(case)
    return Ended(done.returncode, AGE.sub("", done.stdout), done.stderr, files, modes)


def make_environment(setting: Setting) -> dict[str, str]:
    usual = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(INSTALLATION),
        "NUMBA_CACHE_DIR": str(CACHE),
        "OMP_NUM_THREADS": "1",
    }
    changed = {**usual, **setting.variables}
    return {name: value for name, value in changed.items() if value is not None}


def clear(folder: Path) -> None:
    """Remove a folder, also one without permissions."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def make_world() -> None:
    """Make the installation, the inputs, and copies of these that another user cannot use."""
    HOME.mkdir(mode=0o755)
    shutil.copytree(ROOT / "src" / "swivel", INSTALLATION / "swivel", ignore=shutil.ignore_patterns("__pycache__"))
    set_modes(INSTALLATION, folders=0o555, files=0o444)

    CACHE.mkdir()
    CACHE.chmod(0o777)
    make_inputs()
    set_modes(INPUTS, folders=0o555, files=0o444)

    shutil.copytree(INPUTS, CLOSED)
    set_modes(CLOSED, folders=0, files=0)
    shutil.copytree(INPUTS, UNREADABLE)
    set_modes(UNREADABLE, folders=0o555, files=0)
    FOREIGN.mkdir()
    set_modes(FOREIGN, folders=0o555, files=0)


def set_modes(folder: Path, *, folders: int, files: int) -> None:
    """Set the modes of everything in a folder; as root, somebody else becomes the owner."""
    for path in [*folder.rglob("*"), folder]:
        path.chmod(folders if path.is_dir() else files)
        if IS_ROOT:
            os.chown(path, STRANGER + 1, STRANGER + 1)


def make_inputs() -> None:
    """Write the texts, the tables and the test set, and let the verbs make the rest, in this process."""
    write_inputs(INPUTS)
    matrix, vectors = f"{INPUTS}/matrix", f"{INPUTS}/vectors"
    for suffix, text in (("", "text"), ("-2", "more")):
        run_in_process(f"count {INPUTS}/{text}.txt -o {matrix}{suffix} {COUNT}".split())
        run_in_process(f"train {matrix}{suffix} -o {vectors}{suffix} {SMALL}".split())
    run_in_process(["export", vectors, f"{INPUTS}/vectors.vec"])
    run_in_process(f"import {INPUTS}/ratings.tsv -o {INPUTS}/table".split())
    run_in_process(f"train {INPUTS}/table -o {INPUTS}/rated {SMALL}".split())


def fill(verb: str, inputs: Path = INPUTS, out: str = ".") -> str:
    return VERBS[verb].format(inputs=inputs, out=out)


def check_setting(verb: str, setting: Setting, usual: Ended) -> str | None:
    """Return what is wrong with a verb in an environment, or None."""
    ended = run(fill(verb), setting)
    if usual.status or ended.status:
        return f"status {usual.status} usually, {ended.status} here: {last_line(ended.messages or usual.messages)}"
    if "Traceback" in ended.messages or "Warning" in ended.messages:
        return f"raw messages: {last_line(ended.messages)}"
    if ended.printed != usual.printed:
        return f"prints {ended.printed!r}, usually {usual.printed!r}"

    differing = sorted(name for name in {*usual.files, *ended.files} if usual.files.get(name) != ended.files.get(name))
    if differing:
        return f"other files: {differing}"
    modes = [f"{name} {oct(mode)}" for name, mode in ended.modes.items() if not follows_umask(mode, setting.umask)]
    if modes:
        return f"modes: {modes}"

    warnings = ended.messages.count(NO_CACHE)
    expected = int("NUMBA_CACHE_DIR" in setting.variables and verb in COMPILING)
    return None if warnings == expected else f"{warnings} warnings about the cache"


def follows_umask(mode: int, umask: int) -> bool:
    return stat.S_IMODE(mode) == (0o777 if stat.S_ISDIR(mode) else 0o666) & ~umask


def list_denied() -> dict[str, str]:
    """Return commands on files and folders of somebody else."""
    denied = {}
    for verb in VERBS:
        denied[f"{verb}, closed folder"] = fill(verb, inputs=CLOSED)
        denied[f"{verb}, unreadable files"] = fill(verb, inputs=UNREADABLE)
        if "{out}" in VERBS[verb]:
            denied[f"{verb}, output in somebody's folder"] = fill(verb, out=str(FOREIGN))
    return denied


def check_denied(arguments: str) -> str | None:
    """Return what is wrong with how a command on somebody else's files ended, or None."""
    ended = run(arguments, USUAL, AS_POWERLESS)
    line = last_line(ended.messages)
    if ended.status != 1 or not line.startswith("error: ") or "unexpected" in line or "Traceback" in ended.messages:
        return f"status {ended.status}: {ended.messages[-500:]}"
    if "Permission denied" not in line or str(HOME) not in line:
        return f"the line names no file or no reason: {line}"
    return f"left behind: {sorted(ended.modes)}" if ended.modes else None


def check_processes(verb: str, processes: int, usual: Ended) -> str | None:
    """Return what is wrong with how a verb ended for a user who may have few processes, or None."""
    ended = run(fill(verb), USUAL, processes=processes)
    if ended.status == 0:
        return None if (ended.printed, ended.files) == (usual.printed, usual.files) else "another result than usual"
    lines = ended.messages.splitlines()
    if ended.status != 1 or not lines[-1].startswith("error: ") or "limit on processes" not in lines[-1]:
        return f"status {ended.status}: {ended.messages[-500:]}"
    if "Traceback" in ended.messages or "OpenBLAS" in ended.messages:
        return f"raw messages: {ended.messages[:300]}"
    return f"left behind: {sorted(ended.modes)}" if ended.modes else None


def why_not() -> str | None:
    """Return why commands cannot run with other rights here, or None."""
    if IS_ROOT and shutil.which("setpriv") is None:
        return "root needs setpriv (util-linux) to give up its rights"
    ended = [run("--version", USUAL, rights) for rights in (AS_STRANGER, AS_POWERLESS)]
    return next((last_line(each.messages) for each in ended if each.status), None)


def show(name: str, told: str | None) -> str | None:
    print(name, told or "as it should be", sep=": ", flush=True)
    return told


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--only", help="only these verbs, separated by commas")
    parser.add_argument("--settings", help="only environments whose name begins so")
    parser.add_argument("--processes", type=int, default=count_cores(), help="number of commands at a time")
    options = parse_arguments(parser, only="nearest", settings="TMPDIR that is")

    make_world()
    reason = why_not()
    if reason:
        clear(HOME)
        keep(options, {"skipped": reason}, name="faults/containers")
        return

    verbs = options.only.split(",") if options.only else list(VERBS)
    settings = [setting for setting in SETTINGS if setting.name.startswith(options.settings or "")]
    denied = {name: line for name, line in list_denied().items() if name.partition(",")[0] in verbs}
    started = time.monotonic()

    with ThreadPoolExecutor(options.processes) as pool:
        usual = dict(zip(verbs, pool.map(lambda verb: run(fill(verb), USUAL), verbs), strict=True))
        jobs = {
            f"{verb}, {setting.name}": pool.submit(check_setting, verb, setting, usual[verb])
            for setting in settings
            for verb in verbs
        }
        jobs |= {name: pool.submit(check_denied, arguments) for name, arguments in denied.items()}
        # The processes of another user than root are those of everything that the user runs.
        limits = PROCESSES if IS_ROOT else ()
        jobs |= {
            f"{verb}, at most {limit} processes": pool.submit(check_processes, verb, limit, usual[verb])
            for limit in limits
            for verb in verbs
        }
        told = {name: show(name, job.result()) for name, job in jobs.items()}
    clear(HOME)

    wrong = [f"{name}: {text}" for name, text in told.items() if text]
    result = {
        "handled": f"{len(told) - len(wrong)} of {len(told)}",
        "is_root": IS_ROOT,
        "settings": [setting.name for setting in (USUAL, *settings)],
        "processes": list(limits),
        "verbs": verbs,
        "seconds": round(time.monotonic() - started),
        "wrong": wrong,
    }
    keep(options, result, name="faults/containers")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
