"""Reading and writing vectors in the formats of other tools, one module per family of formats.

`FORMATS` has the reader and the writer of each format; `load` detects the format from the content of a file and not
from its name.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists, StorageError, SwivelWarning, clear_errors
from swivel.runtime.numbers import is_number
from swivel.runtime.resources import check_memory
from swivel.storage.lock import sweep_folder
from swivel.storage.manifest import MANIFEST
from swivel.storage.output_folder import refuse_overlap
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.formats import array_files, arrow_parquet, fasttext_binary, gensim, static_models, word2vec
from swivel.vectors.formats.gensim import from_gensim as from_gensim
from swivel.vectors.formats.gensim import to_gensim as to_gensim
from swivel.vectors.formats.validate import check_vectors
from swivel.vectors.formats.word2vec import read_text as read_text
from swivel.vectors.search import LABEL_BYTES


class Format(NamedTuple):
    """Reader (or why there is none), writer and file suffixes of a format."""

    read: Callable[[Path], Vectors] | str
    write: Callable[[Vectors, Path], None]
    suffixes: tuple[str, ...] = ()
    is_folder: bool = False


FORMATS = {
    "word2vec": Format(word2vec.read_binary, word2vec.write_binary, (".bin",)),
    "word2vec-text": Format(word2vec.read_text, word2vec.write_text, (".txt", ".w2v")),
    "fasttext": Format(word2vec.read_text, word2vec.write_text, (".vec",)),
    "fasttext-bin": Format(fasttext_binary.NOT_READ, fasttext_binary.write_fasttext),
    "glove": Format(word2vec.read_text, word2vec.write_glove),
    "gensim": Format(gensim.PICKLE, gensim.write_gensim, (".kv",)),
    "npy": Format(array_files.read_npy, array_files.write_npy, (".npy",)),
    "npz": Format(array_files.read_npz, array_files.write_npz, (".npz",)),
    "safetensors": Format(array_files.read_safetensors, array_files.write_safetensors, (".safetensors",)),
    "parquet": Format(arrow_parquet.read_parquet, arrow_parquet.write_parquet, (".parquet", ".pq")),
    "arrow": Format(arrow_parquet.read_arrow, arrow_parquet.write_arrow, (".arrow", ".feather")),
    "projector": Format(array_files.read_projector, array_files.write_projector, is_folder=True),
    "sentence-transformers": Format(
        static_models.read_static, static_models.write_sentence_transformers, is_folder=True
    ),
    "model2vec": Format(static_models.read_static, static_models.write_model2vec, is_folder=True),
    "huggingface": Format(
        static_models.read_static, partial(static_models.write_model2vec, with_card=True), is_folder=True
    ),
    "swivel": Format(Vectors.load, partial(Vectors.save, overwrite=True), is_folder=True),
}

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\x93NUMPY": "npy", b"PK\x03\x04": "npz"}
_REFUSED = {
    fasttext_binary.MAGIC: fasttext_binary.NOT_READ,
    b"\x1f\x8b": "compressed; unpack it first (gunzip)",
    b"BZh": "compressed; unpack it first (bunzip2)",
    b"\xfd7zXZ": "compressed; unpack it first (xz -d)",
    b"\x28\xb5\x2f\xfd": "compressed; unpack it first (zstd -d)",
}
_REFUSED |= {bytes([0x80, version]): gensim.PICKLE for version in (2, 3, 4, 5)}
_PROBE_BYTES = 1 << 16  # read from the start of a file to detect its format
_TEXT_CONTROLS = b"\t\n\r"


def load(path: str | Path, *, format: str | None = None) -> Vectors:
    """Return the vectors in a file or folder.

    Parameters
    ----------
    path
        A folder of Swivel (memory-mapped), of a whole Swivel run, of model2vec, sentence-transformers or the
        TensorBoard projector; or a file: word2vec text or binary, GloVe, fastText `.vec`, `.npy`, `.npz`,
        `.safetensors`, Parquet or Arrow.
    format
        One of `swivel.vectors.formats.FORMATS`; by default detected from the content.

    Raises
    ------
    StorageError
        If the file cannot be read; the message says where it is damaged.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "vectors.txt"
    ...     _ = file.write_bytes(b"king 1 0 0\\nqueen 0.8 0.6 0\\n")
    ...     load(file).nearest("king")[0].token
    'queen'
    """
    location = find_vectors(path)
    name = recognize(location) if format is None else _check_format(format)
    read = FORMATS[name].read
    if isinstance(read, str):
        raise StorageError(f"{location}: {read}")
    vectors = read(location)
    vectors.source = location
    return vectors


def as_vectors(vectors: Vectors | str | Path) -> Vectors:
    """Return vectors, or those of a file or folder; raise ConfigError for anything else."""
    if isinstance(vectors, (str, Path)):
        return load(vectors)
    if not isinstance(vectors, Vectors):
        raise ConfigError(
            f"expected vectors or their folder, got {type(vectors).__name__}: pass the result of swivel.train"
        )
    return vectors


def find_vectors(path: str | Path) -> Path:
    """Return the path itself, or the folder `vectors` inside it if the path is the folder of a whole run."""
    path = Path(path)
    inside = path / "vectors"
    with clear_errors(path):
        if not path.exists():
            raise StorageError(f"{path}: no such file or folder")
        return inside if (inside / MANIFEST).exists() else path


def source_of(vectors: Vectors | str | Path | None) -> Path | None:
    """Return the file or folder of vectors, None if they are in memory only."""
    if isinstance(vectors, (str, Path)):
        return find_vectors(vectors)
    return None if vectors is None else vectors.source


def recognize(path: Path) -> str:
    """Return the name of the format of a path; `swivel` for an unknown folder, `word2vec-text` for an unknown file."""
    if path.is_dir():
        return _recognize_folder(path)
    with clear_errors(path), path.open("rb") as file:
        start = file.read(_PROBE_BYTES)

    for magic, name in (_MAGIC | _REFUSED).items():
        if start.startswith(magic):
            if magic in _REFUSED:
                raise StorageError(f"{path}: {name}")
            return name

    # The length of a header that fits in the file, and JSON.
    if start[8:9] == b"{" and int.from_bytes(start[:8], "little") + 8 <= path.stat().st_size:
        return "safetensors"
    return "word2vec" if _is_binary(start, path.suffix) else "word2vec-text"


def _recognize_folder(path: Path) -> str:
    if (path / MANIFEST).exists():
        return "swivel"
    if static_models.find_tokenizer(path).exists():
        return "model2vec"
    return "projector" if (path / array_files.PROJECTOR_VECTORS).exists() else "swivel"


def _is_binary(start: bytes, suffix: str) -> bool:
    """Return whether a first line of two numbers is followed by binary data; any `.bin` with such a line is binary."""
    line, end, rest = start.partition(b"\n")
    if not end or word2vec.read_sizes(line.decode("ascii", "replace")) is None:
        return False

    record, end, _ = rest.partition(b"\n")
    fields = record.split()[: None if end else -1]  # The last field may be incomplete.
    ends_in_number = bool(fields) and is_number(fields[-1])
    has_controls = any(byte < 32 and byte not in _TEXT_CONTROLS for byte in rest)

    return suffix == ".bin" or (has_controls and not ends_in_number)


def export(
    vectors: Vectors | str | Path,
    path: str | Path,
    *,
    format: str | None = None,
    side: str = "rows",
    overwrite: bool = False,
    with_zeros: bool = False,
) -> int:
    """Write vectors in the format of another tool, and return how many were written.

    Everything is checked before the first byte is written.

    Parameters
    ----------
    vectors
        The vectors to write, or their file or folder. Only the format `swivel` also stores the rows and columns of the
        model.
    path
        Destination. The suffix selects the format: `.bin` (word2vec binary), `.txt` and `.vec` (word2vec text), `.npy`,
        `.npz`, `.safetensors`, `.parquet`, `.arrow`, `.kv` (gensim). Its folder must exist.
    format
        Name of the format (see `swivel.vectors.formats.FORMATS`); required for `fasttext-bin`, `glove` and for the
        folder formats `projector`, `sentence-transformers`, `model2vec`, `huggingface` (model2vec's folder with a model
        card, for the Hugging Face Hub) and `swivel`.
    side : {"rows", "columns"}
        "rows" writes the vectors that `vectors[word]` returns, "columns" the trained columns under their own labels,
        which is useful if rows and columns are different things.
    overwrite
        Replace an existing file or folder.
    with_zeros
        Also write words without co-occurrences, whose vectors are zero. By default they are left out, and a warning
        says so; the format `swivel` always has all words.

    Raises
    ------
    ConfigError
        If the format or the side is unknown, or if the file would replace the one that the vectors were loaded from.
    FolderExists
        If the file or folder exists and `overwrite` is False.
    VocabularyError
        If the format cannot store a label.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(VectorTable(Vocabulary(["king", "queen"]), np.array([[1, 0.5], [0.1, 0]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = export(vectors, Path(folder) / "vectors.txt")
    ...     (Path(folder) / "vectors.txt").read_text(), load(Path(folder) / "vectors.txt")["queen"].tolist()
    ('2 2\\nking 1.0 0.5\\nqueen 0.1 0.0\\n', [0.10000000149011612, 0.0])
    """
    path = Path(path)
    vectors = as_vectors(vectors)
    name = _format_of(path) if format is None else _check_format(format)
    if side not in ("rows", "columns"):
        raise ConfigError(f"side must be 'rows' or 'columns', got {side!r}", argument="side")
    if side == "columns":
        vectors = _take_columns(vectors)

    # The vectors may be mapped from their file, which must not be replaced while they are read.
    refuse_overlap([path], [vectors.source])
    nonzero = vectors if with_zeros or name == "swivel" else _leave_out_zeros(vectors)

    _check_target(nonzero, path, name, overwrite=overwrite)
    check_vectors(nonzero)
    zeros = len(vectors) - len(nonzero)
    if zeros:
        warnings.warn(
            f"{zeros:,} of {len(vectors):,} words have no co-occurrences and vectors of zeros, and "
            "are left out; pass with_zeros=True to write them",
            SwivelWarning,
            stacklevel=2,
        )
    FORMATS[name].write(nonzero, path)
    return len(nonzero)


def _check_target(vectors: Vectors, path: Path, name: str, *, overwrite: bool) -> None:
    """Raise an error if the path, of the format `name`, cannot be written or would replace something."""
    is_folder = FORMATS[name].is_folder
    with clear_errors(path):
        if path.is_dir() and not is_folder:
            raise StorageError(f"{path} is a folder: pass the path of a file")
        if not path.parent.is_dir():
            raise StorageError(f"{path.parent}: no such folder; create it first")

        outputs: tuple[Path, ...] = (path,)
        if name == "npy":
            outputs = array_files.npy_outputs(vectors, path)
        elif name == "swivel":
            outputs = (path / MANIFEST,)  # A folder without a manifest holds no result.
        if not overwrite and any(output.exists() for output in outputs):
            if (path / MANIFEST).exists():
                sweep_folder(path)
            kind = "folder" if is_folder else "file"
            raise FolderExists(f"{path}: exists already; choose another {kind} or pass overwrite=True")


def _leave_out_zeros(vectors: Vectors) -> Vectors:
    ids = np.flatnonzero(~vectors.is_zero).tolist()
    if len(ids) == len(vectors):
        return vectors

    check_memory("leaving out vectors of zeros", vectors.vectors.nbytes + LABEL_BYTES * len(vectors))
    words = vectors.vocabulary
    table = VectorTable(Vocabulary([words[row] for row in ids], words.counts[ids]), vectors.vectors[ids])
    return Vectors(table, subwords=vectors.subwords, settings=vectors.settings)


def _take_columns(vectors: Vectors) -> Vectors:
    """Return the columns of a model as `Vectors`; raise ConfigError if it has none."""
    if vectors.column_table is None:
        raise ConfigError("side='columns': these vectors have no columns; load a folder written by swivel train")
    is_one_per_word = vectors.columns_per_row == 1  # Other columns are not the words of a text.
    columns = Vectors(vectors.column_table, settings=vectors.settings if is_one_per_word else {})
    columns.source = vectors.source
    return columns


def _check_format(name: str) -> str:
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {name!r}", argument="format")
    return name


def _format_of(path: Path) -> str:
    """Return the format for the suffix of a file name."""
    suffix = path.suffix.lower()
    for name, format in FORMATS.items():
        if suffix in format.suffixes:
            return name

    suffixes = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ConfigError(
        f"{path}: the suffix selects no format (known: {suffixes}); pass format, one of {', '.join(FORMATS)}",
        argument="format",
    )
