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
from swivel.corpus.sources import Texts, fingerprint_sources, list_files
from swivel.corpus.tokenize import split_units
from swivel.marks import BREAK, GAP
from swivel.progress import SILENT, Progress

if TYPE_CHECKING:
    from swivel.corpus.encode import EncodedCorpus

__all__ = [
    "BREAK",
    "GAP",
    "EncodedCorpus",
    "Texts",
    "encode_corpus",
    "fingerprint_sources",
    "list_files",
    "split_units",
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


def __getattr__(name: str) -> Any:
    if name == "EncodedCorpus":
        from swivel.corpus.encode import EncodedCorpus

        return EncodedCorpus
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
