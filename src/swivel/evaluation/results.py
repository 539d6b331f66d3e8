"""The rules of evaluation, results on test sets, and differences between two reports.

Similarity is compared on the pairs that count in both reports; analogies on all questions or, with the rule `skip`, on
those known to both; categories on the words known to both. Both models are resampled together, item by item, so that
items that are difficult for both do not blur the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swivel.config import FLAG, NATURAL, POSITIVE_INT, check_fields, config_field, one_of
from swivel.errors import EvaluationError
from swivel.evaluation import bootstrap
from swivel.evaluation.bootstrap import DRAWS, SEED, Doubles, Interval
from swivel.evaluation.datasets import HALVES
from swivel.runtime.display import draw_html
from swivel.vectors.vectors import METHODS

Flags = NDArray[np.bool_]
Row = tuple[str, ...]
TABLE_HEADER = ("set", "measure", "figure", "95 % interval", "known only", "all items", "known", "of", "coverage")
DIFFERENCE_HEADER = ("set", "first", "second", "difference", "95 % interval", "p", "items")
MIN_KNOWN = 10  # With fewer known items, an interval says nothing, and none is printed.
MEASURES = {"similarity": "rho", "analogies": "accuracy", "section": "accuracy", "categories": "purity"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Rules for scoring data sets; the defaults are the paper's.

    >>> EvaluationConfig(unknown="skip").unknown
    'skip'
    """

    method: str = config_field("3cosadd", "how analogies are answered", one_of(*METHODS))
    unknown: str = config_field(
        "wrong",
        "questions with an unknown word count as wrong (the paper's rule) or are skipped",
        one_of("wrong", "skip"),
    )
    unknown_pairs: str = config_field(
        "skip",
        "pairs with an unknown word are skipped (the paper's rule), count with a cosine of zero, or use the mean "
        "vector or a vector guessed from the spelling for the unknown word",
        one_of("skip", "zero", "mean", "guess"),
    )
    top: int | None = config_field(None, "only the first N, most frequent words count as known", POSITIVE_INT)
    lowercase: bool = config_field(True, "lower-case the words of the data sets", FLAG)
    half: str | None = config_field(None, "use only one half of every data set", one_of(*HALVES))
    draws: int = config_field(10_000, "bootstrap resamplings per interval; 0 for no intervals", NATURAL)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True)
class SetResult:
    """The result of a test set, or of a section of analogies; a figure is None if it is not defined."""

    kind: str  # "similarity", "analogies", "section" or "categories"
    name: str
    figure: float | None
    interval: Interval | None  # 95 %
    known: int  # items without an unknown word
    total: int
    known_only: float | None  # figure over the known items only; None if unknown pairs have a cosine by the rules
    all_items: float | None  # figure over all items: an unknown one is wrong, or has a cosine of 0
    sections: tuple[SetResult, ...] = field(default=(), repr=False)
    # In the order of the file: the cosine of a pair, 1 if a question or a word is right, else 0; NaN if it is skipped
    # or not known. A word of a category is right if its category is that of its cluster.
    values: Doubles = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    # The scores of people for pairs.
    scores: Doubles = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    items: tuple[Any, ...] = field(default=(), compare=False, repr=False)

    @property
    def measure(self) -> str:
        """Spearman's "rho" of pairs, "accuracy" of analogies or "purity" of categories."""
        return MEASURES[self.kind]

    @property
    def is_right(self) -> Flags:
        """Whether each question or word is right; an unknown one never is."""
        return np.asarray(self.values == 1)

    @property
    def is_known(self) -> Flags:
        """Whether the model knows all words of each question, or each word."""
        return ~np.isnan(self.values)

    @property
    def correct(self) -> int:
        """Number of right questions or words."""
        return int(self.is_right.sum())

    def _repr_html_(self) -> str:
        return draw_html("Evaluation", TABLE_HEADER, [draw_row(self.name, self)])

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, without the items."""
        names = ("name", "kind", "measure", "figure", "interval", "known_only", "all_items", "known", "total")
        values = {name: getattr(self, name) for name in names}
        if self.measure == "accuracy":
            values["correct"] = self.correct
        if self.kind == "analogies":
            values["sections"] = [section.to_dict() for section in self.sections]
        return values


@dataclass(frozen=True, slots=True)
class Report:
    """The results of all test sets, those of the paper first."""

    results: tuple[SetResult, ...]
    rules: EvaluationConfig
    left_out: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> SetResult:
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
            if sections:
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


@dataclass(frozen=True, slots=True)
class Difference:
    """Figures of two models on the same items, and the significance of first minus second; None if undefined."""

    name: str
    kind: str
    first: float | None
    second: float | None
    difference: float | None
    interval: Interval | None  # 95 % interval of the difference
    p_value: float | None  # of a two-sided paired bootstrap test
    items: int

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON."""
        return asdict(self)


