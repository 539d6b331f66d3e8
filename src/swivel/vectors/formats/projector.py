"""The folder of the TensorBoard projector: `vectors.tsv`, `metadata.tsv` and `projector_config.pbtxt`.

`metadata.tsv` has one label per line. If counts are known it has a second column, and then a header line, as the
projector requires.
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

VECTORS = "vectors.tsv"
METADATA = "metadata.tsv"
CONFIG = "projector_config.pbtxt"
_HEADER = "word\tcount"
_CHUNK_ROWS = 1_024
_CONFIG_TEXT = f"""embeddings {{
  tensor_name: "swivel"
  tensor_path: "{VECTORS}"
  metadata_path: "{METADATA}"
}}
"""


def write_projector(vectors: Vectors, path: Path) -> None:
    """Write a folder for `tensorboard --logdir`; projector.tensorflow.org loads its two tables."""
    refuse_labels(vectors.vocabulary, "\t\n\r", "projector")
    vocabulary = vectors.vocabulary
    lines = list(vocabulary)
    if vocabulary.counts.any():
        counted = zip(vocabulary, vocabulary.counts, strict=True)
        lines = [_HEADER, *(f"{word}\t{count}" for word, count in counted)]

    with build_folder(path) as folder:
        write_file(folder / METADATA, "".join(line + "\n" for line in lines).encode())
        write_file(folder / CONFIG, _CONFIG_TEXT.encode())
        with create_file(folder / VECTORS) as file:
            for start in range(0, len(vectors), _CHUNK_ROWS):
                rows = join_digits(vectors.vectors[start : start + _CHUNK_ROWS], "\t")
                file.write("".join(row + "\n" for row in rows).encode())


def read_projector(path: str | Path) -> Vectors:
    """Read the two tables; `metadata.tsv` has a header if it has one line more than there are vectors."""
    path = Path(path)
    values = _read_values(path / VECTORS)
    lines = list(_lines(path / METADATA))

    has_header = len(lines) == len(values) + 1
    if len(lines) != len(values) + has_header:
        raise StorageError(f"{path / METADATA}: {len(lines):,} lines, but {len(values):,} vectors")

    fields = [line.split("\t") for line in lines[has_header:]]
    if not has_header or lines[0] != _HEADER:
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
            raise StorageError(f"{path}, line {number:,}: {len(row):,} values, expected {len(rows[0]):,} as before")
        with np.errstate(over="ignore"):  # Values too large for float32 become inf, which is reported as an error.
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
