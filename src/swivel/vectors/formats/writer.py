"""`export`: write vectors in the format of another tool."""

from __future__ import annotations

from pathlib import Path

from swivel.errors import ConfigError, StorageError
from swivel.vectors import Vectors
from swivel.vectors.formats.registry import FORMATS
from swivel.vectors.formats.validate import check_vectors

SIDES = ("rows", "columns")


def export(vectors: Vectors, path: str | Path, *, format: str | None = None, side: str = "rows") -> None:
    """Write vectors in the format of another tool; an existing file is replaced.

    Everything is checked before the first byte is written.

    Parameters
    ----------
    vectors
        The vectors to write. Only the format `swivel` also stores the rows and columns of the model.
    path
        Destination. The suffix selects the format: `.bin` (word2vec binary), `.txt` and `.vec` (word2vec text), `.npy`,
        `.npz`, `.safetensors`, `.parquet`, `.arrow`.
    format
        Name of the format (see `swivel.vectors.formats.FORMATS`); required for `glove` and for the folder formats
        `projector`, `sentence-transformers`, `model2vec` and `swivel`.
    side : {"rows", "columns"}
        "rows" writes the vectors that `vectors[word]` returns, "columns" the trained columns under their own labels,
        which is useful if rows and columns are different things.

    Raises
    ------
    ConfigError
        If the format or the side is unknown.
    VocabularyError
        If the format cannot store a label.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from swivel.vectors.formats import load
    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(VectorTable(Vocabulary(["king", "queen"]), np.array([[1, 0.5], [0.1, 0]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(vectors, Path(folder) / "vectors.txt")
    ...     (Path(folder) / "vectors.txt").read_text(), load(Path(folder) / "vectors.txt")["queen"].tolist()
    ('2 2\\nking 1.0 0.5\\nqueen 0.1 0.0\\n', [0.10000000149011612, 0.0])
    """
    path = Path(path)
    name = format_of(path) if format is None else check_format(format)
    chosen = FORMATS[name]

    if path.is_dir() and not chosen.is_folder:
        raise StorageError(f"{path} is a folder: pass the path of a file")
    if side not in SIDES:
        raise ConfigError(f"side must be 'rows' or 'columns', got {side!r}")

    if side == "columns":
        vectors = take_columns(vectors)

    check_vectors(vectors)
    chosen.write(vectors, path)


def take_columns(vectors: Vectors) -> Vectors:
    """Return the columns of a model as `Vectors`; raise ConfigError if it has none."""
    if vectors.contents.columns is None:
        raise ConfigError("side='columns': these vectors have no columns; load a folder written by swivel train")
    return Vectors(vectors.contents.columns)


def check_format(name: str) -> str:
    """Return the name if it is a known format; otherwise raise ConfigError with the known names."""
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {name!r}")
    return name


def format_of(path: Path) -> str:
    """Return the format for the suffix of a file name.

    >>> format_of(Path("vectors.bin"))
    'word2vec'
    """
    suffix = path.suffix.lower()
    for name, format in FORMATS.items():
        if suffix in format.suffixes:
            return name

    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ConfigError(
        f"{path}: the suffix selects no format (known: {known}); pass format, one of {', '.join(FORMATS)}"
    )
