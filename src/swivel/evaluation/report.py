"""Evaluation of vectors on several test sets, and the report with its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swivel.errors import EvaluationError
from swivel.evaluation.bootstrap import Interval
from swivel.evaluation.datasets import TestSet, find_sets, split_set
from swivel.evaluation.download import fetch_sets
from swivel.evaluation.results import AnalogyResult, Result, SetResult
from swivel.evaluation.rules import EvaluationConfig, change_rules
from swivel.evaluation.scores import score_set
from swivel.runtime.notebook import draw_html
from swivel.runtime.progress import SILENT, Progress
from swivel.runtime.progress_bars import choose_progress
from swivel.vectors import Vectors
from swivel.vectors.formats import as_vectors

TABLE_HEADER = ("set", "measure", "figure", "95 % interval", "known only", "all items", "known", "of", "coverage")
MIN_KNOWN = 10  # With fewer known items, an interval says nothing, and none is printed.
Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all test sets, those of the paper first."""

    results: tuple[Result, ...]
    rules: EvaluationConfig
    left_out: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Result:
        """Return the result of the set with this name."""
        for result in self.results:
            if result.name == name:
                return result
        raise EvaluationError(f"no set {name!r} was evaluated; the sets are {', '.join(r.name for r in self.results)}")

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return {
            "rules": dataclasses.asdict(self.rules),
            "sets": [result.to_dict() for result in self.results],
            "left_out": list(self.left_out),
        }

    def table(self, *, sections: bool = False) -> list[Row]:
        """Return one row of text per set, with the columns of `TABLE_HEADER`; with `sections` also one per section."""
        rows = []
        for result in self.results:
            rows.append(draw_row(result.name, result))
            if sections and isinstance(result, AnalogyResult):
                rows += [draw_row("  " + section.name, section) for section in result.sections]
        return rows

    def _repr_html_(self) -> str:
        return draw_html("Evaluation", TABLE_HEADER, self.table())


def draw_markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the first column left-aligned and the others right-aligned."""
    marks = (":--", *["--:"] * (len(header) - 1))
    lines = [[cell.strip().replace("|", "\\|") for cell in row] for row in (header, marks, *rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def draw_figure(figure: float | None) -> str:
    """Return a figure with three decimals, or a dash for None."""
    return "-" if figure is None else f"{figure:.3f}"


def draw_interval(interval: Interval | None) -> str:
    """Return an interval as text, such as `0.250 .. 1.000`, or a dash for None."""
    return "-" if interval is None else f"{interval[0]:.3f} .. {interval[1]:.3f}"


def draw_row(name: str, result: SetResult) -> Row:
    """Return the cells of a result in a table with the columns of `TABLE_HEADER`."""
    interval = draw_interval(result.interval)
    if result.known < MIN_KNOWN:
        interval = "too few known" if result.known else "none known"
    rules = draw_figure(result.known_only), draw_figure(result.all_items)
    coverage = f"{result.known / max(result.total, 1):.1%}"
    figure = draw_figure(result.figure)
    return (name, result.measure, figure, interval, *rules, f"{result.known:,}", f"{result.total:,}", coverage)


def evaluate(
    vectors: Vectors | str | Path,
    source: str | Path | Iterable[str | Path] | None = None,
    *,
    rules: EvaluationConfig | None = None,
    progress: Progress | bool | None = None,
    **changes: Any,
) -> Report:
    """Evaluate vectors on the paper's eight test sets, the sets of a folder, or a list of files.

    Parameters
    ----------
    vectors
        The vectors to evaluate, or their file or folder.
    source
        A folder of test sets (see `swivel.evaluation.datasets`), or a list of files and folders. By default the paper's
        eight sets, downloaded on first use.
    rules
        How sets are scored; by default the rules of the paper.
    progress
        A receiver of progress events, with one task per set of analogies; by default a progress bar for work that takes
        longer than a second, False for none.
    changes
        Single rules by name, such as `method="3cosmul"` or `half="tune"`.

    Returns
    -------
    Report

    Examples
    --------
    >>> import numpy as np, tempfile
    >>> from swivel.vectors import VectorTable
    >>> from swivel.corpus.vocabulary import Vocabulary
    >>> vectors = Vectors(VectorTable(Vocabulary(["a", "b", "c"]), np.array([[1, 0], [1, 1], [0, 1]], np.float32)))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "pairs.tsv").write_text("a\\tb\\t9\\na\\tc\\t1\\n")
    ...     evaluate(vectors, folder)["pairs"].figure
    1.0
    """
    rules = change_rules(rules, changes)
    vectors = as_vectors(vectors)
    receiver = choose_progress(progress)
    sets, left_out = read_sets(source, rules, progress=receiver)
    results = score_sets(vectors, sets, rules, progress=receiver)
    return Report(results, rules, tuple(path.name for path in left_out))


def read_sets(
    source: str | Path | Iterable[str | Path] | None, rules: EvaluationConfig, *, progress: Progress = SILENT
) -> tuple[tuple[TestSet, ...], list[Path]]:
    """Return what `find_sets` does for `evaluate`: the sets are reduced to one half if the rules say so."""
    if source is None:
        source = fetch_sets(progress=progress)
    sets, left_out = find_sets(source, lowercase=rules.lowercase)

    for path in left_out:
        progress.message(f"{path.name}: skipped, not a test set")
    if rules.half is not None:
        sets = tuple(split_set(test_set, rules.half) for test_set in sets)
    return sets, left_out


def score_sets(
    vectors: Vectors, sets: Sequence[TestSet], rules: EvaluationConfig, *, progress: Progress = SILENT
) -> tuple[Result, ...]:
    """Evaluate vectors on given test sets; the rule `half` is ignored.

    Raises
    ------
    EvaluationError
        If no item of any set is known.
    """
    results = tuple(score_set(vectors, test_set, rules, progress=progress) for test_set in sets)

    unknown = [result.name for result in results if result.known == 0]
    if not any(result.total for result in results):
        raise EvaluationError(f"this half of {', '.join(unknown)} has no items to evaluate: leave out half")
    if len(unknown) == len(results):
        raise EvaluationError(
            f"no item of {', '.join(unknown)} is in the vocabulary: check that sets and vectors have the same "
            "language, and that both or neither are lower-cased"
        )
    for name in unknown:
        progress.message(f"{name}: no item is in the vocabulary")

    return results
