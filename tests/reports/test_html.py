"""Documents as pages: escaping, figures, and nothing that is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from swivel.reports.html import (
    flatten_facts,
    inline_svg,
    write_details,
    write_heading,
    write_page,
    write_paragraph,
    write_picture,
    write_table,
)
from swivel.reports.plots import draw_figure, plot_epochs


def draw_curve() -> bytes:
    return draw_figure(plot_epochs([{"mean": 0.3, "observed": 2.0, "unobserved": 0.2}]), "svg")


ODD = write_page(
    "A <title>",
    "5 < 6 & `a*b`",
    (
        write_heading("Words_with_marks"),
        write_paragraph("*not bold* | [no](link) `co|de` <b>"),
        write_table(("", "x"), [(("<i>", "a|b"), "")]),
        write_details("more", write_paragraph("in & out")),
    ),
)


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
    reader = read_page(ODD)
    for text in ("A <title>", "5 < 6 & a*b", "*not bold* | [no](link) co|de <b>", "<i>", "in & out"):
        assert text in reader.text
    assert "<td>&lt;i&gt;<small>a|b</small>" in ODD
    assert "<code>a*b</code>" in ODD


def test_a_page_is_self_contained() -> None:
    page = write_page("T", "s", [write_picture("loss", "a `loss` & more", draw_curve())])
    reader = read_page(page)
    assert reader.addresses
    assert all(address.startswith(("#loss-", "data:")) for address in reader.addresses)
    assert not re.search(r"url\((?!#)|@import|<script|<link", page)
    assert 'aria-label="a loss &amp; more"' in page


def test_words_that_are_backticks_stay_words() -> None:
    assert "<td>``<small>` and `</small></td>" in write_table(("word",), [(("``", "` and `"),)])


def test_inline_figures_have_the_colors_of_the_page_and_unique_ids() -> None:
    svg = draw_curve()
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
    assert "prefers-color-scheme: dark" in ODD
    assert ODD.count('<div class="scroll">') == ODD.count("<table") == 1


def test_settings_are_written_as_text() -> None:
    shown = dict(flatten_facts({"train": {"dim": 98_304, "left": None, "is_on": True, "learning_rate": 1.0}}))
    assert shown == {"train.dim": "98,304", "train.left": "not set", "train.is_on": "yes", "train.learning_rate": "1"}
