"""Baselines: SGNS, CBOW and fastText, trained by gensim on the same tokens and vocabulary as Swivel vectors.

`swivel.corpus` reads the text, so tokens, sentence boundaries and vocabulary are those of a count matrix; gensim only
trains. GloVe is a recipe of Swivel itself (`swivel train --recipe glove`); `benchmarks/glove.py` has its optimizer.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import (
    NATURAL,
    NOT_NEGATIVE,
    POSITIVE,
    POSITIVE_INT,
    CorpusConfig,
    Rule,
    check_fields,
    config_field,
    result_settings,
)
from swivel.corpus import BREAK, Texts, encode_corpus
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, VocabularyError, missing_extra
from swivel.evaluation.download import errors_only
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.runtime.signals import StopRequest, stop_on_signals
from swivel.storage import create_folder, scratch_folder
from swivel.vectors import Vectors, VectorTable, write_vectors

# Learning rates of word2vec and of the fastText paper; gensim's default is 0.025 for all.
RATES = {"sgns": 0.025, "cbow": 0.05, "fasttext": 0.05}
MAX_SENTENCE_TOKENS = 10_000  # gensim ignores the tokens after them
TOKENS_PER_REPORT = 100_000  # between two updates of the progress bar
A_CORPUS = Rule(lambda v: isinstance(v, CorpusConfig), "a CorpusConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfig:
    """Settings of word2vec and fastText, and how the text is read.

    The paper specifies skip-gram with 5 negative samples, a window of 10, 5 epochs, 300 dimensions, and word vectors
    without context vectors. Other settings are gensim's defaults: window sizes drawn at random, negative samples drawn
    by frequency^0.75, a learning rate that decreases linearly to 1e-4, and subsampling of words whose share of the text
    is above `sample`.
    """

    dim: int = config_field(300, "number of dimensions", POSITIVE_INT)
    window: int = config_field(10, "maximum distance between a token and its context, in tokens", POSITIVE_INT)
    negatives: int = config_field(5, "number of negative samples per positive one", POSITIVE_INT)
    epochs: int = config_field(5, "number of epochs", POSITIVE_INT)
    learning_rate: float | None = config_field(None, "default: 0.025 for sgns, 0.05 for cbow and fasttext", POSITIVE)
    sample: float = config_field(1e-3, "subsample words above this share of the text; 0 keeps all", NOT_NEGATIVE)
    seed: int = config_field(1, "random seed; results are reproducible only with one thread", NATURAL)
    min_n: int = config_field(3, "fasttext: minimum length of character n-grams", POSITIVE_INT)
    max_n: int = config_field(6, "fasttext: maximum length of character n-grams", POSITIVE_INT)
    buckets: int = config_field(2_000_000, "fasttext: number of hash buckets for n-grams", POSITIVE_INT)
    corpus: CorpusConfig = config_field(CorpusConfig(), "how text is read", A_CORPUS)  # noqa: RUF009 (CorpusConfig is frozen)

    def __post_init__(self) -> None:
        check_fields(self)


def train_word2vec(
    texts: Texts,
    vocabulary: Vocabulary,
    *,
    method: str = "sgns",
    config: BaselineConfig | None = None,
    options: RunOptions | None = None,
    scratch: Path | None = None,
) -> Vectors:
    """Train word2vec or fastText and return the vectors of the words of a vocabulary, in its order.

    A word that does not occur in the texts gets a vector of zeros. Ctrl-C and SIGTERM remove all temporary files.

    Parameters
    ----------
    texts
        As for `swivel.count`.
    vocabulary
        The words to train, such as the rows of a matrix counted from the same texts; other words are skipped.
    method : {"sgns", "cbow", "fasttext"}
        Skip-gram with negative sampling, CBOW, or skip-gram with character n-grams.
    config
        Settings; by default those of the paper.
    options
        Threads and progress.
    scratch
        Folder for temporary token ids, 8 bytes per token; by default the temporary folder of the system.

    Raises
    ------
    MissingExtra
        If gensim is not installed.
    VocabularyError
        If no word of the vocabulary occurs in the texts.

    Examples
    --------
    >>> words = Vocabulary(["the", "sat", "cat"])
    >>> train_word2vec(["the cat sat", "the dog sat"], words, config=BaselineConfig(dim=4)).dim
    4
    """
    model = train_gensim_model(texts, vocabulary, method, config or BaselineConfig(), options or RunOptions(), scratch)
    return Vectors(VectorTable(vocabulary, vectors_of_words(model, vocabulary)))


def train_gensim_model(
    texts: Texts,
    vocabulary: Vocabulary,
    method: str,
    config: BaselineConfig,
    options: RunOptions,
    scratch: Path | None = None,
) -> Any:
    """Train and return the gensim model; parameters are those of `train_word2vec`.

    A fastText model also has vectors for words outside the vocabulary: `model.wv["unseen"]`.
    """
    settings = _gensim_settings(method, config, options.thread_count)
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError:
        raise missing_extra("sgns, cbow and fasttext", "gensim", "baselines") from None

    with scratch_folder(scratch or Path(tempfile.gettempdir())) as folder:
        ids = _read_ids(texts, vocabulary, config.corpus, folder, options)
        model = FastText(**settings) if method == "fasttext" else Word2Vec(**settings)

        counts = _count_words(ids, vocabulary)
        tokens = sum(counts.values())

        # gensim warns about small texts, and about texts that end early after a stop request.
        with stop_on_signals() as should_stop, errors_only(logging.getLogger("gensim")):
            model.build_vocab_from_freq(counts)
            with track(options.progress, f"training {method}", config.epochs * tokens, "tokens") as task:
                sentences = _Sentences(ids, vocabulary, should_stop, task)
                model.train(sentences, total_words=tokens, epochs=config.epochs)

    return model


def baseline_settings(method: str, config: BaselineConfig) -> dict[str, dict[str, Any]]:
    """Return the settings that determine the vectors, by stage, as stored in a manifest.

    >>> baseline_settings("cbow", BaselineConfig(dim=100))["baseline"]["learning_rate"]
    0.05
    """
    settings = result_settings(config)
    settings |= {"method": method, "learning_rate": _find_rate(method, config)}

    if method != "fasttext":
        for name in ("min_n", "max_n", "buckets"):
            del settings[name]

    return {"corpus": result_settings(settings.pop("corpus")), "baseline": settings}


def keep_vectors(
    vectors: Vectors, path: str | Path, *, config: Mapping[str, Any], inputs: Mapping[str, str], overwrite: bool = False
) -> Vectors:
    """Save vectors to a folder with their provenance and return them memory-mapped from it.

    `config` is the result of `baseline_settings`, and `inputs` the result of `corpus.fingerprint_sources` or other
    fingerprints. A folder that was not completely written is ignored.
    """
    with create_folder(path, "vectors", overwrite=overwrite) as folder:
        folder.finish(config=dict(config), inputs=inputs, facts=write_vectors(folder, vectors))
    return Vectors.load(path)


def _find_rate(method: str, config: BaselineConfig) -> float:
    if method not in RATES:
        raise ConfigError(f"method must be one of {', '.join(RATES)}, got {method!r}")
    return config.learning_rate or RATES[method]


def _gensim_settings(method: str, config: BaselineConfig, threads: int) -> dict[str, Any]:
    settings = {
        "sg": int(method != "cbow"),
        "vector_size": config.dim,
        "window": config.window,
        "negative": config.negatives,
        "epochs": config.epochs,
        "alpha": _find_rate(method, config),
        "sample": config.sample,
        "seed": config.seed,
        "workers": threads,
        "min_count": 1,
    }

    if method == "fasttext":
        settings |= {"min_n": config.min_n, "max_n": config.max_n, "bucket": config.buckets}
    return settings


def _read_ids(
    texts: Texts, vocabulary: Vocabulary, config: CorpusConfig, scratch: Path, options: RunOptions
) -> NDArray[np.uint32]:
    """Return the text as ids of the vocabulary, with BREAK between sentences, memory-mapped from a scratch file."""
    threads = options.thread_count
    encoded = encode_corpus(texts, config, scratch=scratch, threads=threads, progress=options.progress)
    ids = encoded.write_ids(vocabulary, keep_gaps=False, path=scratch / "ids.npy", threads=threads)
    if len(ids) == 0:
        raise VocabularyError(f"none of the {len(vocabulary):,} tokens of the vocabulary occurs in the text")
    return np.asarray(ids)


def _count_words(ids: NDArray[np.uint32], vocabulary: Vocabulary) -> dict[str, int]:
    """Return how often each word of the vocabulary occurs in the text, without words that do not occur."""
    counts = np.zeros(len(vocabulary), np.int64)
    for start in range(0, len(ids), 1 << 24):
        part = ids[start : start + (1 << 24)]
        counts += np.bincount(part[part != BREAK], minlength=len(counts))

    return {vocabulary[n]: int(counts[n]) for n in np.flatnonzero(counts).tolist()}


@dataclass(frozen=True, slots=True)
class _Sentences:
    """An iterable over sentences, as gensim requires: each iteration starts from the beginning."""

    ids: NDArray[np.uint32]
    vocabulary: Vocabulary
    should_stop: StopRequest
    task: Task

    def __iter__(self) -> Iterator[list[str]]:
        find = self.vocabulary.tokens.__getitem__
        breaks = np.flatnonzero(self.ids == BREAK).tolist()
        unreported = 0

        for before, stop in pairwise([-1, *breaks, len(self.ids)]):
            if self.should_stop():
                return

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
