"""The sets of vectors in the explorer, their views, and queries: neighbors, analogies, columns, recommendations.

A `VectorSet` has several views (the saved vectors, w, c, and w + c). Each view is a `Vectors`, made on first use. The
functions return plain dictionaries for JSON; `app` connects them to HTTP.
"""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import VectorsConfig
from swivel.counts import Matrix, open_matrix
from swivel.errors import ConfigError, UnknownToken
from swivel.explorer.maps import Map, as_classes, check_cluster_count
from swivel.explorer.speller import Speller
from swivel.recommender import Recommender
from swivel.runtime.display import escape_controls
from swivel.vectors import Expression, Vectors, VectorTable, combine_vectors, parse_expression
from swivel.vectors.folder import find_matrix
from swivel.vectors.formats import find_vectors, load
from swivel.vectors.projection import choose_example, is_plain_word
from swivel.vectors.search import best_ids, check_scores, scale_to_unit, score_products

_EXAMPLES = 7
_EXAMPLE_RANKS = 400, 6_000  # Before them are function words, and after them words that few know.
_PAIRS = 4  # of an example and its nearest neighbor, to compare
_EXPRESSIONS = ("king - man + woman", "paris - france + italy", "larger - large + small", "music + film")
_ANALOGIES = (
    ("man", "king", "woman"),
    ("france", "paris", "italy"),
    ("big", "bigger", "small"),
    ("go", "went", "see"),
    ("he", "his", "she"),
)
_ROWS_COMPARED = 64  # enough to decide whether saved vectors are w + c
MAX_TERMS = 10  # of an expression
SHARED_REACH = 100  # nearest neighbors of each of two words that are searched for shared ones
_CLOSE_SHOWN = 5  # similar spellings
_ENOUGH_COMPLETIONS = 3  # a text with this many completions is probably not misspelled
_ROWS_PER_BLOCK = 1_024  # 1.2 MB at dim 300, which fits into the L2 cache of a core


class View:
    """One view of a set of vectors, such as w or w + c, made on first use."""

    def __init__(self, key: str, label: str, make: Callable[[], Vectors], noun: str = "word") -> None:
        self.key = key  # in requests
        self.label = label  # on the page
        self.noun = noun  # what one of its vectors is called
        self.map = Map(lambda: self.vectors)
        self._make = make
        # Held while the vectors are made: two requests must not scale a million of them at once.
        self._lock = threading.Lock()
        self._vectors: Vectors | None = None

    @property
    def vectors(self) -> Vectors:
        """The vectors, with their cached properties computed; the first thread makes them and the others wait."""
        with self._lock:
            if self._vectors is None:
                vectors = self._make()
                _ = vectors.unit_vectors, vectors.is_zero  # computed under the lock, once
                self._vectors = vectors
            return self._vectors

    @cached_property
    def speller(self) -> Speller:
        """Completion and spelling suggestions over the labels of the view."""
        return Speller(self.vectors.vocabulary.tokens)

    @cached_property
    def _is_counted(self) -> bool:
        return bool(self.vectors.vocabulary.counts.any())

    def facts(self, number: int) -> dict[str, Any]:
        """Return the token, count and rank of the label with id `number`, for JSON."""
        vocabulary = self.vectors.vocabulary
        count = int(vocabulary.counts[number]) if self._is_counted else None
        return {"token": vocabulary[number], "count": count, "rank": number + 1, "of": len(vocabulary)}


