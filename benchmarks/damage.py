"""Damage to every file of a matrix, a training, vectors and a run: found before it is used, or harmless.

Every class of byte of every file is flipped, the file is cut short, grown, emptied, removed and put in the place of
another run's; then all that the folder holds is read, or the run goes on. That must raise an error that names the file
and the way out, or give exactly what it gave before; a training must also say which checkpoint it passed over.
"""

from __future__ import annotations

import hashlib
import math
import pickle
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import swivel
from common import keep, make_parser, parse_arguments, scratch_in_memory
from swivel.config import TrainConfig
from swivel.counts import open_matrix
from swivel.errors import StorageError, SwivelError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.storage.manifest import read_manifest
from swivel.training.loop import train_matrix
from swivel.vectors import Vectors

MEASURES = (
    "swivel.counts.matrix",
    "swivel.counts.shards",
    "swivel.storage.arrays",
    "swivel.storage.manifest",
    "swivel.training.checkpoint",
    "swivel.vectors.folder",
)
HOME = scratch_in_memory("damage")
WORDS = [f"{a}{b}" for a in "bdfgklmn" for b in ("ala", "ere", "ini", "oto", "uru")]
REMEDIES = (
    "--overwrite",
    "restore",
    "run it again",
    "run the same command again",
    "remove it",
    "name ",
    "using ",
    "from the beginning",
)
SMALL: dict[str, Any] = {"dim": 5, "epochs": 3, "backend": "reference", "dtype": "float32", "device": "cpu"}
FLIPPED_BITS = (0, 5)


