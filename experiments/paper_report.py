"""The results of the paper's experiment, as a table, as JSON and as a page with figures."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures import plot_block, plot_losses
from experiments.frequency import make_curves, plot_differences, plot_frequency
from experiments.report import MARKS, format_figure, format_range, mark_figure, write_report
from experiments.stages import Measure
from swivel.corpus.vocabulary import Vocabulary
from swivel.counts import Matrix
from swivel.evaluation import AnalogySet, Report, SetResult, SimilaritySet, compare_reports
from swivel.evaluation.results import MIN_KNOWN, Difference
from swivel.reports import plots
from swivel.reports.html import (
    Cell,
    write_details,
    write_facts,
    write_heading,
    write_page,
    write_paragraph,
    write_picture,
    write_table,
)
from swivel.runtime.resources import format_bytes
from swivel.vectors import Vectors

TestSet = SimilaritySet | AnalogySet

STAGES = ("counting", "training", "evaluation")
LABELS = {
    "ws353_similarity": "WS sim",
    "ws353_relatedness": "WS rel",
    "men": "MEN",
    "mturk": "MTurk",
    "rare_words": "Rare Words",
    "simlex999": "SimLex",
    "google_analogies": "Google",
    "msr_analogies": "MSR",
}
RULES = (
    "Similarity: Spearman's rank correlation with human judgments, without pairs with an unknown word. Analogies: the "
    "share of correct answers; a question with an unknown word counts as wrong. Below each score is its 95 % bootstrap "
    f"interval. {MARKS}"
)
TUNED = (
    "The settings of `default` were chosen on one half of each of the paper's eight sets. The other half "
    "(`--half report`) gives a fairer comparison."
)
COSTS = (
    "Wall-clock seconds and peak memory (including mapped files) of each stage, in a process of its own. Methods with "
    "the same counts share the counting, which is listed for each of them; the training of word2vec includes reading "
    "the text. A stage that was interrupted has no time."
)
CAPTIONS = {
    "frequency": "Accuracy of analogies (all analogy sets together) against the mean frequency of the four words of a "
    "question, in buckets of at least 100 questions; bands are 95 % bootstrap intervals.",
    "differences": "The accuracy of the first method minus that of each other method, per bucket, with paired 95 % "
    "intervals. Blue: above 0; orange: below 0; gray: the interval contains 0.",
    "loss": "The loss of a cell against the prediction, for a target of 2: the squared error of a cell with the count "
    "x, and the soft hinge of a cell without counts, which penalizes only predictions that are too high.",
    "block": "Counts of the most common words with each other, and the counts of one block of the training: rows and "
    "columns are distributed over the blocks in turn, so that each block has common and rare words alike.",
}
PAPER_WORDS = ("bootblack", "chigger", "decretal", "tuxedoes")  # of its table of rare words
MIN_LETTERS = 5  # Shorter rare words are mostly abbreviations and names.


@dataclass(frozen=True, slots=True)
class MethodResult:
    """The results of one method: vectors and settings of its first seed, one report per seed, costs by stage."""

    name: str
    about: str
    vectors: Vectors
    reports: tuple[Report, ...]
    costs: Mapping[str, Measure]
    settings: Mapping[str, Any]

    def scores(self, test_set: str) -> list[float]:
        """Return the score of each seed on a set, without those that are not defined."""
        figures = [report[test_set].figure for report in self.reports]
        return [figure for figure in figures if figure is not None]

    def mean(self, test_set: str) -> float | None:
        """Return the mean score over the seeds."""
        return statistics.fmean(self.scores(test_set)) if self.scores(test_set) else None

    def analogies(self) -> list[SetResult]:
        """Return the results of the first seed on analogies."""
        return [result for result in self.reports[0].results if result.kind == "analogies"]


@dataclass(frozen=True)
class Results:
    """The results of an experiment; the other methods are compared with the first one."""

    corpus: Mapping[str, Any]
    sets: tuple[TestSet, ...]
    methods: tuple[MethodResult, ...]
    half: str | None
    machine: Mapping[str, Any]

    @cached_property
    def comparisons(self) -> dict[str, dict[str, Difference]]:
        """The first method compared with each other one, by method and set."""
        first, *others = self.methods
        return {
            other.name: {each.name: each for each in compare_reports(first.reports[0], other.reports[0])}
            for other in others
        }

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return header and rows of the scores; the last row is the share of items whose words are all known."""
        names = [each.name for each in self.sets]
        rows = [[method.name, *(format_figure(method.mean(name)) for name in names)] for method in self.methods]
        first = self.methods[0].reports[0]
        known = [f"{first[each.name].known / max(each.size, 1):.0%}" for each in self.sets]
        return ["method", *map(label_of, names)], [*rows, [f"known to {self.methods[0].name}", *known]]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "corpus": self.corpus,
            "half": self.half,
            "machine": self.machine,
            "methods": [
                {
                    "name": method.name,
                    "about": method.about,
                    "words": len(method.vectors),
                    "dim": method.vectors.dim,
                    "scores": {
                        result.name: {**result.to_dict(), "by_seed": method.scores(result.name)}
                        for result in method.reports[0].results
                    },
                    "comparisons": {
                        name: each.to_dict() for name, each in self.comparisons.get(method.name, {}).items()
                    },
                    "costs": {stage: asdict(cost) for stage, cost in method.costs.items()},
                    "settings": method.settings,
                }
                for method in self.methods
            ],
        }


