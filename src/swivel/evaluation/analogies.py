"""Analogies: "a is to b as c is to ?", answered by the best word of the whole vocabulary.

The words of a question and vectors of zeros are never answers. A question with an unknown word counts as wrong or is
skipped, depending on the rules.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from swivel.evaluation.analogy_search import answer_questions
from swivel.evaluation.bootstrap import Interval, share_interval
from swivel.evaluation.config import EvaluationConfig, find_ids
from swivel.evaluation.datasets import AnalogySet, FourWords
from swivel.evaluation.similarity import describe_result
from swivel.runtime.progress import SILENT, Progress, track
from swivel.vectors import Vectors

Flags = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SectionResult:
    """Accuracy of one section; `known` is the number of questions without an unknown word."""

    kind: ClassVar[str] = "section"
    measure: ClassVar[str] = "accuracy"

    name: str
    figure: float | None
    interval: Interval | None
    known: int
    total: int
    correct: int

    @property
    def accuracy(self) -> float | None:
        """Fraction of correct answers; the same as `figure`."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return describe_result(self) | {"correct": self.correct}


@dataclass(frozen=True, slots=True)
class AnalogyResult:
    """Accuracy over all questions and by section; None if no question is known.

    `is_right`, `is_known` and `questions` have the order of the file. A question with an unknown word is never right.
    """

    kind: ClassVar[str] = "analogies"
    measure: ClassVar[str] = "accuracy"

    name: str
    figure: float | None
    interval: Interval | None
    known: int
    total: int
    correct: int
    sections: tuple[SectionResult, ...] = field(repr=False)
    is_right: Flags = field(compare=False, repr=False)
    is_known: Flags = field(compare=False, repr=False)
    questions: tuple[FourWords, ...] = field(compare=False, repr=False)

    @property
    def accuracy(self) -> float | None:
        """Fraction of correct answers; the same as `figure`."""
        return self.figure

    @property
    def items(self) -> tuple[FourWords, ...]:
        """The questions, under the name that all kinds of results share."""
        return self.questions

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the questions."""
        sections = [section.to_dict() for section in self.sections]
        return describe_result(self) | {"correct": self.correct, "sections": sections}


def score_analogies(
    vectors: Vectors, questions: AnalogySet, rules: EvaluationConfig | None = None, *, progress: Progress = SILENT
) -> AnalogyResult:
    """Answer every question of a set and return the accuracies."""
    rules = rules or EvaluationConfig()
    ids = np.array([find_ids(vectors, words, rules) for _, words in questions.rows], np.int64).reshape(-1, 4)
    is_known = np.asarray((ids >= 0).all(axis=1))

    asked = ids[is_known]
    with track(progress, questions.name, len(asked), "questions") as task:
        answers = answer_questions(vectors, asked[:, :3], rules.method, top=rules.top, advance=task.advance)

    is_right = np.zeros(len(ids), bool)
    is_right[is_known] = answers == asked[:, 3]
    return summarise_answers(questions, is_right, is_known, rules)


def summarise_answers(
    questions: AnalogySet, is_right: Flags, is_known: Flags, rules: EvaluationConfig | None = None
) -> AnalogyResult:
    """Return the accuracies of given answers; both arrays have the order of the file.

    >>> from swivel.evaluation.datasets import Questions
    >>> questions = AnalogySet("q", (Questions("s", (("a", "b", "c", "d"), ("a", "b", "e", "f"))),))
    >>> summarise_answers(questions, np.array([True, False]), np.array([True, False]), EvaluationConfig(draws=0)).figure
    0.5
    """
    rules = rules or EvaluationConfig()
    rows = questions.rows
    section_of = np.array([number for number, _ in rows], np.int64)

    sections = []
    for number, section in enumerate(questions.sections):
        is_member = section_of == number
        sections.append(_tally(section.section, is_right[is_member], is_known[is_member], rules))

    whole = _tally(questions.name, is_right, is_known, rules)
    return AnalogyResult(
        questions.name,
        whole.figure,
        whole.interval,
        whole.known,
        whole.total,
        whole.correct,
        tuple(sections),
        is_right,
        is_known,
        tuple(words for _, words in rows),
    )


def _tally(name: str, is_right: Flags, is_known: Flags, rules: EvaluationConfig) -> SectionResult:
    correct = int(is_right.sum())
    known = int(is_known.sum())
    total = len(is_right)
    if known == 0:  # None and not 0 %: no question was asked.
        return SectionResult(name, None, None, 0, total, 0)

    counted = total if rules.unknown == "wrong" else known
    interval = share_interval(correct, counted, draws=rules.draws)
    return SectionResult(name, correct / counted, interval, known, total, correct)
