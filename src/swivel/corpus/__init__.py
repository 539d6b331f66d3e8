"""Text to token ids: sources, tokenizers and vocabulary.

`encoded_corpus.encode_corpus` reads paths, globs, standard input or iterables and returns an `EncodedCorpus`. The
vocabulary is chosen from its counts, and `counts.cooccurrence` counts its ids.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

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
from swivel.corpus.vocabulary import BREAK, GAP
from swivel.runtime.child_process import call_in_process, can_start_processes
from swivel.runtime.progress import Progress

Result = TypeVar("Result")

__all__ = [
    "BREAK",
    "GAP",
    "Texts",
    "can_compare",
    "digest_sources",
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
    """Return `read(texts, *arguments, progress=progress, check=check, **keywords)`."""
    # If the texts are files, the call runs in another process. Use it while this process imports torch for a GPU:
    # reading would wait for the import most of the time.
    files = files_of(texts)
    is_on_disk = files is not None and all(isinstance(file, Path) and _is_on_disk(file) for file in files)
    if not is_on_disk or not can_start_processes():
        return read(texts, *arguments, progress=progress, check=check, **keywords)

    with call_in_process(read, files, *arguments, **keywords) as call:
        return call.wait(progress, check)
