"""Searches for the highest scores give the same result as a full sort, for one query and for many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swivel.corpus.vocabulary import Vocabulary
from swivel.errors import ConfigError, UnknownToken
from swivel.vectors import Vectors, VectorTable, search
from swivel.vectors.search import Query, best_ids, best_rows


def sorted_best(scores: np.ndarray, count: int) -> list[int]:
    order = np.lexsort((np.arange(len(scores)), -scores))
    return [int(row) for row in order[:count] if scores[row] > -np.inf]


@given(st.integers(0, 3000), st.integers(1, 40), st.integers(1, 50), st.integers(0, 2**32))
@settings(max_examples=60)
def test_the_best_are_those_that_sorting_finds(size: int, count: int, levels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, levels, size).astype(np.float32)  # few levels give many ties
    scores[rng.random(size) < 0.1] = -np.inf
    assert best_ids(scores, count).tolist() == sorted_best(scores, count)


@pytest.mark.parametrize("batch", [1, 4, 13, 100])
@pytest.mark.parametrize("count", [1, 3, 30, 500])
def test_the_best_rows_are_those_of_the_whole_product(monkeypatch: pytest.MonkeyPatch, batch: int, count: int) -> None:
    monkeypatch.setattr(search, "_MAX_SCORES", 0)
    monkeypatch.setattr(search, "_MIN_QUERIES", batch)
    rng = np.random.default_rng(batch + count)
    unit = rng.integers(-2, 3, (211, 3)).astype(np.float32)  # integers: products are exact and have many ties
    queries = rng.integers(-2, 3, (13, 3)).astype(np.float32)
    is_zero = np.asarray(~unit.any(axis=1))
    excluded = rng.integers(0, 211, (13, 3)).tolist()
    scores = queries @ unit.T
    scores[:, is_zero] = -np.inf
    np.put_along_axis(scores, np.array(excluded), -np.inf, axis=1)
    biases = np.where(is_zero, -np.inf, 0).astype(np.float32)
    ids, best = best_rows(unit, queries, count, biases=biases, excluded=excluded)

    assert ids.shape == best.shape == (13, count)
    for query in range(13):
        is_row = best[query] > -np.inf
        assert ids[query][is_row].tolist() == sorted_best(scores[query], count)
        assert best[query][is_row].tolist() == scores[query][sorted_best(scores[query], count)].tolist()
        assert (ids[query][~is_row] == -1).all()


def test_an_empty_list_of_queries_has_no_answers() -> None:
    ids, scores = best_rows(
        np.eye(3, dtype=np.float32), np.empty((0, 3), np.float32), 2, biases=np.zeros(3, np.float32), excluded=[]
    )
    assert ids.shape == scores.shape == (0, 2)


def make(count: int = 300) -> Vectors:
    values = np.random.default_rng(2).standard_normal((count, 8)).astype(np.float32)
    values[5::12] = 0
    return Vectors(VectorTable(Vocabulary([f"w{number}" for number in range(count)]), values))


def test_nearest_each_of_a_word_is_an_error() -> None:
    with pytest.raises(ConfigError, match="queries must be a list of queries, got 'tea'; see nearest"):
        make(3).nearest_each("tea")


def test_nearest_each_equals_nearest_for_every_query(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swivel.vectors.vectors.QUERIES_PER_BATCH", 3)
    vectors = make()
    queries: list[Query] = ["w0", "w5", ("w1", "w2"), np.ones(8), "w299", "w0", ["w7"]]
    found = vectors.nearest_each(queries, count=7)

    assert len(found) == len(queries)
    for query, result in zip(queries, found, strict=True):
        expected = [] if query is queries[1] else vectors.nearest(query, count=7)  # The vector of w5 is zero.
        assert [near.token for near in result] == [near.token for near in expected]
        assert np.allclose([near.similarity for near in result], [near.similarity for near in expected], atol=1e-6)


def test_each_row_of_an_array_is_a_query() -> None:
    vectors = make()
    found = vectors.nearest_each(vectors.vectors[:2], count=1)
    assert [near[0].token for near in found] == ["w0", "w1"]
    assert vectors.nearest_each([]) == []


def test_few_words_have_few_neighbors() -> None:
    assert [len(found) for found in make(4).nearest_each(["w0", "w1"], count=10)] == [3, 3]


def test_unknown_tokens_and_wrong_counts_raise_errors() -> None:
    with pytest.raises(UnknownToken, match="'zebra' is not in the vocabulary"):
        make().nearest_each(["w0", "zebra"])
    with pytest.raises(ConfigError, match="count must be a positive integer, got 0"):
        make().nearest_each(["w0"], count=0)
