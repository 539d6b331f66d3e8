"""Analogies: "a is to b as c is to ?", answered by the nearest word of the whole vocabulary.

Receives vectors and an `AnalogySet`, hands on accuracies. The query words are no answers, nor are vectors of zeros; a
question with an unknown word counts as wrong, or is skipped.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.errors import ConfigError
from swivel.evaluation.datasets import AnalogySet
from swivel.progress import SILENT, Progress, track
from swivel.vectors import Vectors
from swivel.vectors.lookup import METHODS
from swivel.vectors.search import EPSILON, Floats, shift_cosine

UNKNOWN = ("wrong", "skip")
Ids = NDArray[np.int64]

# A test set asks many questions about few words. The cosines of those words with a tile of the vocabulary are one
# matrix product; a question then only adds three rows of it. Sizes keep tile and batch in the processor's caches
# and bound the memory: at most two tables of 3 * 2048 words * 1024 * 4 bytes, 48 MiB.
_QUESTIONS, _TILE, _BATCH = 2_048, 1_024, 64


@dataclass(frozen=True, slots=True)
class SectionResult:
    """How many questions of a section were answered rightly; `known` have no unknown word."""

    name: str
    accuracy: float | None
    correct: int
    known: int
    total: int


@dataclass(frozen=True, slots=True)
class AnalogyResult:
    """Accuracy over all questions, and by section; None where no question counts."""

    name: str
    accuracy: float | None
    correct: int
    known: int
    total: int
    sections: tuple[SectionResult, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"kind": "analogies", **asdict(self), "sections": [asdict(section) for section in self.sections]}


def check_rules(method: str, unknown: str) -> None:
    """Raise ConfigError for a method, or a rule for unknown words, that there is not."""
    for name, value, choices in (("method", method, METHODS), ("unknown", unknown, UNKNOWN)):
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def score_analogies(
    vectors: Vectors,
    questions: AnalogySet,
    *,
    method: str = "3cosadd",
    unknown: str = "wrong",
    progress: Progress = SILENT,
) -> AnalogyResult:
    """Answer every question of a set."""
    check_rules(method, unknown)
    ids, section_of = _find_ids(vectors, questions)
    with track(progress, questions.name, len(ids), "questions") as task:
        is_right = np.zeros(len(ids), bool)
        for start in range(0, len(ids), _QUESTIONS):
            chunk = ids[start : start + _QUESTIONS]
            is_right[start : start + len(chunk)] = answer_questions(vectors, chunk[:, :3], method) == chunk[:, 3]
            task.advance(len(chunk))
    sections = tuple(
        _tally(section.section, is_right[section_of == number], len(section.words), unknown)
        for number, section in enumerate(questions.sections)
    )
    whole = _tally(questions.name, is_right, questions.size, unknown)
    return AnalogyResult(whole.name, whole.accuracy, whole.correct, whole.known, whole.total, sections)


def _tally(name: str, is_right: NDArray[np.bool_], total: int, unknown: str) -> SectionResult:
    correct, known = int(is_right.sum()), len(is_right)
    counted = total if unknown == "wrong" else known
    return SectionResult(name, correct / counted if counted else None, correct, known, total)


def _find_ids(vectors: Vectors, questions: AnalogySet) -> tuple[Ids, NDArray[np.int64]]:
    """Return the ids (questions, 4) of the questions whose words are all known, and their sections."""
    known = vectors.vocabulary.ids
    rows = [
        (*(known[word] for word in words), number)
        for number, section in enumerate(questions.sections)
        for words in section.words
        if all(word in known for word in words)
    ]
    table = np.array(rows, np.int64).reshape(-1, 5)
    return table[:, :4], table[:, 4]


def answer_questions(vectors: Vectors, questions: Ids, method: str = "3cosadd") -> Ids:
    """Return the id of the best answer to each question (a, b, c); equal scores by id, -1 where there is none."""
    words, places = np.unique(questions, return_inverse=True)
    places = places.reshape(questions.shape)
    asked = vectors.unit_vectors[words]
    best = np.full(len(questions), -np.inf, np.float32)
    answers = np.full(len(questions), -1, np.int64)
    for start in range(0, len(vectors), _TILE):
        zeros = np.flatnonzero(vectors.is_zero[start : start + _TILE])
        tables = _score_words(asked, vectors.unit_vectors[start : start + _TILE], method)
        for first in range(0, len(questions), _BATCH):
            piece = slice(first, first + _BATCH)
            scores = tables.score(places[piece])
            scores[:, zeros] = -np.inf
            _exclude_ids(scores, questions[piece] - start)
            _keep_better(scores, start, best[piece], answers[piece])
    return answers


@dataclass(frozen=True, slots=True)
class _Tables:
    """What b and c, and what a, bring to the score of each word of a tile; `join` puts the three together."""

    plus: Floats
    minus: Floats
    join: np.ufunc

    def score(self, places: NDArray[np.intp]) -> Floats:
        """Return the scores (questions, tile) of questions (a, b, c), given as rows of the tables."""
        scores = self.plus.take(places[:, 1], axis=0)
        self.join(scores, self.plus.take(places[:, 2], axis=0), out=scores)
        self.join(scores, self.minus.take(places[:, 0], axis=0), out=scores)
        return scores


def _score_words(asked: Floats, unit: Floats, method: str) -> _Tables:
    cosines = asked @ unit.T
    if method == "3cosadd":
        return _Tables(cosines, -cosines, np.add)
    shifted = shift_cosine(cosines)
    return _Tables(shifted, np.reciprocal(shifted + EPSILON), np.multiply)


def _exclude_ids(scores: Floats, questions: Ids) -> None:
    """Make the query words, by their place in the tile, no answers."""
    rows, columns = np.nonzero((questions >= 0) & (questions < scores.shape[1]))
    scores[rows, questions[rows, columns]] = -np.inf


def _keep_better(scores: Floats, start: int, best: Floats, answers: Ids) -> None:
    """Put a tile's best into the best so far; of equals the earlier stays."""
    top = scores.argmax(axis=1)
    values = scores[np.arange(len(scores)), top]
    is_better = values > best
    best[is_better] = values[is_better]
    answers[is_better] = top[is_better] + start
