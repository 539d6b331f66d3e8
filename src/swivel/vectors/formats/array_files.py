"""Files of arrays: `NAME.npy` with the words in `NAME.vocabulary.txt`, one `.npz`, safetensors, or text.

A safetensors file has a float32 tensor `vectors` of shape (words, dimensions). The header's metadata has `words` and
`counts` as JSON lists. Values are memory-mapped.

The folder of the TensorBoard projector has `vectors.tsv`, `metadata.tsv` and `projector_config.pbtxt`. `metadata.tsv`
has one label per line. If counts are known it has a second column, and then a header line, as the projector requires.

Pickles are never loaded. The size of an array is compared with the size of the file before memory is allocated.
"""

from __future__ import annotations

import json
import sys
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import escape, unescape
from swivel.errors import StorageError, VocabularyError
from swivel.runtime.resources import check_memory
from swivel.storage.arrays import (
    ArrayHeader,
    Tensors,
    make_header,
    map_array,
    map_tensors,
    read_array_header,
    write_array,
    write_tensors,
)
from swivel.storage.files import build_folder, create_file, create_pair, write_arrays, write_file
from swivel.vectors import Vectors
from swivel.vectors.formats import validate
from swivel.vectors.search import LABEL_BYTES, Floats

_WORDS_SUFFIX = ".vocabulary.txt"  # of the vocabulary file next to an `.npy` file
_MAX_DEFLATE_RATIO = 1_032  # zlib never expands one byte to more
_ARRAYS = ("vectors", "words", "counts")
_TENSOR = "vectors"
_MAX_HEADER_BYTES = 100_000_000  # limit of the safetensors library
_MAX_PADDED_BYTES = 1 << 30  # npz pads all words to the longest; up to this size that is acceptable
PROJECTOR_VECTORS = "vectors.tsv"
_METADATA = "metadata.tsv"
_HEADER = "word\tcount"
_CONFIG = f"""embeddings {{
  tensor_name: "swivel"
  tensor_path: "{PROJECTOR_VECTORS}"
  metadata_path: "{_METADATA}"
}}
"""


def npy_outputs(vectors: Vectors, path: Path) -> tuple[Path, ...]:
    """Return the file of the matrix and that of its vocabulary, unless this has the same words."""
    # The vocabulary is renamed first, so an export that was killed may have left it alone.
    words = path.with_suffix(_WORDS_SUFFIX)
    is_same = words.is_file() and words.read_bytes() == _word_lines(vectors)
    return (path,) if is_same else (path, words)


def _word_lines(vectors: Vectors) -> bytes:
    return "".join(line + "\n" for line in vectors.vocabulary.to_lines()).encode()


def write_npy(vectors: Vectors, path: Path) -> None:
    """Write the matrix, and the vocabulary next to it: one word per line, then a tab and its count."""
    with create_pair(path, path.with_suffix(_WORDS_SUFFIX)) as (file, words):
        words.write(_word_lines(vectors))
        write_array(file, np.ascontiguousarray(vectors.vectors, "<f4"))


def read_npy(path: Path) -> Vectors:
    """Read a matrix and its vocabulary file, `NAME.vocabulary.txt`: one word per line, optionally a tab and a count."""
    with validate.reading(path, "an npy file"):
        values = map_array(path)

    words, counts = _read_words(path.with_suffix(_WORDS_SUFFIX))
    return validate.make_vectors(path, words, values, counts)


def _read_words(path: Path) -> tuple[list[str], NDArray[np.int64] | None]:
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder; an .npy file needs this file with one word per line")

    words = []
    counts = []
    for number, line in enumerate(validate.read_lines(path), 1):
        text, *rest = line.split("\t")
        word = unescape(text)
        if escape(word) != text:
            raise StorageError(
                f"{path}, line {number:,}: {validate.shown(text)} has a backslash that is not an escape: write \\\\"
            )
        if len(rest) > 1 or not all(map(validate.is_count, rest)):
            raise StorageError(f"{path}, line {number:,}: expected a word, or a word, a tab and a count")

        words.append(word)
        counts += [int(count) for count in rest]

    return words, np.array(counts, np.int64) if len(counts) == len(words) else None


