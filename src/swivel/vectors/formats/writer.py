"""One way out: vectors as any tool's file or folder.

Receives `Vectors` and a path, hands on what was written. Everything is checked before the first byte is.
"""

from __future__ import annotations

from pathlib import Path

from swivel.errors import ConfigError, StorageError
from swivel.vectors import Vectors
from swivel.vectors.formats.registry import FORMATS
from swivel.vectors.formats.validate import check_vectors

SIDES = ("rows", "columns")


def export(vectors: Vectors, path: str | Path, *, format: str | None = None, side: str = "rows") -> None:
    """Write vectors as another tool's file; one that is there is replaced, a folder is refused.

    Parameters
    ----------
    vectors
        The vectors that users get; of a model's rows and columns only the format `swivel` knows.
    path
        Where to; what it ends in says the format: `.bin` (word2vec's binary), `.txt` and `.vec` (its text), `.npy`,
        `.npz`, `.safetensors`, `.parquet`, `.arrow`.
    format
        The format by its name (`swivel.vectors.formats.FORMATS`); needed for `glove` and for the folders `projector`,
        `sentence-transformers`, `model2vec` and `swivel`.
    side
        `rows`: what `vectors[word]` returns; `columns`: the trained columns by their own labels, as of a table whose
        columns are other things than its rows.

    Raises ConfigError for a format or a side that is not known, and VocabularyError for a label that the format cannot
    hold.

    >>> import tempfile
    >>> import numpy as np
    >>> from swivel.vectors.formats import load
    >>> from swivel.vectors import Side
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(Side(Vocabulary(["king", "queen"]), np.array([[1, 0.5], [0.1, 0]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export(vectors, Path(folder) / "vectors.txt")
    ...     (Path(folder) / "vectors.txt").read_text(), load(Path(folder) / "vectors.txt")["queen"].tolist()
    ('2 2\\nking 1.0 0.5\\nqueen 0.1 0.0\\n', [0.10000000149011612, 0.0])
    """
    path = Path(path)
    chosen = FORMATS[check_format(format) if format is not None else format_of(path)]
    if path.is_dir() and not chosen.is_folder:
        raise StorageError(f"{path}: a folder; name a file in it")
    if side not in SIDES:
        raise ConfigError(f"side must be rows or columns, got {side!r}")
    if side == "columns":
        vectors = take_columns(vectors)
    check_vectors(vectors)
    chosen.write(vectors, path)


def take_columns(vectors: Vectors) -> Vectors:
    """Return a model's columns as vectors; raise ConfigError where it has none."""
    if vectors.contents.columns is None:
        raise ConfigError("side columns: these vectors have no columns, as files of other tools do not")
    return Vectors(vectors.contents.columns)


def check_format(name: str) -> str:
    """Return the name of a format, or raise ConfigError with those that there are."""
    if name not in FORMATS:
        raise ConfigError(f"format must be one of {', '.join(FORMATS)}, got {name!r}")
    return name


def format_of(path: Path) -> str:
    """Return the format that a file's name stands for.

    >>> format_of(Path("vectors.bin"))
    'word2vec'
    """
    suffix = path.suffix.lower()
    for name, format in FORMATS.items():
        if suffix in format.suffixes:
            return name
    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ConfigError(f"{path}: no format is known by its name ({known}); pass --format, one of {', '.join(FORMATS)}")
