"""Write the files of a report: figures, `report.html`, `report.md` and `results.json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swivel.counts import open_matrix
from swivel.pipeline.reproduce.report import compose_report
from swivel.pipeline.reproduce.results import Results
from swivel.reports.document.html import write_html
from swivel.reports.document.markdown import FIGURES, write_markdown
from swivel.reports.plots import FORMATS, draw_figure, plot_block, plot_differences, plot_frequency, plot_losses
from swivel.storage import write_file

HTML, MARKDOWN, RESULTS = "report.html", "report.md", "results.json"


def write_report(out: Path, results: Results, matrix: Path) -> None:
    """Draw the figures and write all files; `matrix` is the matrix that the block figure shows."""
    svgs = {}
    for name, figure in _draw(results, matrix):
        for kind in FORMATS:
            data = draw_figure(figure, kind)
            write_file(out / FIGURES / f"{name}.{kind}", data)
            if kind == "svg":
                svgs[name] = data

    document = compose_report(results, svgs)
    write_file(out / RESULTS, json.dumps(results.to_dict(), indent=1, ensure_ascii=False).encode() + b"\n")
    write_file(out / MARKDOWN, write_markdown(document).encode())
    write_file(out / HTML, write_html(document).encode())


def _draw(results: Results, matrix: Path) -> Iterator[tuple[str, Any]]:
    if results.curves:
        yield "frequency", plot_frequency(results.curves)
    if results.differences:
        yield "differences", plot_differences(results.differences, results.ours.name)
    yield "loss", plot_losses()
    yield "block", plot_block(open_matrix(matrix))
