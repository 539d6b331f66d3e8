"""The report of the paper's experiment: marks, notes, rare words and costs."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from experiments.paper_report import TUNED, MethodResult, Results, choose_rare_words, compose_report, tabulate_costs
from experiments.report import ABOVE, BELOW, BEST, describe_machine, mark_figure, name_processor
from experiments.stages import Measure
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation import AnalogySet, Comparison, EvaluationConfig, Report, SimilaritySet
from swivel.evaluation.results import AnalogyResult, SimilarityResult
from swivel.reports.document import Cell, Details, Document, Heading, Paragraph, Picture, Table
from swivel.reports.html import write_html
from swivel.vectors import Vectors, VectorTable

WORDS = Vocabulary(["near", "far", "chigger"], [9, 8, 2])
SETS = (SimilaritySet("men", (("a", "b"),) * 3000, (1.0,) * 3000), AnalogySet("own", (("a", "b", "c", "d"),), ("s",)))
NOTHING: Any = np.empty(0)


def make_report(men: float | None, own: float | None, known: tuple[int, int] = (2900, 40)) -> Report:
    """Return a report with these scores, whose intervals are .05 wide to either side."""
    men_interval = None if men is None else (men - 0.05, men + 0.05)
    own_interval = None if own is None else (own - 0.05, own + 0.05)
    pairs = SimilarityResult("men", men, men_interval, known[0], 3000, NOTHING, NOTHING, ())
    questions = AnalogyResult("own", own, own_interval, known[1], 50, 0, (), NOTHING, NOTHING, ())
    return Report((pairs, questions), EvaluationConfig())


def make_method(name: str, *reports: Report, words: int = 3, **costs: Measure) -> MethodResult:
    table = np.array([[1, 0.1], [0, 1], [1, 0]], np.float32)[:words]
    vectors = Vectors(VectorTable(Vocabulary(WORDS.tokens[:words]), table))
    return MethodResult(name, f"about {name}", vectors, reports, costs, {"dim": 2})


def compare(low: float, high: float, p: float = 0.5) -> Comparison:
    return Comparison("x", "similarity", 0.5, 0.4, (low + high) / 2, (low, high), p, 10)


def make_results(*methods: MethodResult, half: str | None = None) -> Results:
    results = Results({"files": ["a.txt"]}, SETS, methods, half, {"python": "3.11"})
    # The first method is above the others on the first set, and not on the second.
    compared = {"men": compare(0.01, 0.1, 0.0001), "own": compare(-0.1, -0.02, 0.04)}
    results.__dict__["comparisons"] = {method.name: compared for method in methods[1:]}
    return results


def compose(results: Results, **pictures: Picture) -> Document:
    return compose_report(results, WORDS, pictures)


def rows_after(document: Document, heading: str) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows of the first table after a heading."""
    blocks = list(document.blocks)
    return next(block for block in blocks[blocks.index(Heading(heading)) :] if isinstance(block, Table)).rows


