"""Queries, and array functions for similarity search: unit vectors, cosines and the highest of many scores.

A query is a token, a vector, or word arithmetic written as text, such as `king - man + woman`.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from swivel.corpus.vocabulary import to_label
from swivel.errors import ConfigError
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.resources import check_libraries, check_memory, count_cores

Floats = NDArray[np.float32]
Query = str | int | Iterable[str] | Iterable[str | NDArray[Any]] | NDArray[Any]
Term: TypeAlias = Any  # a token, or a vector: an array or a sequence of numbers

LABEL_BYTES = 150  # memory of a label in a vocabulary, with its entries in dictionaries
# Keeps 3CosMul from dividing by zero (Levy and Goldberg, 2014).
EPSILON = np.float32(0.001)
_CHUNK_ROWS = 16_384
_MAX_SCORES = 1 << 23  # of a batch of queries: 32 MiB; more take longer, because they leave the caches
_MIN_QUERIES = 16
_MANY_QUERIES = 256  # Fewer are not worth a change of the threads of BLAS.
_MAX_INSERTED = 1_000  # Inserting into longer lists takes longer than sorting.


def scale_to_unit(array: Floats) -> Floats:
    """Return the rows scaled to length 1; rows of zeros stay zero."""
    return scale_and_measure(array)[0]


def scale_and_measure(array: Floats) -> tuple[Floats, NDArray[np.float64]]:
    """Return the rows scaled to length 1, and their lengths; rows of zeros stay zero."""
    unit = np.zeros(array.shape, np.float32)
    lengths = np.zeros(len(array))

    def scale(rows: slice) -> None:
        # float64: the squares of very large or very small float32 values would overflow or underflow in float32.
        chunk = array[rows].astype(np.float64)
        np.sqrt(np.einsum("ij,ij->i", chunk, chunk), out=lengths[rows])
        divisors = lengths[rows, None]
        with np.errstate(invalid="ignore"):  # An infinite value becomes NaN; callers check for it.
            np.divide(chunk, divisors, out=chunk, where=divisors > 0)
        unit[rows] = chunk

    threads = count_cores()
    run_in_chunks(scale, len(array), rows=max(_CHUNK_ROWS // threads, 1), threads=threads)
    return unit, lengths


def check_search(array: Floats) -> None:
    """Raise MemoryBudgetError if there is too little memory to scale many rows to length 1."""
    # The result, whether its values are finite, a chunk in float64, and the labels of the rows.
    chunk_bytes = 16 * min(len(array), _CHUNK_ROWS) * array.shape[1]
    check_memory("searching", array.nbytes + array.size + chunk_bytes + LABEL_BYTES * len(array))


def best_ids(scores: Floats, count: int) -> NDArray[np.intp]:
    """Return the ids of the `count` highest scores, highest first, ties by id; a score of -inf is never returned.

    >>> best_ids(np.array([1, 3, -np.inf, 3], np.float32), 10).tolist()
    [1, 3, 0]
    """
    count = min(count, len(scores))
    if count == 0:
        return np.empty(0, np.intp)

    # `partition` may return any of several equal scores: keep all of them. The sort is stable.
    threshold = np.partition(scores, len(scores) - count)[len(scores) - count]
    candidates: NDArray[np.intp] = np.flatnonzero((scores >= threshold) & (scores > -np.inf))
    best: NDArray[np.intp] = candidates[np.argsort(-scores[candidates], kind="stable")[:count]]
    return best


def best_of_each(scores: Floats, biases: Floats, count: int) -> tuple[NDArray[np.intp], Floats]:
    """Return ids and scores of the `count` highest scores + biases of each row, as `best_ids` orders them.

    Both have the shape (rows, count); they are -1 and -inf where fewer are left.

    >>> scores = np.array([[1, 5, 3], [4, 2, -np.inf]], np.float32)
    >>> best_of_each(scores, np.zeros(3, np.float32), 3)[0].tolist()
    [[1, 2, 0], [0, 1, -1]]
    """
    check_libraries("searching")
    from swivel.vectors.vector_kernels import keep_best

    ids = np.full((len(scores), count), -1, np.intp)
    best = np.full((len(scores), count), -np.inf, np.float32)

    def search(rows: slice) -> None:
        if count <= _MAX_INSERTED:
            keep_best(scores[rows], biases, 0, ids[rows], best[rows])
            return
        for row in range(rows.start, rows.stop):
            line = scores[row] + biases
            places = best_ids(line, count)
            ids[row, : len(places)] = places
            best[row, : len(places)] = line[places]

    threads = count_cores()
    run_in_chunks(search, len(scores), rows=max(-(-len(scores) // threads), 1), threads=threads)
    return ids, best


@contextlib.contextmanager
def one_blas_thread(is_wanted: bool = True) -> Iterator[bool]:
    """Let products use one thread, and yield whether they do: only if threadpoolctl, part of scikit-learn, is there."""
    # Threads that share a product wait for each other on busy cores.
    limits: Any = None
    if is_wanted:
        with contextlib.suppress(ImportError):
            import threadpoolctl

            limits = threadpoolctl.threadpool_limits
    with limits(1, "blas") if limits else contextlib.nullcontext():
        yield limits is not None


def _multiply(queries: Floats, rows: Floats, scores: Floats, part: slice) -> None:
    np.matmul(queries[part], rows.T, out=scores[part])


def best_rows(
    rows: Floats,
    queries: Floats,
    count: int,
    *,
    biases: Floats,
    excluded: Iterable[Sequence[int] | NDArray[Any]],
    added: Callable[[slice], Floats] | None = None,
    factors: Iterable[Floats | None] = (),
) -> tuple[NDArray[np.intp], Floats]:
    """Return ids and scores of the rows with the highest dot product with each query + bias, as `best_of_each` does.

    Rows with the bias -inf, and for each query the rows in `excluded`, are left out. `factors`, of the rows for each
    query, multiply the products; `added` returns what is added to those of some queries.
    """
    # The scores of a batch bound the memory. With too few queries in it, a product only waits for the table.
    batch = max(_MAX_SCORES // max(len(rows), 1), _MIN_QUERIES)
    buffer = np.empty((min(batch, len(queries)), len(rows)), np.float32)
    parts = [best_of_each(buffer[:0], biases, count)]
    remaining = iter(excluded)
    multiplied = iter(factors)
    threads = count_cores()

    for start in range(0, len(queries), batch):
        piece = queries[start : start + batch]
        scores = buffer[: len(piece)]
        with one_blas_thread(len(queries) >= _MANY_QUERIES) as is_limited:
            chunk = -(-len(piece) // threads) if is_limited else len(piece)
            multiply = partial(_multiply, piece, rows, scores)
            run_in_chunks(multiply, len(piece), rows=chunk, threads=threads)
        for line, factor in zip(scores, multiplied, strict=False):
            if factor is not None:
                line *= factor
        if added is not None:
            scores += added(slice(start, start + batch))
        for line, left_out in zip(scores, remaining, strict=False):
            line[np.asarray(left_out, np.intp)] = -np.inf
        parts.append(best_of_each(scores, biases, count))

    ids, best = zip(*parts, strict=True)
    return np.concatenate(ids), np.concatenate(best)


def score_products(added: Sequence[Floats], subtracted: Sequence[Floats]) -> Floats:
    """Return the 3CosMul scores of words with these cosines with what a query adds, and with what it subtracts."""
    product = np.prod([shift_cosine(cosines) for cosines in added], axis=0)
    return np.asarray(product / (np.prod([shift_cosine(cosines) for cosines in subtracted], axis=0) + EPSILON))


def shift_cosine(cosine: Floats) -> Floats:
    """Return cosines mapped from [-1, 1] to [0, 1]."""
    return (cosine + np.float32(1)) * np.float32(0.5)


def check_scores(scores: Floats) -> None:
    """Raise ConfigError for products of vectors that are not finite."""
    if not np.isfinite(scores).all():
        raise ConfigError("scores of these vectors are not finite: train again with a lower learning rate")


def check_count(count: int, name: str = "count") -> None:
    """Raise ConfigError if a number of results is not a positive integer."""
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ConfigError(f"{name} must be a positive integer, got {count!r}", argument=name)


class Expression(NamedTuple):
    """Word arithmetic: the tokens to add and the tokens to subtract."""

    plus: tuple[str, ...]
    minus: tuple[str, ...]


def parse_expression(text: str) -> Expression:
    """Parse text such as `king - man + woman`.

    A sign needs spaces around it, so that tokens may contain hyphens and spaces.

    >>> parse_expression("vice-president - man + woman")
    Expression(plus=('vice-president', 'woman'), minus=('man',))
    """
    # The lookarounds keep this linear in the length of the text, even for long runs of spaces.
    first, *pieces = re.split(r"(?<!\S)([+-])(?!\S)", text.strip())
    signs = pieces[::2]
    tokens = [token.strip() for token in pieces[1::2]]

    # An expression may begin with a sign; otherwise its first token is added.
    if first or not signs:
        signs.insert(0, "+")
        tokens.insert(0, first.strip())
    if "" in tokens:
        raise ConfigError(
            f"{text!r} is not an expression: write tokens with + or - between spaces, such as king - man + woman"
        )

    plus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "+")
    minus = tuple(token for sign, token in zip(signs, tokens, strict=True) if sign == "-")
    return Expression(plus, minus)


def as_tokens(query: Query) -> tuple[str, ...] | None:
    """Return the tokens of a query, or None if it is a vector."""
    if isinstance(query, str):
        return (query,)
    if not isinstance(query, Iterable) or (isinstance(query, np.ndarray) and query.dtype.kind not in "OTU"):
        return None
    tokens: tuple[Any, ...] = tuple(query)  # once, because it may be a generator
    return tokens if all(isinstance(token, str) for token in tokens) else None


def as_terms(query: Query) -> tuple[Term, ...]:
    """Return the tokens and vectors that a query adds. A number is a label, such as a node of a graph.

    >>> as_terms("king"), as_terms(["king", "queen"]), as_terms([0.6, 0.8]), as_terms(7)
    (('king',), ('king', 'queen'), ((0.6, 0.8),), ('7',))
    """
    if isinstance(query, (int, np.integer)):
        return (to_label(query),)
    if not isinstance(query, Iterable) or isinstance(query, str):
        return (query,)
    if isinstance(query, np.ndarray) and query.dtype.kind not in "OTU":
        return (query,)
    terms = tuple(query)  # once, because it may be a generator
    is_list = not terms or any(isinstance(term, (str, np.ndarray)) for term in terms)
    return terms if is_list else (terms,)


def read_query(query: Query, minus: Query, known: Container[str]) -> tuple[tuple[Term, ...], tuple[Term, ...]]:
    """Return the tokens and vectors that a query adds, and those that it subtracts."""
    subtracted = as_terms(minus)
    if isinstance(query, str) and " " in query and query not in known:
        query, negative = parse_expression(query)
        subtracted += negative
    return as_terms(query), subtracted


def check_vector(query: Any, dim: int) -> Floats:
    """Return a query vector as float32; raise ConfigError if it is not `dim` finite numbers."""
    try:
        vector = np.array(query, np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a query must be a token, a vector, or a list of them: {error}") from error
    if vector.ndim == 0:
        raise ConfigError(f"a query must be a token, a vector, or a list of them, got {query!r}")
    if vector.shape != (dim,):
        raise ConfigError(f"a query vector must have shape ({dim},), got {vector.shape}")
    if not np.isfinite(vector).all():
        raise ConfigError("a query vector must be finite")
    return vector
