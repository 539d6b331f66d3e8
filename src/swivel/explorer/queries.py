"""Questions about vectors, answered as plain data for the page.

Receives a set, a view and what was asked; hands on dictionaries that are ready for JSON. It knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError, UnknownToken
from swivel.explorer.limits import LONGEST_TEXT, MOST_TERMS, REACH
from swivel.explorer.models import VectorSet, View
from swivel.vectors import Expression, Neighbour, Vectors, parse_expression
from swivel.vectors.search import EPSILON, best_ids, scale_to_unit, shift_cosine

_CLOSE_SHOWN = 5
_ENOUGH = 3  # completions: whoever types a word that far has not misspelt it
_ROWS_AT_A_TIME = 1_024  # 1.2 MB at dim 300: a core's own cache


class NoSuchWord(UnknownToken):
    """A word that the vocabulary does not have, with close spellings of it."""

    def __init__(self, token: str, close: list[str], size: int) -> None:
        super().__init__(f"{token!r} is not among the {size:,} words of these vectors")
        self.token = token
        self.close = close


def read_expression(view: View, text: str) -> Expression:
    """Return a typed text as an expression; a text that is a word, signs and spaces included, is that word."""
    if len(text) > LONGEST_TEXT:
        raise ConfigError(f"at most {LONGEST_TEXT:,} characters, got {len(text):,}: ask for less")
    text = text if text in view.vectors else text.strip()
    return Expression((text,), ()) if text in view.vectors else parse_expression(text)


def find_nearest(view: View, asked: Expression, count: int) -> dict[str, Any]:
    """Return the words nearest to an expression, and the arithmetic behind each cosine.

    With every term a vector of length 1, the cosine of an answer with the sum is the sum of its cosines with the
    terms, minus signs kept, divided by the sum's `length`.
    """
    _check_terms(view, [*asked.plus, *asked.minus])
    vectors = view.vectors
    direction = scale_to_unit(vectors.vector(asked.plus, minus=asked.minus)[None])
    own = _ids(vectors, [*asked.plus, *asked.minus])
    found = _choose_best(vectors, multiply(vectors.unit_vectors, direction)[0], own, count) if direction.any() else []
    return _describe_answers(view, asked, found)


def solve_analogy(view: View, words: tuple[str, str, str], method: str, count: int) -> dict[str, Any]:
    """Answer "a is to b as c is to ?" by 3CosAdd or 3CosMul, with the cosines that the answer was made of."""
    _check_terms(view, words)
    a, b, c = words
    asked = Expression((b, c), (a,))
    if method == "3cosadd":
        return {"method": method, **find_nearest(view, asked, count)}
    own = _ids(view.vectors, words)
    to_a, to_b, to_c = shift_cosine(multiply(view.vectors.unit_vectors, view.vectors.unit_vectors[own]))
    found = _choose_best(view.vectors, to_b * to_c / (to_a + EPSILON), own, count)
    return {"method": method, **_describe_answers(view, asked, found)}


def _describe_answers(view: View, asked: Expression, found: Sequence[Neighbour]) -> dict[str, Any]:
    vectors = view.vectors
    terms = _ids(vectors, [*asked.plus, *asked.minus])
    signs = np.array([1] * len(asked.plus) + [-1] * len(asked.minus), np.float32)
    ids = _ids(vectors, [neighbour.token for neighbour in found])
    parts = vectors.unit_vectors[ids] @ vectors.unit_vectors[terms].T
    length = float(np.linalg.norm(signs @ vectors.unit_vectors[terms]))
    return {
        "terms": [{"sign": int(sign), **view.facts(term)} for sign, term in zip(signs, terms, strict=True)],
        "length": _round(length),
        "answers": [
            {"similarity": _round(neighbour.similarity), "parts": _round_all(row), **view.facts(number)}
            for neighbour, number, row in zip(found, ids, parts, strict=True)
        ],
    }


def find_columns(chosen: VectorSet, words: Sequence[str], count: int) -> dict[str, Any]:
    """Return the columns that words go with most strongly: estimated PMI of each word with each, counts where known.

    The strongest of every word are listed, each once, by the highest of their scores.
    """
    vectors = chosen.vectors
    if vectors.columns is None or vectors.column_vocabulary is None:
        raise ConfigError(f"{chosen.name} has no columns: open the folder that training wrote")
    _check_terms(chosen.view(""), words)
    scores = multiply(vectors.columns, vectors.rows[_ids(vectors, words)]) + np.float32(vectors.shift)
    scores[:, chosen.dead_columns] = -np.inf
    best = np.unique(np.concatenate([best_ids(row, count) for row in scores]))
    best = best[np.argsort(-scores[:, best].max(axis=0), kind="stable")]
    labels = [vectors.column_vocabulary[number] for number in best.tolist()]
    return {
        "words": list(words),
        "columns": [
            {
                "token": label,
                "is_word": label in vectors,
                "scores": _round_all(scores[:, number]),
                "counts": [chosen.count(word, label) for word in words],
                "rank": number + 1,
            }
            for label, number in zip(labels, best.tolist(), strict=True)
        ],
    }


def compare_words(chosen: VectorSet, view: View, words: tuple[str, str], count: int) -> dict[str, Any]:
    """Return how near two words are, the neighbours they share, each one's own, and the columns they go with."""
    _check_terms(view, words)
    a, b = words
    vectors = view.vectors
    has_columns = chosen.vectors.columns is not None and a in chosen.vectors and b in chosen.vectors
    with ThreadPoolExecutor(1) as beside:  # The columns are another table, and there is another core.
        columns = beside.submit(find_columns, chosen, (a, b), min(count, 12)) if has_columns else None
        near = _find_near(vectors, _ids(vectors, words))
    both = set(near[0]) & set(near[1])
    own = [[token for token in found if token not in both and token not in (a, b)][:count] for found in near]
    shared = _name_pairs(view, [token for token in near[0] if token in both], (a, b))
    return {
        "words": [view.facts(number) for number in _ids(vectors, (a, b))],
        "similarity": _round(vectors.similarity(a, b)),
        "shared": sorted(shared, key=lambda each: -sum(each["similarities"]))[:count],
        "own": [_name_pairs(view, tokens, (a, b)) for tokens in own],
        "reach": REACH,
        **({"columns": columns.result()["columns"]} if columns else {}),
    }