def rows_of(document: Document, summary: str) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows of the table below a summary."""
    details = next(each for each in document.blocks if isinstance(each, Details) and each.summary.startswith(summary))
    (table,) = details.blocks
    assert isinstance(table, Table)
    return table.rows


DEFAULT = make_method("default", make_report(0.75, 0.2))
OTHER = make_method("other", make_report(0.7, 0.25))


def test_the_best_score_and_significant_differences_are_marked() -> None:
    ours, other = rows_after(compose(make_results(DEFAULT, OTHER)), "The table")
    assert ours == (
        Cell("default", "about default"),
        Cell(f".750 {BEST}", ".700 to .800"),
        Cell(".200", ".150 to .250"),
    )
    assert other[1:] == (Cell(f".700 {BELOW}", ".650 to .750"), Cell(f".250 {BEST} {ABOVE}", ".200 to .300"))
    assert mark_figure(0.5, (-0.1, 0.1)) == mark_figure(0.5, None) == ".500"


def test_a_set_with_too_few_known_items_has_a_reason_instead_of_an_interval() -> None:
    few = make_method("default", make_report(0.9, None, (9, 0)))
    (row,) = rows_after(compose(make_results(few)), "The table")
    assert row[1:] == (Cell(".900", "too few known items"), Cell("–", "no known items"))


def test_scores_over_other_items_show_their_number() -> None:
    fewer = make_method("other", make_report(0.7, 0.1, (1200, 40)))
    document = compose(make_results(DEFAULT, fewer))
    assert [cell.small for cell in rows_after(document, "The table")[1][1:]] == [
        ".650 to .750, 1,200 items",
        ".050 to .150",
    ]
    assert rows_of(document, "Items")[1] == (Cell("other", "about other"), Cell("1,200 of 3,000"), Cell("40 of 50"))


def test_several_seeds_have_a_mean_and_a_deviation() -> None:
    seeds = make_method("default", make_report(0.75, 0.2), make_report(0.65, 0.2))
    (row,) = rows_after(compose(make_results(seeds)), "The table")
    assert row[1] == Cell(f".700 {BEST}", ".700 to .800, ± .071 over 2 seeds")


def test_a_note_warns_if_settings_were_chosen_on_the_test_sets() -> None:
    assert Paragraph(TUNED) in compose(make_results(DEFAULT)).blocks
    assert Paragraph(TUNED) not in compose(make_results(DEFAULT, half="report")).blocks
    assert Paragraph(TUNED) not in compose(make_results(OTHER)).blocks


def test_differences_have_intervals_and_p_values() -> None:
    (row,) = rows_of(compose(make_results(DEFAULT, OTHER)), "default minus")
    assert row[1:] == (Cell(".055", ".010 to .100, p < .001"), Cell("−.060", "−.100 to −.020, p = .040"))
    alone = compose(make_results(DEFAULT))
    assert not [block for block in alone.blocks if isinstance(block, Details) and "minus" in block.summary]


def test_costs_are_shown_by_stage() -> None:
    first = make_method("default", training=Measure(12.34, 5 << 20))
    second = make_method("other", counting=Measure(1.0, None), training=Measure(None, 7 << 20))
    table = tabulate_costs([first, second])
    assert table.header == ("", "counting", "training", "evaluation")
    assert table.rows[0] == (Cell("default"), Cell("–"), Cell("12.3 s", "5.0 MiB"), Cell("–"))
    assert table.rows[1] == (Cell("other"), Cell("1.0 s"), Cell("–", "7.0 MiB"), Cell("–"))


def test_rare_words_are_the_papers_and_some_of_the_rarest() -> None:
    words = ["tuxedoes", *(f"word{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10]}" for n in range(99))]
    assert choose_rare_words(Vocabulary(words), count=3) == ("tuxedoes", words[80], words[90], words[99])
    assert choose_rare_words(Vocabulary(["1984", "a's", "Ünter"])) == ()
    assert choose_rare_words(Vocabulary(["и", "в", "на", "с", "сапожник"]), count=1) == ("сапожник",)


def test_rare_words_have_neighbors_by_method() -> None:
    without = make_method("other", make_report(0.7, 0.25), words=2)
    rows = rows_after(compose(make_results(DEFAULT, without)), "Common and rare words")
    assert rows[0] == (Cell("chigger", "seen 2 times"), Cell("default"), Cell("near, far"))
    assert rows[1] == (Cell(""), Cell("other"), Cell("unknown, or without neighbors"))


def test_figures_are_in_their_sections() -> None:
    pictures = {
        name: Picture(name, "caption", b"<svg></svg>") for name in ("block", "loss", "frequency", "differences")
    }
    document = compose(make_results(DEFAULT, OTHER), **pictures)
    shown = [block.name for block in document.blocks if isinstance(block, Picture)]
    assert shown == ["frequency", "differences", "loss", "block"]
    assert not [block for block in compose(make_results(DEFAULT)).blocks if isinstance(block, Picture)]
    assert write_html(document).count("<svg") == 4


@pytest.mark.skipif(os.name == "nt", reason="Windows has no uname")
def test_the_machine_is_described_without_its_host_name() -> None:
    machine = describe_machine(3)
    assert machine["cores"] == 3 and machine["processor"] == name_processor() != ""
    assert os.uname().nodename not in str(machine).split()
