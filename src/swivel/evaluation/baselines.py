"""SGNS, CBOW and fastText, trained by gensim on the tokens and the vocabulary of our own vectors.

The text is read by `swivel.corpus`, so tokens, sentence boundaries and the vocabulary are the same as in a matrix
counted from it; gensim only trains. GloVe is not here: its objective is a recipe of our own engine
(`swivel train --recipe glove`), and `benchmarks/glove.py` has its optimizer.
"""

from __future__ import annotations

import contextlib
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
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Task, track
from swivel.runtime.signals import StopRequest, stop_on_signals
from swivel.storage import create_folder, scratch_folder
from swivel.vectors import Vectors, VectorTable, write_vectors

# Learning rates of word2vec and of the fastText paper; gensim's default is .025 for all of them.
RATES = {"sgns": 0.025, "cbow": 0.05, "fasttext": 0.05}
LONGEST_UNIT = 10_000  # tokens: gensim leaves out what comes after them
TOLD_TOKENS = 100_000  # between two reports of progress
A_CORPUS = Rule(lambda v: isinstance(v, CorpusConfig), "a CorpusConfig")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineConfig:
    """How word2vec is trained, and how its text is read.

    The paper states: skip-gram with 5 negative samples, a window of 10, 5 epochs, 300 dimensions, word vectors alone.
    The rest is gensim's default: windows shrunk at random, negatives drawn by frequency to the power .75, the rate
    falling linearly to 1e-4, words above a share of `sample` of the text left out at random.
    """

    dim: int = config_field(300, "dimensions of a vector", POSITIVE_INT)
    window: int = config_field(10, "how many tokens to each side co-occur with a token, at most", POSITIVE_INT)
    negatives: int = config_field(5, "random words that are pushed away for each one that is pulled", POSITIVE_INT)
    epochs: int = config_field(5, "how often the text is read", POSITIVE_INT)
    learning_rate: float | None = config_field(
        None, "learning rate; default: .025 for sgns, .05 for cbow", POSITIVE, optional=True
    )
    sample: float = config_field(
        1e-3, "share of the text above which a word is left out at random; 0: never", NOT_NEGATIVE
    )
    seed: int = config_field(1, "seed of everything random; the same vectors again need one thread, too", NATURAL)
    min_n: int = config_field(3, "fasttext: length of the shortest character n-grams", POSITIVE_INT)
    max_n: int = config_field(6, "fasttext: length of the longest character n-grams", POSITIVE_INT)
    buckets: int = config_field(2_000_000, "fasttext: rows of the table that n-grams are hashed into", POSITIVE_INT)
    corpus: CorpusConfig = config_field(CorpusConfig(), "how text is read", A_CORPUS)  # noqa: RUF009 (it is frozen)

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
    """Train word2vec on texts and return the vectors of a vocabulary's words, in its order.

    A word that the texts do not have gets zeros. Ctrl-C and SIGTERM leave nothing behind.

    Parameters
    ----------
    texts
        As for `swivel.count`.
    vocabulary
        The words that get vectors, such as the rows of a matrix counted from the same texts; others are left out.
    method
        sgns (skip-gram with negative samples), cbow, or fasttext (skip-gram with character n-grams).
    scratch
        Folder for the token ids of the text, 8 bytes per token, while it lasts; the system's by default.

    Raises
    ------
    MissingExtra
        If gensim is not installed.
    VocabularyError
        If the texts have none of the words.

    Examples
    --------
    >>> texts = ["the cat sat", "the dog sat"]
    >>> config = BaselineConfig(dim=4)
    >>> train_word2vec(texts, Vocabulary(["the", "sat", "cat"]), config=config).dim
    4
    """
    model = train_gensim_model(texts, vocabulary, method=method, config=config, options=options, scratch=scratch)
    return Vectors(VectorTable(vocabulary, vectors_of_words(model, vocabulary)))


def train_gensim_model(
    texts: Texts,
    vocabulary: Vocabulary,
    *,
    method: str = "sgns",
    config: BaselineConfig | None = None,
    options: RunOptions | None = None,
    scratch: Path | None = None,
) -> Any:
    """Train and return gensim's own model; the parameters are those of `train_word2vec`.

    A fastText model has a vector for every word, also for one that is not in the vocabulary: `model.wv["unseen"]`.
    """
    config, options = config or BaselineConfig(), options or RunOptions()
    settings = _gensim_settings(method, config, options.thread_count)
    make_model = _find_gensim(method)

    with scratch_folder(scratch or Path(tempfile.gettempdir())) as folder:
        ids = _read_ids(texts, vocabulary, config.corpus, folder, options)
        model = make_model(**settings)
        with stop_on_signals() as should_stop, _without_warnings():
            _train(model, _Units(ids, vocabulary, should_stop), config.epochs, f"training {method}", options)
    return model


