"""The folder of TensorBoard's projector: `vectors.tsv`, `metadata.tsv` and `projector_config.pbtxt`.

Receives a path, hands on `Vectors`, and the other way round. `metadata.tsv` has one label a line; where counts are
known, a second column and a line of names first, as the projector wants it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from swivel.errors import StorageError, clear_errors
from swivel.storage import build_folder, create_file, write_file
from swivel.vectors import Vectors
from swivel.vectors.formats.decimal_text import join_digits
from swivel.vectors.formats.validate import make_vectors, refuse_labels, shown
from swivel.vectors.search import Floats

VECTORS, METADATA, CONFIG = "vectors.tsv", "metadata.tsv", "projector_config.pbtxt"
_NAMES = "word\tcount"
_CHUNK_ROWS = 1_024
_CONFIG_TEXT = f"""embeddings {{
  tensor_name: "swivel"
  tensor_path: "{VECTORS}"
  metadata_path: "{METADATA}"
}}
"""


def write_projector(vectors: Vectors, path: Path) -> None:
    """Write a folder that `tensorboard --logdir` shows, and whose two tables projector.tensorflow.org loads."""
    refuse_labels(vectors.vocabulary, "\t\n\r", "projector")
    vocabulary = vectors.vocabulary
    lines = list(vocabulary)
    if vocabulary.counts.any():
        lines = [_NAMES, *(f"{word}\t{count}" for word, count in zip(vocabulary, vocabulary.counts, strict=True))]
    with build_folder(path) as folder:
        write_file(folder / METADATA, "".join(line + "\n" for line in lines).encode())
        write_file(folder / CONFIG, _CONFIG_TEXT.encode())
        with create_file(folder / VECTORS) as file:
            for start in range(0, len(vectors), _CHUNK_ROWS):
                rows = join_digits(vectors.vectors[start : start + _CHUNK_ROWS], "\t")
                file.write("".join(row + "\n" for row in rows).encode())


def read_projector(path: str | Path) -> Vectors:
    """Read the two tables; a line of names in `metadata.tsv` is known by there being one more line than vectors."""
    path = Path(path)
    values = _read_values(path / VECTORS)
    lines = list(_lines(path / METADATA))
    named = len(lines) == len(values) + 1
    if len(lines) != len(values) + named:
        raise StorageError(f"{path / METADATA}: {len(lines):,} lines for {len(values):,} vectors")
    fields = [line.split("\t") for line in lines[named:]]
    if not named or lines[0] != _NAMES:
        return make_vectors(path / METADATA, [word for word, *_ in fields], values)
    for number, field in enumerate(fields, 2):
        if len(field) != 2 or not field[1].isdecimal() or len(field[1]) > 18:
            raise StorageError(f"{path / METADATA}, line {number:,}: expected a word, a tab and a count")
    counts = np.array([int(count) for _, count in fields], np.int64)
    return make_vectors(path / METADATA, [word for word, _ in fields], values, counts)


def _read_values(path: Path) -> Floats:
    rows: list[Floats] = []
    for number, line in enumerate(_lines(path), 1):
        try:
            row = np.array([float(value) for value in line.split("\t")])
        except ValueError as error:
            raise StorageError(f"{path}, line {number:,}: {error}") from error
        if rows and len(row) != len(rows[0]):
            raise StorageError(f"{path}, line {number:,}: {len(row):,} values, {len(rows[0]):,} before")
        with np.errstate(over="ignore"):  # What is too large for 32 bits becomes infinite, and is told.
            rows.append(row.astype(np.float32))
    if not rows:
        raise StorageError(f"{path}: the file has no vectors")
    return np.stack(rows)


def _lines(path: Path) -> Iterator[str]:
    number = 0
    try:
        with clear_errors(path), path.open("rb") as file:
            for line in file:
                number += 1
                yield line.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        where = shown(error.object[: error.start].decode("utf-8", "replace"))
        raise StorageError(f"{path}, line {number:,}: not valid UTF-8 after {where}") from error
