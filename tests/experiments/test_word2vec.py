"""SGNS, CBOW and fastText: planted answers, and the same tokens as Swivel."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.word2vec import (
    Word2vecConfig,
    describe_settings,
    train_gensim_model,
    train_word2vec,
    vectors_of_words,
)
from swivel.config import CorpusConfig
from swivel.corpus.sources import Texts
from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import VocabularyError
from swivel.pipeline.count import count
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Progress, Task
from swivel.vectors import Vectors

GROUPS = 4
WORDS = 24
CONFIG = Word2vecConfig(dim=16, window=3, epochs=8, learning_rate=0.1, sample=0.0)
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


class ProgressSum(Progress, Task):
    """Sums up the reported progress."""

    def __init__(self) -> None:
        self.totals: dict[str, float | None] = {}
        self.done = 0.0

    def begin(self, job: str, total: float | None, unit: str) -> Task:
        self.totals[job] = total
        self.done = 0.0
        return self

    def advance(self, amount: float = 1, note: str = "") -> None:
        self.done += amount


def train(
    method: str = "sgns", config: Word2vecConfig = CONFIG, texts: Texts = TEXTS, vocabulary: Vocabulary = VOCABULARY
) -> Vectors:
    return train_word2vec(texts, vocabulary, method, config, ONE_THREAD)


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
    found = [train("sgns", config, texts, Vocabulary(order)) for order in ("abcd", "dbca", "cadb")]

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
    train(config=replace(CONFIG, epochs=1), vocabulary=matrix.rows)
    assert 0 < len(matrix.rows) < WORDS
    assert given == [dict(zip(matrix.rows.tokens, matrix.rows.counts.tolist(), strict=True))]


def test_words_that_do_not_occur_get_zeros_and_other_words_are_skipped() -> None:
    vectors = train("sgns", Word2vecConfig(dim=3), ["a b a b c", "b a"], Vocabulary(["unseen", "b", "a"]))
    assert vectors.is_zero.tolist() == [True, False, False]


def test_text_is_read_with_the_corpus_settings() -> None:
    config = replace(CONFIG, corpus=CorpusConfig(lowercase=False))
    with pytest.raises(VocabularyError, match="none of the 24 tokens of the vocabulary occurs in the text"):
        train(config=config)


def test_tokens_may_contain_spaces() -> None:
    texts = [["New York", "is", "big"], ["New York", "is", "old"]]
    vectors = train("sgns", Word2vecConfig(dim=3), texts, Vocabulary(["is", "new york"]))
    assert not vectors.is_zero.any()


def test_sentences_that_are_too_long_for_gensim_are_split() -> None:
    bar = ProgressSum()
    tokens = ["a"] * 10_005 + ["b"]  # gensim ignores what comes after 10,000 tokens
    config = Word2vecConfig(dim=3, epochs=2)
    words = Vocabulary(["a", "b"])
    assert train("sgns", config, [tokens[:10]], words).is_zero.tolist() == [False, True]
    vectors = train_word2vec([tokens], words, "sgns", config, RunOptions(threads=1, progress=bar))
    assert bar.done == bar.totals["training sgns"] == 2 * len(tokens)

    parts = [tokens[:10_000], tokens[10_000:]]
    expected = train("sgns", config, parts, words)
    assert np.array_equal(vectors.vectors, expected.vectors)


def test_progress_is_reported_in_tokens() -> None:
    bar = ProgressSum()
    train_word2vec(TEXTS, VOCABULARY, "cbow", CONFIG, RunOptions(threads=2, progress=bar))
    assert list(bar.totals) == ["reading", "training cbow"]
    assert bar.done == bar.totals["training cbow"] == 8 * 8 * len(TEXTS)


def test_settings_are_passed_to_gensim(monkeypatch: pytest.MonkeyPatch) -> None:
    import gensim.models

    given: list[dict[str, object]] = []

    class Recording(gensim.models.Word2Vec):  # type: ignore[misc]
        def __init__(self, **settings: object) -> None:
            given.append(settings)
            super().__init__(**settings)

    monkeypatch.setattr(gensim.models, "Word2Vec", Recording)
    for method in ("sgns", "cbow"):
        train_word2vec(["a b"], Vocabulary(["a", "b"]), method, Word2vecConfig(), RunOptions(threads=3))
    both = {"vector_size": 300, "window": 10, "negative": 5, "epochs": 5, "sample": 1e-3, "seed": 1, "workers": 3}
    assert given == [
        {"sg": 1, "alpha": 0.025, "min_count": 1, **both},
        {"sg": 0, "alpha": 0.05, "min_count": 1, **both},
    ]


def test_fasttext_has_vectors_for_unknown_words() -> None:
    config = replace(CONFIG, epochs=1, buckets=100, min_n=2, max_n=3)
    model = train_gensim_model(TEXTS, VOCABULARY, "fasttext", config, ONE_THREAD)
    assert (model.sg, model.wv.min_n, model.wv.max_n, model.wv.bucket) == (1, 2, 3, 100)
    assert np.abs(model.wv["w99"]).sum() > 0
    np.testing.assert_array_equal(vectors_of_words(model, VOCABULARY)[3], model.wv["w3"])


def test_only_fasttext_has_settings_of_character_ngrams() -> None:
    ngrams = {"min_n", "max_n", "buckets"}
    assert ngrams <= describe_settings("fasttext", CONFIG).keys()
    assert not ngrams & describe_settings("sgns", CONFIG).keys()
