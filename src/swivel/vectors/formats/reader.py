"""`load`: read vectors in any supported format, detected from the content of the file and not from its name."""

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
_UNSUPPORTED = {
    b"\x80\x02": "a pickle, which is never loaded; in gensim, call save_word2vec_format('NAME.bin', binary=True)",
    b"\xba\x16\x4f\x2f": "a fastText model; use the .vec file that fastText writes next to it",
    b"\x1f\x8b": "compressed; unpack it first (gunzip)",
    b"BZh": "compressed; unpack it first (bunzip2)",
    b"\xfd7zXZ": "compressed; unpack it first (xz -d)",
    b"\x28\xb5\x2f\xfd": "compressed; unpack it first (zstd -d)",
}
_UNSUPPORTED |= {bytes([0x80, version]): _UNSUPPORTED[b"\x80\x02"] for version in (3, 4, 5)}
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
    name = recognise(location) if format is None else check_format(format)
    return FORMATS[name].read(location)


def open_vectors(path: str | Path) -> Vectors:
    """Return the result of `load`, under a name that differs from `swivel.vectors.load`."""
    return load(path)


def find_vectors(path: str | Path) -> Path:
    """Return the path itself, or the folder `vectors` inside it if the path is the folder of a whole run."""
    path = Path(path)
    if not path.exists():
        raise StorageError(f"{path}: no such file or folder")
    inside = path / "vectors"
    return inside if (inside / MANIFEST).exists() else path


def recognise(path: Path) -> str:
    """Return the name of the format of a path; `swivel` for an unknown folder, `word2vec-text` for an unknown file."""
    if path.is_dir():
        return _recognise_folder(path)
    with clear_errors(path), path.open("rb") as file:
        start = file.read(_PROBE_BYTES)

    for magic, reason in _UNSUPPORTED.items():
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
    """Return whether a file starts with a header length that fits the file, followed by JSON."""
    return start[8:9] == b"{" and int.from_bytes(start[:8], "little") + 8 <= size


def _is_binary(start: bytes, suffix: str) -> bool:
    """Return whether a first line of two numbers is followed by binary data; any `.bin` with such a line is binary."""
    line, end, rest = start.partition(b"\n")
    if not end or read_sizes(line.decode("ascii", "replace")) is None:
        return False

    record, end, _ = rest.partition(b"\n")
    fields = record.split()[: None if end else -1]  # The last field may be incomplete.
    ends_in_number = bool(fields) and is_number(fields[-1].decode("ascii", "replace"))
    has_controls = any(byte < 32 and byte not in _TEXT_CONTROLS for byte in rest)

    return suffix == ".bin" or (has_controls and not ends_in_number)
