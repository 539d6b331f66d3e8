"""Detect the format of a source from its name, content or type, and choose the reader."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.config import CorpusConfig
from swivel.corpus import fingerprint_sources, list_paths
from swivel.corpus.digests import FileDigest
from swivel.corpus.sources import PACKED_SUFFIXES, STDIN, is_pipe
from swivel.counts.importers import arrow, baskets, glove
from swivel.counts.importers import delimited as text
from swivel.counts.importers import import_tables as tables
from swivel.counts.importers import matrix_market as market
from swivel.counts.importers import scipy_sparse as sparse
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.import_config import ImportConfig
from swivel.errors import IS_TEXT_HINT, ConfigError, CorpusError, CountsError

SUFFIXES = {
    "triples": (".tsv", ".csv", ".txt"),
    "edges": (".edges", ".edgelist"),
    "baskets": (".baskets",),
    "parquet": (".parquet", ".pq"),
    "arrow": (".arrow", ".arrows", ".feather", ".ipc"),
    "npz": (".npz",),
    "mtx": (".mtx",),
    "glove": (".bin",),
}
_READERS: Mapping[str, Callable[[Path, ImportContext], Iterator[Any]]] = {
    "triples": text.read_triples,
    "edges": text.read_triples,
    "baskets": baskets.read_basket_file,
    "parquet": arrow.read_parquet,
    "arrow": arrow.read_arrow,
    "npz": sparse.read_npz,
    "mtx": market.read_market,
    "glove": glove.read_glove,
}
_ONE_FILE = ("npz", "mtx", "glove")
_PACKABLE = ("triples", "edges", "baskets", "mtx")
_DEFAULT_SIDES = {"edges": "undirected", "baskets": "mirrored", "glove": "same"}


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A source of counts: its format, files and reader."""

    format: str  # one of `import_config.FORMATS`, or "memory" for an object
    files: tuple[Path, ...]  # in order; () for an object
    size: float | None  # bytes, rows or cells; None if unknown
    read: Callable[[ImportContext], Iterator[Any]]  # yields chunks, or batches of baskets

    @property
    def name(self) -> str:
        """Name in messages: the first file and the number of further files."""
        if not self.files:
            return "the source"
        if len(self.files) > 1:
            return f"{self.files[0]} and {len(self.files) - 1:,} more"
        return str(self.files[0])

    @property
    def default_sides(self) -> str:
        """Relation of rows and columns if the settings do not give it."""
        return _DEFAULT_SIDES.get(self.format, "apart")

    @property
    def local_files(self) -> list[Path]:
        """All files that are read, including the vocabulary of GloVe."""
        beside = [file.with_name(glove.VOCABULARY) for file in self.files if self.format == "glove"]
        return [*(file for file in self.files if file != STDIN), *(file for file in beside if file.is_file())]

    def fingerprints(self, digests: Mapping[str, FileDigest]) -> dict[str, str]:
        """Return a fingerprint for each file; an empty dictionary for objects and pipes."""
        if not self.files or any(map(is_pipe, self.files)):
            return {}
        return fingerprint_sources(self.local_files, CorpusConfig(), digests)


def find_source(source: Any, config: ImportConfig, out: str | Path | None = None) -> ImportSource:
    """Return the source behind a path, several paths or an object; raise ConfigError if its format is unknown.

    Nothing in the output folder `out` is part of a source.
    """
    paths = _as_paths(source)
    if paths is None:
        return _find_object(source, config)
    if not paths:
        raise ConfigError("no source: pass a file, several files, or a folder")

    files = tuple(file for path in paths for file in _expand(path, out))
    formats = {config.format or _guess_format(file) for file in files}
    if len(formats) > 1:
        raise ConfigError(f"sources have several formats ({', '.join(sorted(formats))}); import them separately")

    format = formats.pop()
    if format in _ONE_FILE and len(files) > 1:
        raise ConfigError(f"{files[1]}: second source, but format {format} allows only one; import them separately")

    for file in files:
        if format not in _PACKABLE and (file == STDIN or file.suffix.lower() in PACKED_SUFFIXES):
            name = "standard input" if file == STDIN else str(file)
            raise CountsError(f"{name}: {format} must be an uncompressed file; save or unpack it first")

    def read(context: ImportContext) -> Iterator[Any]:
        for file in files:
            yield from _READERS[format](file, context)

    return ImportSource(format, files, _total_size(files), read)


def _as_paths(source: Any) -> list[str | Path] | None:
    if isinstance(source, (str, Path)):
        return [source]
    if isinstance(source, (list, tuple)) and all(isinstance(item, (str, Path)) for item in source):
        return list(source)
    return None


def _expand(path: str | Path, out: str | Path | None) -> list[Path]:
    try:
        return list_paths(path, outside=out)
    except CorpusError as error:
        raise CountsError(str(error).removesuffix(IS_TEXT_HINT)) from None


def _guess_format(file: Path) -> str:
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in PACKED_SUFFIXES]
    for format, known in SUFFIXES.items():
        if suffixes and suffixes[-1] in known:
            return format

    known = tuple(itertools.chain.from_iterable(SUFFIXES.values()))
    raise ConfigError(
        f"{file}: unknown format; the name ends in none of {', '.join(known)}; pass format", argument="format"
    )


def _total_size(files: tuple[Path, ...]) -> float | None:
    if STDIN in files:
        return None
    return sum(file.stat().st_size for file in files)


def _find_object(source: Any, config: ImportConfig) -> ImportSource:
    if config.format not in (None, "triples", "edges", "baskets"):
        raise ConfigError(f"format {config.format} is for files; for an object in memory omit format")
    if config.format == "baskets":
        return ImportSource("baskets", (), None, lambda context: baskets.read_basket_lists(_iterable(source), context))

    size = source.shape[0] if getattr(source, "shape", None) else None
    if type(source).__module__.partition(".")[0] == "pyarrow":
        return ImportSource("memory", (), None, lambda context: arrow.read_table(source, context))
    if sparse.is_sparse(source):
        return ImportSource("memory", (), source.nnz, lambda context: sparse.read_sparse(source, context))
    if tables.is_frame(source):
        return ImportSource("memory", (), size, lambda context: tables.read_frame(source, context))
    if hasattr(source, "__array__") and hasattr(source, "shape"):
        return ImportSource("memory", (), None, lambda context: sparse.read_sparse(source, context))

    format = config.format or "memory"
    if isinstance(source, Mapping):
        return ImportSource(format, (), len(source), lambda context: tables.read_mapping(source, context))

    return ImportSource(format, (), None, lambda context: tables.read_iterable(_iterable(source), context))


def _iterable(source: Any) -> Iterable[Any]:
    if not isinstance(source, Iterable):
        raise CountsError(f"expected a path, a table, a matrix or triples to iterate over, got {type(source).__name__}")
    return source
