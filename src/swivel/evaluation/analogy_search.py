"""The best answer to each of many analogies, among all words.

Receives vectors and questions as ids, hands on ids. It knows no words, no sets and no right answers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swivel.runtime.resources import count_cores
from swivel.vectors import Vectors
from swivel.vectors.search import EPSILON, Floats, shift_cosine

Ids = NDArray[np.int64]

# A test set asks many questions about few words, and of few pairs (a, b). The cosines of those words with a tile of the
# vocabulary are one matrix product; what a and b bring is computed once a pair; a question then adds two rows. Where
# even the highest values of the two rows add up to no more than its best score so far, the question is passed over:
# nothing is lost, for rounding keeps the order. With trained vectors that is more than half of the work.
# Sizes keep a batch in the processor's caches and bound the memory: a tile is made narrower where there are many words
# and pairs, so that the tables stay at 64 MiB.
_QUESTIONS, _TILE, _BATCH, _TABLE = 32_768, 1_024, 64, 1 << 24


def answer_questions(
    vectors: Vectors,
    questions: Ids,
    method: str = "3cosadd",
    *,
    top: int | None = None,
    advance: Callable[[float], None] = lambda _: None,
) -> Ids:
    """Return the id of the best answer to each question (a, b, c); equal scores by id, -1 where there is none.

    Parameters
    ----------
    vectors
        Where the answers are looked for.
    questions
        Ids, (questions, 3); the three are no answers, nor are vectors of zeros.
    method
        `3cosadd` or `3cosmul`.
    top
        Look for answers among the first words only, so many of them.
    advance
        Is told how many more questions are done; fractions, for all of them go on together.
    """
    answers = [np.empty(0, np.int64)]
    size, threads = len(vectors) if top is None else min(top, len(vectors)), count_cores()
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(questions), _QUESTIONS):
            chunk = _QuestionChunk.of(vectors, questions[start : start + _QUESTIONS])
            for first in range(0, size, chunk.tile):
                tile = _WordTile.of(vectors, chunk, slice(first, min(first + chunk.tile, size)), method)
                list(pool.map(tile.answer, np.array_split(tile.open_questions(), threads)))
                advance(len(chunk.ids) * tile.width / size)
            answers.append(chunk.answers)
    return np.concatenate(answers)


@dataclass(frozen=True, slots=True)
class _QuestionChunk:
    """Questions with the words and pairs that occur in them, and the best answers so far."""

    ids: Ids  # (questions, 3)
    words: Floats  # the vectors of their words, each once, of length 1
    firsts: NDArray[np.intp]  # a and b of each pair, as places in `words`
    seconds: NDArray[np.intp]
    pair_of: NDArray[np.intp]  # the pair, and the c, of each question
    third_of: NDArray[np.intp]
    best: Floats
    answers: Ids

    @classmethod
    def of(cls, vectors: Vectors, ids: Ids) -> _QuestionChunk:
        words, places = np.unique(ids, return_inverse=True)
        a, b, c = places.reshape(ids.shape).T
        pairs, pair_of = np.unique(a * len(words) + b, return_inverse=True)
        firsts, seconds = np.divmod(pairs, max(len(words), 1))
        best, answers = np.full(len(ids), -np.inf, np.float32), np.full(len(ids), -1, np.int64)
        asked = vectors.unit_vectors[words]
        return cls(ids, asked, firsts, seconds, pair_of, np.ascontiguousarray(c), best, answers)

    @property
    def tile(self) -> int:
        """Width of a tile of the vocabulary."""
        return min(_TILE, max(1, _TABLE // (len(self.words) + len(self.firsts))))


@dataclass(frozen=True, slots=True)
class _WordTile:
    """Some words of the vocabulary, and what every c and every pair (a, b) bring to their scores."""

    chunk: _QuestionChunk
    start: int
    width: int
    thirds: Floats  # (words, width)
    pairs: Floats  # (pairs, width)
    join: np.ufunc
    zeros: NDArray[np.intp]  # words that are no answers to anything
    own: tuple[NDArray[np.intp], Ids]  # questions, and the place in the tile of words of theirs

    @classmethod
    def of(cls, vectors: Vectors, chunk: _QuestionChunk, where: slice, method: str) -> _WordTile:
        thirds = chunk.words @ vectors.unit_vectors[where].T
        if method == "3cosmul":
            thirds = np.maximum(shift_cosine(thirds), 0)  # Rounding may leave one below 0, and products would turn.
            pairs = thirds[chunk.seconds] / (thirds[chunk.firsts] + EPSILON)
        else:
            pairs = thirds[chunk.seconds] - thirds[chunk.firsts]
        join = np.multiply if method == "3cosmul" else np.add
        rows, columns = np.nonzero((chunk.ids >= where.start) & (chunk.ids < where.stop))
        own = rows, chunk.ids[rows, columns] - where.start
        zeros = np.flatnonzero(vectors.is_zero[where])
        return cls(chunk, where.start, where.stop - where.start, thirds, pairs, join, zeros, own)

    def open_questions(self) -> NDArray[np.intp]:
        """Return the questions to which a word of the tile may be a better answer than the best so far."""
        highest = self.join(self.thirds.max(axis=1)[self.chunk.third_of], self.pairs.max(axis=1)[self.chunk.pair_of])
        return np.flatnonzero(highest > self.chunk.best)

    def answer(self, questions: NDArray[np.intp]) -> None:
        """Put the tile's best answers to some questions into the best so far; of equals the earlier stays."""
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
        """Return the scores (questions, width), -inf for what is no answer, in the first of the two arrays."""
        # "clip" changes no place here; without it numpy would take into an array of its own first.
        self.thirds.take(self.chunk.third_of[batch], axis=0, out=scores, mode="clip")
        self.pairs.take(self.chunk.pair_of[batch], axis=0, out=pairs, mode="clip")
        self.join(scores, pairs, out=scores)
        if len(self.zeros):
            scores[:, self.zeros] = -np.inf
        asked, words = self.own
        near = slice(*np.searchsorted(asked, (batch[0], batch[-1] + 1)))
        places = np.searchsorted(batch, asked[near])
        is_asked = batch[places] == asked[near]
        scores[places[is_asked], words[near][is_asked]] = -np.inf
        return scores
