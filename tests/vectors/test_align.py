"""Alignment recovers a known rotation and keeps cosines within a model; invalid input raises errors."""

from __future__ import annotations

import numpy as np
import pytest

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, UnknownToken
from swivel.vectors import Vectors, VectorTable, find_rotation, shared_words

WORDS = 60
DIM = 8


def make(seed: int = 0, words: int = WORDS, dim: int = DIM, prefix: str = "w") -> Vectors:
    table = np.random.default_rng(seed).normal(size=(words, dim)).astype(np.float32)
    return Vectors(VectorTable(Vocabulary([f"{prefix}{n}" for n in range(words)]), table))


def rotate(vectors: Vectors, rotation: np.ndarray) -> Vectors:
    return Vectors(VectorTable(vectors.vocabulary, (vectors.vectors @ rotation).astype(np.float32)))


@pytest.fixture
def rotation() -> np.ndarray:
    rng = np.random.default_rng(5)
    return np.asarray(np.linalg.qr(rng.normal(size=(DIM, DIM)))[0])


def test_known_rotation_is_found(rotation: np.ndarray) -> None:
    source = np.random.default_rng(1).normal(size=(40, DIM)).astype(np.float32)
    np.testing.assert_allclose(find_rotation(source, (source @ rotation).astype(np.float32)), rotation, atol=1e-6)


def test_rotation_is_orthogonal_and_beats_any_other(rotation: np.ndarray) -> None:
    rng = np.random.default_rng(2)
    source, target = rng.normal(size=(2, 40, DIM)).astype(np.float32)
    found = find_rotation(source, target)
    np.testing.assert_allclose(found @ found.T, np.eye(DIM), atol=1e-12)
    others = [np.eye(DIM), rotation, *(np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] for _ in range(20))]
    best = np.linalg.norm(source @ found - target)
    assert all(best < np.linalg.norm(source @ other - target) for other in others)


def test_rotation_does_not_depend_on_the_chunk_size(monkeypatch: pytest.MonkeyPatch, rotation: np.ndarray) -> None:
    source = np.random.default_rng(3).normal(size=(50, DIM)).astype(np.float32)
    monkeypatch.setattr("swivel.vectors.vector_table._CHUNK_ROWS", 7)
    np.testing.assert_allclose(find_rotation(source, (source @ rotation).astype(np.float32)), rotation, atol=1e-6)


def test_aligned_vectors_equal_the_others(rotation: np.ndarray) -> None:
    vectors = make()
    aligned = vectors.align(rotate(vectors, rotation))
    np.testing.assert_allclose(aligned.vectors, vectors.vectors @ rotation, atol=1e-5)
    np.testing.assert_allclose(rotate(vectors, rotation).align(vectors).vectors, vectors.vectors, atol=1e-5)


def test_words_that_only_one_has_are_rotated_with_the_rest(rotation: np.ndarray) -> None:
    vectors = make()
    other = rotate(make(), rotation)
    fewer = Vectors(VectorTable(Vocabulary(other.vocabulary.tokens[::-2]), other.vectors[::-2]))
    aligned = vectors.align(fewer)
    np.testing.assert_allclose(aligned.vectors, vectors.vectors @ rotation, atol=1e-5)


def test_alignment_keeps_lengths_and_cosines_within_a_model() -> None:
    vectors = make(0)
    aligned = vectors.align(make(1))
    np.testing.assert_allclose(aligned.vectors @ aligned.vectors.T, vectors.vectors @ vectors.vectors.T, atol=1e-4)
    assert [near.token for near in aligned.nearest("w3")] == [near.token for near in vectors.nearest("w3")]


def test_alignment_keeps_scores() -> None:
    rng = np.random.default_rng(4)
    words = Vocabulary([f"w{n}" for n in range(WORDS)])
    rows, columns = rng.normal(size=(2, WORDS, DIM)).astype(np.float32)
    vectors = Vectors(
        VectorTable(words, rows), VectorTable(words, columns), vectors=rows + columns, shift=0.5, columns_per_row=1
    )
    assert vectors.align(make()).score("w1", "w2") == vectors.score("w1", "w2")


def test_anchor_words_may_be_a_list_or_a_number(rotation: np.ndarray) -> None:
    vectors = make()
    table = vectors.vectors @ rotation
    table[30:] = np.random.default_rng(6).normal(size=(30, DIM))  # the rarer half is random
    other = Vectors(VectorTable(vectors.vocabulary, table.astype(np.float32)))
    for words in (30, vectors.vocabulary.tokens[:30]):
        np.testing.assert_allclose(vectors.align(other, words=words).vectors, vectors.vectors @ rotation, atol=1e-5)
    assert np.abs(vectors.align(other).vectors - vectors.vectors @ rotation).max() > 0.1


def test_shared_words_are_ordered_by_the_larger_rank() -> None:
    assert shared_words(Vocabulary(["a", "b", "c", "d"]), Vocabulary(["d", "c", "x", "a"])) == ["c", "a", "d"]


@pytest.mark.parametrize(
    ("other", "words", "message"),
    [
        (make(dim=5), None, "cannot align vectors of 8 and 5 dimensions"),
        (make(prefix="v"), None, "0 words do not determine a rotation in 8 dimensions"),
        (make(), 7, "7 words do not determine a rotation"),
        (make(), 0, "words must be a list of words or a positive number of most frequent words, got 0"),
        (make(), "w1", "words must be a list of words or .* got 'w1'"),
        (make(), True, "words must be a list of words or .* got True"),
    ],
)
def test_models_that_cannot_be_aligned_raise_errors(other: Vectors, words: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make().align(other, words=words)  # type: ignore[arg-type]


def test_an_anchor_must_be_in_both_vocabularies() -> None:
    with pytest.raises(UnknownToken, match="'zebra' is not in the vocabulary"):
        make().align(make(), words=["w1", "zebra"])
