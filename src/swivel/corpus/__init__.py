"""Text to token ids: sources, tokenizers and vocabulary.

`encode_corpus` reads paths, globs, standard input or iterables and returns an `EncodedCorpus`. The vocabulary is chosen
from its counts, and `counts.cooccurrence` counts its ids. `split_units` is the same tokenizer in plain Python, which
the tests compare with the compiled one.

The compiled tokenizer is imported when `encode_corpus` is first called.
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
    """Tokenize texts once and return them as type numbers in scratch files.

    Parameters
    ----------
    texts
        A str or Path is a file, a folder, a glob, a URL, or ``-`` for standard input. An iterable of Paths is several
        of these, an iterable of strings is several texts, and an iterable of lists of strings is tokenized units.
    config
        Tokenizer, unit, encoding and error handling.
    scratch
        Folder of the scratch files.
    threads
        Number of threads.
    progress
        Receiver of progress events.

    Raises
    ------
    CorpusError
        A text cannot be read or decoded.
    """
    from swivel.corpus import encode

    return encode.encode_corpus(texts, config, scratch=scratch, threads=threads, progress=progress)


def list_paths(texts: str | Path) -> list[Path]:
    """Return the files of a path, a folder or a glob, as `list_files` does, but raise CorpusError for a URL.

    >>> list_paths("-")
    [PosixPath('-')]
    """
    files = list_files(texts)
    paths = [file for file in files if isinstance(file, Path)]
    if len(paths) < len(files):
        raise CorpusError(f"{texts}: only local files are supported here; download the remote files first")
    return paths


def __getattr__(name: str) -> Any:
    if name == "EncodedCorpus":
        from swivel.corpus.encode import EncodedCorpus

        return EncodedCorpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
