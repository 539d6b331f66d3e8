"""Memory limits: every verb in less and less memory, and counting long texts within `--memory`.

Each verb runs in a control group (version 1 or 2; needs root) whose limit falls from generous to hopeless. It must
write what it writes without a limit, or end with status 1 and one line that says how much memory it needs, and leave
nothing behind but finished stages. The system must never kill it, and it must not hang. Kernels are compiled anew in
the first round of `--cold`, because that takes more memory than loading them.

Then `count --memory 100MB` reads texts of 286 and 900 MB in a group of 300 MB and must not take more than that budget
and 150 MB of memory that the system cannot take back; words of the second text have endings that make the number of
distinct words grow. A text of a few kilobytes that decompresses to a gigabyte is counted in the same group.

Large inputs are read in groups that are too small for some of them: vectors of other tools, a line of a gigabyte, a
table with many cells, matrices with millions of labels.

Without control groups (`kind` in the result), the limit is one of address space (ulimit -v), and memory is only
measured.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import lzma
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

import containers
from common import keep, make_parser, parse_arguments, plain_corpus, work_folder, write_corpus
from containers import VERBS, make_inputs
from swivel.storage.manifest import MANIFEST
from verb_runs import last_line, read_without_times, run_in_process

MEASURES = (
    "swivel.corpus.streams",
    "swivel.corpus.vocabulary",
    "swivel.counts.builder",
    "swivel.counts.matrix",
    "swivel.counts.cooccurrence.corpus_count",
    "swivel.runtime.resources",
    "swivel.training.training_plan",
)

MIB = 1 << 20
LIMIT_SECONDS = 600  # for one command: more is a hang
LIMITS = (2048, 512, 320, 256, 200, 150, 100, 64, 32)  # MiB
BUDGET = "100MB"
PROMISED_BYTES = 250_000_000  # the budget and 150 MB
GROUP_BYTES = 300_000_000  # Within less, counting takes less than its budget.
WORDS_PER_ENDING = 4
ENDINGS = 3_000
NUMBERS = itertools.count()  # of commands

# Commands on the files of `make_large`, and the limit in MiB of the group.
LARGE = {
    "nearest, .npz": ("nearest {large}/vectors.npz w1 -n 3", 400),
    "nearest, .parquet": ("nearest {large}/vectors.parquet w1 -n 3", 400),
    "nearest, .arrow": ("nearest {large}/vectors.arrow w1 -n 3", 400),
    "export, sentence-transformers": ("export {large}/vectors model --format sentence-transformers", 900),
    "encode, one long line": ("encode {large}/vectors {large}/line.txt.xz -o texts.npy", 1000),
    "recommend": ("recommend {large}/rated r1 --matrix {large}/table", 600),
    "evaluate --held-out": ("evaluate {large}/rated --held-out {large}/held-out.tsv --matrix {large}/table", 600),
    "train, a table": ("train {large}/table -o vectors --dim 4 --epochs 1 --no-report", 600),
    "add, many labels": ("add {large}/labels {large}/labels -o sum", 300),
    "train, many rows": ("train {large}/rows -o vectors --recipe fast --dim 4 --epochs 1 --no-report", 700),
}


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, what it left, and the peak of the memory that the system cannot take back."""

    status: int | str
    messages: str
    files: Mapping[str, Any]
    anonymous_bytes: int
    seconds: float


