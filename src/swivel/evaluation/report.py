"""All test sets at once.

Receives vectors and a folder of sets, hands on a `Report`: figures for JSON and rows for a table. It draws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.errors import EvaluationError
from swivel.evaluation.analogies import AnalogyResult, SectionResult, check_rules, score_analogies
from swivel.evaluation.datasets import SimilaritySet, TestSet, find_sets
from swivel.evaluation.similarity import SimilarityResult, score_similarity
from swivel.progress import SILENT, Progress
from swivel.vectors import Vectors

TABLE_HEADER = ("set", "measure", "figure", "known", "of")
Result = SimilarityResult | AnalogyResult


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of all sets, the paper's first and in its order."""

    results: tuple[Result, ...]
    method: str
    unknown: str
    left_out: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Result:
        """Return the result of a set by its name."""
        for result in self.results:
            if result.name == name:
                return result
        raise EvaluationError(f"no set {name!r} was evaluated; there are {', '.join(r.name for r in self.results)}")

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "method": self.method,
            "unknown": self.unknown,
            "sets": [result.to_dict() for result in self.results],
            "left_out": list(self.left_out),
        }

    def table(self, *, sections: bool = False) -> list[tuple[str, str, str, str, str]]:
        """Return one row of text a set, under `TABLE_HEADER`; with `sections`, one for each section too."""
        rows = []
        for result in self.results:
            rows.append(_draw_row(result.name, result))
            if sections and isinstance(result, AnalogyResult):
                rows += [_draw_row("  " + section.name, section) for section in result.sections]
        return rows


def _draw_row(name: str, result: Result | SectionResult) -> tuple[str, str, str, str, str]:
    is_similarity = isinstance(result, SimilarityResult)
    figure = result.rho if isinstance(result, SimilarityResult) else result.accuracy
    text = "-" if figure is None else f"{figure:.3f}"
    return (name, "rho" if is_similarity else "accuracy", text, f"{result.known:,}", f"{result.total:,}")


def evaluate(
    vectors: Vectors,
    source: str | Path | Iterable[str | Path],
    *,
    method: str = "3cosadd",
    unknown: str = "wrong",
    lowercase: bool = True,
    progress: Progress = SILENT,
) -> Report:
    """Score vectors on the test sets of a folder, or on the files named.

    Parameters
    ----------
    vectors
        What to evaluate.
    source
        A folder with files as in `swivel.evaluation.datasets`, or files.
    method
        How analogies are answered: `3cosadd` or `3cosmul`.
    unknown
        Analogies with an unknown word are `wrong` (the paper's rule), or `skip`.
    lowercase
        Lower-case the sets' words, as the paper does.
    progress
        Receives one task for each set of analogies.

    >>> import numpy as np, tempfile
    >>> from swivel.vectors import Side
    >>> from swivel.vocabulary import Vocabulary
    >>> vectors = Vectors(Side(Vocabulary(["a", "b", "c"]), np.array([[1, 0], [1, 1], [0, 1]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.tsv").write_text("a\\tb\\t9\\na\\tc\\t1\\n")
    ...     evaluate(vectors, folder)["pairs"]
    SimilarityResult(name='pairs', rho=1.0, known=2, total=2)
    """
    check_rules(method, unknown)
    found = find_sets(source, lowercase=lowercase)
    for path in found.left_out:
        progress.say(f"{path.name}: left out, not a test set")

    def score(test_set: TestSet) -> Result:
        if isinstance(test_set, SimilaritySet):
            return score_similarity(vectors, test_set)
        return score_analogies(vectors, test_set, method=method, unknown=unknown, progress=progress)

    results = tuple(map(score, found.sets))
    _say_what_is_unknown(results, progress)
    return Report(results, method, unknown, tuple(path.name for path in found.left_out))


def _say_what_is_unknown(results: tuple[Result, ...], progress: Progress) -> None:
    strange = [result.name for result in results if result.known == 0]
    if len(strange) == len(results):
        raise EvaluationError(
            f"no item of {', '.join(strange)} is in the vocabulary: are set and vectors of the same language, and "
            "both lower-cased (or neither)?"
        )
    for name in strange:
        progress.say(f"{name}: none of its items is in the vocabulary")
