"""Results on test sets, one class per kind of set, and the report with its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from swivel.errors import EvaluationError
from swivel.evaluation.bootstrap import Doubles, Interval, rank_correlation
from swivel.evaluation.datasets import FourWords
from swivel.evaluation.rules import EvaluationConfig
from swivel.runtime.notebook import draw_html

Flags = NDArray[np.bool_]
Row = tuple[str, ...]
TABLE_HEADER = ("set", "measure", "figure", "95 % interval", "known only", "all items", "known", "of", "coverage")
MIN_KNOWN = 10  # With fewer known items, an interval says nothing, and none is printed.


@dataclass(frozen=True, slots=True)
class SetResult:
    """What the results of all kinds of sets have in common."""

    kind: ClassVar[str]
    measure: ClassVar[str]

    name: str
    figure: float | None  # None if it is not defined
    interval: Interval | None  # 95 %
    known: int  # items without an unknown word
    total: int

    @property
    def known_only(self) -> float | None:
        """Figure over the known items only; None if it is not defined."""
        return self.figure

    @property
    def all_items(self) -> float | None:
        """Figure over all items: an unknown one is wrong, or has a cosine of 0; None if no item is known."""
        return self.figure

    def _repr_html_(self) -> str:
        return draw_html("Evaluation", TABLE_HEADER, [draw_row(self.name, self)])

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the items."""
        names = ("name", "kind", "measure", "figure", "interval", "known_only", "all_items", "known", "total")
        interval = None if self.interval is None else list(self.interval)
        return {name: getattr(self, name) for name in names} | {"interval": interval}


@dataclass(frozen=True, slots=True)
class SimilarityResult(SetResult):
    """Spearman's rho; None if it is not defined (fewer than two pairs, or all values equal)."""

    kind: ClassVar[str] = "similarity"
    measure: ClassVar[str] = "rho"

    # In the order of the file; the cosine of a skipped pair is NaN.
    cosines: Doubles = field(compare=False, repr=False)
    scores: Doubles = field(compare=False, repr=False)
    items: tuple[tuple[str, str], ...] = field(compare=False, repr=False)

    @property
    def known_only(self) -> float | None:
        """Rho over the known pairs; None if it is not defined, or if unknown pairs have a cosine by the rules."""
        skipped = int(np.isnan(self.cosines).sum())
        return self.figure if skipped == self.total - self.known else None

    @property
    def all_items(self) -> float | None:
        """Rho over all pairs; a skipped pair has a cosine of 0."""
        return rank_correlation(np.nan_to_num(self.cosines), self.scores) if self.known else None


@dataclass(frozen=True, slots=True)
class SectionResult(SetResult):
    """Accuracy of the questions of one section; None if no question is known."""

    kind: ClassVar[str] = "section"
    measure: ClassVar[str] = "accuracy"

    correct: int

    @property
    def known_only(self) -> float | None:
        """Accuracy over the known questions."""
        return self.correct / self.known if self.known else None

    @property
    def all_items(self) -> float | None:
        """Accuracy over all questions; an unknown one is wrong."""
        return self.correct / self.total if self.known else None

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        # Not super(), which does not work in a dataclass with slots.
        return SetResult.to_dict(self) | {"correct": self.correct}


@dataclass(frozen=True, slots=True)
class AnalogyResult(SectionResult):
    """Accuracy over all questions and by section; None if no question is known."""

    kind: ClassVar[str] = "analogies"

    sections: tuple[SectionResult, ...] = field(repr=False)
    # In the order of the file. A question with an unknown word is never right.
    is_right: Flags = field(compare=False, repr=False)
    is_known: Flags = field(compare=False, repr=False)
    items: tuple[FourWords, ...] = field(compare=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the questions."""
        return SectionResult.to_dict(self) | {"sections": [section.to_dict() for section in self.sections]}


@dataclass(frozen=True, slots=True)
class CategoryResult(SetResult):
    """Purity of the clusters; None if the known words have fewer than two categories."""

    kind: ClassVar[str] = "categories"
    measure: ClassVar[str] = "purity"

    # In the order of the file. A word is right if its category is that of its cluster.
    is_right: Flags = field(compare=False, repr=False)
    is_known: Flags = field(compare=False, repr=False)
    items: tuple[str, ...] = field(compare=False, repr=False)

    @property
    def all_items(self) -> float | None:
        """Purity over all words; an unknown one is wrong."""
        return None if self.figure is None else float(self.is_right.mean())


Result = SimilarityResult | AnalogyResult | CategoryResult


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