def baseline_settings(method: str, config: BaselineConfig) -> dict[str, dict[str, Any]]:
    """Return what vectors depend on, by stage, as a manifest keeps it.

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
    vectors: Vectors,
    path: str | Path,
    *,
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    overwrite: bool = False,
) -> Vectors:
    """Write vectors to a folder that says how they were made, and return them as it holds them.

    `config` is what `baseline_settings` returns, `inputs` what `corpus.fingerprint_sources` does, or any other
    fingerprints. A folder that was not written to its end counts as none.
    """
    with create_folder(path, "vectors", overwrite=overwrite) as folder:
        folder.finish(config=dict(config), inputs=inputs, facts=write_vectors(folder, vectors))
    return Vectors.load(path)


def _find_gensim(method: str) -> Any:
    try:
        from gensim.models import FastText, Word2Vec
    except ImportError:
        raise missing_extra("sgns, cbow and fasttext", "gensim", "baselines") from None
    return FastText if method == "fasttext" else Word2Vec


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
    """Return the text as ids of the vocabulary, units apart, mapped from a scratch file."""
    encoded = encode_corpus(texts, config, scratch=scratch, threads=options.thread_count, progress=options.progress)
    file = scratch / "ids.npy"
    ids = encoded.write_ids(vocabulary, keep_gaps=False, path=file, threads=options.thread_count)
    if len(ids) == 0:
        raise VocabularyError(f"none of the {len(vocabulary):,} tokens of the vocabulary is in the text")
    return np.asarray(ids)


class _Units:
    """The text as gensim takes it: lists of tokens, from the beginning each time it is asked for."""

    def __init__(self, ids: NDArray[np.uint32], vocabulary: Vocabulary, should_stop: StopRequest) -> None:
        self.ids, self.vocabulary, self.should_stop = ids, vocabulary, should_stop
        self.breaks = np.flatnonzero(ids == BREAK)
        self.token_count = len(ids) - len(self.breaks)
        self.task: Task | None = None

    def counts(self) -> dict[str, int]:
        """Return how often each word of the vocabulary is in the text, where it is."""
        counts = np.zeros(len(self.vocabulary), np.int64)
        for start in range(0, len(self.ids), 1 << 24):
            part = self.ids[start : start + (1 << 24)]
            counts += np.bincount(part[part != BREAK], minlength=len(counts))
        return {self.vocabulary[n]: int(counts[n]) for n in np.flatnonzero(counts).tolist()}

    def __iter__(self) -> Iterator[list[str]]:
        find, untold = self.vocabulary.tokens.__getitem__, 0
        for before, stop in pairwise([-1, *self.breaks.tolist(), len(self.ids)]):
            if self.should_stop():
                return
            for start in range(before + 1, stop, LONGEST_UNIT):
                unit = self.ids[start : min(start + LONGEST_UNIT, stop)].tolist()
                yield list(map(find, unit))
                untold += len(unit)
            if untold >= TOLD_TOKENS:
                self._tell(untold)
                untold = 0
        self._tell(untold)

    def _tell(self, tokens: int) -> None:
        if self.task is not None:
            self.task.advance(tokens)


def _train(model: Any, units: _Units, epochs: int, job: str, options: RunOptions) -> None:
    model.build_vocab_from_freq(units.counts())
    with track(options.progress, job, epochs * units.token_count, "tokens") as units.task:
        model.train(units, total_words=units.token_count, epochs=epochs)


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Keep gensim's remarks on small texts, and on one that ends early because it was asked to, off the screen."""
    logger = logging.getLogger("gensim")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def vectors_of_words(model: Any, vocabulary: Vocabulary) -> NDArray[np.float32]:
    """Return the vectors of a gensim model in a vocabulary's order; zeros for words that the text does not have."""
    vectors = np.zeros((len(vocabulary), model.vector_size), np.float32)
    there = model.wv.key_to_index
    pairs = [(n, there[token]) for n, token in enumerate(vocabulary.tokens) if token in there]
    mine, theirs = np.array(pairs, np.int64).T
    vectors[mine] = model.wv.vectors[theirs]
    return vectors