def suggest(view: View, text: str, count: int) -> dict[str, Any]:
    """Return completions of a text, and close spellings where few words begin like it."""
    vectors, typed = view.vectors, text.strip()
    if len(typed) > LONGEST_TEXT:
        raise ConfigError(f"at most {LONGEST_TEXT:,} characters, got {len(typed):,}: ask for less")
    completed = view.speller.complete(typed, count)
    is_right = typed in vectors or not typed or len(completed) >= _ENOUGH
    close = [] if is_right else [n for n in view.speller.find_close(typed, _CLOSE_SHOWN) if n not in completed]
    return {
        "completions": [view.facts(number) for number in completed],
        "close": [view.facts(number) for number in close],
    }


def _name_pairs(view: View, tokens: Sequence[str], words: tuple[str, str]) -> list[dict[str, Any]]:
    """Return tokens with their cosines to both words."""
    vectors = view.vectors
    ids = _ids(vectors, tokens)
    cosines = vectors.unit_vectors[ids] @ vectors.unit_vectors[_ids(vectors, words)].T
    return [{"similarities": _round_all(row), **view.facts(number)} for number, row in zip(ids, cosines, strict=True)]


def _check_terms(view: View, tokens: Sequence[str]) -> None:
    if len(tokens) > MOST_TERMS:
        raise ConfigError(f"at most {MOST_TERMS} words at a time, got {len(tokens)}")
    vectors = view.vectors
    for token in tokens:
        if token not in vectors:
            close = [*view.speller.find_close(token, _CLOSE_SHOWN), *view.speller.complete(token, _CLOSE_SHOWN)]
            raise NoSuchWord(token[:80], [vectors.vocabulary[n] for n in dict.fromkeys(close)], len(vectors))


def _ids(vectors: Vectors, tokens: Sequence[str]) -> list[int]:
    return [vectors.vocabulary.ids[token] for token in tokens]


def _find_near(vectors: Vectors, ids: Sequence[int]) -> list[list[str]]:
    """Return the tokens nearest to each of some words, without itself and without vectors of zeros."""
    scores = multiply(vectors.unit_vectors, vectors.unit_vectors[ids])
    best = [_choose_best(vectors, row, [number], REACH) for row, number in zip(scores, ids, strict=True)]
    return [[neighbour.token for neighbour in found] for found in best]


def _choose_best(vectors: Vectors, scores: NDArray[np.float32], own: Sequence[int], count: int) -> list[Neighbour]:
    """Return the tokens of the highest scores, without the question's own and without vectors of zeros."""
    scores[vectors.is_zero] = -np.inf
    scores[list(own)] = -np.inf
    return [Neighbour(vectors.vocabulary[number], float(scores[number])) for number in best_ids(scores, count).tolist()]


def multiply(table: NDArray[np.float32], queries: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the dot products (queries, rows) of a large table with few queries.

    As matrix times vector, block by block, on one core: a second query finds a block in the cache, one product with a
    matrix of two columns takes longer than two with vectors, and a product shared by two cores waits for both: with
    other jobs on both of them, the p95 of an analogy fell from 203 to 18 ms (benchmarks/explorer.py).

    >>> multiply(np.eye(2, dtype=np.float32), np.array([[1, 2]], np.float32)).tolist()
    [[1.0, 2.0]]
    """
    scores = np.empty((len(queries), len(table)), np.float32)
    for start in range(0, len(table), _ROWS_AT_A_TIME):
        block = table[start : start + _ROWS_AT_A_TIME]
        for query, row in zip(queries, scores, strict=True):
            np.dot(block, query, out=row[start : start + len(block)])
    return scores


def _round(value: float) -> float:
    return round(float(value), 4)


def _round_all(values: NDArray[np.float32]) -> list[float]:
    return [_round(value) for value in values.tolist()]
