"""Read texts: choose the vocabulary, and write the corpus as token ids."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import CorpusConfig, VocabularyConfig
from swivel.corpus.vocabulary import Vocabulary, choose_vocabulary
from swivel.errors import ConfigError
from swivel.runtime.estimates import ResourceEstimate
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress
from swivel.runtime.resources import format_bytes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from swivel.corpus import Texts

# A token of English text is about 6 bytes long; it takes 4 bytes of scratch space when read and 4 as an id.
SCRATCH_PER_BYTE = 1.4


def list_tokens(vocabulary: Vocabulary | Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the given vocabulary as a tuple of tokens, or None."""
    if isinstance(vocabulary, str):
        raise ConfigError(f"vocabulary must be a list of tokens, got the text {vocabulary!r}")
    return None if vocabulary is None else tuple(vocabulary)


def warn_of_paths(texts: Texts, progress: Progress) -> None:
    """Print a warning if all strings of a list are paths of files, because strings in a list are texts."""
    if not isinstance(texts, (list, tuple)) or not texts:
        return
    if all(isinstance(text, str) and os.path.isfile(text) for text in texts):  # noqa: PTH113 (any text, however long)
        progress.message(
            f"{texts[0]!r} is a file, but strings in a list are taken as texts; pass Paths to read the files"
        )


def number_tokens(
    texts: Texts,
    scratch: Path,
    listed: tuple[str, ...] | None,
    configs: Mapping[str, Mapping[str, Any]],
    options: RunOptions,
) -> tuple[Vocabulary, NDArray[np.uint32]]:
    """Return the vocabulary and the corpus as token ids, memory-mapped from the scratch folder."""
    from swivel.corpus import encode_corpus

    config = CorpusConfig(**configs["corpus"])
    _forecast_reading(texts, scratch, options.progress)

    encoded = encode_corpus(texts, config, scratch=scratch, threads=options.thread_count, progress=options.progress)
    vocabulary = choose_vocabulary(
        encoded.counts, VocabularyConfig(**configs["vocabulary"]), listed, lowercase=config.lowercase
    )
    options.progress.message(
        f"{encoded.token_count:,} tokens in {encoded.unit_count:,} {config.unit}s; vocabulary of {len(vocabulary):,}"
    )

    keep_gaps = configs["count"]["oov"] == "gap"
    ids = encoded.write_ids(vocabulary, keep_gaps=keep_gaps, path=scratch / "ids.npy", threads=options.thread_count)
    return vocabulary, ids


def _forecast_reading(texts: Texts, scratch: Path, progress: Progress) -> None:
    """Print how much text there is and how much disk it takes while it is read, if sizes are known."""
    from swivel.corpus import fingerprint_sources, list_files, text_size

    if "iterable" in fingerprint_sources(texts, CorpusConfig()):
        return

    files = list_files(texts)  # type: ignore[arg-type]
    size = sum(text_size(file) for file in files)
    needed = int(size * SCRATCH_PER_BYTE)
    progress.message(
        f"reading {len(files):,} files: {format_bytes(size)} of text, {format_bytes(needed)} of disk meanwhile"
    )
    ResourceEstimate("reading", needed, 0, needed, "take less text").check(scratch.parent)
