"""Text, from wherever it comes, to numbers of tokens: the first stage.

Receives paths, globs, standard input or iterables; hands on an `EncodedCorpus`, from which the vocabulary is chosen
and whose ids `counting` counts. It counts no co-occurrences. `split_units` is the same in plain Python, for the tests
and for the curious.

The compiled part is loaded when `encode_corpus` is first called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import CorpusConfig
from swivel.corpus.file_ranges import FileRange, cut_files, encode_ranges, group_ranges
from swivel.corpus.sentinels import BREAK, GAP
from swivel.corpus.sources import TextFile, Texts, fingerprint_sources, list_files, text_size
from swivel.corpus.tokenizer_reference import split_units
from swivel.errors import CorpusError
from swivel.runtime.progress import SILENT, Progress

if TYPE_CHECKING:
    from swivel.corpus.encode import EncodedCorpus

__all__ = [
    "BREAK",
    "GAP",
    "EncodedCorpus",
    "FileRange",
    "TextFile",
    "Texts",
    "cut_files",
    "encode_corpus",
    "encode_ranges",
    "fingerprint_sources",
    "group_ranges",
    "list_files",
    "list_paths",
    "split_units",
    "text_size",
]


def encode_corpus(
    texts: Texts, config: CorpusConfig, *, scratch: Path, threads: int, progress: Progress = SILENT
) -> EncodedCorpus:
    """Read texts once, on `threads` cores, and return them as numbers in scratch files inside `scratch`.

    A str or Path is a path, a folder, a glob, or ``-``; an iterable of Paths is several of them; of strings, several
    texts; of lists of strings, units that are tokenised already. Raises CorpusError where one cannot be read.
    """
    from swivel.corpus import encode

    return encode.encode_corpus(texts, config, scratch=scratch, threads=threads, progress=progress)


def list_paths(texts: str | Path) -> list[Path]:
    """Return the files of a path, a folder or a glob, as `list_files` does; a URL is refused.

    >>> list_paths("-")
    [PosixPath('-')]
    """
    files = list_files(texts)
    paths = [file for file in files if isinstance(file, Path)]
    if len(paths) < len(files):
        raise CorpusError(f"{texts}: only files of this machine are read here; fetch them first")
    return paths


def __getattr__(name: str) -> Any:
    if name == "EncodedCorpus":
        from swivel.corpus.encode import EncodedCorpus

        return EncodedCorpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
