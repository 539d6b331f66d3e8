"""NumPy files: `NAME.npy` with the words in `NAME.vocabulary.txt`, or everything in one `.npz`.

Pickles are never loaded. The size of an array is compared with the size of the file before memory is allocated.
"""

from __future__ import annotations

import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import escape, unescape
from swivel.errors import StorageError, VocabularyError, clear_errors
from swivel.storage import create_file, write_arrays, write_header
from swivel.storage.npy import map_array, read_array_header
from swivel.vectors import Vectors
from swivel.vectors.formats.validate import FREE, is_text, make_vectors, shown

_MAX_DEFLATE_RATIO = 1_032  # zlib never expands one byte to more
_MAX_PADDED_BYTES = 1 << 30  # npz pads all words to the longest; up to this size that is acceptable


def words_beside(path: Path) -> Path:
    """Return the path of the vocabulary file of an `.npy` file.

    >>> words_beside(Path("work/vectors.npy")).name
    'vectors.vocabulary.txt'
    """
    return path.with_suffix(".vocabulary.txt")


def write_npy(vectors: Vectors, path: Path) -> None:
    """Write the matrix, and the vocabulary next to it: one word per line, then a tab and its count."""
    values = np.ascontiguousarray(vectors.vectors, "<f4")
    lines = "".join(line + "\n" for line in vectors.vocabulary.to_lines()).encode()

    with create_file(words_beside(path)) as words, create_file(path) as file:
        words.write(lines)
        write_header(file, values.dtype, values.shape)
        # Not `np.save`: if the disk is full, it does not report the reason.
        file.write(values.reshape(-1).view(np.uint8).data)


def read_npy(path: str | Path) -> Vectors:
    """Read a matrix and its vocabulary file, `NAME.vocabulary.txt`: one word per line, optionally a tab and a count."""
    path = Path(path)
    values = _map_matrix(path)
    words, counts = _read_words(words_beside(path))
    return make_vectors(path, words, values, counts)


def _map_matrix(path: Path) -> NDArray[Any]:
    try:
        with clear_errors(path):
            values = map_array(path)
    except ValueError as error:
        raise StorageError(f"{path}: not an npy file ({error}); it is damaged or has another format") from error
    _check_matrix(path, values.shape, values.dtype)
    return values


def _read_words(path: Path) -> tuple[list[str], NDArray[np.int64] | None]:
    try:
        lines = path.read_bytes().decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise StorageError(
            f"{path}, line {line:,}: not valid UTF-8 (byte 0x{error.object[error.start]:02x})"
        ) from error
    except OSError as error:
        raise StorageError(
            f"{path}: {error.strerror or error}; an .npy file needs this file with one word per line"
        ) from error

    fields = [line.removesuffix("\r").split("\t") for line in lines]
    words = [unescape(word) for word, *_ in fields]

    for number, (word, (text, *rest)) in enumerate(zip(words, fields, strict=True), 1):
        if escape(word) != text:
            raise StorageError(
                f"{path}, line {number:,}: {shown(text)} has a backslash that is not an escape: write \\\\"
            )
        if len(rest) > 1 or not all(count.isdecimal() and len(count) <= 18 for count in rest):
            raise StorageError(f"{path}, line {number:,}: expected a word, or a word, a tab and a count")

    if any(len(field) != 2 for field in fields):
        return words, None
    return words, np.array([int(count) for _, count in fields], np.int64)


def write_npz(vectors: Vectors, path: Path) -> None:
    """Write the arrays `vectors`, `words` and, if they are known, `counts` to one file."""
    vocabulary = vectors.vocabulary
    longest = max(map(len, vocabulary))
    for word in vocabulary:
        if word.endswith("\0"):
            raise VocabularyError(f"npz cannot store the label {word!r}, which ends in NUL: use parquet or arrow")
    if longest * 4 * len(vocabulary) > max(_MAX_PADDED_BYTES, vectors.vectors.nbytes):
        raise VocabularyError(
            f"npz pads every label to the longest, which has {longest:,} characters: {FREE.replace('npz, ', '')}"
        )

    arrays: dict[str, NDArray[Any]] = {
        "vectors": np.asarray(vectors.vectors, "<f4"),
        "words": np.array(vocabulary.tokens),
    }
    if vocabulary.counts.any():
        arrays["counts"] = vocabulary.counts

    write_arrays(path, arrays)


def read_npz(path: str | Path) -> Vectors:
    """Read the arrays `vectors`, `words` and, if present, `counts` of an npz file."""
    path = Path(path)
    try:
        with clear_errors(path), zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in ("vectors", "words"):
                if name not in members:
                    raise StorageError(
                        f"{path}: no array called {name!r}; there are {', '.join(map(repr, members)) or 'none'}"
                    )

            present: list[str] = [name for name in ("vectors", "words", "counts") if name in members]
            arrays = {name: _read_member(path, archive, members[name]) for name in present}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError, MemoryError) as error:
        raise StorageError(f"{path}: not an npz file ({error}); it is damaged or has another format") from error

    values = arrays["vectors"]
    _check_matrix(path, values.shape, values.dtype)
    return make_vectors(path, _take_words(path, arrays["words"]), values, _take_counts(path, arrays))


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Return one array of the archive after comparing the sizes in its headers with the size of the file."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # NumPy writes only these
        raise ValueError(f"{info.filename!r} uses a compression that NumPy does not use")

    with archive.open(info) as file:
        header = read_array_header(file)
        claimed = header.nbytes
        if claimed > info.file_size or claimed > _MAX_DEFLATE_RATIO * path.stat().st_size:
            raise ValueError(f"{info.filename!r} should have {claimed:,} bytes but has fewer")
        data = file.read(claimed)

    if len(data) != claimed:
        raise ValueError(f"{info.filename!r} ends after {len(data):,} of {claimed:,} bytes")
    if not claimed:
        return np.empty(header.shape, header.dtype)
    return np.frombuffer(data, header.dtype).reshape(header.shape, order=header.order)


def _check_matrix(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    if len(shape) != 2 or dtype.kind != "f":
        raise StorageError(f"{path}: expected a matrix of floats, got {dtype} of shape {shape}")


def _take_words(path: Path, words: NDArray[Any]) -> list[str]:
    if words.ndim != 1 or words.dtype.kind != "U":
        raise StorageError(
            f"{path}: expected 'words' to be a 1-D array of strings, got {words.dtype} of shape {words.shape}"
        )

    # NumPy would fail on these code points without naming the file.
    points = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view("<u4")
    if points.size and points.max() > sys.maxunicode:
        raise StorageError(f"{path}: 'words' contains an invalid code point ({points.max():,})")

    result: list[str] = words.tolist()
    for number, word in enumerate(result, 1):
        if not is_text(word):
            raise StorageError(
                f"{path}, word {number:,}: {word!r} contains half a surrogate pair and is not valid text"
            )
    return result


def _take_counts(path: Path, arrays: dict[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    counts = arrays.get("counts")
    if counts is None:
        return None
    if counts.shape != arrays["words"].shape or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise StorageError(
            f"{path}: expected 'counts' to have one integer per word, got {counts.dtype} of shape {counts.shape}"
        )
    return counts.astype(np.int64)
