"""The folder of the TensorBoard projector: `vectors.tsv`, `metadata.tsv` and `projector_config.pbtxt`.

`metadata.tsv` has one label per line. If counts are known it has a second column, and then a header line, as the
projector requires.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swivel.errors import StorageError
from swivel.storage.files import build_folder, create_file, write_file
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import is_count, make_vectors, parse_row, read_lines, refuse_labels
from swivel.vectors.search import Floats

VECTORS = "vectors.tsv"
_METADATA = "metadata.tsv"
_HEADER = "word\tcount"
_CONFIG = f"""embeddings {{
  tensor_name: "swivel"
  tensor_path: "{VECTORS}"
  metadata_path: "{_METADATA}"
}}
"""


def write_projector(vectors: Vectors, path: Path) -> None:
    """Write a folder for `tensorboard --logdir`; projector.tensorflow.org loads its two tables."""
    refuse_labels(vectors.vocabulary, "\t\n\r", "projector")
    vocabulary = vectors.vocabulary
    lines = list(vocabulary)
    if vocabulary.counts.any():
        pairs = zip(vocabulary, vocabulary.counts, strict=True)
        lines = [_HEADER, *(f"{word}\t{count}" for word, count in pairs)]

    with build_folder(path) as folder:
        write_file(folder / _METADATA, "".join(line + "\n" for line in lines).encode())
        write_file(folder / "projector_config.pbtxt", _CONFIG.encode())
        with create_file(folder / VECTORS) as file:
            file.writelines(("\t".join(map(str, row)) + "\n").encode() for row in vectors.vectors)


def read_projector(path: Path) -> Vectors:
    """Read the two tables; `metadata.tsv` has a header if it has one line more than there are vectors."""
    metadata = path / _METADATA
    values = _read_values(path / VECTORS)
    lines = list(read_lines(metadata))

    has_header = len(lines) == len(values) + 1
    if len(lines) != len(values) + has_header:
        raise StorageError(f"{metadata}: {len(lines):,} lines, but {len(values):,} vectors")

    fields = [line.split("\t") for line in lines[has_header:]]
    words = [field[0] for field in fields]
    if not has_header or lines[0] != _HEADER:
        return make_vectors(metadata, words, values)

    for number, field in enumerate(fields, 2):
        if len(field) != 2 or not is_count(field[1]):
            raise StorageError(f"{metadata}, line {number:,}: expected a word, a tab and a count")

    return make_vectors(metadata, words, values, np.array([int(count) for _, count in fields], np.int64))


def _read_values(path: Path) -> Floats:
    rows: list[Floats] = []
    for number, line in enumerate(read_lines(path), 1):
        try:
            rows.append(parse_row(line.split("\t")))
        except ValueError as error:
            raise StorageError(f"{path}, line {number:,}: {error}") from error
        if len(rows[-1]) != len(rows[0]):
            raise StorageError(
                f"{path}, line {number:,}: {len(rows[-1]):,} values, expected {len(rows[0]):,} as before"
            )

    if not rows:
        raise StorageError(f"{path}: the file has no vectors")

    return np.stack(rows)