def label_of(test_set: str) -> str:
    """Return the header of the column of a set."""
    return LABELS.get(test_set, test_set)


def write_paper_report(out: Path, results: Results, matrix: Matrix) -> None:
    """Write `report.html`, `results.json` and `figures/`, one of which shows a block of `matrix`."""
    pictures = {}
    for name, figure in draw_figures(results, matrix):
        plots.save_figure(figure, out / "figures" / f"{name}.png")
        pictures[name] = write_picture(name, CAPTIONS[name], plots.draw_figure(figure, "svg"))
    write_report(out, compose_report(results, matrix.rows, pictures), results.to_dict())


def draw_figures(results: Results, matrix: Matrix) -> Iterator[tuple[str, Any]]:
    """Yield the name of each figure, and the figure; those by frequency need enough analogies."""
    curves, differences = make_curves({each.name: each.analogies() for each in results.methods}, matrix.rows)
    if curves:
        yield "frequency", plot_frequency(curves)
    if differences:
        yield "differences", plot_differences(differences, results.methods[0].name)
    yield "loss", plot_losses()
    yield "block", plot_block(matrix)


def compose_report(results: Results, vocabulary: Vocabulary, pictures: Mapping[str, str]) -> str:
    """Return the report as a page."""
    first = results.methods[0]
    blocks: list[str] = [
        *_compose_scores(results),
        write_heading("Common and rare words"),
        *(pictures[name] for name in ("frequency", "differences") if name in pictures),
        write_paragraph(
            "The nearest neighbors of very rare words: those of the paper, and of the rarest fifth of the text."
        ),
        tabulate_rare_words(results.methods, vocabulary),
        write_heading("Time and memory"),
        write_paragraph(COSTS),
        tabulate_costs(results.methods),
        write_heading("How it works"),
        *(pictures[name] for name in ("loss", "block") if name in pictures),
        write_heading("Settings, versions, machine"),
        *(write_details(f"{each.name}: {each.about}", write_facts(each.settings)) for each in results.methods),
        write_details("Corpus", write_facts(results.corpus)),
        write_details("Machine and versions", write_facts(results.machine)),
    ]
    names = ", ".join(f"`{method.name}`" for method in results.methods)
    subtitle = f"{', '.join(results.corpus['files'])}: vectors of {first.vectors.dim} dimensions by {names}."
    return write_page("Swivel: the paper's experiment", subtitle, blocks)


