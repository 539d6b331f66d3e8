"""The report of the paper's experiment: marks, notes, rare words and costs."""

from __future__ import annotations

import html
import os
import re

import numpy as np
import pytest

from experiments.paper_report import TUNED, MethodResult, Results, choose_rare_words, compose_report, tabulate_costs
from experiments.report import ABOVE, BELOW, BEST, describe_machine, mark_figure, name_processor
from experiments.stages import Measure
from swivel.corpus.vocabulary import Vocabulary
from swivel.evaluation import AnalogySet, EvaluationConfig, Report, SimilaritySet
from swivel.evaluation.results import Difference, SetResult
from swivel.reports.html import Cell, write_heading, write_paragraph, write_picture
from swivel.vectors import Vectors, VectorTable

WORDS = Vocabulary(["near", "far", "chigger"], [9, 8, 2])
SETS = (SimilaritySet("men", (("a", "b"),) * 3000, (1.0,) * 3000), AnalogySet("own", (("a", "b", "c", "d"),), ("s",)))


def make_report(men: float | None, own: float | None, known: tuple[int, int] = (2900, 40)) -> Report:
    """Return a report with these scores, whose intervals are .05 wide to either side."""
    men_interval = None if men is None else (men - 0.05, men + 0.05)
    own_interval = None if own is None else (own - 0.05, own + 0.05)
    pairs = SetResult("similarity", "men", men, men_interval, known[0], 3000, men, men)
    questions = SetResult("analogies", "own", own, own_interval, known[1], 50, own, own)
    return Report((pairs, questions), EvaluationConfig())


def make_method(name: str, *reports: Report, words: int = 3, **costs: Measure) -> MethodResult:
    table = np.array([[1, 0.1], [0, 1], [1, 0]], np.float32)[:words]
    vectors = Vectors(VectorTable(Vocabulary(WORDS.tokens[:words]), table))
    return MethodResult(name, f"about {name}", vectors, reports, costs, {"dim": 2})


def compare(low: float, high: float, p: float = 0.5) -> Difference:
    return Difference("x", "similarity", 0.5, 0.4, (low + high) / 2, (low, high), p, 10)


def make_results(*methods: MethodResult, half: str | None = None) -> Results:
    results = Results({"files": ["a.txt"]}, SETS, methods, half, {"python": "3.11"})
    # The first method is above the others on the first set, and not on the second.
    compared = {"men": compare(0.01, 0.1, 0.0001), "own": compare(-0.1, -0.02, 0.04)}
    results.__dict__["comparisons"] = {method.name: compared for method in methods[1:]}
    return results


def compose(results: Results, **pictures: str) -> str:
    return compose_report(results, WORDS, pictures)


def read_rows(page: str) -> list[list[Cell]]:
    """Return the cells of the first table of a page."""
    table = page.partition("<tbody>")[2].partition("</tbody>")[0]
    rows: list[list[Cell]] = []
    for row in table.strip().splitlines():
        cells = re.findall("<td>(.*?)(?:<small>(.*?)</small>)?</td>", html.unescape(row))
        rows.append([(text, note) if note else text for text, note in cells])
    return rows


def rows_after(page: str, heading: str) -> list[list[Cell]]:
    """Return the rows of the first table after a heading."""
    return read_rows(page.partition(write_heading(heading))[2])


def rows_of(page: str, summary: str) -> list[list[Cell]]:
    """Return the rows of the table below a summary."""
    return read_rows(page.partition(f"<summary>{summary}")[2])


DEFAULT = make_method("default", make_report(0.75, 0.2))
OTHER = make_method("other", make_report(0.7, 0.25))


def test_the_best_score_and_significant_differences_are_marked() -> None:
    ours, other = rows_after(compose(make_results(DEFAULT, OTHER)), "The table")
    assert ours == [("default", "about default"), (f".750 {BEST}", ".700 to .800"), (".200", ".150 to .250")]
    assert other[1:] == [(f".700 {BELOW}", ".650 to .750"), (f".250 {BEST} {ABOVE}", ".200 to .300")]
    assert mark_figure(0.5, (-0.1, 0.1)) == mark_figure(0.5, None) == ".500"


