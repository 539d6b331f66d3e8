"""numpy's own files: `NAME.npy` with the words beside it in `NAME.vocabulary.txt`, or all in one `.npz`.

Receives a path, hands on `Vectors`, and the other way round. No pickle is loaded, and no array before its size has been
compared with what is there.
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

_MOST_DEFLATED = 1_032  # zlib's best: a byte of a file never becomes more
_PADDED = 1 << 30  # bytes of words, padded to the longest, that nobody would notice


def words_beside(path: Path) -> Path:
    """Return where the words of an `.npy` file are.

    >>> words_beside(Path("work/vectors.npy")).name
    'vectors.vocabulary.txt'
    """
    return path.with_suffix(".vocabulary.txt")


def write_npy(vectors: Vectors, path: Path) -> None:
    """Write the matrix, and beside it the vocabulary: one word a line, a tab, its count."""
    values = np.ascontiguousarray(vectors.vectors, "<f4")
    lines = "".join(line + "\n" for line in vectors.vocabulary.to_lines()).encode()
    with create_file(words_beside(path)) as words, create_file(path) as file:
        words.write(lines)
        write_header(file, values.dtype, values.shape)
        file.write(values.reshape(-1).view(np.uint8).data)  # numpy's own way says not why it fails


def read_npy(path: str | Path) -> Vectors:
    """Read a matrix and the words beside it: `NAME.vocabulary.txt`, one a line, with a tab and a count or without."""
    path = Path(path)
    values = _map_matrix(path)
    words, counts = _read_words(words_beside(path))
    return make_vectors(path, words, values, counts)


def _map_matrix(path: Path) -> NDArray[Any]:
    try:
        with clear_errors(path):
            values = map_array(path)
    except ValueError as error:
        raise StorageError(f"{path}: not an npy file ({error}); it is damaged, or something else") from error
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
            f"{path}: {error.strerror or error}; an .npy file has its words there, one a line"
        ) from error
    fields = [line.removesuffix("\r").split("\t") for line in lines]
    words = [unescape(word) for word, *_ in fields]
    for number, (word, (text, *rest)) in enumerate(zip(words, fields, strict=True), 1):
        if escape(word) != text:
            raise StorageError(
                f"{path}, line {number:,}: {shown(text)} has a backslash that begins no escape: write \\\\"
            )
        if len(rest) > 1 or not all(count.isdecimal() and len(count) <= 18 for count in rest):
            raise StorageError(f"{path}, line {number:,}: expected a word, or a word, a tab and a count")
    if not all(len(each) == 2 for each in fields):
        return words, None
    return words, np.array([int(count) for _, count in fields], np.int64)


def write_npz(vectors: Vectors, path: Path) -> None:
    """Write `vectors`, `words` and, where they are known, `counts` as one file."""
    vocabulary = vectors.vocabulary
    longest = max(map(len, vocabulary))
    for word in vocabulary:
        if word.endswith("\0"):
            raise VocabularyError(f"npz cannot hold the label {word!r}, for the NUL at its end: take parquet or arrow")
    if longest * 4 * len(vocabulary) > max(_PADDED, vectors.vectors.nbytes):
        raise VocabularyError(
            f"npz pads every label to the longest, and one has {longest:,} characters: {FREE.replace('npz, ', '')}"
        )
    arrays: dict[str, NDArray[Any]] = {
        "vectors": np.asarray(vectors.vectors, "<f4"),
        "words": np.array(vocabulary.tokens),
    }
    if vocabulary.counts.any():
        arrays["counts"] = vocabulary.counts
    write_arrays(path, arrays)


def read_npz(path: str | Path) -> Vectors:
    """Read `vectors`, `words` and, where they are there, `counts`."""
    path = Path(path)
    try:
        with clear_errors(path), zipfile.ZipFile(path) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name in ("vectors", "words"):
                if name not in members:
                    raise StorageError(
                        f"{path}: no array called {name!r}; there are {', '.join(map(repr, members)) or 'none'}"
                    )
            wanted: list[str] = [name for name in ("vectors", "words", "counts") if name in members]
            found = {name: _read_member(path, archive, members[name]) for name in wanted}
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, RuntimeError, MemoryError) as error:
        raise StorageError(f"{path}: not an npz file ({error}); it is damaged, or something else") from error
    _check_matrix(path, found["vectors"].shape, found["vectors"].dtype)
    return make_vectors(path, _take_words(path, found["words"]), found["vectors"], _take_counts(path, found))


def _read_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """Return one array; its header and the archive's own list are claims, what the file has is not."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # numpy writes no others
        raise ValueError(f"{info.filename!r} is packed in a way that numpy does not")
    with archive.open(info) as file:
        header = read_array_header(file)
        claimed = header.nbytes
        if claimed > info.file_size or claimed > _MOST_DEFLATED * path.stat().st_size:
            raise ValueError(f"{info.filename!r} claims {claimed:,} bytes, and has fewer")
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
        raise StorageError(f"{path}: expected 'words' as a list of texts, got {words.dtype} of shape {words.shape}")
    points = np.ascontiguousarray(words, words.dtype.newbyteorder("<")).view("<u4")
    if points.size and points.max() > sys.maxunicode:  # numpy itself would fail
        raise StorageError(f"{path}: 'words' holds what is no text (a character of number {points.max():,})")
    listed: list[str] = words.tolist()
    for number, word in enumerate(listed, 1):
        if not is_text(word):
            raise StorageError(f"{path}, word {number:,}: {word!r} holds half a surrogate pair: it is no text")
    return listed


def _take_counts(path: Path, found: dict[str, NDArray[Any]]) -> NDArray[np.int64] | None:
    counts = found.get("counts")
    if counts is None:
        return None
    if counts.shape != found["words"].shape or counts.dtype.kind not in "iu" or (counts < 0).any():
        raise StorageError(
            f"{path}: expected 'counts' as one whole number a word, got {counts.dtype} of {counts.shape}"
        )
    return counts.astype(np.int64)
