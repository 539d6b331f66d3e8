"""`swivel phrases`: the phrases of a text, without counting or training."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.config import SCORERS, CorpusConfig
from swivel.errors import ConfigError
from swivel.pipeline.settings import split_settings
from swivel.runtime.options import RunOptions
from swivel.storage import scratch_folder

if TYPE_CHECKING:
    from swivel.corpus import Texts
    from swivel.corpus.joined_corpus import Phrase


def find_phrases(texts: Texts, *, options: RunOptions | None = None, **settings: Any) -> list[Phrase]:
    """Return the phrases of a text, highest score first.

    Parameters
    ----------
    texts
        As for `swivel.count`.
    options
        Threads, memory and progress.
    settings
        Fields of CorpusConfig; `phrases` is "word2vec" by default, or "npmi".

    Examples
    --------
    >>> text = ["in new york", "new york is big", "a new car", "to york"] * 5
    >>> [phrase.token for phrase in find_phrases(text, phrase_threshold=0.1)]
    ['new_york']
    """
    from swivel.corpus import find_texts
    from swivel.corpus.encoded_corpus import encode_corpus
    from swivel.corpus.joined_corpus import JoinedCorpus

    options = (options or RunOptions()).fix_memory()
    (config,) = split_settings("default", {"phrases": "word2vec", **settings}, CorpusConfig)
    if config.phrases not in SCORERS:
        raise ConfigError(f"phrases must be one of {', '.join(SCORERS)}, got {config.phrases!r}")

    threads = options.thread_count
    with scratch_folder(Path(tempfile.gettempdir())) as scratch:
        encoded = encode_corpus(
            find_texts(texts),
            config,
            scratch=scratch,
            threads=threads,
            memory_bytes=options.memory_bytes,
            progress=options.progress,
        )
        joined = JoinedCorpus(encoded, scratch, threads)
        joined.find(config)

    return sorted(joined.phrases, key=lambda phrase: (-phrase.score, phrase.token))
