"""Text to token ids: sources, tokenizers and vocabulary.

`encode_corpus` reads paths, globs, standard input or iterables and returns an `EncodedCorpus`. The vocabulary is chosen
from its counts, and `counts.cooccurrence` counts its ids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swivel.config import CorpusConfig
from swivel.corpus.digests import to_facts
from swivel.corpus.sources import (
    Texts,
    can_compare,
    digest_sources,
    files_of,
    find_texts,
    fingerprint_sources,
    list_files,
    list_paths,
    local_files,
    text_size,
)
from swivel.corpus.streams import PIECE_BYTES, open_streams
from swivel.corpus.vocabulary import BREAK, GAP
from swivel.runtime.child_process import call_in_process, can_start_processes
from swivel.runtime.progress import SILENT, Progress

if TYPE_CHECKING:
    from swivel.corpus.encoded_corpus import EncodedCorpus

Result = TypeVar("Result")

__all__ = [
    "BREAK",
    "GAP",
    "Texts",
    "can_compare",
    "digest_sources",
    "encode_corpus",
    "files_of",
    "find_texts",
    "fingerprint_sources",
    "list_files",
    "list_paths",
    "local_files",
    "read_in_process",
    "text_size",
    "to_facts",
]


def encode_corpus(
    texts: Texts,
    config: CorpusConfig,
    *,
    scratch: Path,
    threads: int,
    memory_bytes: int = 1 << 30,
    progress: Progress = SILENT,
    piece_bytes: int = PIECE_BYTES,
    check: Callable[[], None] | None = None,
) -> EncodedCorpus:
    """Tokenize texts once and return them as type numbers, in scratch files inside the folder `scratch`.

    Parameters
    ----------
    texts
        A str or Path is a file, a folder, a glob, a URL, or ``-`` for standard input. A list of paths is several of
        these, an iterable of other strings is several texts, and an iterable of lists of strings is tokenized units.
    memory_bytes
        Memory for the distinct tokens and their counts; those that do not fit are in scratch files, too.
    piece_bytes
        Approximate number of bytes that a thread processes at a time.
    check
        Called after each piece; reading ends with the error that it raises.

    Raises
    ------
    CorpusError
        A text cannot be read or decoded.
    ConfigError
        The encoding is unknown.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     encoded = encode_corpus(["To be or not to be"], CorpusConfig(), scratch=Path(folder), threads=1)
    ...     encoded.token_count, encoded.counts(min_count=2)
    (6, {'to': 2, 'be': 2})
    """
    from swivel.corpus.encoded_corpus import encode_streams  # imports numba

    streams = open_streams(texts, config)
    return encode_streams(
        streams,
        config,
        scratch=scratch,
        threads=threads,
        memory_bytes=memory_bytes,
        progress=progress,
        piece_bytes=piece_bytes,
        check=check,
    )


def _is_on_disk(file: Path) -> bool:
    """Return whether another process finds the same file under this path; /dev/stdin belongs to each process."""
    return file.is_file() and file.absolute().parts[1:2] not in (("dev",), ("proc",))


def read_in_process(
    read: Callable[..., Result],
    texts: Texts,
    *arguments: Any,
    progress: Progress,
    check: Callable[[], None],
    **keywords: Any,
) -> Result:
    """Return `read(texts, *arguments, progress=progress, check=check, **keywords)`.

    If the texts are files, the call runs in another process. Use it while this process imports torch for a GPU: reading
    would wait for the import most of the time.
    """
    files = files_of(texts)
    is_on_disk = files is not None and all(isinstance(file, Path) and _is_on_disk(file) for file in files)
    if not is_on_disk or not can_start_processes():
        return read(texts, *arguments, progress=progress, check=check, **keywords)

    with call_in_process(read, files, *arguments, **keywords) as call:
        return call.wait(progress, check)