def write_npz(vectors: Vectors, path: Path) -> None:
    """Write the arrays `vectors`, `words` and, if they are known, `counts` to one file."""
    vocabulary = vectors.vocabulary
    longest = max(map(len, vocabulary))
    for word in vocabulary:
        if word.endswith("\0"):
            raise VocabularyError(f"npz cannot store the label {word!r}, which ends in NUL: use parquet or arrow")
    if longest * 4 * len(vocabulary) > max(_MAX_PADDED_BYTES, vectors.vectors.nbytes):
        raise VocabularyError(
            f"npz pads every label to the longest, which has {longest:,} characters: use safetensors, parquet or arrow"
        )

    counts = {"counts": vocabulary.counts} if vocabulary.counts.any() else {}
    values = np.asarray(vectors.vectors, "<f4")
    write_arrays(path, {"vectors": values, "words": np.array(vocabulary.tokens), **counts})


def read_npz(path: Path) -> Vectors:
    """Read the arrays `vectors`, `words` and, if present, `counts` of an npz file."""
    errors = (ValueError, zipfile.BadZipFile, zlib.error, EOFError, RuntimeError)
    with validate.reading(path, "an npz file", errors), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        validate.check_names(path, "array", ("vectors", "words"), members)

        headers = {name: _read_header(path, archive, members[name]) for name in _ARRAYS if name in members}
        # Vectors that are not float32 are copied, and every label becomes a text with entries in dictionaries.
        size = headers["vectors"].size
        narrowed_bytes = 0 if headers["vectors"].dtype == np.float32 else 4 * size
        array_bytes = sum(header.nbytes for header in headers.values())
        label_bytes = LABEL_BYTES * headers["words"].size
        check_memory(f"reading {path}", array_bytes + narrowed_bytes + label_bytes)

        values = _read_member(archive, members["vectors"])
        words = _take_words(path, _read_member(archive, members["words"]))
        counts = _read_member(archive, members["counts"]) if "counts" in members else None

    return validate.make_vectors(path, words, values, counts)


