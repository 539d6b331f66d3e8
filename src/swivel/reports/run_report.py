"""The report of a finished run: `report.html`, one self-contained page.

`run_summary` computes the numbers, and `compose_run` arranges them in a page. An error in the report does not make a
finished run fail.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from swivel._version import __version__
from swivel.counts import Matrix
from swivel.errors import MissingExtra
from swivel.reports.html import (
    write_details,
    write_facts,
    write_heading,
    write_page,
    write_paragraph,
    write_picture,
    write_table,
)
from swivel.reports.plots import draw_figure, plot_epochs, plot_map
from swivel.reports.plots.style import short_number
from swivel.reports.run_summary import BANDS, Losses, RunSummary, summarize_run
from swivel.runtime.resources import count_cores
from swivel.storage import write_file
from swivel.vectors import Vectors, load

Svgs = Mapping[str, bytes]  # the figures by name; empty without matplotlib
NOTHING = "–"
NO_FIGURES = (
    "This page has no figures, only their numbers: figures need matplotlib. `pip install 'swivel-embeddings[plot]'`, "
    "remove this file, and run the same command again to write it with figures."
)
LOSSES = (
    "Mean loss of a cell per epoch. Training minimizes the loss of all cells together. The loss of an observed cell is "
    "the squared distance from its PMI, weighted by f(x); that of an unobserved cell is the soft hinge, which keeps "
    "products low."
)
MAP = (
    "The most informative of the common words; similar words are near each other (UMAP). `swivel plot map` and "
    "`swivel explore` show all words."
)


def write_report(
    vectors: Vectors | str | Path, matrix: Matrix, out: str | Path, seconds: Mapping[str, float] | None = None
) -> RunSummary:
    """Write the report of a finished run as an HTML page, and return its numbers.

    `matrix` is that of the training, `seconds` are those of the stages that ran in this call, and their `total`.

    >>> import swivel, tempfile
    >>> matrix = swivel.count(["tea milk", "milk sugar", "tea sugar"], min_count=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vectors = swivel.train(matrix, Path(folder) / "vectors", dim=2, epochs=2)
    ...     run = write_report(Path(folder) / "vectors", matrix, Path(folder) / "report.html")
    >>> len(run.epochs), [asked.word for asked in run.asked]
    (2, ['milk', 'sugar', 'tea'])
    """
    loaded = load(vectors) if isinstance(vectors, (str, Path)) else vectors
    run = summarize_run(loaded, matrix)
    write_file(Path(out), compose_run(run, draw_figures(run.map, run.epochs), seconds or {}).encode())
    return run


def draw_figures(map_of_words: tuple[Sequence[str], Any], epochs: Losses) -> Svgs:
    """Return the figures of which there are numbers, as SVG; an empty dictionary if matplotlib is not installed."""
    # SVG, because the style sheet of the page gives its lines and letters the colors of light and dark mode.
    svgs = {}
    try:
        if map_of_words[0]:
            svgs["map"] = draw_figure(plot_map(*map_of_words, size=(7.0, 4.6)), "svg")
        if epochs:
            svgs["epochs"] = draw_figure(plot_epochs(epochs), "svg")
    except MissingExtra:
        return {}
    return svgs


def compose_run(run: RunSummary, svgs: Svgs, seconds: Mapping[str, float]) -> str:
    """Return the page of a run, with the seconds of the stages that ran in this call."""
    # What readers look at first comes first: the words, then how well they were learned, then how.
    parts = [] if svgs else [write_paragraph(NO_FIGURES)]
    parts += _write_neighbors(run)
    if "map" in svgs:
        parts += [write_heading("Map"), write_picture("map", MAP, svgs["map"])]
    parts += _write_evaluation(run)
    parts += _write_losses(run, svgs)
    parts += _write_times(run, seconds)
    parts += _write_settings(run)
    return write_page(f"Swivel: {run.name}", _describe(run), parts)


def _describe(run: RunSummary) -> str:
    rows, columns = run.matrix.shape
    cells = run.matrix.cell_count
    text = f"{rows:,} rows × {columns:,} columns, {cells:,} cells observed; vectors of {run.vectors.dim} dimensions"
    if not run.epochs:
        return text + "."

    epochs = "1 epoch" if len(run.epochs) == 1 else f"{len(run.epochs)} epochs"
    return f"{text}, trained in {format_seconds(run.training_seconds)} ({epochs})."


def _write_losses(run: RunSummary, svgs: Svgs) -> Iterator[str]:
    if not run.epochs:
        return

    yield write_heading("Losses")
    first = run.epochs[0]
    last = run.epochs[-1]
    if len(run.epochs) > 1:
        yield write_paragraph(
            f"From the first epoch to the last: all cells {first['mean']:.4f} to {last['mean']:.4f}, observed "
            f"{first['observed']:.3f} to {last['observed']:.3f}, "
            f"unobserved {first['unobserved']:.4f} to {last['unobserved']:.4f}."
        )

    rows = [
        (str(number), f"{loss['mean']:.5f}", f"{loss['observed']:.4f}", f"{loss['unobserved']:.5f}")
        for number, loss in enumerate(run.epochs, 1)
    ]
    header = ("epoch", "all cells", "observed", "unobserved")
    table = write_table(header, rows)
    if "epochs" in svgs:
        yield write_picture("epochs", LOSSES, svgs["epochs"])
        yield write_details("The numbers", table)
    else:
        yield write_paragraph(LOSSES)
        yield table


def _write_neighbors(run: RunSummary) -> Iterator[str]:
    yield write_heading("Neighbors")
    if not run.asked:
        yield write_paragraph("The vocabulary is empty.")
        return
    yield write_paragraph(
        "Nearest neighbors of common, middling and rare words, with the cosines of the first and the last."
    )

    rows = []
    for band in BANDS:
        words = [asked for asked in run.asked if asked.band == band]
        for index, asked in enumerate(words):
            nearest = ", ".join(near.token for near in asked.nearest) or "none: it never co-occurred with anything"
            seen = f"{asked.frequency:,.0f}" if asked.frequency else NOTHING
            ends = asked.nearest[:: max(len(asked.nearest) - 1, 1)]  # the nearest and the last one
            cosines = " to ".join(f"{near.similarity:.2f}" for near in ends)
            rows.append((band if index == 0 else "", asked.word, seen, nearest, cosines))

    yield write_table(("", "word", "seen", "nearest", "cosines"), rows, is_text=True)


def _write_evaluation(run: RunSummary) -> Iterator[str]:
    yield write_heading("Evaluation")
    command = "`swivel evaluate` uses the eight test sets of the paper, or your own."
    if not run.analogies.known:
        yield write_paragraph(f"None of the bundled questions about common English words can be asked. {command}")
        return

    yield write_paragraph(
        f"Share of the bundled analogies, of which all words are known, with the right answer. {command}"
    )
    rows = []
    for section in (*(each for each in run.analogies.sections if each.known), run.analogies):
        name = "all" if section is run.analogies else section.name
        rows.append((name, f"{section.correct / section.known:.0%}", f"{section.known:,}", f"{section.total:,}"))
    yield write_table(("analogies", "right", "known", "of"), rows)


def _write_times(run: RunSummary, seconds: Mapping[str, float]) -> Iterator[str]:
    yield write_heading("Time")

    stages = [(name, spent, "") for name, spent in seconds.items() if name not in ("training", "total")]
    if run.epochs:
        stages.append(("training", run.training_seconds, _speed(run)))
    if "total" in seconds:
        stages.append(("this call, from its start to this page", seconds["total"], ""))

    rows = [(name, format_seconds(spent), note) for name, spent, note in stages]
    yield write_table(("stage", "time", ""), rows)

    if not seconds.keys() & {"reading", "counting"}:
        yield write_paragraph("The counts existed already, so their stages have no times.")


def _speed(run: RunSummary) -> str:
    """Return the training speed and what it was measured on, as "1.2 G cells/s, torch cuda float32"."""
    rows, columns = run.matrix.shape
    # Every cell counts, observed or not: an epoch visits all of them.
    speed = float(rows) * columns * len(run.epochs) / max(run.training_seconds, 1e-9)

    plan = run.vectors.facts.get("plan", {})
    names = [str(plan[name]) for name in ("backend", "device", "dtype") if plan.get(name)]
    return f"{short_number(float(f'{speed:.3g}'))} cells/s, {' '.join(dict.fromkeys(names))}"


def format_seconds(seconds: float) -> str:
    """Return a duration as text.

    >>> format_seconds(0.126), format_seconds(42), format_seconds(331), format_seconds(7320)
    ('0.13 s', '42.0 s', '5 min 31 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _write_settings(run: RunSummary) -> Iterator[str]:
    yield write_heading("Settings")
    facts = run.vectors.facts
    stages = {**run.vectors.settings, "chosen for this run": facts.get("plan", {})}
    for stage, settings in stages.items():
        if settings:
            yield write_details(stage, write_facts(settings))

    machine = {
        "swivel-embeddings": facts.get("library", __version__),
        "page written by": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} on {platform.machine()}",
        "cores": count_cores(),
        "counts, all together": run.matrix.total,
    }
    yield write_details("machine and versions", write_facts(machine))