def _compose_scores(results: Results) -> Iterator[str]:
    first, *others = results.methods
    yield write_heading("The table")
    yield write_paragraph(RULES + (f" Only the half `{results.half}` of every set is used." if results.half else ""))
    if results.half != "report" and any(method.name == "default" for method in results.methods):
        yield write_paragraph(TUNED)

    def show_score(method: MethodResult, name: str) -> Cell:
        return score_cell(results, method, name)

    def show_known(method: MethodResult, name: str) -> Cell:
        result = method.reports[0][name]
        return f"{result.known:,} of {result.total:,}"

    def show_difference(method: MethodResult, name: str) -> Cell:
        compared = results.comparisons[method.name][name]
        if compared.difference is None or compared.p_value is None:
            return "–"
        p_value = "p < .001" if compared.p_value < 0.001 else f"p = {format_figure(compared.p_value)}"
        return format_figure(compared.difference), f"{format_range(compared.interval)}, {p_value}"

    yield _tabulate(results, results.methods, show_score)
    yield write_details("Items with known words only", _tabulate(results, results.methods, show_known))
    if others:
        yield write_details(f"{first.name} minus each other method", _tabulate(results, others, show_difference))


def _tabulate(results: Results, methods: Iterable[MethodResult], show: Callable[[MethodResult, str], Cell]) -> str:
    """Return a table with a row per method and a column per set."""
    names = [each.name for each in results.sets]
    rows = [((method.name, method.about), *(show(method, name) for name in names)) for method in methods]
    return write_table(("", *map(label_of, names)), rows)


def score_cell(results: Results, method: MethodResult, name: str) -> Cell:
    """Return the score on a set, and below it its interval, and how the seeds and the items differ."""
    result, mean, scores = method.reports[0][name], method.mean(name), method.scores(name)
    if mean is None or result.known < MIN_KNOWN:
        return format_figure(mean), "too few known items" if result.known else "no known items"

    notes = [format_range(result.interval)]
    if len(scores) > 1:
        notes.append(f"± {format_figure(statistics.stdev(scores))} over {len(scores)} seeds")
    if result.known != results.methods[0].reports[0][name].known:
        notes.append(f"{result.known:,} items")

    best = max(figure for each in results.methods if (figure := each.mean(name)) is not None)
    compared = results.comparisons.get(method.name, {}).get(name)
    difference = None if compared is None else compared.interval
    return mark_figure(mean, difference, is_best=mean == best), ", ".join(filter(None, notes))


def choose_rare_words(vocabulary: Vocabulary, *, count: int = 4) -> tuple[str, ...]:
    """Return the paper's rare words that are in the vocabulary, and `count` words of its rarest fifth, evenly spaced.

    Only lower-case words of letters are chosen, so that a reader can judge their neighbors.

    >>> choose_rare_words(Vocabulary(["the", "of", "chigger", "aardvark"]), count=1)
    ('chigger', 'aardvark')
    """
    known = tuple(word for word in PAPER_WORDS if word in vocabulary)
    rarest = vocabulary.tokens[len(vocabulary) * 4 // 5 :]
    plain = [word for word in rarest if word not in known and word.isalpha() and word == word.lower()]
    candidates = [word for word in plain if len(word) >= MIN_LETTERS] or plain
    if not candidates:
        return known
    positions = np.linspace(0, len(candidates) - 1, count).round().astype(int)
    return known + tuple(candidates[position] for position in np.unique(positions))


def tabulate_rare_words(methods: Iterable[MethodResult], vocabulary: Vocabulary) -> str:
    """Return a table of the nearest neighbors of rare words in the vectors of each method."""
    rows = []
    for word in choose_rare_words(vocabulary):
        shown: Cell = (word, f"seen {int(vocabulary.counts[vocabulary.id(word)]):,} times")
        for method in methods:
            nearest = method.vectors.nearest(word, 6) if word in method.vectors else []
            tokens = ", ".join(each.token for each in nearest) or "unknown, or without neighbors"
            rows.append((shown, method.name, tokens))
            shown = ""  # The word is shown in its first row only.
    return write_table(("word", "method", "nearest"), rows, is_text=True)


def tabulate_costs(methods: Iterable[MethodResult]) -> str:
    """Return a table of the time and the memory of each stage."""
    rows: list[tuple[Cell, ...]] = []
    for method in methods:
        costs = [method.costs.get(stage, Measure(None, None)) for stage in STAGES]
        rows.append((method.name, *((_seconds(cost), _memory(cost)) for cost in costs)))
    return write_table(("", *STAGES), rows)


def _seconds(cost: Measure) -> str:
    return "–" if cost.seconds is None else f"{cost.seconds:,.1f} s"


def _memory(cost: Measure) -> str:
    return "" if cost.peak_bytes is None else format_bytes(cost.peak_bytes)
