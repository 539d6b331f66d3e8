"""Search for the best answers of many analogy questions at once, on ids and arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.estimates import check_libraries
from swivel.runtime.parallel import run_in_chunks
from swivel.runtime.resources import count_cores
from swivel.vectors import Vectors
from swivel.vectors.search import EPSILON, shift_cosine

Ids = NDArray[np.int64]

_TILE = 1_024  # words per tile
_TABLE = 1 << 24  # values in the tables of a tile (64 MiB); tiles are narrower if there are many words and pairs
_MIN_CHUNK = 64  # questions of a thread


def answer_questions(
    vectors: Vectors,
    questions: Ids,
    method: str = "3cosadd",
    *,
    top: int | None = None,
    advance: Callable[[float], None] = lambda _: None,
) -> Ids:
    """Return the id of the best answer to each question, ids of (a, b, c); ties by id, -1 if there is no answer.

    The words of a question and vectors of zeros are never answers, nor are words after the first `top`. `advance` is
    called with the number of questions completed since the last call, a fraction.
    """
    check_libraries("answering questions")
    from swivel.vectors.vector_kernels import keep_answers

    # A test set asks many questions about few words and few pairs (a, b). For a tile of the vocabulary, the cosines
    # with those words are one matrix product, and the contribution of a and b is computed once per pair; a question
    # then only adds two rows (for 3CosMul, multiplies them).
    words, places = np.unique(questions, return_inverse=True)
    a, b, third_of = places.reshape(-1, 3).T
    # A pair (a, b) is encoded as the number a * n + b to find the different pairs.
    pairs, pair_of = np.unique(a * len(words) + b, return_inverse=True)
    firsts, seconds = np.divmod(pairs, max(len(words), 1))
    parts_of = np.column_stack([third_of, pair_of])

    best = np.full(len(questions), -np.inf, np.float32)
    answers = np.full(len(questions), -1, np.int64)
    known = vectors.unit_vectors[words]
    size = len(vectors) if top is None else min(top, len(vectors))
    width = min(_TILE, max(1, _TABLE // max(len(words) + len(pairs), 1)))
    threads = count_cores()
    chunk = max(-(-len(questions) // threads), _MIN_CHUNK)

    for first in range(0, size, width):
        tile = slice(first, min(first + width, size))
        thirds = known @ vectors.unit_vectors[tile].T
        if method == "3cosmul":
            thirds = np.maximum(shift_cosine(thirds), 0)  # Rounding may give a negative value.
            of_pairs = thirds[seconds] / (thirds[firsts] + EPSILON)
        else:
            of_pairs = thirds[seconds] - thirds[firsts]
        zeros = np.flatnonzero(vectors.is_zero[tile])
        thirds[:, zeros] = -np.inf  # Vectors of zeros are never answers.
        of_pairs[:, zeros] = 1

        # Threads answer different questions, so they write to different elements of `best` and `answers`.
        tables = (thirds, of_pairs, thirds.max(axis=1), of_pairs.max(axis=1))
        keep = partial(keep_answers, *tables, method == "3cosmul", first)
        run_in_chunks(
            lambda part, keep=keep: keep(questions[part], parts_of[part], best[part], answers[part]),  # type: ignore[misc]
            len(questions),
            rows=chunk,
            threads=threads,
        )
        advance(len(questions) * (tile.stop - first) / size)

    return answers