class Heard(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def message(self, text: str) -> None:
        self.lines.append(text)


class Stop(Heard):
    """Interrupts a training at its n-th step, as Ctrl-C does."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.left = step

    def begin(self, job: str, total: float | None, unit: str) -> Any:
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.left -= bool(note)
        if self.left == 0:
            raise KeyboardInterrupt


@dataclass(frozen=True, slots=True)
class Place:
    """A folder, another run's of the same kind, and what reads all of it: returns what it holds and what was said."""

    name: str
    path: Path
    other: Path
    use: Callable[[Path], tuple[Any, list[str]]]


def digest(*values: Any) -> str:
    """Return a digest of arrays and plain values."""
    plain = [value.tobytes() if isinstance(value, np.ndarray) else repr(value).encode() for value in values]
    return hashlib.sha256(pickle.dumps(plain)).hexdigest()


def use_matrix(path: Path) -> tuple[Any, list[str]]:
    matrix = open_matrix(path)
    counts, sums = matrix.to_scipy(), (matrix.row_sums, matrix.column_sums, matrix.total, matrix.unit)
    labels = matrix.rows.tokens, matrix.rows.counts, matrix.columns.tokens, matrix.columns.counts
    said = matrix.config, matrix.shape, matrix.column_parts, matrix.cell_count, matrix.is_symmetric
    return digest(counts.data, counts.indices, counts.indptr, *sums, *labels, *said), []


def use_vectors(path: Path) -> tuple[Any, list[str]]:
    vectors, manifest = Vectors.load(path), read_manifest(path)
    labels = vectors.vocabulary.tokens, vectors.vocabulary.counts, getattr(vectors.column_vocabulary, "tokens", None)
    numbers = vectors.rows, vectors.columns, vectors.vectors, vectors.row_sums, vectors.column_sums
    return digest(*numbers, *labels, vectors.shift, vectors.columns_per_row, manifest.facts, manifest.config), []


def use_training(path: Path) -> tuple[Any, list[str]]:
    heard = Heard()
    trained = train(path, heard)
    return digest(trained.rows, trained.columns, trained.history), heard.lines


def train(path: Path, progress: Heard, minutes: float = 0) -> Any:
    config = TrainConfig(**SMALL, block_size=40, checkpoint_minutes=minutes)
    return train_matrix(open_matrix(HOME / "run" / "matrix"), config, folder=path, threads=1, progress=progress)


def use_run(path: Path) -> tuple[Any, list[str]]:
    heard = Heard()
    vectors = swivel.run(HOME / "text.txt", path, options=RunOptions(threads=1, progress=heard, report=True), **SMALL)
    return digest(vectors.vectors, vectors.rows, vectors.columns, vectors.vocabulary.tokens), heard.lines


def make_ready() -> list[Place]:
    """Make every kind of folder twice, from different text."""
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir(parents=True)
    rng = np.random.default_rng(3)
    for name in ("text", "other"):
        lines = [" ".join(rng.choice(WORDS, 8)) for _ in range(300)]
        (HOME / f"{name}.txt").write_text("\n".join(lines) + "\n")
    for name, text in (("run", "text"), ("other", "other")):
        swivel.run(HOME / f"{text}.txt", HOME / name, options=RunOptions(threads=1, report=name == "run"), **SMALL)
        make_training(HOME / f"training-{name}", 4 if name == "run" else 6)
    run, other = HOME / "run", HOME / "other"
    return [
        Place("matrix", run / "matrix", other / "matrix", use_matrix),
        Place("vectors", run / "vectors", other / "vectors", use_vectors),
        Place("training", HOME / "training-run", HOME / "training-other", use_training),
        Place("run", run, other, use_run),
    ]


def make_training(path: Path, steps: int) -> None:
    try:
        train(path, Stop(steps), 1e-9)
    except KeyboardInterrupt:
        return
    raise SystemExit("the training was not interrupted")


def list_damage(data: bytes, other: bytes | None) -> Iterator[tuple[str, bytes | None]]:
    """Yield what may become of a file, each with a name; None: it is gone."""
    places = set(range(len(data))) if data[:1] == b"{" else choose_places(data)
    for place in sorted(places):
        for bit in FLIPPED_BITS:
            yield f"bit {bit} of byte {place}", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
    half = len(data) // 2
    yield from (("removed", None), ("empty", b""), ("half", data[:half]), ("a byte short", data[:-1]))
    yield from (("a byte longer", data + b"\0"), ("twice", data * 2), ("zeros", bytes(len(data))))
    yield "halves exchanged", data[half:] + data[:half]
    if other is not None:
        yield "another run's", other


def choose_places(data: bytes) -> set[int]:
    """Return bytes of every class: header, first, middle, last, and the first letter, digit, tab and end of line."""
    spread = {len(data) * n // 8 for n in range(8)} | {len(data) - 1, len(data) - 2}
    firsts = {next((i for i, byte in enumerate(data) if test(chr(byte))), 0) for test in (str.isalpha, str.isdigit)}
    marks = {data.find(mark) for mark in (b"\t", b"\n", b"\0", b"{", b"'", b'"')}
    header = set(range(0, min(len(data), 140), 3)) | set(range(min(len(data), 12)))
    return {place for place in spread | firsts | marks | header if 0 <= place < len(data)}


def check_damage(place: Place, copy: Path, file: str, whole: Any) -> tuple[str, str]:
    """Use a damaged folder; return `found`, `harmless`, `recovered` or `missed`, and what was said."""
    try:
        result, lines = place.use(copy)
    except SwivelError as error:
        text = str(error)
        is_told = isinstance(error, StorageError) and str(copy) in text and any(word in text for word in REMEDIES)
        return ("found" if is_told else "missed"), f"{type(error).__name__}: {text}"
    except Exception as error:
        return "missed", f"{type(error).__name__}: {error}"
    told = next((line for line in lines if file.split("/")[0] in line and any(word in line for word in REMEDIES)), "")
    if result != whole:
        return "missed", f"another result; {told}"
    return ("recovered", told) if told else ("harmless", "")


def run_place(place: Place, every: int, deadline: float = math.inf) -> tuple[Counter[str], list[str], dict[str, str]]:
    """Do all damage to a folder; return how often it ended how, what was missed, and an example for each file."""
    copy = HOME / "copy" / place.path.name
    counts, missed, examples = Counter[str](), [], dict[str, str]()
    refresh(place.path, copy)
    whole, _ = place.use(copy)
    files = sorted(str(file.relative_to(place.path)) for file in place.path.rglob("*") if file.is_file())
    number = 0
    for file in files:
        data, beside = (place.path / file).read_bytes(), place.other / file
        for name, damaged in list_damage(data, beside.read_bytes() if beside.is_file() else None):
            number += 1
            if number % every or damaged == data or time.monotonic() > deadline:
                continue
            refresh(place.path, copy)
            (copy / file).unlink()
            if damaged is not None:
                (copy / file).write_bytes(damaged)
            how, said = check_damage(place, copy, file, whole)
            counts[how] += 1
            examples.setdefault(f"{file}: {how}", f"{name}: {said.replace(str(HOME), '')}")
            if how == "missed":
                missed.append(f"{place.name}/{file}, {name}: {said}")
    return counts, missed, examples


def refresh(source: Path, copy: Path) -> None:
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--every", type=int, default=1, help="do only every n-th damage")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no case after so long")
    parser.add_argument("--only", help="only one folder: matrix, vectors, training or run")
    options = parse_arguments(parser, every=997)

    found, all_missed, shown, deadline = {}, [], {}, time.monotonic() + options.seconds
    for place in make_ready():
        if options.only not in (None, place.name):
            continue
        started = time.monotonic()
        counts, missed, examples = run_place(place, options.every, deadline)
        found[place.name] = {**counts, "seconds": round(time.monotonic() - started, 1)}
        shown[place.name] = examples
        all_missed += missed
        print(place.name, found[place.name], *missed[:20], sep="\n", flush=True)
    shutil.rmtree(HOME)

    total = sum((Counter(each) for each in found.values()), Counter[str]())
    done = sum(total[how] for how in ("found", "harmless", "recovered", "missed"))
    summary = f"{done - len(all_missed)} of {done}"
    result = {"found_or_harmless": summary, "folders": found, "missed": all_missed[:40], "examples": shown}
    keep(options, result, name="faults/damage")
    sys.exit(1 if all_missed else 0)


if __name__ == "__main__":
    main()
