"""SGNS, CBOW and fastText, trained by gensim on the same tokens and vocabulary as Swivel vectors.

`swivel.corpus` reads the text, so tokens, sentence boundaries and vocabulary are those of a count matrix; gensim only
trains.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import CorpusConfig
from swivel.corpus.encoded_corpus import encode_corpus
from swivel.corpus.sources import Texts
from swivel.corpus.vocabulary import BREAK, Vocabulary
from swivel.errors import VocabularyError
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.storage.lock import scratch_folder
from swivel.vectors import Vectors, VectorTable

Ids = NDArray[np.uint32]

# Learning rates of word2vec and of the fastText paper; gensim's default is 0.025 for all.
RATES = {"sgns": 0.025, "cbow": 0.05, "fasttext": 0.05}
MAX_SENTENCE_TOKENS = 10_000  # gensim ignores the tokens after them
TOKENS_PER_REPORT = 100_000  # between two updates of the progress bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Word2vecConfig:
    """Settings of word2vec and fastText, and how the text is read.

    The paper specifies skip-gram with 5 negative samples, a window of 10, 5 epochs, 300 dimensions, and word vectors
    without context vectors. Other settings are gensim's defaults: window sizes drawn at random, negative samples drawn
    by frequency^0.75, a learning rate that decreases linearly to 1e-4, and subsampling of words whose share of the text
    is above `sample`. Results are the same for the same seed only with one thread.
    """

    dim: int = 300
    window: int = 10
    negatives: int = 5
    epochs: int = 5
    learning_rate: float | None = None  # that of RATES
    sample: float = 1e-3
    seed: int = 1
    min_n: int = 3  # lengths of fastText's n-grams
    max_n: int = 6
    buckets: int = 2_000_000  # rows of fastText's table of n-grams
    corpus: CorpusConfig = CorpusConfig()  # noqa: RUF009 (CorpusConfig is frozen)


def train_word2vec(
    texts: Texts, vocabulary: Vocabulary, method: str, config: Word2vecConfig, options: RunOptions
) -> Vectors:
    """Return vectors of the words of a vocabulary, in its order; those that do not occur in the texts are zeros.

    >>> words = Vocabulary(["the", "sat", "cat"])
    >>> train_word2vec(["the cat sat", "the dog sat"], words, "sgns", Word2vecConfig(dim=4), RunOptions()).dim
    4
    """
    model = train_gensim_model(texts, vocabulary, method, config, options)
    return Vectors(VectorTable(vocabulary, vectors_of_words(model, vocabulary)))


def train_gensim_model(
    texts: Texts, vocabulary: Vocabulary, method: str, config: Word2vecConfig, options: RunOptions
) -> Any:
    """Return a gensim model of `sgns`, `cbow` or `fasttext`; other words of the text than the vocabulary's are skipped.

    A fastText model also has vectors for words outside the vocabulary: `model.wv["unseen"]`.
    """
    from gensim.models import FastText, Word2Vec

    logging.getLogger("gensim").setLevel(logging.ERROR)  # It warns about small texts.
    create = FastText if method == "fasttext" else Word2Vec
    model = create(**_gensim_settings(method, config), workers=options.thread_count)

    with scratch_folder(Path(tempfile.gettempdir())) as folder:
        ids = _read_ids(texts, vocabulary, config.corpus, folder, options)
        counts = _count_words(ids, vocabulary)
        tokens = sum(counts.values())

        model.build_vocab_from_freq(counts)
        with track(options.progress, f"training {method}", config.epochs * tokens, "tokens") as task:
            model.train(_Sentences(ids, vocabulary, task), total_words=tokens, epochs=config.epochs)
    return model


def describe_settings(method: str, config: Word2vecConfig) -> dict[str, Any]:
    """Return the settings that a method uses by name, without those of the text.

    >>> describe_settings("cbow", Word2vecConfig(dim=100))["learning_rate"]
    0.05
    """
    settings = asdict(config) | {"method": method, "learning_rate": config.learning_rate or RATES[method]}
    others = {"corpus"} if method == "fasttext" else {"corpus", "min_n", "max_n", "buckets"}
    return {name: value for name, value in settings.items() if name not in others}


def _gensim_settings(method: str, config: Word2vecConfig) -> dict[str, Any]:
    settings = {
        "sg": int(method != "cbow"),
        "vector_size": config.dim,
        "window": config.window,
        "negative": config.negatives,
        "epochs": config.epochs,
        "alpha": config.learning_rate or RATES[method],
        "sample": config.sample,
        "seed": config.seed,
        "min_count": 1,
    }
    if method == "fasttext":
        settings |= {"min_n": config.min_n, "max_n": config.max_n, "bucket": config.buckets}
    return settings


def _read_ids(texts: Texts, vocabulary: Vocabulary, config: CorpusConfig, scratch: Path, options: RunOptions) -> Ids:
    """Return the text as ids of the vocabulary, with BREAK between sentences, memory-mapped from a scratch file."""
    threads = options.thread_count
    encoded = encode_corpus(texts, config, scratch=scratch, threads=threads, progress=options.progress)
    ids = encoded.write_ids(vocabulary, keep_gaps=False, path=scratch / "ids.npy", threads=threads)
    if len(ids) == 0:
        raise VocabularyError(f"none of the {len(vocabulary):,} tokens of the vocabulary occurs in the text")
    return np.asarray(ids)


def _count_words(ids: Ids, vocabulary: Vocabulary) -> dict[str, int]:
    """Return how often each word of the vocabulary occurs in the text, without words that do not occur."""
    counts = np.zeros(len(vocabulary), np.int64)
    for start in range(0, len(ids), 1 << 24):
        part = ids[start : start + (1 << 24)]
        counts += np.bincount(part[part != BREAK], minlength=len(counts))

    return {vocabulary[n]: int(counts[n]) for n in np.flatnonzero(counts).tolist()}


@dataclass(frozen=True, slots=True)
class _Sentences:
    """An iterable over sentences, as gensim requires: each iteration starts from the beginning.

    With gensim's `corpus_file` instead, every thread would lower the learning rate by its own share of the words only.
    """

    ids: Ids
    vocabulary: Vocabulary
    task: Task

    def __iter__(self) -> Iterator[list[str]]:
        find = self.vocabulary.tokens.__getitem__
        breaks = np.flatnonzero(self.ids == BREAK).tolist()
        unreported = 0

        for before, stop in pairwise([-1, *breaks, len(self.ids)]):
            for start in range(before + 1, stop, MAX_SENTENCE_TOKENS):
                sentence = self.ids[start : min(start + MAX_SENTENCE_TOKENS, stop)].tolist()
                yield list(map(find, sentence))
                unreported += len(sentence)

            if unreported >= TOKENS_PER_REPORT:
                self.task.advance(unreported)
                unreported = 0
        self.task.advance(unreported)


def vectors_of_words(model: Any, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return the vectors of a gensim model in the order of a vocabulary; zeros for words it does not have."""
    vectors = np.zeros((len(vocabulary), model.vector_size), np.float32)
    model_ids = model.wv.key_to_index
    pairs = [(n, model_ids[token]) for n, token in enumerate(vocabulary.tokens) if token in model_ids]

    targets, sources = np.array(pairs, np.int64).T
    vectors[targets] = model.wv.vectors[sources]
    return vectors
