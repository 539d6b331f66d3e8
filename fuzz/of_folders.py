"""Targets that are our own folders: manifests, vectors, matrices, checkpoints, plans.

Checksums keep damage out; these inputs are folders whose checksums are right and whose content is not, as somebody
could make them on purpose.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from fuzz.guard import SPLIT, Target, parts, put
from fuzz.of_formats import TENSOR_WORDS, make_vectors
from fuzz.of_importers import NPY_WORDS
from fuzz.of_text import JSON_WORDS
from swivel.counts import open_matrix
from swivel.counts.importers.importer import import_counts
from swivel.storage.manifest import fingerprint, open_folder, read_manifest
from swivel.training.checkpoint import CheckpointStore, TrainingState
from swivel.training.training_plan import read_plan
from swivel.vectors import Vectors, VectorTable

MANIFEST_WORDS: tuple[bytes, ...] = (b'"parts"', b'"bytes"', b'"sha256"', b'"facts"', b'"stage"', b'"format"')
MANIFEST_WORDS += (b'"../../../etc/passwd"', b'"/etc/passwd"', b'"vectors"', b'"config"', b'"inputs"', b'"library"')
MANIFEST_WORDS += (b'"a\\u0000b"', *JSON_WORDS)
VECTORS = ("facts", "vectors.safetensors", "rows.txt", "columns.txt", "row_sums.npy")
MATRIX: tuple[str, ...] = ("facts", "offsets.npy", "positions.npy", "counts.npy", "large_cells.npy")
MATRIX += ("large_counts.npy", "row_sums.npy", "rows.txt", "columns.txt", "column_sums.npy")
CHECKPOINT = ("facts", "done.npy", "rows.npy", "rows_accumulators.npy")
PLAN = {"row_blocks": 1, "column_blocks": 2}


def sign(text: str) -> bytes:
    """Return the text of a JSON object with the checksum of `manifest.seal` at its end, whatever the text is."""
    body = text.rstrip().removesuffix("}").rstrip()
    data = body.encode(errors="surrogateescape")
    return data + f',\n "checksum": "{hashlib.sha256(data).hexdigest()}"\n}}\n'.encode()


def write_folder(path: Path, stage: str, names: tuple[str, ...], data: bytes) -> None:
    """Write a folder of parts and the manifest that fits them; the first is its facts, empty ones are not there."""
    path.mkdir(exist_ok=True)
    facts, *contents = parts(data, len(names))
    sizes = {}
    for name, part in zip(names[1:], contents, strict=True):
        if part:
            put(path, name, part)
            sizes[name] = {"bytes": len(part), "sha256": hashlib.sha256(part).hexdigest()}
    config = {"plan": PLAN} if stage == "checkpoint" else {}
    inputs = {"run": fingerprint({})}
    fields = {"stage": stage, "config": config, "inputs": inputs, "parts": sizes, "format": 2, "library": "1"}
    text = json.dumps(fields)[:-1] + f', "facts": {(facts or b"{}").decode(errors="surrogateescape")}}}'
    put(path, "manifest.json", sign(text))


def read_parts(path: Path, names: tuple[str, ...]) -> bytes:
    """Return a folder's facts and parts as an input."""
    facts = json.dumps(dict(read_manifest(path).facts)).encode()
    return SPLIT.join([facts, *((path / name).read_bytes() if (path / name).exists() else b"" for name in names[1:])])


def read_folder_manifest(data: bytes, folder: Path) -> None:
    """A manifest names parts that are in its folder, and the stage that made them."""
    path = folder / "vectors"
    path.mkdir(exist_ok=True)
    put(path, "rows.txt", b"a\t1\n")
    put(path, "manifest.json", sign(data.decode(errors="surrogateescape")))
    manifest = read_manifest(path)
    assert isinstance(manifest.stage, str)
    for name, part in manifest.parts.items():
        assert (path / name).resolve().parent == path.resolve()
        assert part.bytes >= 0
    opened = open_folder(path, "vectors")
    opened.verify()


def seed_manifest(folder: Path) -> Iterable[bytes]:
    digest = hashlib.sha256(b"a\t1\n").hexdigest()
    fields: dict[str, Any] = {
        "stage": "vectors",
        "config": {"dim": 2},
        "inputs": {"matrix": "1a"},
        "facts": {"rows": 1},
    }
    fields |= {"parts": {"rows.txt": {"bytes": 4, "sha256": digest}}, "format": 2, "library": "1.0"}
    yield json.dumps(fields, indent=1).encode()
    yield json.dumps({**fields, "parts": {}}).encode()