class Group:
    """A control group with a memory limit, or a limit on the address space where there are none."""

    root: Path | None = None
    kind = "ulimit -v"
    names = ("", "")  # of the file with the limit, and of the entry of anonymous memory in memory.stat

    @classmethod
    def find(cls) -> None:
        """Find out which groups can be made here."""
        top = Path("/sys/fs/cgroup")
        for kind, root, names in (
            ("cgroup v1", top / "memory", ("memory.limit_in_bytes", "total_rss")),
            ("cgroup v2", top, ("memory.max", "anon")),
        ):
            probe = root / f"swivel-limits-{os.getpid()}-probe"
            with contextlib.suppress(OSError):
                probe.mkdir()
                has_limits = (probe / names[0]).exists()
                probe.rmdir()
                if has_limits:
                    cls.root, cls.kind, cls.names = root, kind, names
                    return

    def __init__(self, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self.peak = 0
        self.folder: Path | None = None
        if self.root is not None:
            self.folder = self.root / f"swivel-limits-{os.getpid()}-{next(NUMBERS)}"
            self.folder.mkdir()
            if limit_bytes is not None:
                (self.folder / self.names[0]).write_text(str(limit_bytes))

    def enter(self) -> None:
        """Move this process into the group; a child process calls it before it starts the command."""
        if self.folder is not None:
            (self.folder / "cgroup.procs").write_text(str(os.getpid()))
        elif self.limit_bytes is not None:
            resource.setrlimit(resource.RLIMIT_AS, (self.limit_bytes, self.limit_bytes))

    def watch(self, process: subprocess.Popen[str]) -> None:
        """Note the anonymous memory of the group, or of the process, until the process ends."""
        file = Path(f"/proc/{process.pid}/status") if self.folder is None else self.folder / "memory.stat"
        entry, scale = ("RssAnon:", 1024) if self.folder is None else (self.names[1], 1)
        while process.poll() is None:
            with contextlib.suppress(OSError):
                for line in file.read_text().splitlines():
                    if line.startswith(f"{entry} ") or (self.folder is None and line.startswith(entry)):
                        self.peak = max(self.peak, int(line.split()[1]) * scale)
            time.sleep(0.01)

    def close(self) -> None:
        """Remove the group, once its last process has left it."""
        for _ in range(100):
            with contextlib.suppress(OSError):
                if self.folder is not None:
                    self.folder.rmdir()
                return
            time.sleep(0.05)


def run(arguments: str, limit_bytes: int | None, variables: Mapping[str, str] | None = None) -> Ended:
    """Run a command in an empty working directory, on a disk: files in memory would count as memory."""
    case = work_folder() / "limits" / f"case-{os.getpid()}-{next(NUMBERS)}"
    case.mkdir(parents=True)
    group = Group(limit_bytes)
    started = time.monotonic()

    with (case.parent / f"{case.name}.stderr").open("w+") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "swivel", *arguments.split()],
            cwd=case,
            env={**os.environ, **(variables or {})},
            preexec_fn=group.enter,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            text=True,
        )
        watcher = threading.Thread(target=group.watch, args=[process])
        watcher.start()
        try:
            status: int | str = process.wait(LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = "hangs"
        watcher.join()
        errors.seek(0)
        messages = errors.read()

    seconds = time.monotonic() - started
    group.close()
    files = {str(file.relative_to(case)): read_without_times(file) for file in case.rglob("*") if file.is_file()}
    left = {str(path.relative_to(case)): None for path in case.rglob("*")} | files
    shutil.rmtree(case)
    (case.parent / f"{case.name}.stderr").unlink()
    return Ended(status, messages, left, group.peak, seconds)


def find_fault(ended: Ended, usual: Ended) -> str | None:
    """Return what is wrong with how a verb ended in its group, or None."""
    line = last_line(ended.messages)
    if ended.status == 0:
        names = {*usual.files, *ended.files}
        differing = sorted(name for name in names if usual.files.get(name) != ended.files.get(name))
        return f"other files: {differing}" if differing else None

    if ended.status != 1 or not line.startswith("error: ") or "Traceback" in ended.messages:
        return f"status {ended.status}: {ended.messages[-300:]!r}"
    # A line may also be refused because nothing that is a text has such a line.
    if not any(words in line for words in ("memory", "address space", "is this a text file?")):
        return f"the line does not say what is missing: {line}"

    # `run` counts before it knows what training needs; a finished matrix is kept, for the next try.
    finished = {str(Path(name).parent) for name in ended.files if Path(name).name == MANIFEST}
    left = {name for name in ended.files if not any(Path(folder).is_relative_to(name) for folder in finished)}
    left = {name for name in left if str(Path(name).parent) not in finished}
    return f"left behind: {sorted(left)}" if left else None


def check_verb(verb: str, limits: list[int]) -> dict[str, Any]:
    """Run a verb within all limits, and return how it ended within each."""
    arguments = VERBS[verb].format(inputs=containers.INPUTS, out=".")
    usual = run(arguments, None)
    found: dict[str, Any] = {"anonymous_mib": round(usual.anonymous_bytes / MIB), "works": [], "refused": []}
    wrong = [] if usual.status == 0 else [f"without a limit: {usual.messages[-300:]}"]

    for limit in limits:
        ended = run(arguments, limit * MIB)
        fault = find_fault(ended, usual)
        if fault:
            wrong.append(f"{limit} MiB: {fault}")
        else:
            found["works" if ended.status == 0 else "refused"].append(limit)
        if ended.status == 1:
            found["message"] = last_line(ended.messages)

    found["wrong"] = wrong
    print(verb, json.dumps(found), flush=True)
    return found


def check_cold(limits: list[int]) -> dict[str, Any]:
    """Count and train where no kernel is compiled yet, which takes more memory than the counting itself."""
    found: dict[str, Any] = {}
    for verb in ("count", "import", "run"):
        arguments = VERBS[verb].format(inputs=containers.INPUTS, out=".")
        usual = run(arguments, None)
        wrong = []
        peak = 0
        for limit in limits:
            cache = work_folder() / "limits" / "kernels"
            ended = run(arguments, limit * MIB, {"NUMBA_CACHE_DIR": str(cache)})
            shutil.rmtree(cache, ignore_errors=True)
            fault = find_fault(ended, usual)
            peak = max(peak, ended.anonymous_bytes)
            wrong += [f"{limit} MiB: {fault}"] if fault else []
        found[verb] = {"anonymous_mib": round(peak / MIB), "wrong": wrong}
        print(f"{verb}, kernels not compiled", json.dumps(found[verb]), flush=True)
    return found


def check_budget(text: Path) -> dict[str, Any]:
    """Count a text with `--memory` in a group of the budget and the stated constant; return what it took."""
    arguments = f"count {text} -o matrix --memory {BUDGET}"
    ended = run(arguments, GROUP_BYTES if Group.root else None)
    fault = None if ended.status == 0 else f"status {ended.status}: {ended.messages[-300:]!r}"
    if ended.anonymous_bytes > PROMISED_BYTES:
        fault = f"takes {ended.anonymous_bytes:,} bytes"
    found = {
        "disk_bytes": text.stat().st_size,
        "anonymous_bytes": ended.anonymous_bytes,
        "seconds": round(ended.seconds, 1),
        "wrong": [fault] if fault else [],
    }
    print(f"count --memory {BUDGET} {text.name}", json.dumps(found), flush=True)
    return found


def make_large(folder: Path, share: float) -> None:
    """Write the inputs of `LARGE`; a smoke run makes them a thousandth as large."""
    import swivel
    from swivel.corpus.vocabulary import Vocabulary
    from swivel.vectors import Vectors, VectorTable

    rng = np.random.default_rng(1)
    folder.mkdir()

    def name(letter: str, number: int) -> list[str]:
        return [f"{letter}{n}" for n in range(number)]

    words = max(2_000, int(300_000 * share))
    values = rng.standard_normal((words, 300), np.float32)
    vectors = Vectors(VectorTable(Vocabulary(name("w", words)), values))
    vectors.save(folder / "vectors")
    for suffix in ("npz", "parquet", "arrow"):
        swivel.export(vectors, folder / f"vectors.{suffix}")

    line = b"w1 w2 w3 " * 111_111
    with lzma.open(folder / "line.txt.xz", "wb", preset=0) as out:
        for _ in range(max(1, int(1_600 * share))):
            out.write(line)

    def save(matrix: scipy.sparse.coo_array, folder: Path) -> swivel.Matrix:
        rows, columns = (name(letter, size) for letter, size in zip("rc", matrix.shape, strict=True))
        return swivel.import_counts(matrix, folder, row_labels=rows, column_labels=columns)

    rows, columns, cells = 40_000, 20_000, max(100_000, int(8_000_000 * share))
    places = np.unique(rng.integers(0, rows * columns, cells))
    table = scipy.sparse.coo_array((np.ones(len(places)), divmod(places, columns)), shape=(rows, columns))
    matrix = save(table, folder / "table")
    small = "--dim 4 --epochs 1 --no-report --weight-decay 0.1"
    run_in_process(f"train {folder}/table -o {folder}/rated {small}".split())
    held_out = (f"{matrix.rows.tokens[n]}\t{matrix.columns.tokens[n]}" for n in range(1_000))
    (folder / "held-out.tsv").write_text("\n".join(held_out) + "\n", encoding="utf-8")

    for target, size in (("labels", 1_500_000), ("rows", 3_000_000)):
        diagonal = np.arange(max(2_000, int(size * share)))
        shape = (len(diagonal), len(diagonal))
        save(scipy.sparse.coo_array((np.ones(len(diagonal)), (diagonal, diagonal)), shape=shape), folder / target)


def check_large(case: str, large: Path) -> dict[str, Any]:
    """Run a command on a large input in its group; return whether it works or is refused."""
    arguments, limit = LARGE[case]
    ended = run(arguments.format(large=large), limit * MIB)
    # What works is compared with nothing: only its end matters here.
    fault = find_fault(ended, ended)
    found = {
        "limit_mib": limit,
        "works": ended.status == 0,
        "anonymous_mib": round(ended.anonymous_bytes / MIB),
        **({} if ended.status == 0 else {"message": last_line(ended.messages)}),
        "wrong": [fault] if fault else [],
    }
    print(case, json.dumps(found), flush=True)
    return found


def make_texts(corpus: Path, sizes: list[int]) -> Iterator[Path]:
    """Yield a file of each size in MB: the corpus, and after it the corpus with endings on some of its words."""
    for size in sizes:
        file = work_folder() / "limits" / f"text-{size}.txt"
        left = size * 1_000_000
        with file.open("wb") as out:
            for line in varied_lines(corpus):
                left -= out.write(line)
                if left <= 0:
                    break
        yield file
        file.unlink()


def varied_lines(corpus: Path) -> Iterator[bytes]:
    """Yield the lines of the corpus, and then, again and again, with a number after every fourth word."""
    number = 0
    for repetition in itertools.count():
        for source in plain_corpus(corpus):
            with source.open("rb") as lines:
                for line in lines:
                    if not repetition:
                        yield line
                        continue
                    words = line.split()
                    for place in range(0, len(words), WORDS_PER_ENDING):
                        words[place] += b"%d" % (number * 2_654_435_761 % 2**32 % ENDINGS)
                        number += 1
                    yield b" ".join(words) + b"\n"


def make_bomb(gigabytes: float) -> Path | None:
    """Write a small .zst that decompresses to many bytes of text; None without the library."""
    try:
        import zstandard
    except ImportError:
        return None
    file = work_folder() / "limits" / "bomb.txt.zst"
    line = b"red green " * 6_553 + b"\n"
    with file.open("wb") as out, zstandard.ZstdCompressor(level=19).stream_writer(out) as writer:
        for _ in range(int(gigabytes * 1e9) // len(line)):
            writer.write(line)
    return file


def main() -> None:
    parser = make_parser(__doc__, "corpus")
    parser.add_argument("--only", help="only these verbs, separated by commas; none: the texts alone")
    parser.add_argument("--limits", help="MiB, separated by commas", default=",".join(map(str, LIMITS)))
    parser.add_argument("--cold", help="MiB, where kernels are not compiled yet", default="1024,256,150")
    parser.add_argument("--sizes", help="MB of text to count within the budget", default="286,900")
    parser.add_argument("--bomb", type=float, help="GB of text in a small file", default=1.0)
    parser.add_argument("--large", type=float, help="size of the large inputs, as a share; 0: none", default=1.0)
    smoke = {"only": "nearest", "limits": "512,32", "cold": "", "sizes": "", "bomb": 0.01, "large": 0.001}
    options = parse_arguments(parser, corpus=write_corpus, **smoke)

    shutil.rmtree(work_folder() / "limits", ignore_errors=True)
    (work_folder() / "limits").mkdir()
    Group.find()
    containers.INPUTS = work_folder() / "limits" / "inputs"
    make_inputs()
    started = time.monotonic()

    limits, cold, sizes = (
        [int(word) for word in text.split(",") if word] for text in (options.limits, options.cold, options.sizes)
    )
    verbs = list(VERBS) if options.only is None else [verb for verb in options.only.split(",") if verb in VERBS]
    found = {verb: check_verb(verb, limits) for verb in verbs}
    found_cold = check_cold(cold) if cold else {}
    texts = {f"{file.stem}": check_budget(file) for file in make_texts(options.corpus, sizes)}
    bomb = make_bomb(options.bomb) if options.bomb else None
    if bomb is not None:
        texts["bomb"] = check_budget(bomb)
    large = {}
    if options.large:
        make_large(work_folder() / "limits" / "large", options.large)
        large = {case: check_large(case, work_folder() / "limits" / "large") for case in LARGE}
    shutil.rmtree(work_folder() / "limits")

    parts = {**found, **{f"{verb}, cold": part for verb, part in found_cold.items()}, **texts, **large}
    wrong = [f"{name}: {line}" for name, part in parts.items() for line in part.pop("wrong")]
    cases = len(verbs) * len(limits) + len(found_cold) * len(cold) + len(texts) + len(large)
    result = {
        "handled": f"{cases - len(wrong)} of {cases}",
        "kind": Group.kind,
        "limits_mib": limits,
        "verbs": found,
        "cold": found_cold,
        "large": large,
        "budget": {
            "memory": BUDGET,
            "promised_bytes": PROMISED_BYTES,
            "group_bytes": GROUP_BYTES if Group.root else None,
            "texts": texts,
        },
        "seconds": round(time.monotonic() - started),
        "wrong": wrong,
    }
    keep(options, result, name="faults/limits")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
