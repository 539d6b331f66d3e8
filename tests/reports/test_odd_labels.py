"""Labels and names with characters that XML, HTML or UTF-8 cannot store."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import swivel
from experiments.frequency import Point, plot_differences, plot_frequency
from swivel.corpus.vocabulary import Vocabulary
from swivel.reports.html import write_page, write_paragraph, write_table
from swivel.reports.plots import draw_figure, plot_map
from swivel.reports.run_report import write_report
from swivel.vectors import Vectors, VectorTable
from swivel.vectors.comparison import compare

ODD = [
    "bell\x07",
    "nul\0",
    "tab\x0b",
    "half\ud800",
    "byte\udcff",
    "none\ufffe",
    "bom\uffff",
    "esc\x1b[31m",
    "two\nlines",
    "\x85",
]
# https://www.w3.org/TR/xml/#charsets
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@pytest.mark.parametrize("label", ODD)
def test_a_map_is_xml_whatever_its_labels(label: str) -> None:
    points = np.array([[0, 0], [0.5, 0.5]], np.float32)
    figure = plot_map([label, "tea"], points)
    svg = draw_figure(figure, "svg").decode()
    assert not NOT_XML.search(svg)
    ElementTree.fromstring(svg)
    for kind in ("png", "pdf"):
        assert draw_figure(figure, kind)


@pytest.mark.parametrize("name", ODD)
def test_figures_are_xml_whatever_the_names_of_methods(name: str) -> None:
    curve = [Point(2, 0.5, 0.4, 0.6, 100), Point(3, 0.7, 0.6, 0.8, 120)]
    for figure in (plot_frequency({"ours": curve, name: curve}), plot_differences({name: curve}, "ours")):
        svg = draw_figure(figure, "svg").decode()
        assert not NOT_XML.search(svg)
        ElementTree.fromstring(svg)


def test_lines_of_a_title_stay_lines() -> None:
    curve = [Point(2, 0.5, 0.4, 0.6, 100)]
    figure = plot_differences({"other": curve}, "ours")
    draw_figure(figure, "svg")
    assert figure.axes[0].get_title(loc="left").count("\n") == 1


def test_a_page_has_no_character_that_html_forbids(tmp_path: Path) -> None:
    parts = [write_table(("word", "note"), [(odd, (odd, odd)) for odd in ODD]), *map(write_paragraph, ODD)]
    page = write_page(ODD[0], ODD[3], parts)
    assert not NOT_XML.search(page)
    page.encode()
    assert "bell\\x07" in page and "half\\ud800" in page


def test_the_report_of_a_table_with_odd_labels_is_written(tmp_path: Path) -> None:
    labels = [odd for odd in ODD if not re.search("[\ud800-\udfff]", odd)]
    matrix = swivel.import_counts(
        [(row, column, 1.0 + len(row)) for row in labels for column in labels if row < column]
    )
    write_report(swivel.train(matrix, dim=2, epochs=1), matrix, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert not NOT_XML.search(page)
    assert "bell\\x07" in page


def test_a_map_and_a_comparison_with_odd_labels_are_written(tmp_path: Path) -> None:
    words = [*ODD, *(f"w{number}" for number in range(30))]
    values = np.random.default_rng(1).standard_normal((len(words), 4)).astype(np.float32)
    vectors = Vectors(VectorTable(Vocabulary(words), values))
    word_map = swivel.make_map(vectors, layout="pca", title="of \udcff \x07", progress=False)
    for suffix in ("html", "svg"):
        word_map.save(tmp_path / f"map.{suffix}")
        assert not NOT_XML.search((tmp_path / f"map.{suffix}").read_bytes().decode())

    comparison = compare(vectors, vectors, min_count=0)
    for suffix in ("tsv", "json"):
        comparison.write(tmp_path / f"moved.{suffix}")
    stored = json.loads((tmp_path / "moved.json").read_bytes())
    assert {word["word"] for word in stored["words"]} == set(words)
