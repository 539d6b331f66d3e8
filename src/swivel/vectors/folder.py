"""The folder of trained vectors; `docs/file-formats.md` specifies the format.

Tensors are memory-mapped, and each is verified before its first use, so that unused tensors are never read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, DamagedFolder, UnknownToken, VocabularyError, clear_errors
from swivel.storage import (
    REMEDY,
    Folder,
    FolderWriter,
    describe_damage,
    digest_array,
    one_line,
    open_folder,
)
from swivel.storage.safetensors import map_tensors
from swivel.vectors.search import Floats
from swivel.vectors.subwords import Subwords

STAGE = "vectors"
TRAINING_STAGES = ("train", "vectors", "ranking")  # of the settings; the others are those of the counts
TRAINING_FACTS = ("matrix", "plan", "losses", "training_seconds", "tuning", "trained_rows")
TENSORS = "vectors.safetensors"
HEADER = "header"  # key of the checksum of the safetensors header
_MAX_HEADER_BYTES = 1 << 20  # the header of three tensors has about 200


@dataclass(frozen=True, slots=True)
class VectorTable:
    """The rows or the columns of a model: labels, one vector per label, and the marginal counts if known."""

    vocabulary: Vocabulary
    values: Floats
    sums: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        count = len(self.vocabulary)
        if np.ndim(self.values) != 2 or len(self.values) != count:
            raise ConfigError(
                f"a vocabulary of {count:,} tokens needs vectors of shape ({count}, dim), got {np.shape(self.values)}"
            )

        if self.sums is not None and np.shape(self.sums) != (count,):
            raise ConfigError(f"a vocabulary of {count:,} tokens needs {count:,} sums, got {np.shape(self.sums)}")


@dataclass(frozen=True, slots=True)
class Contents:
    """Everything in a folder of vectors; `vectors` is the same object as `rows.values` if they are equal.

    `settings` and `facts` are those of `Vectors`.
    """

    rows: VectorTable
    columns: VectorTable | None
    vectors: Floats
    shift: float = 0.0
    columns_per_row: int = 0
    subwords: Subwords | None = None
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.subwords is not None and self.subwords.table.shape[1:] != np.shape(self.vectors)[1:]:
            raise ConfigError(f"n-grams of shape {self.subwords.table.shape} need vectors of as many dimensions")
        if np.ndim(self.vectors) != 2 or len(self.vectors) != len(self.rows.values):
            raise ConfigError(f"{len(self.rows.values):,} rows need as many vectors, got {np.shape(self.vectors)}")
        if self.columns is not None:
            self._check_columns(self.columns)

    def find_row(self, token: str) -> int:
        """Return the id of a row; an UnknownToken error says if a table has a column of that name."""
        words = self.rows.vocabulary
        is_table = self.columns is not None and not self.columns_per_row
        if is_table and token not in words and self.columns is not None and token in self.columns.vocabulary:
            raise UnknownToken(
                f"{token!r} is the label of a column, not of a row; for its neighbors use "
                "swivel.Recommender(vectors).similar, or the file that swivel export --side columns writes"
            )
        return words.id(token, kind="labels" if is_table else "tokens")

    def _check_columns(self, columns: VectorTable) -> None:
        if columns.values.shape[1] != self.rows.values.shape[1]:
            raise ConfigError(
                f"rows have {self.rows.values.shape[1]} dimensions and columns {columns.values.shape[1]}: "
                "use rows and columns of the same model"
            )

        expected = len(self.rows.values) * self.columns_per_row
        if self.columns_per_row and len(columns.values) != expected:
            raise ConfigError(
                f"{len(self.rows.values):,} rows with {self.columns_per_row} columns each need {expected:,} columns, "
                f"got {len(columns.values):,}"
            )

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments of `Vectors` for these contents."""
        arguments = {each.name: getattr(self, each.name) for each in fields(self)}
        if self.vectors is self.rows.values:
            del arguments["vectors"]
        return arguments


