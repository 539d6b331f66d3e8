"""The folder of trained vectors; `docs/file-formats.md` specifies the format.

Tensors are memory-mapped, and each is verified before its first use, so that unused tensors are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix, open_matrix
from swivel.errors import ConfigError, DamagedFolder, StorageError, VocabularyError, clear_errors
from swivel.runtime.display import escape_controls
from swivel.storage.arrays import map_tensors
from swivel.storage.files import FolderWriter
from swivel.storage.manifest import REMEDY, Folder, describe_damage, digest_array, open_folder
from swivel.vectors.search import Floats
from swivel.vectors.subwords import Subwords
from swivel.vectors.vector_table import VectorTable

if TYPE_CHECKING:
    from swivel.vectors.vectors import Vectors

STAGE = "vectors"
TRAINING_STAGES = ("train", "vectors", "ranking")  # of the settings; the others are those of the counts
TRAINING_FACTS = ("matrix", "plan", "losses", "training_seconds", "tuning", "trained_rows")
TENSORS = "vectors.safetensors"
HEADER = "header"  # key of the checksum of the safetensors header
_MAX_HEADER_BYTES = 1 << 20  # the header of three tensors has about 200


def write_vectors(
    folder: FolderWriter,
    vectors: Vectors,
    *,
    config: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write all files and the manifest, with further facts.

    `config` and `inputs` identify the job that made the vectors; without them, no command takes it for its result.
    """
    rows = vectors.row_table
    columns = vectors.column_table
    subwords = vectors.subwords
    tensors = {"rows": rows.values}
    if vectors.vectors is not rows.values:
        tensors["vectors"] = vectors.vectors
    if columns is not None:
        tensors["columns"] = columns.values

    # What is known of the training stays with the vectors, whoever writes them.
    facts = {**vectors.facts, **(facts or {})}
    # The inputs of a training name its matrix already.
    if "matrix" in (inputs or {}):
        facts.pop("matrix", None)
    if config is None:
        config = {name: vectors.settings[name] for name in TRAINING_STAGES if name in vectors.settings}
    counted_with = {name: dict(stage) for name, stage in vectors.settings.items() if name not in config}
    if counted_with:
        facts["counted_with"] = counted_with
    if subwords is not None:
        folder.write_array("ngrams.npy", subwords.ngrams)
        tensors["subwords"] = subwords.table
        facts["subwords"] = {"length": subwords.length, "min_n": subwords.min_n, "max_n": subwords.max_n}

    _write_labels(folder, "row", rows)
    # Writing and checksums take about a second per GB each, and run at the same time.
    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(folder.write_tensors, TENSORS, tensors)
        digests = pool.submit(lambda: {name: digest_array(values) for name, values in tensors.items()})
        if columns is not None:
            _write_labels(folder, "column", columns)
        writing.result()

    # The tensors have checksums of their own, so that each is read when it is used; the header has the rest.
    header = digest_array(_read_header(folder.path / TENSORS))
    facts |= {
        "rows": len(rows.values),
        "columns": 0 if columns is None else len(columns.values),
        "dim": vectors.dim,
        "shift": vectors.shift,
        "columns_per_row": vectors.columns_per_row,
        "tensors": {HEADER: header, **digests.result()},
    }
    folder.finish(config=config, inputs=inputs or {}, facts=facts)


def _read_header(file: Path) -> NDArray[np.uint8]:
    """Return the bytes of the safetensors header, including its length."""
    with file.open("rb") as stream:
        length = stream.read(8)
        header = stream.read(min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES))
    return np.frombuffer(length + header, np.uint8)


def _write_labels(folder: FolderWriter, name: str, table: VectorTable) -> None:
    folder.write_lines(f"{name}s.txt", table.vocabulary.to_lines())
    if table.sums is not None:
        folder.write_array(f"{name}_sums.npy", np.asarray(table.sums, np.float64))


