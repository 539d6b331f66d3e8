"""Find the source of an import: its format, from its name or type, its files and its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from swivel.config import CorpusConfig
from swivel.corpus import fingerprint_sources, list_paths
from swivel.corpus.digests import FileDigest
from swivel.corpus.sources import PACKED_SUFFIXES, STDIN, is_pipe
from swivel.counts.importers import arrow, baskets, scipy_sparse
from swivel.counts.importers import import_tables as tables
from swivel.counts.importers.context import ImportContext
from swivel.counts.importers.glove import VOCABULARY
from swivel.counts.importers.import_config import FORMATS, ImportConfig
from swivel.errors import IS_TEXT_HINT, ConfigError, CorpusError, CountsError

Reader = Callable[[Any, ImportContext], Iterator[Any]]  # yields chunks, or batches of baskets


@dataclass(frozen=True, slots=True)
class ImportSource:
    """A source of counts: its format, files and reader."""

    format: str  # one of `import_config.FORMATS`, or "memory" for an object
    files: tuple[Path, ...]  # in order; () for an object
    size: float | None  # bytes, rows or cells; None if unknown
    read: Callable[[ImportContext], Iterator[Any]]

    @property
    def name(self) -> str:
        """Name in messages: the first file and the number of further files."""
        if not self.files:
            return "the source"
        return f"{self.files[0]}" + (f" and {len(self.files) - 1:,} more" if len(self.files) > 1 else "")

    @property
    def local_files(self) -> list[Path]:
        """All files that are read, including the vocabulary of GloVe."""
        beside = [file.with_name(VOCABULARY) for file in self.files if self.format == "glove"]
        return [*(file for file in self.files if file != STDIN), *(file for file in beside if file.is_file())]

    def fingerprints(self, digests: Mapping[str, FileDigest]) -> dict[str, str]:
        """Return a fingerprint for each file; an empty dictionary for objects and pipes."""
        if not self.files or any(map(is_pipe, self.files)):
            return {}
        return fingerprint_sources(self.local_files, CorpusConfig(), digests)


def find_source(source: Any, config: ImportConfig, out: str | Path | None = None) -> ImportSource:
    """Return the source behind a path, several paths or an object; raise ConfigError if its format is unknown."""
    # Nothing in the output folder `out` is part of a source.
    paths = [source] if isinstance(source, (str, Path)) else source
    if not isinstance(paths, (list, tuple)) or not all(isinstance(path, (str, Path)) for path in paths):
        return _find_object(source, config)
    if not paths:
        raise ConfigError("no source: pass a file, several files, or a folder")

    files = tuple(file for path in paths for file in _expand(path, out))
    names = {config.format or _guess_format(file) for file in files}
    if len(names) > 1:
        raise ConfigError(f"sources have several formats ({', '.join(sorted(names))}); import them separately")

    name = names.pop()
    format = FORMATS[name]
    if format.is_alone and len(files) > 1:
        raise ConfigError(f"{files[1]}: second source, but format {name} allows only one; import them separately")

    for file in files:
        if not format.may_be_packed and (file == STDIN or file.suffix.lower() in PACKED_SUFFIXES):
            shown = "standard input" if file == STDIN else str(file)
            raise CountsError(f"{shown}: {name} must be an uncompressed file; save or unpack it first")

    module, function = format.reader.split(".")
    reader: Reader = getattr(import_module(f"swivel.counts.importers.{module}"), function)

    def read(context: ImportContext) -> Iterator[Any]:
        for file in files:
            yield from reader(file, context)

    size = None if STDIN in files else sum(file.stat().st_size for file in files)
    return ImportSource(name, files, size, read)


def _expand(path: str | Path, out: str | Path | None) -> list[Path]:
    try:
        return list_paths(path, outside=out)
    except CorpusError as error:
        raise CountsError(str(error).removesuffix(IS_TEXT_HINT)) from None


def _guess_format(file: Path) -> str:
    # What precedes the suffix of a compression counts: visits.tsv.gz has triples.
    suffixes = [suffix.lower() for suffix in file.suffixes if suffix.lower() not in PACKED_SUFFIXES]
    for name, format in FORMATS.items():
        if suffixes and suffixes[-1] in format.suffixes:
            return name

    known = ", ".join(suffix for format in FORMATS.values() for suffix in format.suffixes)
    raise ConfigError(f"{file}: unknown format; the name ends in none of {known}; pass format", argument="format")


def _find_object(source: Any, config: ImportConfig) -> ImportSource:
    if config.format not in (None, "triples", "edges", "baskets"):
        raise ConfigError(f"format {config.format} is for files; for an object in memory omit format")

    format = "memory"
    size: int | None = None
    reader: Reader
    if config.format == "baskets":
        format = "baskets"
        reader = baskets.read_basket_lists
    elif type(source).__module__.partition(".")[0] == "pyarrow":
        reader = arrow.read_table
    elif scipy_sparse.is_sparse(source):
        size = source.nnz
        reader = scipy_sparse.read_sparse
    elif tables.is_frame(source):
        size = source.shape[0]
        reader = tables.read_frame
    elif hasattr(source, "__array__") and hasattr(source, "shape"):
        reader = scipy_sparse.read_sparse
    else:
        format = config.format or "memory"
        is_mapping = isinstance(source, Mapping)
        size = len(source) if is_mapping else None
        reader = tables.read_mapping if is_mapping else tables.read_iterable

    if reader in (baskets.read_basket_lists, tables.read_iterable) and not isinstance(source, Iterable):
        raise CountsError(f"expected a path, a table, a matrix or triples to iterate over, got {type(source).__name__}")
    return ImportSource(format, (), size, lambda context: reader(source, context))
