"""One way in: whatever a path holds, as vectors. What a file is, its first bytes say, not its name."""

from __future__ import annotations

from pathlib import Path

from swivel.errors import StorageError, clear_errors
from swivel.storage import MANIFEST
from swivel.vectors import Vectors
from swivel.vectors.formats.projector import VECTORS
from swivel.vectors.formats.registry import FORMATS
from swivel.vectors.formats.static_models import NESTED, TOKENIZER
from swivel.vectors.formats.word2vec_text import is_number, read_sizes
from swivel.vectors.formats.writer import check_format

_MAGIC = {b"PAR1": "parquet", b"ARROW1": "arrow", b"\x93NUMPY": "npy", b"PK\x03\x04": "npz"}
_REFUSED = {
    b"\x80\x02": "a pickle, and no pickle is ever loaded: in gensim, save_word2vec_format('NAME.bin', binary=True)",
    b"\xba\x16\x4f\x2f": "a model of fastText: take the .vec file that it writes beside it",
    b"\x1f\x8b": "compressed: unpack it first (gunzip)",
    b"BZh": "compressed: unpack it first (bunzip2)",
    b"\xfd7zXZ": "compressed: unpack it first (xz -d)",
    b"\x28\xb5\x2f\xfd": "compressed: unpack it first (zstd -d)",
}
_REFUSED |= {bytes([0x80, version]): _REFUSED[b"\x80\x02"] for version in (3, 4, 5)}
_LOOKED_AT = 1 << 16  # bytes at the beginning of a file
_TEXT_CONTROLS = b"\t\n\r"


def load(path: str | Path, *, format: str | None = None) -> Vectors:
    """Return the vectors in a folder that training wrote, in the folder of a whole run, or in another tool's file.

    Parameters
    ----------
    path
        A folder of Swivel's (memory-mapped), of model2vec, of sentence-transformers or of the projector; or a file:
        word2vec's text or binary, GloVe's, fastText's `.vec`, `.npy`, `.npz`, `.safetensors`, Parquet, Arrow.
    format
        One of `swivel.vectors.formats.FORMATS`, where the content should not decide.

    Raises StorageError, with the place, for what cannot be read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "vectors.txt"
    ...     _ = file.write_bytes(b"king 1 0 0\\nqueen 0.8 0.6 0\\n")
    ...     load(file).nearest("king")[0].token
    'queen'
    """
    found = find_vectors(path)
    return FORMATS[check_format(format) if format is not None else recognise(found)].read(found)


def open_vectors(path: str | Path) -> Vectors:
    """Return what `load` returns: the name that other rooms know it by, `load` being that of the folder's own."""
    return load(path)


def find_vectors(path: str | Path) -> Path:
    """Return the file or folder that a path means: of the folder of a whole run, the one inside."""
    path = Path(path)
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder")
    inside = path / "vectors"
    return inside if (inside / MANIFEST).exists() else path


def recognise(path: Path) -> str:
    """Return the name of the format that a path is in; where it is no other, that of our folders, or of text."""
    if path.is_dir():
        return _recognise_folder(path)
    with clear_errors(path), path.open("rb") as file:
        start = file.read(_LOOKED_AT)
    for magic, reason in _REFUSED.items():
        if start.startswith(magic):
            raise StorageError(f"{path}: {reason}")
    for magic, name in _MAGIC.items():
        if start.startswith(magic):
            return name
    if _is_safetensors(start, path.stat().st_size):
        return "safetensors"
    return "word2vec" if _is_binary(start, path.suffix) else "word2vec-text"


def _recognise_folder(path: Path) -> str:
    if (path / MANIFEST).exists():
        return "swivel"
    if (path / TOKENIZER).exists() or (path / NESTED / TOKENIZER).exists():
        return "model2vec"
    return "projector" if (path / VECTORS).exists() else "swivel"


def _is_safetensors(start: bytes, size: int) -> bool:
    """Return whether a file begins with a length that fits in it and with JSON."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") + 8 <= size


def _is_binary(start: bytes, suffix: str) -> bool:
    """Return whether a first line of two numbers is followed by what is no text; a `.bin` is taken at its word."""
    line, end, rest = start.partition(b"\n")
    if not end or read_sizes(line.decode("ascii", "replace")) is None:
        return False
    record, end, _ = rest.partition(b"\n")
    fields = record.split()[: None if end else -1]  # The last may be cut.
    ends_in_number = bool(fields) and is_number(fields[-1].decode("ascii", "replace"))
    has_controls = any(byte < 32 and byte not in _TEXT_CONTROLS for byte in rest)
    return suffix == ".bin" or (has_controls and not ends_in_number)