def read_vectors(data: bytes, folder: Path) -> None:
    """Vectors of our own."""
    write_folder(folder / "vectors", "vectors", VECTORS, data)
    vectors = Vectors.load(folder / "vectors")
    words = vectors.vocabulary
    assert vectors.vectors.shape == (len(words), vectors.dim)
    assert vectors.vectors.dtype == np.float32
    assert len(words.tokens) == len(words.counts) == len(words)
    assert vectors.row_sums is None or vectors.row_sums.shape == (len(words),)


def seed_vectors(folder: Path) -> Iterable[bytes]:
    rows = make_vectors().row_table
    for number, columns in enumerate((None, rows)):
        side = VectorTable(rows.vocabulary, rows.values, np.array([3.0, 2.0, 1.0]))
        Vectors(side, columns, columns_per_row=number).save(folder / f"v{number}")
        yield read_parts(folder / f"v{number}", VECTORS)


def read_matrix(data: bytes, folder: Path) -> None:
    """A matrix: its blocks are ranges of its cells."""
    write_folder(folder / "matrix", "matrix", MATRIX, data)
    matrix = open_matrix(folder / "matrix")
    rows, columns = matrix.shape
    assert rows > 0 and columns > 0 and matrix.total > 0
    assert len(matrix.rows.tokens) == len(matrix.rows.counts)
    assert matrix.row_sums_units.ndim == 1 and matrix.row_sums_units.dtype == np.int64
    for row_block in range(min(matrix.row_blocks, 3)):
        for column_block in range(min(matrix.column_blocks, 3)):
            cells = matrix.cells(row_block, column_block)
            assert cells.positions.shape == cells.counts.shape
    assert matrix.cell_count >= 0


def seed_matrix(folder: Path) -> Iterable[bytes]:
    for number, sides in enumerate(("apart", "undirected")):
        triples = [("tea", "milk", 2.5), ("tea", "x", 1), ("y", "milk", 2**33)]
        import_counts(triples, folder / f"m{number}", sides=sides)
        yield read_parts(folder / f"m{number}", MATRIX)


def read_checkpoint(data: bytes, folder: Path) -> None:
    """A checkpoint that is damaged is none; one that is whole says where its run was."""
    write_folder(folder / "checkpoint-1", "checkpoint", CHECKPOINT, data)
    found = CheckpointStore(folder, {}).load()
    if found is not None:
        state, done, arrays, _ = found
        assert type(state.epochs) is int and type(state.saved) is int
        assert all(type(value) in (int, float) for value in asdict(state.loss).values())
        assert done.dtype == np.bool_ and done.ndim == 2
        assert all(array.dtype in (np.float32, np.float64) for array in arrays.values())


def seed_checkpoint(folder: Path) -> Iterable[bytes]:
    arrays = {"rows": np.ones((3, 2), np.float32), "rows_accumulators": np.ones((3, 2), np.float32)}
    CheckpointStore(folder, {}).save(TrainingState(epochs=1), np.zeros((1, 2), bool), arrays, PLAN)
    yield read_parts(folder / "checkpoint-1", CHECKPOINT)


def read_run_plan(data: bytes, folder: Path) -> None:
    """What was chosen for a run."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(found, dict):
        plan = read_plan(found, folder)
        assert all(type(count) is int and count > 0 for count in (plan.row_blocks, plan.column_blocks, plan.epochs))
        assert isinstance(plan.backend, str)


def seed_plan(folder: Path) -> Iterable[bytes]:
    plan = {
        "row_blocks": 2,
        "column_blocks": 2,
        "epochs": 3,
        "backend": "cpu",
        "device": "cpu",
        "dtype": "float32",
        "groups": [1, 2],
    }
    for groups in (None, [1, 2]):
        yield json.dumps({**plan, "groups": groups}).encode()


TARGETS = [
    Target("manifest", read_folder_manifest, seed_manifest, 400, words=MANIFEST_WORDS),
    Target("vectors-folder", read_vectors, seed_vectors, 150, words=TENSOR_WORDS + NPY_WORDS),
    Target("matrix-folder", read_matrix, seed_matrix, 100, words=NPY_WORDS + JSON_WORDS),
    Target("checkpoint", read_checkpoint, seed_checkpoint, 150, words=NPY_WORDS + JSON_WORDS),
    Target("plan", read_run_plan, seed_plan, 200, words=JSON_WORDS),
]