class VectorSet:
    """Named vectors, with the matrix of counts they were trained on if it is available."""

    def __init__(self, name: str, vectors: Vectors, matrix: Matrix | None = None) -> None:
        if matrix is not None and matrix.rows.tokens != vectors.vocabulary.tokens:
            raise ConfigError(
                f"{matrix.path}: its rows are not those of {name}; pass the matrix that these vectors were trained on"
            )
        self.name = name
        self.vectors = vectors
        self.matrix = matrix
        self.is_table = vectors.columns is not None and vectors.columns_per_row == 0  # columns are not words, too
        self.views: Mapping[str, View] = {view.key: view for view in _list_views(vectors)}

    def view(self, key: str) -> View:
        """Return the view with a key; the first view for an empty key."""
        if not key:
            return next(iter(self.views.values()))
        if key not in self.views:
            raise ConfigError(f"view must be one of {', '.join(self.views)}, got {key[:40]!r}")
        return self.views[key]

    def count(self, row: str, column: str) -> float | None:
        """Return the co-occurrence count of a row and a column, None if it is not in a matrix."""
        if self.matrix is None or row not in self.matrix.rows or column not in self.matrix.columns:
            return None
        return self.matrix.count(row, column)

    def describe(self) -> dict[str, Any]:
        """Return the facts about the set that the page shows, for JSON."""
        vectors = self.vectors
        examples = self._choose_examples(vectors)
        columns = vectors.column_table
        # The labels of a table may be words by accident; its questions are no questions about English.
        expressions, analogies = ((), ()) if self.is_table else (_EXPRESSIONS, _ANALOGIES)
        return {
            "name": self.name,
            "tokens": len(vectors),
            "dim": vectors.dim,
            "columns": 0 if vectors.columns is None else len(vectors.columns),
            "has_counts": bool(vectors.vocabulary.counts.any()),
            "has_matrix": self.matrix is not None,
            "is_table": self.is_table,
            "examples": examples,
            "column_examples": self._choose_examples(Vectors(columns)) if self.is_table and columns else [],
            "pairs": [pair for word in examples[:_PAIRS] if (pair := self._find_pair(word))],
            "expressions": [text for text in expressions if all(word in vectors for word in text.split()[::2])],
            "analogies": [words for words in analogies if all(word in vectors for word in words)],
            "views": [{"key": view.key, "label": view.label, "noun": view.noun} for view in self.views.values()],
        }

    def _choose_examples(self, vectors: Vectors) -> list[str]:
        """Return labels that tell something, from frequent to rarer ones."""
        labels = vectors.vocabulary
        lowest = max(min(_EXAMPLE_RANKS[0], len(labels) // 10), 1)
        highest = max(min(_EXAMPLE_RANKS[1], len(labels)), 1)
        examples = []
        for start, end in itertools.pairwise(np.geomspace(lowest, highest, _EXAMPLES + 1).astype(int).tolist()):
            ids = range(start, end)
            plain = [number for number in ids if is_plain_word(labels[number])]
            if ids:
                examples.append(labels[choose_example(vectors, plain or ids)])
        return examples or list(labels.tokens[:6])

    def _find_pair(self, word: str) -> tuple[str, str] | None:
        """Return a word and its nearest neighbor, if it has one."""
        nearest = find_nearest(self.view(""), Expression((word,), ()), 1)["answers"]
        return (word, nearest[0]["token"]) if nearest else None

    @cached_property
    def recommender(self) -> Recommender:
        """Recommendations of the columns of a table."""
        return Recommender(self.vectors, self.matrix)


def _list_views(vectors: Vectors) -> list[View]:
    """Return the views of vectors, the saved vectors first; w or w + c replaces them if it is the same."""
    columns = vectors.column_table
    if columns is None:
        return [View("saved", "as saved", lambda: vectors)]

    if vectors.columns_per_row:
        views = [
            View("w", "w", lambda: Vectors(vectors.row_table)),
            View("c", "c", lambda: Vectors(columns)),
            View("w+c", "w + c", lambda: Vectors(_sum_sides(vectors))),
        ]
    else:
        views = [
            View("w", "rows", lambda: Vectors(vectors.row_table), "row"),
            View("c", "columns", lambda: Vectors(columns), "column"),
        ]

    # The first view shows the vectors themselves: they can also guess words from their spelling.
    kind = _saved_as(vectors)
    labels = {view.key: view.label for view in views}
    first = View(*((kind, labels[kind]) if kind in labels else ("saved", "as saved")), lambda: vectors, views[0].noun)
    return [first, *(view for view in views if view.key != kind)]


def _saved_as(vectors: Vectors) -> str:
    """Return whether the saved vectors are `w` or `w+c`, else `other`."""
    if vectors.vectors is vectors.rows:
        return "w"
    if vectors.columns is None or not vectors.columns_per_row or vectors.dim != vectors.rows.shape[1]:
        return "other"

    # Training may have combined rows and columns with float32 rounding in another order.
    first = slice(0, _ROWS_COMPARED)
    columns = vectors.columns[: _ROWS_COMPARED * vectors.columns_per_row]
    summed = vectors.rows[first] + columns.reshape(-1, vectors.columns_per_row, vectors.dim).sum(axis=1)
    return "w+c" if np.allclose(summed, vectors.vectors[first], atol=1e-5) else "other"


def _sum_sides(vectors: Vectors) -> VectorTable:
    summed = combine_vectors(vectors.rows, vectors.columns, vectors.columns_per_row, VectorsConfig(combine="sum"))
    return VectorTable(vectors.vocabulary, summed)


def open_set(
    path: str | Path,
    matrix: str | Path | None = None,
    *,
    clusters: int | None = None,
    color_by: str | Path | None = None,
) -> VectorSet:
    """Open vectors and the matrix they were trained on, by default the folder `matrix` beside them.

    The map has so many `clusters`, or is colored by the classes of the file `color_by`; see `make_map`.
    """
    check_cluster_count(clusters)
    vectors = load(path)
    vectors_path = find_vectors(path)
    counts = find_matrix(vectors) if matrix is None else open_matrix(matrix)
    opened = VectorSet(_name_set(vectors_path), vectors, counts)
    classes = as_classes(color_by, vectors)
    for view in opened.views.values():
        view.map.cluster_count = clusters
        view.map.classes = classes
    return opened


def _name_set(path: Path) -> str:
    """Return the name of the folder or file of vectors; for the vectors of a run, the name of the run."""
    path = path.resolve()
    # A name of a folder may be no UTF-8, and may hide or reorder what the page shows.
    return escape_controls(path.parent.name if path.name == "vectors" else path.name)


class NoSuchWord(UnknownToken):
    """A word is not in the vocabulary; `close` lists words with a similar spelling."""

    def __init__(self, token: str, close: list[str], view: View) -> None:
        token = token[:80]
        super().__init__(f"{token!r} is not among the {len(view.vectors):,} {view.noun}s of these vectors")
        self.token = token
        self.close = close
        self.can_guess = view.vectors.subwords is not None


def read_expression(view: View, text: str) -> Expression:
    """Parse a typed text such as "king - man + woman"; a text in the vocabulary is one word, even if it has signs."""
    for word in (text, text.strip()):
        if word in view.vectors:
            return Expression((word,), ())

    expression = parse_expression(text.strip())
    if all(word in view.vectors for word in (*expression.plus, *expression.minus)):
        return expression
    return split_at_signs(text, view.vectors) or expression


def split_at_signs(text: str, known: Container[str]) -> Expression | None:
    """Return an expression whose signs have no spaces around them, None if one of its words is unknown.

    >>> split_at_signs("king-man+vice-president", {"king", "man", "vice-president", "vice"})
    Expression(plus=('king', 'vice-president'), minus=('man',))
    """
    # Words and signs alternate. Each term is as long as possible, so that words with hyphens stay whole.
    pieces = ["+", *re.split("([+-])", text)]
    if not pieces[1].strip():
        pieces = pieces[2:]  # the text begins with a sign

    terms: Mapping[str, list[str]] = {"+": [], "-": []}
    start = 0
    while start < len(pieces):
        ends = range(min(len(pieces), start + 2 * MAX_TERMS), start + 1, -2)
        words = {end: "".join(pieces[start + 1 : end]).strip() for end in ends}
        end = next((end for end, word in words.items() if word in known), None)
        if end is None:
            return None
        terms[pieces[start]].append(words[end])
        start = end
    return Expression(tuple(terms["+"]), tuple(terms["-"]))


def guess_nearest(view: View, word: str, count: int, restrict_vocab: int | None = None) -> dict[str, Any]:
    """Return the words nearest to an unknown word, whose vector is guessed from its spelling."""
    vectors = view.vectors
    guess = vectors.guess(word)
    answers = vectors.nearest(guess.vector, count, restrict_vocab=restrict_vocab)
    return {
        "terms": [{"sign": 1, "token": word, "expected_cosine": _round(guess.expected_cosine)}],
        "answers": [
            {"similarity": _round(similarity), **view.facts(vectors.vocabulary.id(token))}
            for token, similarity in answers
        ],
    }


def find_nearest(view: View, expression: Expression, count: int, restrict_vocab: int | None = None) -> dict[str, Any]:
    """Return the words nearest to an expression, and the cosine of each answer with each term.

    The answers are some of the `restrict_vocab` most frequent words, or of all words.
    """
    # All terms are scaled to length 1. The cosine of an answer with the sum is therefore the signed sum of its
    # cosines with the terms, divided by the `length` of the sum (times its certainty, if nothing is subtracted).
    terms = _find_ids(view, [*expression.plus, *expression.minus])  # raises an error with suggestions
    vectors = view.vectors
    direction = scale_to_unit(vectors.vector(expression.plus, minus=expression.minus)[None])
    scores = np.full(len(vectors), -np.inf, np.float32)  # A direction of zeros has no neighbors.
    if direction.any():
        scores = multiply(vectors.unit_vectors, direction)[0]
        if not expression.minus:
            scores *= vectors.certainty
    return _describe_best(view, terms, len(expression.plus), scores, count, restrict_vocab)


def solve_analogy(
    view: View, words: tuple[str, str, str], method: str, count: int, restrict_vocab: int | None = None
) -> dict[str, Any]:
    """Answer "a is to b as c is to ?" by 3CosAdd or 3CosMul, with the cosine of each answer with each word."""
    a, b, c = words
    if method == "3cosadd":
        return {"method": method, **find_nearest(view, Expression((b, c), (a,)), count, restrict_vocab)}

    first, *others = ids = _find_ids(view, words)
    unit = view.vectors.unit_vectors
    to_first, *to_others = multiply(unit, unit[ids])
    scores = score_products(to_others, [to_first])
    return {"method": method, **_describe_best(view, [*others, first], 2, scores, count, restrict_vocab)}


def _describe_best(
    view: View, terms: list[int], added: int, scores: NDArray[np.float32], count: int, restrict_vocab: int | None
) -> dict[str, Any]:
    """Return the terms of a query, of which the first ones are added, and its answers; `scores` is modified.

    The answers are the words with the highest scores among the first rows.
    """
    if restrict_vocab is not None:
        scores[restrict_vocab:] = -np.inf
    unit = view.vectors.unit_vectors
    signs = np.array([1] * added + [-1] * (len(terms) - added), np.float32)

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
                **_locate(label, vectors),
                "scores": _round_all(scores[:, number]),
                "counts": [vector_set.count(word, label) for word in words],
                "rank": number + 1,
            }
        )
    return {"words": list(words), "columns": columns}


