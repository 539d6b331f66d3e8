"""Search for the best answers of many analogy questions at once, on ids and arrays."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.resources import count_cores
from swivel.vectors import Vectors
from swivel.vectors.search import EPSILON, Floats, shift_cosine

Ids = NDArray[np.int64]

# A test set asks many questions about few words and few pairs (a, b). For a tile of the vocabulary, the cosines with
# those words are one matrix product, and the contribution of a and b is computed once per pair; a question then only
# adds two rows (for 3CosMul, multiplies them). If even the maxima of its two rows together do not exceed its best score
# so far, the question is skipped. This is exact, because rounding is monotonic, and saves more than half of the
# work with trained vectors.
_QUESTIONS = 32_768  # per chunk
_TILE = 1_024  # words per tile
_BATCH = 64  # questions scored at a time, so that their scores stay in the cache
_TABLE = 1 << 24  # values in the tables of a tile (64 MiB); tiles are narrower if there are many words and pairs


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
    called with the number of questions completed since the last call, a fraction within a chunk.
    """
    answers = [np.empty(0, np.int64)]
    size = len(vectors) if top is None else min(top, len(vectors))
    threads = count_cores()

    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(questions), _QUESTIONS):
            chunk = _QuestionChunk(vectors, questions[start : start + _QUESTIONS])
            for first in range(0, size, chunk.tile):
                tile = _WordTile(vectors, chunk, slice(first, min(first + chunk.tile, size)), method)
                # Threads answer different questions, so they write to different elements of `best` and `answers`.
                list(pool.map(tile.answer, np.array_split(tile.open_questions(), threads)))
                advance(len(chunk.ids) * tile.width / size)
            answers.append(chunk.answers)

    return np.concatenate(answers)


class _QuestionChunk:
    """Questions, the words and pairs that occur in them, and the best answers so far."""

    def __init__(self, vectors: Vectors, ids: Ids) -> None:
        words, indices = np.unique(ids, return_inverse=True)
        a, b, c = indices.reshape(ids.shape).T
        # A pair (a, b) is encoded as the number a * n + b to find the different pairs.
        pairs, pair_of = np.unique(a * len(words) + b, return_inverse=True)

        self.ids = ids  # (questions, 3)
        self.words = vectors.unit_vectors[words]  # of all different words in the questions
        # a and b of each pair, as indices into `words`
        self.firsts, self.seconds = np.divmod(pairs, max(len(words), 1))
        self.pair_of = pair_of  # pair of each question
        self.third_of = np.ascontiguousarray(c)  # c of each question, as an index into `words`

        # Best score and its word so far; tiles update them in place.
        self.best = np.full(len(ids), -np.inf, np.float32)
        self.answers = np.full(len(ids), -1, np.int64)

        # Number of words per tile.
        self.tile = min(_TILE, max(1, _TABLE // (len(words) + len(pairs))))


class _WordTile:
    """A tile of the vocabulary, and the contributions of every c and every pair (a, b) to the scores of its words."""

    def __init__(self, vectors: Vectors, chunk: _QuestionChunk, where: slice, method: str) -> None:
        self.chunk = chunk
        self.start = where.start
        self.width = where.stop - where.start

        # Contribution of each word as c (words, width), that of each pair (pairs, width), and how the two are combined.
        self.thirds = chunk.words @ vectors.unit_vectors[where].T
        if method == "3cosmul":
            self.thirds = np.maximum(shift_cosine(self.thirds), 0)  # Rounding may give a negative value.
            self.pairs = self.thirds[chunk.seconds] / (self.thirds[chunk.firsts] + EPSILON)
            self.join: np.ufunc = np.multiply
        else:
            self.pairs = self.thirds[chunk.seconds] - self.thirds[chunk.firsts]
            self.join = np.add

        # Words that are never answers: those with a vector of zeros, and the words of a question (as a pair of the
        # question and the position of its word in the tile).
        self.zeros = np.flatnonzero(vectors.is_zero[where])
        rows, columns = np.nonzero((chunk.ids >= where.start) & (chunk.ids < where.stop))
        self.own = rows, chunk.ids[rows, columns] - where.start

    def open_questions(self) -> NDArray[np.intp]:
        """Return the questions for which a word of the tile may score higher than the best so far."""
        highest_third = self.thirds.max(axis=1)[self.chunk.third_of]
        highest_pair = self.pairs.max(axis=1)[self.chunk.pair_of]
        highest = self.join(highest_third, highest_pair)
        return np.flatnonzero(highest > self.chunk.best)

    def answer(self, questions: NDArray[np.intp]) -> None:
        """Update the best answers of some questions with the words of this tile; of equal scores the earlier stays."""
        scratch = np.empty((2, _BATCH, self.width), np.float32)
        for start in range(0, len(questions), _BATCH):
            batch = questions[start : start + _BATCH]
            scores = self._score(batch, *scratch[:, : len(batch)])

            top = scores.argmax(axis=1)
            values = scores[np.arange(len(batch)), top]

            is_better = values > self.chunk.best[batch]
            self.chunk.best[batch[is_better]] = values[is_better]
            self.chunk.answers[batch[is_better]] = top[is_better] + self.start

    def _score(self, batch: NDArray[np.intp], scores: Floats, pairs: Floats) -> Floats:
        """Return the scores (questions, width) in the buffer `scores`, with -inf for words that cannot be answers."""
        # All indices are valid, so mode="clip" changes nothing, but it lets NumPy write to `out` without a copy.
        self.thirds.take(self.chunk.third_of[batch], axis=0, out=scores, mode="clip")
        self.pairs.take(self.chunk.pair_of[batch], axis=0, out=pairs, mode="clip")
        self.join(scores, pairs, out=scores)

        if len(self.zeros):
            scores[:, self.zeros] = -np.inf

        # Exclude the words of each question; `asked` and `batch` are both sorted.
        asked, words = self.own
        near = slice(*np.searchsorted(asked, (batch[0], batch[-1] + 1)))
        rows = np.searchsorted(batch, asked[near])
        is_asked = batch[rows] == asked[near]
        scores[rows[is_asked], words[near][is_asked]] = -np.inf

        return scores
