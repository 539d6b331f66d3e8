"""Tests of the report of an experiment: content, marks, escaping, and the HTML and Markdown output."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from swivel.evaluation import Comparison
from swivel.pipeline.reproduce.report import ABOVE, BELOW, TUNED, compose_report, format_figure
from swivel.pipeline.reproduce.results import Cost, MethodResult, Results, Score, SetInfo
from swivel.reports.document import Cell, Details, Document, Heading, Paragraph, Picture, Table, write_markdown
from swivel.reports.html import inline_svg, write_html
from swivel.reports.plots import Curve, Point, RareWords, draw_figure, plot_losses

SETS = (SetInfo("men", "similarity", 3000), SetInfo("own", "analogies", 50))


def make_method(name: str, *scores: Score, **rest: Any) -> MethodResult:
    fields: dict[str, Any] = {
        "about": f"about {name}",
        "words": 99,
        "dim": 7,
        "comparisons": {},
        "costs": (Cost("training", 12.34, 5 << 20, 2),),
        "settings": {"train": {"dim": 7, "left": None, "is_on": True, "learning_rate": 1.0}},
    } | rest
    figures = dict(zip((info.name for info in SETS), scores, strict=True))
    return MethodResult(name=name, scores=figures, **fields)


def compare(low: float, high: float, p: float = 0.5) -> Comparison:
    return Comparison("x", "similarity", 0.5, 0.4, (low + high) / 2, (low, high), p, 10)


def make_results(*methods: MethodResult, **rest: Any) -> Results:
    fields: dict[str, Any] = {
        "corpus": {"files": ["a.txt", "b.txt"], "tokens": 12345, "words": 99},
        "sets": SETS,
        "curves": (),
        "differences": (),
        "rare": RareWords((), (), {}),
        "machine": {"processor": "A Fine One", "cores": 2, "python": "3.11"},
    } | rest
    return Results(methods=methods, **fields)


OURS = make_method("default", Score(0.75, (0.7, 0.8), 2900), Score(0.2, (0.1, 0.3), 40))
OTHER = make_method(
    "other",
    Score(0.7, (0.65, 0.75), 2900),
    Score(0.25, (0.15, 0.35), 40),
    comparisons={"men": compare(0.01, 0.1, 0.0001), "own": compare(-0.1, -0.02, 0.04)},
)
THIRD = make_method(
    "third",
    Score(None, None, 0),
    Score(0.2, None, 40),
    comparisons={"men": Comparison("men", "similarity", 0.7, None, None, None, None, 0), "own": compare(-0.1, 0.1)},
)


def rows_of(document: Document, after: str) -> tuple[tuple[Cell, ...], ...]:
    """Return the rows of the first table after a heading."""
    blocks = list(document.blocks)
    start = blocks.index(Heading(after))
    return next(block for block in blocks[start:] if isinstance(block, Table)).rows


@pytest.mark.parametrize(
    ("figure", "text"),
    [(0.7601, ".760"), (-0.05, "−.050"), (-0.0001, ".000"), (1.0, "1.000"), (-1.0, "−1.000"), (None, "–")],
)
def test_figures_are_short(figure: float | None, text: str) -> None:
    assert format_figure(figure) == text


def test_the_best_score_and_significant_differences_are_marked() -> None:
    ours, other, third = rows_of(compose_report(make_results(OURS, OTHER, THIRD), {}), "The table")
    assert ours == (Cell("default", "about default"), Cell(".750", ".700 to .800", True), Cell(".200", ".100 to .300"))
    assert other[1:] == (
        Cell(".700", ".650 to .750", False, BELOW),
        Cell(".250", ".150 to .350", True, ABOVE),
    )
    assert third[1:] == (Cell("–", "no known items"), Cell(".200"))


def test_a_set_with_too_few_known_items_has_a_reason_instead_of_a_score() -> None:
    ours = make_method("default", Score(None, None, 1), Score(None, None, 0))
    (row,) = rows_of(compose_report(make_results(ours), {}), "The table")
    assert row[1:] == (Cell("–", "too few known items"), Cell("–", "no known items"))


def test_a_score_of_few_known_items_is_neither_the_best_nor_has_an_interval() -> None:
    ours = make_method("default", Score(1.0, (-1.0, 1.0), 9), Score(0.5, (0.2, 0.8), 10))
    (row,) = rows_of(compose_report(make_results(ours), {}), "The table")
    assert row[1:] == (Cell("1.000", "too few known items"), Cell(".500", ".200 to .800", True))


def test_scores_over_other_items_show_their_number() -> None:
    fewer = replace(OTHER, scores={**OTHER.scores, "men": Score(0.7, (0.65, 0.75), 1200)})
    _, row = rows_of(compose_report(make_results(OURS, fewer), {}), "The table")
    assert [cell.small for cell in row[1:]] == [".650 to .750, 1,200 items", ".150 to .350"]


def test_a_note_warns_if_settings_were_chosen_on_the_test_sets() -> None:
    assert Paragraph(TUNED) in compose_report(make_results(OURS), {}).blocks
    assert Paragraph(TUNED) not in compose_report(make_results(OURS, half="report"), {}).blocks
    assert Paragraph(TUNED) not in compose_report(make_results(OTHER), {}).blocks


def test_the_table_has_means_over_several_seeds() -> None:
    ours = replace(OURS, scores={**OURS.scores, "men": Score(0.75, (0.7, 0.8), 2900, (0.75, 0.65))})
    document = compose_report(make_results(ours, OTHER), {})
    assert rows_of(document, "The table")[0][1] == Cell(".700", ".700 to .800", True)
    assert rows_of(document, "The table")[1][1].is_best  # equal to the mean of the first method
    assert rows_of(document, "Over several seeds") == ((Cell("default"), Cell(".700", "± .071"), Cell(".200")),)
    assert Heading("Over several seeds") not in compose_report(make_results(OURS, OTHER), {}).blocks


def details_of(document: Document, summary: str) -> Details:
    return next(block for block in document.blocks if isinstance(block, Details) and block.summary.startswith(summary))


def test_coverage_is_always_there() -> None:
    details = details_of(compose_report(make_results(OURS, THIRD), {}), "Number of items")
    (table,) = details.blocks
    assert isinstance(table, Table)
    assert table.rows == (
        (Cell("default"), Cell("2,900"), Cell("40")),
        (Cell("third"), Cell("0"), Cell("40")),
        (Cell("all items"), Cell("3,000"), Cell("50")),
    )


def test_differences_have_intervals_and_p_values() -> None:
    details = details_of(compose_report(make_results(OURS, OTHER, THIRD), {}), "Differences")
    table = details.blocks[1]

    assert isinstance(table, Table)
    assert table.rows[0] == (
        Cell("default − other"),
        Cell(".055", ".010 to .100, p < .001"),
        Cell("−.060", "−.100 to −.020, p = .040"),
    )
    assert table.rows[1][1] == Cell("–")


def test_one_method_alone_has_no_differences() -> None:
    blocks = compose_report(make_results(OURS), {}).blocks
    assert not [block for block in blocks if isinstance(block, Details) and "Differences" in block.summary]


def test_costs_are_shown_by_stage() -> None:
    other = replace(OTHER, costs=(Cost("counting", 1.0, None), Cost("training", None, 7)))
    document = compose_report(make_results(OURS, other), {})
    table = next(block for block in document.blocks if isinstance(block, Table) and "training" in block.header)
    assert table.header == ("", "counting", "training")
    assert table.rows[0] == (Cell("default"), Cell("–"), Cell("12.3 s", "5.0 MiB, 2 attempts"))
    assert table.rows[1] == (Cell("other"), Cell("1.0 s"), Cell("–"))


def test_rare_words_are_grouped_with_their_counts() -> None:
    rare = RareWords(("chigger",), (12,), {"default": (("mite", "flea"),), "other": ((),)})
    rows = rows_of(compose_report(make_results(OURS, OTHER, rare=rare), {}), "Very rare words")
    assert rows[0] == (Cell("chigger", "seen 12 times"), Cell("default"), Cell("mite, flea"))
    assert rows[1] == (Cell(""), Cell("other"), Cell("unknown, or without neighbors"))


def test_missing_figures_are_mentioned() -> None:
    document = compose_report(make_results(OURS), {})
    assert not [block for block in document.blocks if isinstance(block, Picture)]
    assert "Too few analogies" in write_markdown(document)
    assert "no rare words to show" in write_markdown(document)


def test_figures_are_in_their_sections() -> None:
    svg = draw_figure(plot_losses(), "svg")
    curve = Curve("default", (Point(2, 0.5, 0.4, 0.6, 100),))
    svgs = dict.fromkeys(("frequency", "differences", "loss", "block"), svg)
    document = compose_report(make_results(OURS, OTHER, curves=(curve,), differences=(curve,)), svgs)
    pictures = [block.name for block in document.blocks if isinstance(block, Picture)]
    assert pictures == ["frequency", "differences", "loss", "block"]
    markdown = write_markdown(document)
    assert [name for name in pictures if f"(figures/{name}.png)" in markdown] == pictures


def test_settings_are_written_as_text() -> None:
    details = details_of(compose_report(make_results(OURS), {}), "default")
    (table,) = details.blocks
    assert isinstance(table, Table)
    shown = {row[0].text: row[1].text for row in table.rows}
    assert shown == {"train.dim": "7", "train.left": "not set", "train.is_on": "yes", "train.learning_rate": "1"}


ODD = Document(
    "A <title>",
    "5 < 6 & `a*b`",
    (
        Heading("Words_with_marks"),
        Paragraph("*not bold* | [no](link) `co|de` <b>"),
        Table(("", "x"), ((Cell("<i>", "a|b", True, "▲"), Cell("")),)),
        Details("more", (Paragraph("in & out"),)),
    ),
)


def test_markdown_escapes_special_characters() -> None:
    lines = write_markdown(ODD).split("\n")
    assert "5 \\< 6 & `a*b`" in lines
    assert "## Words\\_with\\_marks" in lines
    assert "\\*not bold\\* \\| \\[no\\](link) `co\\|de` \\<b\\>" in lines
    assert "| **\\<i\\>** ▲ (a\\|b) |  |" in lines
    assert "### more" in lines


class Reader(HTMLParser):
    """Check that all elements are closed, and collect the text and all addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "meta":
            self.open.append(tag)
        self.addresses += [value or "" for name, value in attrs if name.removeprefix("xlink:") in ("href", "src")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


def test_html_is_escaped_and_all_elements_are_closed() -> None:
    page = write_html(ODD)
    reader = read_page(page)
    for text in ("A <title>", "5 < 6 & a*b", "*not bold* | [no](link) co|de <b>", "<i>", "in & out"):
        assert text in reader.text
    assert '<span class="best">&lt;i&gt;</span><span class="mark">▲</span><small>a|b</small>' in page
    assert "<code>a*b</code>" in page


def test_a_page_is_self_contained() -> None:
    picture = Picture("loss", "a `loss` & more", draw_figure(plot_losses(), "svg"))
    page = write_html(Document("T", "s", (picture,)))
    reader = read_page(page)
    assert reader.addresses
    assert all(address.startswith(("#loss-", "data:")) for address in reader.addresses)
    assert not re.search(r"url\((?!#)|@import|<script|<link", page)
    assert 'aria-label="a loss &amp; more"' in page


def test_words_that_are_backticks_stay_words() -> None:
    table = Table(("word",), ((Cell("``", "` and `"),),))
    document = Document("Title", "", (table,))
    assert "<td>``<small>` and `</small></td>" in write_html(document)
    assert "\\`\\` (\\` and \\`)" in write_markdown(document)


def test_inline_figures_have_the_colors_of_the_page_and_unique_ids() -> None:
    svg = draw_figure(plot_losses(), "svg")
    text = inline_svg(svg, "one", "x")
    root = ElementTree.fromstring(text)
    names = {element.get("id") for element in root.iter()} - {None}

    assert names
    assert all(str(name).startswith("one-") for name in names)

    used = set(re.findall(r'(?:href="#|url\(#)([^")]+)', text))

    assert used <= names
    assert root.get("width") is None
    assert root.get("viewBox") is not None
    assert "var(--ink)" in text
    assert not re.search("#(1b1b1d|ffffff)", text.lower())


def test_the_page_is_light_or_dark_and_tables_scroll() -> None:
    page = write_html(compose_report(make_results(OURS, OTHER), {}))
    assert "prefers-color-scheme: dark" in page
    assert page.count('<div class="scroll">') == page.count("<table")
