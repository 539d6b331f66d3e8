"""Guesses are corrected by the known words that are spelled alike: a dense reference, planted words, and bounds."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, MemoryBudgetError
from swivel.vectors import Vectors, VectorTable, subwords
from swivel.vectors.search import scale_to_unit

PIECES = ["".join(letters) for letters in itertools.product("bdg", "aio", "lm", "p")]
STEMS = [first + second for first, second in itertools.product(PIECES, PIECES)]
ENDINGS = ["s", "ing", "ness", "able"]
NEIGHBORS, POWER, DOUBT, MAX_WORDS = 4, 3, 0.1, 200


@pytest.fixture(scope="module")
def planted() -> Vectors:
    """Vectors of 1,296 words; those of one stem have the same direction, which its halves do not say."""
    rng = np.random.default_rng(1)
    words = [stem + ending for stem in STEMS for ending in ENDINGS]
    values = np.repeat(rng.standard_normal((len(STEMS), 16)), len(ENDINGS), axis=0) + 0.3 * rng.standard_normal(16)
    order = rng.permutation(len(words))
    vocabulary = Vocabulary([words[n] for n in order], np.full(len(words), 100))
    return Vectors(VectorTable(vocabulary, values[order].astype(np.float32))).with_subwords()


def split_ngrams(word: str) -> list[str]:
    marked = f"<{word}>"
    return [marked[start : start + n] for n in range(3, 7) for start in range(len(marked) - n + 1)]


def correct_slowly(vectors: Vectors, word: str) -> np.ndarray:
    """The formula of the module with dictionaries."""
    assert vectors.subwords is not None
    words = [known for known in vectors if vectors[known].any()]
    counts: dict[str, int] = {}
    for known in words:
        for ngram in set(split_ngrams(known)):
            counts[ngram] = counts.get(ngram, 0) + 1

    def weigh(word: str) -> dict[str, float]:
        weights: dict[str, float] = {}
        for ngram in split_ngrams(word):
            if counts.get(ngram, 1) <= MAX_WORDS:
                weights[ngram] = weights.get(ngram, 0) + np.log(len(words) / counts.get(ngram, 1))
        return weights

    asked = weigh(word)
    length = np.sqrt(sum(weight**2 for weight in asked.values()))
    found = []
    for known in words:
        other = weigh(known)
        product = sum(weight * other.get(ngram, 0) for ngram, weight in asked.items())
        found.append((product / length / np.sqrt(sum(weight**2 for weight in other.values())), known))
    best = sorted(found, reverse=True)[:NEIGHBORS]

    guess = vectors.subwords.guess([word])[0]
    weights = [similarity**POWER for similarity, _ in best]
    missed = [vectors[known] - vectors.subwords.guess([known])[0] for _, known in best]
    return np.asarray(guess + np.array(weights) @ np.array(missed) / (DOUBT + sum(weights)))


def test_a_guess_is_that_of_ngrams_and_what_they_miss_for_similar_words(planted: Vectors) -> None:
    settings = subwords._NEIGHBORS, subwords._POWER, subwords._DOUBT, subwords._MAX_WORDS
    assert settings == (NEIGHBORS, POWER, DOUBT, MAX_WORDS)
    values = np.array(planted.vectors)
    values[[planted.vocabulary.ids[word] for word in ("balpdimpness", "dompgalping")]] = 0
    vectors = planted.replace(vectors=values)

    for word in ("balpdimpings", "dompgalpables", "predimpdalping"):
        assert np.allclose(vectors.guess(word).vector, correct_slowly(vectors, word), atol=1e-4)


def test_words_of_the_same_stem_improve_a_guess(planted: Vectors) -> None:
    is_left_out = np.random.default_rng(2).random(len(planted)) < 0.1
    values = np.array(planted.vectors)
    values[is_left_out] = 0
    known = Vectors(VectorTable(planted.vocabulary, values)).with_subwords()
    asked: Sequence[str] = [planted.vocabulary[n] for n in np.flatnonzero(is_left_out).tolist()]

    assert known.subwords is not None
    truth = scale_to_unit(planted.vectors[is_left_out])
    by_ngrams = np.einsum("ij,ij->i", scale_to_unit(known.subwords.guess(asked)), truth)
    corrected = np.einsum("ij,ij->i", scale_to_unit(known.guesser.guess(asked)), truth)
    assert corrected.mean() > by_ngrams.mean() + 0.02


def test_a_known_word_is_guessed_from_other_words(planted: Vectors) -> None:
    word = planted.vocabulary[5]
    values = np.array(planted.vectors)
    values[5] = 100.0
    changed = planted.replace(vectors=values)
    assert np.array_equal(changed.guess(word).vector, planted.guess(word).vector)


def test_known_words_without_finite_vectors_are_not_used(planted: Vectors) -> None:
    asked = "balpdimpish"
    values = np.array(planted.vectors)
    alike = [number for number, word in enumerate(planted.vocabulary) if word.startswith("balpdimp")]
    values[alike[0]] = np.nan
    values[alike[1], :2] = np.inf, -np.inf
    guess = planted.replace(vectors=values).guess(asked).vector
    assert np.isfinite(guess).all()
    assert not np.array_equal(guess, planted.guess(asked).vector)


def test_a_guesser_can_be_pickled(planted: Vectors) -> None:
    words = ["balpdimping", "qqq"]
    copied = pickle.loads(pickle.dumps(planted.guesser))
    assert np.array_equal(copied.guess(words), planted.guesser.guess(words))


def test_many_words_have_the_guesses_of_each(planted: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["balpdimping", "", "qqq", "x", "dompdampings", "日本語"]
    monkeypatch.setattr(subwords, "_CHUNK_WORDS", 2)
    together = planted.guesser.guess(words)
    assert np.allclose(together, [planted.guess(word).vector for word in words], atol=1e-6)
    assert planted.guesser.guess([]).shape == (0, 16)
    assert planted.subwords is not None
    assert np.array_equal(together[2:4], planted.subwords.guess(words[2:4]))  # Nothing is spelled like them.


def test_frequent_ngrams_do_not_count(planted: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subwords, "_MAX_WORDS", 0)
    vectors = planted.replace()
    assert vectors.subwords is not None
    assert np.array_equal(vectors.guess("balpdimpings").vector, vectors.subwords.guess(["balpdimpings"])[0])


def test_guesses_need_ngrams_and_memory(planted: Vectors, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no n-grams to guess words from"):
        _ = planted.replace(subwords=None).guesser
    monkeypatch.setattr("swivel.runtime.resources.free_memory", lambda: 1 << 10)
    with pytest.raises(MemoryBudgetError, match="guessing words needs about"):
        planted.replace().guess("balpdimpings")
