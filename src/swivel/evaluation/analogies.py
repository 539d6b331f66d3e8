"""Analogies: "a is to b as c is to ?", answered by the nearest word of the whole vocabulary.

Receives vectors and an `AnalogySet`, hands on accuracies. The query words are no answers, nor are vectors of zeros; a
question with an unknown word counts as wrong, or is skipped.
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
    """How many questions of a section were answered rightly; `known` have no unknown word."""

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
        """The figure."""
        return self.figure

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return describe_result(self) | {"correct": self.correct}


@dataclass(frozen=True, slots=True)
class AnalogyResult:
    """Accuracy over all questions, and by section; None where no question is known.

    `is_right` and `is_known` stand in the file's order, as do the `questions`; a question with an unknown word is never
    right.
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
        """The figure."""
        return self.figure

    @property
    def items(self) -> tuple[FourWords, ...]:
        """The questions."""
        return self.questions

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without the questions."""
        sections = [section.to_dict() for section in self.sections]
        return describe_result(self) | {"correct": self.correct, "sections": sections}


def score_analogies(
    vectors: Vectors, questions: AnalogySet, rules: EvaluationConfig | None = None, *, progress: Progress = SILENT
) -> AnalogyResult:
    """Answer every question of a set."""
    rules = rules or EvaluationConfig()
    ids = np.array([find_ids(vectors, words, rules) for _, words in questions.rows], np.int64).reshape(-1, 4)
    is_known = np.asarray((ids >= 0).all(axis=1))
    asked, is_right = ids[is_known], np.zeros(len(ids), bool)
    with track(progress, questions.name, len(asked), "questions") as task:
        answers = answer_questions(vectors, asked[:, :3], rules.method, top=rules.top, advance=task.advance)
    is_right[is_known] = answers == asked[:, 3]
    return summarise_answers(questions, is_right, is_known, rules)


def summarise_answers(
    questions: AnalogySet, is_right: Flags, is_known: Flags, rules: EvaluationConfig | None = None
) -> AnalogyResult:
    """Return the result of answers, wherever they come from, given in the order of the file.

    >>> from swivel.evaluation.datasets import Questions
    >>> questions = AnalogySet("q", (Questions("s", (("a", "b", "c", "d"), ("a", "b", "e", "f"))),))
    >>> summarise_answers(questions, np.array([True, False]), np.array([True, False]), EvaluationConfig(draws=0)).figure
    0.5
    """
    rules, rows = rules or EvaluationConfig(), questions.rows
    section_of = np.array([number for number, _ in rows], np.int64)
    sections = tuple(
        _tally(section.section, is_right[section_of == number], is_known[section_of == number], rules)
        for number, section in enumerate(questions.sections)
    )
    whole = _tally(questions.name, is_right, is_known, rules)
    return AnalogyResult(
        questions.name,
        whole.figure,
        whole.interval,
        whole.known,
        whole.total,
        whole.correct,
        sections,
        is_right,
        is_known,
        tuple(words for _, words in rows),
    )


def _tally(name: str, is_right: Flags, is_known: Flags, rules: EvaluationConfig) -> SectionResult:
    correct, known, total = int(is_right.sum()), int(is_known.sum()), len(is_right)
    if known == 0:  # Not 0 %: nothing was asked.
        return SectionResult(name, None, None, 0, total, 0)
    counted = total if rules.unknown == "wrong" else known
    interval = share_interval(correct, counted, draws=rules.draws)
    return SectionResult(name, correct / counted, interval, known, total, correct)