def compare_reports(a: Report, b: Report, *, seed: int = SEED, draws: int = DRAWS) -> tuple[Difference, ...]:
    """Compare the sets that two reports have in common, in the order of the first report.

    Raises
    ------
    EvaluationError
        If they have no set in common, or if a set has different items in the two reports.
    """
    others = {result.name: result for result in b.results}
    common = [(result, others[result.name]) for result in a.results if result.name in others]
    if not common:
        raise EvaluationError(
            f"the reports have no set in common: {', '.join(r.name for r in a.results)} and {', '.join(others)}"
        )

    # If one report counts unknown questions as wrong, both do: the items must be the same.
    counts_unknown = "wrong" in (a.rules.unknown, b.rules.unknown)
    return tuple(_compare(*pair, counts_unknown, draws, seed) for pair in common)


def _compare(first: SetResult, second: SetResult, counts_unknown: bool, draws: int, seed: int) -> Difference:
    is_same_set = first.kind == second.kind and first.items == second.items
    if not is_same_set or not np.array_equal(first.scores, second.scores):
        raise EvaluationError(f"{first.name}: the two reports have different items; evaluate both on the same set")

    values = np.stack([first.values, second.values])
    if first.kind == "analogies" and counts_unknown and first.known and second.known:
        values = np.nan_to_num(values)
    # Otherwise, an item that one model does not know says nothing about the difference.
    is_in_both = ~np.isnan(values).any(axis=0)
    one, other = values[:, is_in_both]

    figures: tuple[float | None, float | None] = None, None
    differences = np.empty(0)
    if first.kind == "similarity":
        scores = first.scores[is_in_both]
        figures = bootstrap.rank_correlation(one, scores), bootstrap.rank_correlation(other, scores)
        resampled = bootstrap.draw_correlations([one, other], scores, draws=draws, seed=seed)
        differences = resampled[0] - resampled[1]
    elif len(one):
        figures = float(one.mean()), float(other.mean())
        differences = bootstrap.draw_share_differences(one == 1, other == 1, draws=draws, seed=seed)

    difference = interval = p_value = None
    if figures[0] is not None and figures[1] is not None:
        difference = figures[0] - figures[1]
        interval = bootstrap.percentile_interval(differences)
    if interval is not None:
        p_value = bootstrap.two_sided_p(differences)
    return Difference(first.name, first.kind, *figures, difference, interval, p_value, len(one))


def tabulate_differences(differences: Iterable[Difference]) -> list[Row]:
    """Return one row of text per set, with the columns of `DIFFERENCE_HEADER`."""
    rows: list[Row] = []
    for each in differences:
        figures = (draw_figure(each.first), draw_figure(each.second))
        difference = "-" if each.difference is None else f"{each.difference:+.3f}"
        has_interval = each.items >= MIN_KNOWN and each.p_value is not None
        interval = draw_interval(each.interval if has_interval else None)
        p_value = f"{each.p_value:.4f}" if has_interval else "-"
        rows.append((each.name, *figures, difference, interval, p_value, f"{each.items:,}"))
    return rows
