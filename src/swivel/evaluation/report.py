"""All test sets at once.

Receives vectors and a folder of sets, hands on a `Report`: figures for JSON, and rows for a table. It draws nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.errors import EvaluationError
from swivel.evaluation.analogies import AnalogyResult, SectionResult, score_analogies
from swivel.evaluation.bootstrap import Interval
from swivel.evaluation.categories import CategoryResult, score_categories
from swivel.evaluation.config import EvaluationConfig, change_rules
from swivel.evaluation.datasets import AnalogySet, FoundSets, SimilaritySet, TestSet, find_sets
from swivel.evaluation.download import fetch_sets
from swivel.evaluation.similarity import SimilarityResult, score_similarity
from swivel.evaluation.splits import split_set
from swivel.runtime.progress import SILENT, Progress
from swivel.vectors import Vectors

TABLE_HEADER = ("set", "measure", "figure", "95 % interval", "known", "of")
NONE_KNOWN = "none known"
Result = SimilarityResult | AnalogyResult | CategoryResult
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The figures of all sets, the paper's first and in its order."""

    results: tuple[Result, ...]
    rules: EvaluationConfig
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
            "rules": dataclasses.asdict(self.rules),
            "sets": [result.to_dict() for result in self.results],
            "left_out": list(self.left_out),
        }

    def table(self, *, sections: bool = False) -> list[Row]:
        """Return one row of text a set, under `TABLE_HEADER`; with `sections`, one for each section too."""
        rows = []
        for result in self.results:
            rows.append(_draw_row(result.name, result))
            if sections and isinstance(result, AnalogyResult):
                rows += [_draw_row("  " + section.name, section) for section in result.sections]
        return rows

    def markdown(self, *, sections: bool = False) -> str:
        """Return the table in Markdown."""
        return draw_markdown(TABLE_HEADER, self.table(sections=sections))


def draw_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown, its first column to the left and the others to the right.

    >>> print(draw_markdown(("set", "figure"), [("men", "0.750")]))
    | set | figure |
    | :-- | --: |
    | men | 0.750 |
    """
    marks = (":--", *["--:"] * (len(header) - 1))
    lines = [[cell.strip().replace("|", "\\|") for cell in row] for row in (header, marks, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw_figure(figure: float | None) -> str:
    """Return a figure as text."""
    return "-" if figure is None else f"{figure:.3f}"


def draw_interval(interval: Interval | None) -> str:
    """Return an interval as text.

    >>> draw_interval((0.25, 1.0))
    '0.250 .. 1.000'
    """
    return "-" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}"


def _draw_row(name: str, result: Result | SectionResult) -> Row:
    interval = draw_interval(result.interval) if result.known else NONE_KNOWN
    return (name, result.measure, draw_figure(result.figure), interval, f"{result.known:,}", f"{result.total:,}")


def evaluate(
    vectors: Vectors,
    source: str | Path | Iterable[str | Path] | None = None,
    *,
    rules: EvaluationConfig | None = None,
    progress: Progress = SILENT,
    **changes: Any,
) -> Report:
    """Score vectors on the paper's eight sets, on those of a folder, or on the files named.

    Parameters
    ----------
    vectors
        What to evaluate.
    source
        A folder with files as in `swivel.evaluation.datasets`, or files and folders. None: the paper's eight sets,
        fetched when first asked for.
    rules
        How sets are scored: `EvaluationConfig`; the paper's by default.
    progress
        Receives one task for each set of analogies.
    changes
        Single rules by name, such as `method="3cosmul"` or `half="tune"`.

    >>> import numpy as np, tempfile
    >>> from swivel.vectors import Side
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(Side(Vocabulary(["a", "b", "c"]), np.array([[1, 0], [1, 1], [0, 1]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.tsv").write_text("a\\tb\\t9\\na\\tc\\t1\\n")
    ...     evaluate(vectors, folder)["pairs"].figure
    1.0
    """
    rules = change_rules(rules, changes)
    found = read_sets(source, rules, progress=progress)
    results = score_sets(vectors, found.sets, rules, progress=progress)
    return Report(results, rules, tuple(path.name for path in found.left_out))


def read_sets(
    source: str | Path | Iterable[str | Path] | None, rules: EvaluationConfig, *, progress: Progress = SILENT
) -> FoundSets:
    """Return the sets that `evaluate` would score, each the half of it that the rules ask for."""
    found = find_sets(fetch_sets(progress=progress) if source is None else source, lowercase=rules.lowercase)
    for path in found.left_out:
        progress.message(f"{path.name}: left out, not a test set")
    if rules.half is None:
        return found
    return FoundSets(tuple(split_set(each, rules.half) for each in found.sets), found.left_out)


def score_sets(
    vectors: Vectors, sets: Sequence[TestSet], rules: EvaluationConfig, *, progress: Progress = SILENT
) -> tuple[Result, ...]:
    """Score vectors on sets as they are: of the rules, the half is not looked at.

    Raises EvaluationError where nothing of any set is known.
    """
    results = tuple(_score_set(vectors, test_set, rules, progress) for test_set in sets)
    _say_what_is_unknown(results, progress)
    return results


def _score_set(vectors: Vectors, test_set: TestSet, rules: EvaluationConfig, progress: Progress) -> Result:
    if isinstance(test_set, SimilaritySet):
        return score_similarity(vectors, test_set, rules)
    if isinstance(test_set, AnalogySet):
        return score_analogies(vectors, test_set, rules, progress=progress)
    return score_categories(vectors, test_set, rules)


def _say_what_is_unknown(results: tuple[Result, ...], progress: Progress) -> None:
    strange = [result.name for result in results if result.known == 0]
    if not any(result.total for result in results):
        raise EvaluationError(f"this half of {', '.join(strange)} has no items: nothing to evaluate; leave --half away")
    if len(strange) == len(results):
        raise nothing_known(strange)
    for name in strange:
        progress.message(f"{name}: none of its items is in the vocabulary")


def nothing_known(names: Iterable[str], where: str = "the vocabulary") -> EvaluationError:
    """Return the error that sets and words have nothing to do with each other."""
    return EvaluationError(
        f"no item of {', '.join(names)} is in {where}: are set and vectors of the same language, and both lower-cased "
        "(or neither)?"
    )