def _locate(column: str, vectors: Vectors) -> dict[str, str | None]:
    """Return the word that a column counts, None if it is no word, and where this word stood, for JSON."""
    if not vectors.columns_per_row:
        return {"word": None, "place": ""}
    part, _, word = column.partition(":")
    if column in vectors or word not in vectors:
        return {"word": column if column in vectors else None, "place": ""}
    return {"word": word, "place": explain_part(part)}


def explain_part(part: str) -> str:
    """Return where the words of some columns stood, as text.

    >>> explain_part("right 2-10"), explain_part("left 1"), explain_part("left"), explain_part("2-10")
    ('2 to 10 words after', '1 word before', 'before', '2 to 10 words away')
    """
    *sides, last = part.split(" ")
    side = {"left": "before", "right": "after"}.get(sides[0] if sides else last, "away")
    if not last[0].isdigit():
        return side
    return f"{last.replace('-', ' to ')} word{'' if last == '1' else 's'} {side}"


def recommend(vector_set: VectorSet, row: str, basket: Sequence[str], count: int) -> dict[str, Any]:
    """Return the best columns for a row, or for a new row that has the columns `basket`, and what each is due to."""
    if not vector_set.is_table:
        raise ConfigError(f"{vector_set.name} is no table: recommendations need rows and columns of different kinds")
    recommender = vector_set.recommender
    if basket:
        _find_ids(vector_set.view("c"), basket)  # raises an error with suggestions
    else:
        _find_ids(vector_set.view("w" if "w" in vector_set.views else ""), [row])

    # Without the matrix, the columns that a row has are not known.
    exclude_seen = bool(basket) or recommender.matrix is not None
    best = recommender.recommend(dict.fromkeys(basket, 1) if basket else row, count, exclude_seen=exclude_seen)
    return {
        "row": None if basket else row,
        "basket": list(basket),
        "excludes_seen": exclude_seen,
        "answers": [
            {"token": each.label, "score": _round(each.score), "because_of": list(each.because_of)} for each in best
        ],
    }


def compare_words(vector_set: VectorSet, view: View, words: tuple[str, str], count: int) -> dict[str, Any]:
    """Return the cosine of two words, the neighbors they share, the other neighbors of each, and their columns."""
    ids = _find_ids(view, words)
    vectors = view.vectors

    # The columns are another table: a second thread searches it on another core.
    has_columns = vector_set.vectors.columns is not None and all(word in vector_set.vectors for word in words)
    with ThreadPoolExecutor(1) as pool:
        columns = pool.submit(find_columns, vector_set, words, min(count, 12)) if has_columns else None
        scores = multiply(vectors.unit_vectors, vectors.unit_vectors[ids]) * vectors.certainty
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
        raise ConfigError(f"a query must have at most {MAX_TERMS} {view.noun}s, got {len(tokens)}")

    vocabulary = view.vectors.vocabulary
    ids = []
    for token in tokens:
        number = vocabulary.find(token)
        if number is None:
            close = [*view.speller.find_close(token, _CLOSE_SHOWN), *view.speller.complete(token, _CLOSE_SHOWN)]
            close_words = [vocabulary[number] for number in dict.fromkeys(close)]
            raise NoSuchWord(token, close_words, view)
        ids.append(number)
    return ids


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
