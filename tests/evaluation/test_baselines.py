"""SGNS, CBOW and fastText baselines: planted answers, the same tokens as Swivel, and no leftover files."""

from __future__ import annotations

import logging
import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swivel.storage.result_folder import is_done

from swivel.config import CorpusConfig
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, FolderExists, MissingExtra, VocabularyError
from swivel.evaluation.baselines import (
    BaselineConfig,
    baseline_settings,
    keep_vectors,
    train_gensim_model,
    train_word2vec,
    vectors_of_words,
)
from swivel.pipeline.count import count
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SilentProgress, Task
from swivel.vectors import Vectors, load

GROUPS = 4
WORDS = 24
CONFIG = BaselineConfig(dim=16, window=3, epochs=8, learning_rate=0.1, sample=0.0)
ONE_THREAD = RunOptions(threads=1)


def make_texts(lines: int = 1500) -> list[str]:
    """Return lines with words of one group each; word n is in group n % 4, and low numbers are more frequent."""
    rng = np.random.default_rng(21)
    chance = 1 / (1 + np.arange(WORDS // GROUPS))
    texts = []

    for _ in range(lines):
        group = rng.integers(GROUPS)
        numbers = group + GROUPS * rng.choice(WORDS // GROUPS, 8, p=chance / chance.sum())
        texts.append(" ".join(f"W{n}" for n in numbers))

    return texts


TEXTS = make_texts()
VOCABULARY = Vocabulary([f"w{n}" for n in range(WORDS)])


class ProgressSum(SilentProgress):
    """Sums up the reported progress; optionally sends a signal to the process during training."""

    def __init__(self, stop_with: int | None = None) -> None:
        self.totals: dict[str, float | None] = {}
        self.done = 0.0
        self.stop_with = stop_with

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.totals[job] = total
        self.done = 0.0
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.done += amount
        if self.stop_with is not None and len(self.totals) == 2:
            number, self.stop_with = self.stop_with, None  # once: a second SIGTERM would end this process
            os.kill(os.getpid(), number)


def train(method: str = "sgns", config: BaselineConfig = CONFIG, **keywords: object) -> Vectors:
    return train_word2vec(TEXTS, VOCABULARY, method=method, config=config, options=ONE_THREAD, **keywords)  # type: ignore[arg-type]


def share_of_own_group(vectors: Vectors) -> float:
    cosines = vectors.unit_vectors @ vectors.unit_vectors.T
    np.fill_diagonal(cosines, -2)
    nearest = np.argsort(-cosines, axis=1)[:, :4]
    return float((nearest % GROUPS == np.arange(len(cosines))[:, None] % GROUPS).mean())


@pytest.mark.parametrize("method", ["sgns", "cbow"])
def test_groups_are_found_and_vectors_have_the_order_of_the_vocabulary(method: str) -> None:
    vectors = train(method)
    assert vectors.vocabulary is VOCABULARY
    assert vectors.vectors.shape == (WORDS, 16)
    assert share_of_own_group(vectors) > 0.95
    assert vectors.columns is None


def test_same_seed_on_one_thread_gives_the_same_vectors_and_another_seed_others() -> None:
    config = replace(CONFIG, epochs=1)
    one, again, other = (train(config=replace(config, seed=seed)).vectors for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)


def test_the_order_of_the_vocabulary_does_not_change_vectors() -> None:
    """This needs different counts, because gensim orders words by descending count."""
    config = replace(CONFIG, epochs=1)
    texts = [" ".join(["a"] * 4 + ["b"] * 3 + ["c"] * 2 + ["d"])] * 20
    found = [
        train_word2vec(texts, Vocabulary(order), config=config, options=ONE_THREAD)
        for order in ("abcd", "dbca", "cadb")
    ]

    for vectors in found[1:]:
        for token in "abcd":
            np.testing.assert_array_equal(vectors[token], found[0][token])


def test_vocabulary_of_a_matrix_of_the_same_text_has_the_same_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gensim.models import Word2Vec

    given: list[dict[str, int]] = []
    build = Word2Vec.build_vocab_from_freq

    def note(model: Any, counts: dict[str, int]) -> None:
        given.append(counts)
        build(model, counts)

    monkeypatch.setattr(Word2Vec, "build_vocab_from_freq", note)
    matrix = count(TEXTS, tmp_path / "matrix", min_count=500, columns="symmetric")
    train_word2vec(TEXTS, matrix.rows, config=replace(CONFIG, epochs=1), options=ONE_THREAD)
    assert 0 < len(matrix.rows) < WORDS
    assert given == [dict(zip(matrix.rows.tokens, matrix.rows.counts.tolist(), strict=True))]


def test_words_that_do_not_occur_get_zeros_and_other_words_are_skipped() -> None:
    vectors = train_word2vec(
        ["a b a b c", "b a"], Vocabulary(["unseen", "b", "a"]), config=BaselineConfig(dim=3), options=ONE_THREAD
    )
    assert vectors.is_zero.tolist() == [True, False, False]


def test_text_is_read_with_the_corpus_settings() -> None:
    config = replace(CONFIG, corpus=CorpusConfig(lowercase=False))
    with pytest.raises(VocabularyError, match="none of the 24 tokens of the vocabulary occurs in the text"):
        train(config=config)


def test_tokens_may_contain_spaces() -> None:
    texts = [["New York", "is", "big"], ["New York", "is", "old"]]
    vectors = train_word2vec(texts, Vocabulary(["is", "new york"]), config=BaselineConfig(dim=3), options=ONE_THREAD)
    assert not vectors.is_zero.any()


def test_sentences_that_are_too_long_for_gensim_are_split() -> None:
    bar = ProgressSum()
    tokens = ["a"] * 10_005 + ["b"]  # gensim ignores what comes after 10,000 tokens
    config = BaselineConfig(dim=3, epochs=2)
    before = train_word2vec([tokens[:10]], Vocabulary(["a", "b"]), config=config, options=ONE_THREAD)
    assert before.is_zero.tolist() == [False, True]
    options = RunOptions(threads=1, progress=bar)
    vectors = train_word2vec([tokens], Vocabulary(["a", "b"]), config=config, options=options)
    assert bar.done == bar.totals["training sgns"] == 2 * len(tokens)

    parts = [tokens[:10_000], tokens[10_000:]]
    expected = train_word2vec(parts, Vocabulary(["a", "b"]), config=config, options=ONE_THREAD)
    assert np.array_equal(vectors.vectors, expected.vectors)


def test_progress_is_reported_in_tokens() -> None:
    bar = ProgressSum()
    train_word2vec(TEXTS, VOCABULARY, method="cbow", config=CONFIG, options=RunOptions(threads=2, progress=bar))
    assert list(bar.totals) == ["reading", "training cbow"]
    assert bar.done == bar.totals["training cbow"] == 8 * 8 * len(TEXTS)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_interrupted_training_leaves_no_files(
    number: int, error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("swivel.evaluation.baselines.TOKENS_PER_REPORT", 500)
    bar = ProgressSum(stop_with=number)

    with pytest.raises(error):
        train_word2vec(
            TEXTS, VOCABULARY, config=CONFIG, options=RunOptions(threads=1, progress=bar), scratch=tmp_path / "scratch"
        )
    assert bar.done < 0.5 * (bar.totals["training sgns"] or 0)
    assert list((tmp_path / "scratch").iterdir()) == []


def test_the_log_level_of_gensim_is_restored(caplog: pytest.LogCaptureFixture) -> None:
    train(config=replace(CONFIG, epochs=1))
    assert not caplog.records
    assert logging.getLogger("gensim").level == logging.NOTSET


def test_saved_vectors_have_their_provenance(tmp_path: Path) -> None:
    vectors = train()
    settings = baseline_settings("sgns", CONFIG)
    inputs = {"text": "fingerprint"}
    kept = keep_vectors(vectors, tmp_path / "sgns", config=settings, inputs=inputs)
    np.testing.assert_array_equal(kept.vectors, vectors.vectors)

    assert load(tmp_path / "sgns").vocabulary == VOCABULARY
    assert is_done(tmp_path / "sgns", "vectors", {"config": settings, "inputs": inputs}, RunOptions())
    with pytest.raises(FolderExists, match=r"other settings \(baseline.learning_rate, baseline.method\)"):
        is_done(
            tmp_path / "sgns",
            "vectors",
            {"config": baseline_settings("cbow", replace(CONFIG, learning_rate=None)), "inputs": inputs},
            RunOptions(),
        )
    with pytest.raises(FolderExists):
        keep_vectors(vectors, tmp_path / "sgns", config=settings, inputs=inputs)

    keep_vectors(vectors, tmp_path / "sgns", config=settings, inputs={}, overwrite=True)


def test_settings_are_passed_to_gensim(monkeypatch: pytest.MonkeyPatch) -> None:
    import gensim.models

    given: list[dict[str, object]] = []

    class Recording(gensim.models.Word2Vec):  # type: ignore[misc]
        def __init__(self, **settings: object) -> None:
            given.append(settings)
            super().__init__(**settings)

    monkeypatch.setattr(gensim.models, "Word2Vec", Recording)
    for method in ("sgns", "cbow"):
        train_word2vec(["a b"], Vocabulary(["a", "b"]), method=method, options=RunOptions(threads=3))
    both = {"vector_size": 300, "window": 10, "negative": 5, "epochs": 5, "sample": 1e-3, "seed": 1, "workers": 3}
    assert given == [
        {"sg": 1, "alpha": 0.025, "min_count": 1, **both},
        {"sg": 0, "alpha": 0.05, "min_count": 1, **both},
    ]


def test_fasttext_has_vectors_for_unknown_words() -> None:
    config = replace(CONFIG, epochs=1, buckets=100, min_n=2, max_n=3)
    model = train_gensim_model(TEXTS, VOCABULARY, method="fasttext", config=config, options=ONE_THREAD)
    assert (model.sg, model.wv.min_n, model.wv.max_n, model.wv.bucket) == (1, 2, 3, 100)
    assert np.abs(model.wv["w99"]).sum() > 0
    np.testing.assert_array_equal(vectors_of_words(model, VOCABULARY)[3], model.wv["w3"])


def test_only_fasttext_has_settings_of_character_ngrams() -> None:
    ngrams = {"min_n", "max_n", "buckets"}
    assert ngrams <= baseline_settings("fasttext", CONFIG)["baseline"].keys()
    assert not ngrams & baseline_settings("sgns", CONFIG)["baseline"].keys()


def test_an_unknown_method_raises_an_error() -> None:
    with pytest.raises(ConfigError, match="method must be one of sgns, cbow, fasttext, got 'glove'"):
        train("glove")
    with pytest.raises(ConfigError, match="method must be one of sgns, cbow, fasttext, got 'glove'"):
        baseline_settings("glove", CONFIG)


@pytest.mark.parametrize(
    ("setting", "value"), [("dim", 0), ("negatives", -1), ("sample", -1.0), ("learning_rate", 0.0), ("corpus", "words")]
)
def test_invalid_settings_raise_errors(setting: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{setting} must be "):
        BaselineConfig(**{setting: value})  # type: ignore[arg-type]


def test_a_missing_gensim_raises_an_error_before_the_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    message = r"sgns, cbow and fasttext need gensim: pip install 'swivel-embeddings\[baselines\]'"
    with pytest.raises(MissingExtra, match=message):
        train_word2vec(Path("no such file"), VOCABULARY)