def test_a_set_with_too_few_known_items_has_a_reason_instead_of_an_interval() -> None:
    few = make_method("default", make_report(0.9, None, (9, 0)))
    (row,) = rows_after(compose(make_results(few)), "The table")
    assert row[1:] == [(".900", "too few known items"), ("–", "no known items")]


def test_scores_over_other_items_show_their_number() -> None:
    fewer = make_method("other", make_report(0.7, 0.1, (1200, 40)))
    document = compose(make_results(DEFAULT, fewer))
    assert [cell[1] for cell in rows_after(document, "The table")[1][1:]] == [
        ".650 to .750, 1,200 items",
        ".050 to .150",
    ]
    assert rows_of(document, "Items")[1] == [("other", "about other"), "1,200 of 3,000", "40 of 50"]


def test_several_seeds_have_a_mean_and_a_deviation() -> None:
    seeds = make_method("default", make_report(0.75, 0.2), make_report(0.65, 0.2))
    (row,) = rows_after(compose(make_results(seeds)), "The table")
    assert row[1] == (f".700 {BEST}", ".700 to .800, ± .071 over 2 seeds")


def test_a_note_warns_if_settings_were_chosen_on_the_test_sets() -> None:
    note = write_paragraph(TUNED)
    assert note in compose(make_results(DEFAULT))
    assert note not in compose(make_results(DEFAULT, half="report"))
    assert note not in compose(make_results(OTHER))


def test_differences_have_intervals_and_p_values() -> None:
    (row,) = rows_of(compose(make_results(DEFAULT, OTHER)), "default minus")
    assert row[1:] == [(".055", ".010 to .100, p < .001"), ("−.060", "−.100 to −.020, p = .040")]
    assert " minus each other method" not in compose(make_results(DEFAULT))


def test_costs_are_shown_by_stage() -> None:
    first = make_method("default", training=Measure(12.34, 5 << 20))
    second = make_method("other", counting=Measure(1.0, None), training=Measure(None, 7 << 20))
    table = tabulate_costs([first, second])
    assert re.findall('<th scope="col">(.*?)</th>', table) == ["", "counting", "training", "evaluation"]
    assert read_rows(table) == [["default", "–", ("12.3 s", "5.0 MiB"), "–"], ["other", "1.0 s", ("–", "7.0 MiB"), "–"]]


def test_rare_words_are_the_papers_and_some_of_the_rarest() -> None:
    words = ["tuxedoes", *(f"word{'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10]}" for n in range(99))]
    assert choose_rare_words(Vocabulary(words), count=3) == ("tuxedoes", words[80], words[90], words[99])
    assert choose_rare_words(Vocabulary(["1984", "a's", "Ünter"])) == ()
    assert choose_rare_words(Vocabulary(["и", "в", "на", "с", "сапожник"]), count=1) == ("сапожник",)


def test_rare_words_have_neighbors_by_method() -> None:
    without = make_method("other", make_report(0.7, 0.25), words=2)
    rows = rows_after(compose(make_results(DEFAULT, without)), "Common and rare words")
    assert rows[0] == [("chigger", "seen 2 times"), "default", "near, far"]
    assert rows[1] == ["", "other", "unknown, or without neighbors"]


def test_figures_are_in_their_sections() -> None:
    names = ("block", "loss", "frequency", "differences")
    pictures = {name: write_picture(name, f"of {name}", b"<svg></svg>") for name in names}
    page = compose(make_results(DEFAULT, OTHER), **pictures)
    assert re.findall("<figcaption>of (.*?)</figcaption>", page) == ["frequency", "differences", "loss", "block"]
    assert page.count("<svg") == 4
    assert "<svg" not in compose(make_results(DEFAULT))


@pytest.mark.skipif(os.name == "nt", reason="Windows has no uname")
def test_the_machine_is_described_without_its_host_name() -> None:
    machine = describe_machine(3)
    assert machine["cores"] == 3 and machine["processor"] == name_processor() != ""
    assert os.uname().nodename not in str(machine).split()