def read_vectors(make: type[Vectors], path: str | Path) -> tuple[Vectors, dict[str, Callable[[], None]], str]:
    """Return the memory-mapped vectors of a folder, functions that verify each tensor, and the fingerprint."""
    # `make` is the class `Vectors`, whose module imports this one.
    folder = open_folder(path, STAGE)
    facts = folder.manifest.facts
    if TENSORS not in folder.manifest.parts:
        raise DamagedFolder(f"{folder.path}: {TENSORS} is missing from the manifest; {REMEDY}")

    if not isinstance(facts.get("tensors"), dict):
        raise DamagedFolder(f"{folder.path}: 'tensors' in the manifest is not a JSON object; {REMEDY}")
    with folder.reading(TENSORS) as file:
        _check_tensor(folder, HEADER, _read_header(file))
        tensors = _map_tensors(file)

    try:
        rows = _read_table(folder, "row", tensors["rows"])
        columns = _read_table(folder, "column", tensors["columns"]) if "columns" in tensors else None
        subwords = None
        if "subwords" in tensors:
            subwords = Subwords(folder.array("ngrams.npy"), tensors["subwords"], **facts["subwords"])
        recorded = {**(facts.get("counted_with") or {}), **folder.manifest.config}
        settings = {name: stage for name, stage in recorded.items() if isinstance(stage, dict)}
        training_facts = {name: value for name, value in facts.items() if name in TRAINING_FACTS}
        training_facts["library"] = folder.manifest.library
        if "matrix" in folder.manifest.inputs:
            training_facts["matrix"] = folder.manifest.inputs["matrix"]
        vectors = make(
            rows,
            columns,
            vectors=tensors.get("vectors"),
            shift=float(facts["shift"]),
            columns_per_row=int(facts["columns_per_row"]),
            subwords=subwords,
            settings=settings,
            facts=training_facts,
        )
    except KeyError as error:
        raise DamagedFolder(f"{folder.path}: {error.args[0]!r} is missing; {REMEDY}") from error
    except (ConfigError, VocabularyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFolder(f"{folder.path}: its files do not match: {error}; {REMEDY}") from error

    # Checksums cost a second per GB: each tensor is verified before its first use, and not when the folder is opened.
    checks: dict[str, Callable[[], None]] = {
        name: partial(_check_tensor, folder, name, values) for name, values in tensors.items()
    }
    return vectors, checks, folder.manifest.fingerprint


def _check_tensor(folder: Folder, name: str, values: NDArray[Any]) -> None:
    """Compare a tensor with its checksum."""
    if folder.manifest.facts["tensors"].get(name) != digest_array(values):
        problem = f"{folder.path / TENSORS}: the checksum of {name} differs from the manifest"
        raise describe_damage(folder.path, folder.manifest, problem)


def _read_table(folder: Folder, name: str, values: Floats) -> VectorTable:
    has_sums = f"{name}_sums.npy" in folder.manifest.parts
    sums = np.asarray(folder.array(f"{name}_sums.npy"), np.float64) if has_sums else None
    return VectorTable(Vocabulary.from_text(folder.text(f"{name}s.txt")), values, sums)


def _map_tensors(file: Path) -> Mapping[str, Floats]:
    try:
        with clear_errors(file):
            tensors = map_tensors(file)

        not_float32 = [name for name, values in tensors.matrices.items() if values.dtype != np.float32]
        unexpected = [*tensors.others, *not_float32]
        if unexpected:
            raise ValueError(f"{escape_controls(str(unexpected[0]))} is not one")
    except ValueError as error:
        raise DamagedFolder(f"{file}: not a safetensors file of float32 matrices ({error}); {REMEDY}") from error

    return tensors.matrices


def find_matrix(vectors: Vectors) -> Matrix | None:
    """Return the matrix in the folder `matrix` beside that of the vectors if they were trained on it, else None."""
    if vectors.path is None:
        return None
    with suppress(StorageError):
        matrix = open_matrix(vectors.path.parent / "matrix")
        # By its fingerprint: another run may have replaced it since, or have the same labels. Rows that `extend` added
        # are in no matrix.
        if matrix.fingerprint == vectors.facts.get("matrix") and matrix.rows.tokens == vectors.vocabulary.tokens:
            return matrix
    return None