def write_contents(
    folder: FolderWriter,
    contents: Contents,
    *,
    config: Mapping[str, Any] | None = None,
    inputs: Mapping[str, str] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> None:
    """Write all files and the manifest, with further facts.

    `config` and `inputs` identify the job that made the vectors; without them, the folder is nobody's result.
    """
    rows = contents.rows
    columns = contents.columns
    tensors = {"rows": rows.values}
    if contents.vectors is not rows.values:
        tensors["vectors"] = contents.vectors

    if columns is not None:
        tensors["columns"] = columns.values

    subwords = contents.subwords
    facts = {**contents.facts, **(facts or {})}
    if "matrix" in (inputs or {}):
        facts.pop("matrix", None)
    if config is None:
        config = {name: contents.settings[name] for name in TRAINING_STAGES if name in contents.settings}
    counted_with = {name: dict(stage) for name, stage in contents.settings.items() if name not in config}
    if counted_with:
        facts["counted_with"] = counted_with
    if subwords is not None:
        folder.write_array("ngrams.npy", subwords.ngrams)
        tensors["subwords"] = subwords.table
        facts["subwords"] = {"length": subwords.length, "min_n": subwords.min_n, "max_n": subwords.max_n}

    _write_labels(folder, "row", rows)
    # Writing and checksums take about a second per GB each, and run at the same time.
    with ThreadPoolExecutor(2) as pool:
        written = pool.submit(folder.write_tensors, TENSORS, tensors)
        digests = pool.submit(lambda: {name: digest_array(values) for name, values in tensors.items()})
        if columns is not None:
            _write_labels(folder, "column", columns)
        written.result()

    header = digest_array(_read_header(folder.path / TENSORS))
    facts |= {
        "rows": len(rows.values),
        "columns": 0 if columns is None else len(columns.values),
        "dim": contents.vectors.shape[1],
        "shift": contents.shift,
        "columns_per_row": contents.columns_per_row,
        "tensors": {HEADER: header, **digests.result()},
    }
    folder.finish(config=config, inputs=inputs or {}, facts=facts)


def fingerprint_contents(contents: Contents) -> str:
    """Return a digest of labels, rows and columns, equal for vectors in memory and those loaded from their folder."""
    digest = hashlib.sha256()
    for side in (contents.rows, contents.columns):
        if side is not None:
            digest.update("\n".join(side.vocabulary.to_lines()).encode("utf-8", "surrogatepass"))
            digest.update(np.ascontiguousarray(side.values).data)
    return digest.hexdigest()[:16]


def _read_header(file: Path) -> NDArray[np.uint8]:
    """Return the bytes of the safetensors header, including its length."""
    with file.open("rb") as opened:
        length = opened.read(8)
        header = opened.read(min(int.from_bytes(length, "little"), _MAX_HEADER_BYTES))
    return np.frombuffer(length + header, np.uint8)


def _write_labels(folder: FolderWriter, name: str, table: VectorTable) -> None:
    folder.write_lines(f"{name}s.txt", table.vocabulary.to_lines())
    if table.sums is not None:
        folder.write_array(f"{name}_sums.npy", np.asarray(table.sums, np.float64))


def read_contents(path: str | Path) -> tuple[Contents, dict[str, Callable[[], None]], str]:
    """Return the memory-mapped contents of a folder, a function that verifies each tensor, and the fingerprint."""
    folder = open_folder(path, STAGE)
    facts = folder.manifest.facts
    if TENSORS not in folder.manifest.parts:
        raise DamagedFolder(f"{folder.path}: {TENSORS} is missing from the manifest; {REMEDY}")

    if not isinstance(facts.get("tensors", {}), dict):
        raise DamagedFolder(f"{folder.path}: 'tensors' in the manifest is not a JSON object; {REMEDY}")
    if HEADER in facts.get("tensors", {}):
        with folder.reading(TENSORS) as file:
            header = _read_header(file)
        _check_tensor(folder, HEADER, header)
    with folder.reading(TENSORS) as file:
        tensors = _map_tensors(file)

    try:
        rows = _read_table(folder, "row", tensors["rows"])
        columns = _read_table(folder, "column", tensors["columns"]) if "columns" in tensors else None
        vectors = tensors.get("vectors", rows.values)
        subwords = None
        if "subwords" in tensors:
            subwords = Subwords(folder.array("ngrams.npy"), tensors["subwords"], **facts["subwords"])
        recorded = {**(facts.get("counted_with") or {}), **folder.manifest.config}
        settings = {name: dict(stage) for name, stage in recorded.items() if isinstance(stage, Mapping)}
        known = {name: value for name, value in facts.items() if name in TRAINING_FACTS}
        known["library"] = folder.manifest.library
        if "matrix" in folder.manifest.inputs:
            known["matrix"] = folder.manifest.inputs["matrix"]
        contents = Contents(
            rows, columns, vectors, float(facts["shift"]), int(facts["columns_per_row"]), subwords, settings, known
        )
    except KeyError as error:
        raise DamagedFolder(f"{folder.path}: {error.args[0]!r} is missing; {REMEDY}") from error
    except (ConfigError, VocabularyError, TypeError, ValueError, OverflowError) as error:
        raise DamagedFolder(f"{folder.path}: its files do not match: {error}; {REMEDY}") from error

    checks: dict[str, Callable[[], None]] = {
        name: partial(_check_tensor, folder, name, values) for name, values in tensors.items()
    }
    return contents, checks, folder.manifest.fingerprint


def _check_tensor(folder: Folder, name: str, values: NDArray[Any]) -> None:
    """Compare a tensor with its checksum; folders of older versions have one checksum for the whole file."""
    digests = folder.manifest.facts.get("tensors", {})
    if name not in digests:
        folder.check(TENSORS)
    elif digests[name] != digest_array(values, digests[name]):
        problem = f"{folder.path / TENSORS}: the checksum of {name} differs from the manifest"
        raise describe_damage(folder.path, folder.manifest, problem)


def _read_table(folder: Folder, name: str, values: Floats) -> VectorTable:
    sums = f"{name}_sums.npy"
    return VectorTable(
        Vocabulary.from_text(folder.text(f"{name}s.txt")),
        values,
        np.asarray(folder.array(sums), np.float64) if sums in folder.manifest.parts else None,
    )


def _map_tensors(file: Path) -> Mapping[str, Floats]:
    try:
        with clear_errors(file):
            tensors = map_tensors(file)

        not_float32 = [name for name, values in tensors.matrices.items() if values.dtype != np.float32]
        unexpected = [*tensors.others, *not_float32]
        if unexpected:
            raise ValueError(f"{one_line(unexpected[0])} is not one")
    except ValueError as error:
        raise DamagedFolder(f"{file}: not a safetensors file of float32 matrices ({error}); {REMEDY}") from error

    return tensors.matrices
