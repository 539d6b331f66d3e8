"""Queries about vectors: neighbors, analogies, columns, comparisons and suggestions.

The functions return plain dictionaries for JSON; `app` connects them to HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError, UnknownToken
from swivel.explorer.models import VectorSet, View
from swivel.vectors import Expression, parse_expression
from swivel.vectors.search import best_ids, check_scores, scale_to_unit, score_3cosmul

MAX_TERMS = 10  # of an expression
SHARED_REACH = 100  # nearest neighbors of each of two words that are searched for shared ones
_CLOSE_SHOWN = 5
_ENOUGH_COMPLETIONS = 3  # a text with this many completions is probably not misspelled
_ROWS_PER_BLOCK = 1_024  # 1.2 MB at dim 300, which fits into the L2 cache of a core


class NoSuchWord(UnknownToken):
    """A word is not in the vocabulary; `close` lists words with a similar spelling."""

    def __init__(self, token: str, close: list[str], size: int) -> None:
        super().__init__(f"{token!r} is not among the {size:,} words of these vectors")
        self.token = token
        self.close = close


def read_expression(view: View, text: str) -> Expression:
    """Parse a typed text such as "king - man + woman"; a text in the vocabulary is one word, even if it has signs."""
    for word in (text, text.strip()):
        if word in view.vectors:
            return Expression((word,), ())
    return parse_expression(text.strip())


def find_nearest(view: View, expression: Expression, count: int) -> dict[str, Any]:
    """Return the words nearest to an expression, and the cosine of each answer with each term."""
    # All terms are scaled to length 1. The cosine of an answer with the sum is therefore the signed sum of its
    # cosines with the terms, divided by the `length` of the sum.
    _find_ids(view, [*expression.plus, *expression.minus])  # raises an error with suggestions
    vectors = view.vectors
    direction = scale_to_unit(vectors.vector(expression.plus, minus=expression.minus)[None])
    scores = np.full(len(vectors), -np.inf, np.float32)  # A direction of zeros has no neighbors.
    if direction.any():
        scores = multiply(vectors.unit_vectors, direction)[0]
    return _describe_best(view, expression, scores, count)


def solve_analogy(view: View, words: tuple[str, str, str], method: str, count: int) -> dict[str, Any]:
    """Answer "a is to b as c is to ?" by 3CosAdd or 3CosMul, with the cosine of each answer with each word."""
    ids = _find_ids(view, words)
    a, b, c = words
    expression = Expression((b, c), (a,))
    if method == "3cosadd":
        return {"method": method, **find_nearest(view, expression, count)}

    unit = view.vectors.unit_vectors
    return {"method": method, **_describe_best(view, expression, score_3cosmul(*multiply(unit, unit[ids])), count)}


def _describe_best(view: View, expression: Expression, scores: NDArray[np.float32], count: int) -> dict[str, Any]:
    """Return the terms of a query and its answers, which have the highest scores; `scores` is modified."""
    unit = view.vectors.unit_vectors
    terms = _find_ids(view, [*expression.plus, *expression.minus])
    signs = np.array([1] * len(expression.plus) + [-1] * len(expression.minus), np.float32)

    best = view.vectors.rank_rows(scores, terms, count).tolist()
    parts = unit[best] @ unit[terms].T
    return {
        "terms": [{"sign": int(sign), **view.facts(term)} for sign, term in zip(signs, terms, strict=True)],
        "length": _round(np.linalg.norm(signs @ unit[terms])),
        "answers": [
            {"similarity": _round(scores[number]), "parts": _round_all(row), **view.facts(number)}
            for number, row in zip(best, parts, strict=True)
        ],
    }


def find_columns(vector_set: VectorSet, words: Sequence[str], count: int) -> dict[str, Any]:
    """Return the columns with the highest scores (estimated PMI) for the words, with counts if they are known.

    The result contains the best `count` columns of every word, sorted by their highest score.
    """
    vectors = vector_set.vectors
    if vectors.columns is None or vectors.column_vocabulary is None:
        raise ConfigError(f"{vector_set.name} has no columns; open a folder written by training")
    ids = _find_ids(vector_set.view(""), words)

    scores = multiply(vectors.columns, vectors.rows[ids]) + np.float32(vectors.shift)
    check_scores(scores)
    scores[:, vectors.zero_columns] = -np.inf
    best = np.unique(np.concatenate([best_ids(row, count) for row in scores]))
    best = best[np.argsort(-scores[:, best].max(axis=0), kind="stable")]

    columns = []
    for number in best.tolist():
        label = vectors.column_vocabulary[number]
        columns.append(
            {
                "token": label,
                "is_word": label in vectors,
                "scores": _round_all(scores[:, number]),
                "counts": [vector_set.count(word, label) for word in words],
                "rank": number + 1,
            }
        )
    return {"words": list(words), "columns": columns}


def compare_words(vector_set: VectorSet, view: View, words: tuple[str, str], count: int) -> dict[str, Any]:
    """Return the cosine of two words, the neighbors they share, the other neighbors of each, and their columns."""
    ids = _find_ids(view, words)
    vectors = view.vectors

    # The columns are another table: a second thread searches it on another core.
    has_columns = vector_set.vectors.columns is not None and all(word in vector_set.vectors for word in words)
    with ThreadPoolExecutor(1) as pool:
        columns = pool.submit(find_columns, vector_set, words, min(count, 12)) if has_columns else None
        scores = multiply(vectors.unit_vectors, vectors.unit_vectors[ids])
        near = [
            vectors.rank_rows(row, [number], SHARED_REACH).tolist() for row, number in zip(scores, ids, strict=True)
        ]

    both = set(near[0]) & set(near[1])
    shared = _describe_pairs(view, [number for number in near[0] if number in both], ids)
    shared.sort(key=lambda pair: -sum(pair["similarities"]))
    own = []
    for numbers in near:
        others = [number for number in numbers if number not in both and number not in ids]
        own.append(_describe_pairs(view, others[:count], ids))

    comparison = {
        "words": [view.facts(number) for number in ids],
        "similarity": _round(vectors.similarity(*words)),
        "shared": shared[:count],
        "own": own,
        "reach": SHARED_REACH,
    }
    if columns is not None:
        comparison["columns"] = columns.result()["columns"]
    return comparison


def suggest(view: View, text: str, count: int) -> dict[str, Any]:
    """Return completions of a text, and similar spellings if there are few completions."""
    typed = text.strip()
    completed = view.speller.complete(typed, count)

    close: list[int] = []
    if typed and typed not in view.vectors and len(completed) < _ENOUGH_COMPLETIONS:
        close = [number for number in view.speller.find_close(typed, _CLOSE_SHOWN) if number not in completed]

    return {
        "completions": [view.facts(number) for number in completed],
        "close": [view.facts(number) for number in close],
    }


def _describe_pairs(view: View, numbers: Sequence[int], words: Sequence[int]) -> list[dict[str, Any]]:
    """Return labels with their cosines to both words, for JSON."""
    unit = view.vectors.unit_vectors
    cosines = unit[numbers] @ unit[words].T
    return [
        {"similarities": _round_all(row), **view.facts(number)} for number, row in zip(numbers, cosines, strict=True)
    ]


def _find_ids(view: View, tokens: Sequence[str]) -> list[int]:
    """Return the ids of words; raise ConfigError if there are too many, NoSuchWord for the first unknown one."""
    if len(tokens) > MAX_TERMS:
        raise ConfigError(f"a query must have at most {MAX_TERMS} words, got {len(tokens)}")

    vocabulary = view.vectors.vocabulary
    for token in tokens:
        if token not in vocabulary:
            close = [*view.speller.find_close(token, _CLOSE_SHOWN), *view.speller.complete(token, _CLOSE_SHOWN)]
            close_words = [vocabulary[number] for number in dict.fromkeys(close)]
            raise NoSuchWord(token[:80], close_words, len(vocabulary))
    return [vocabulary.ids[token] for token in tokens]


def multiply(table: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the dot products (queries, rows) of a large table with a few queries, on one core.

    >>> multiply(np.eye(2, dtype=np.float32), np.array([[1, 2]], np.float32)).tolist()
    [[1.0, 2.0]]
    """
    # Block by block, one query at a time: the second query finds the block in the cache; a product with a matrix of two
    # columns is slower than two products with vectors; and a product on two cores waits for the slower one. With other
    # jobs on both cores, the p95 of an analogy fell from 203 to 18 ms (benchmarks/explorer.py).
    scores = np.empty((len(queries), len(table)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):  # Callers check columns; views have unit vectors.
        for start in range(0, len(table), _ROWS_PER_BLOCK):
            block = table[start : start + _ROWS_PER_BLOCK]
            for query, row in zip(queries, scores, strict=True):
                np.dot(block, query, out=row[start : start + len(block)])
    return scores


def _round(value: float | np.floating[Any]) -> float:
    return round(float(value), 4)


def _round_all(values: NDArray[np.float32]) -> list[float]:
    return [_round(value) for value in values.tolist()]