def _read_header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArrayHeader:
    """Return the header of one array of the archive, if the file can have as many bytes as it says."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # NumPy writes only these
        raise ValueError(f"{info.filename!r} uses a compression that NumPy does not use")
    with archive.open(info) as file:
        header = read_array_header(file)
        available = info.file_size - file.tell()
    if header.nbytes > available or header.nbytes > _MAX_DEFLATE_RATIO * path.stat().st_size:
        raise ValueError(f"{info.filename!r} should have {header.nbytes:,} bytes but has fewer")
    return header


def _read_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(info) as file:
        return np.asarray(np.lib.format.read_array(file, allow_pickle=False))


def _take_words(path: Path, words: NDArray[Any]) -> list[str]:
    if words.ndim != 1 or words.dtype.kind != "U":
        raise StorageError(
            f"{path}: expected 'words' to be a 1-D array of strings, got {words.dtype} of shape {words.shape}"
        )

    # NumPy would fail on these code points without naming the file.
    points = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view("<u4")
    if points.size and points.max() > sys.maxunicode:
        raise StorageError(f"{path}: 'words' contains an invalid code point ({points.max():,})")
    return list(words.tolist())


def write_safetensors(vectors: Vectors, path: Path) -> None:
    """Write vectors, words and counts to one safetensors file."""
    vocabulary = vectors.vocabulary
    metadata = {"words": json.dumps(vocabulary.tokens), "format": "swivel"}
    if vocabulary.counts.any():
        metadata["counts"] = json.dumps(vocabulary.counts.tolist())
    write_matrix(path, _TENSOR, vectors.vectors, metadata)


def write_matrix(path: Path, name: str, matrix: Floats, metadata: Mapping[str, str]) -> None:
    """Write one float32 matrix to a safetensors file."""
    tensors = {name: np.asarray(matrix, np.float32)}
    size = len(make_header(tensors, metadata))
    if size > _MAX_HEADER_BYTES:
        raise VocabularyError(
            f"safetensors cannot store these labels: they need {size:,} bytes, and the header may have at most "
            f"{_MAX_HEADER_BYTES:,}; use parquet, arrow or npz"
        )

    with create_file(path) as file:
        write_tensors(file, tensors, metadata)


def read_safetensors(path: Path) -> Vectors:
    """Read a float matrix called `vectors` with its `words` in the metadata."""
    tensors = read_tensors(path)
    validate.check_names(path, "tensor", [_TENSOR], tensors.matrices)
    validate.check_names(path, "list in the metadata", ["words"], tensors.metadata)

    words = _read_list(path, tensors.metadata, "words", str)
    counts = None
    if "counts" in tensors.metadata:
        counts = np.array(_read_list(path, tensors.metadata, "counts", int))

    return validate.make_vectors(path, words, tensors.matrices[_TENSOR], counts)


def _read_list(path: Path, metadata: Mapping[str, str], name: str, kind: type) -> list[Any]:
    try:
        values = json.loads(metadata[name])
        if isinstance(values, list) and all(type(value) is kind for value in values):
            return values
    except (ValueError, RecursionError):
        pass

    expected = "words" if kind is str else "numbers"
    raise StorageError(f"{path}: {name!r} in the metadata is not a JSON list of {expected}")


def read_tensors(path: Path) -> Tensors:
    """Return the float matrices of a safetensors file, memory-mapped read-only; other tensors are skipped."""
    with validate.reading(path, "a safetensors file"):
        return map_tensors(path)


def write_projector(vectors: Vectors, path: Path) -> None:
    """Write a folder for `tensorboard --logdir`; projector.tensorflow.org loads its two tables."""
    validate.refuse_labels(vectors.vocabulary, "\t\n\r", "projector")
    vocabulary = vectors.vocabulary
    lines = list(vocabulary)
    if vocabulary.counts.any():
        pairs = zip(vocabulary, vocabulary.counts, strict=True)
        lines = [_HEADER, *(f"{word}\t{count}" for word, count in pairs)]

    with build_folder(path) as folder:
        write_file(folder / _METADATA, "".join(line + "\n" for line in lines).encode())
        write_file(folder / "projector_config.pbtxt", _CONFIG.encode())
        with create_file(folder / PROJECTOR_VECTORS) as file:
            file.writelines(("\t".join(map(str, row)) + "\n").encode() for row in vectors.vectors)


def read_projector(path: Path) -> Vectors:
    """Read the two tables; `metadata.tsv` has a header if it has one line more than there are vectors."""
    metadata = path / _METADATA
    # loadtxt would skip empty lines, and the labels after them would be those of other vectors.
    rows = (line or "empty line" for line in validate.read_lines(path / PROJECTOR_VECTORS))
    with validate.reading(path / PROJECTOR_VECTORS, "a table of numbers"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about no lines at all
        values = np.loadtxt(rows, np.float32, comments=None, delimiter="\t", ndmin=2)
    lines = list(validate.read_lines(metadata))

    has_header = len(lines) == len(values) + 1
    if len(lines) != len(values) + has_header:
        raise StorageError(f"{metadata}: {len(lines):,} lines, but {len(values):,} vectors")

    fields = [line.split("\t") for line in lines[has_header:]]
    words = [field[0] for field in fields]
    if not has_header or lines[0] != _HEADER:
        return validate.make_vectors(metadata, words, values)

    for number, field in enumerate(fields, 2):
        if len(field) != 2 or not validate.is_count(field[1]):
            raise StorageError(f"{metadata}, line {number:,}: expected a word, a tab and a count")

    return validate.make_vectors(metadata, words, values, np.array([int(count) for _, count in fields], np.int64))
