"""The words of a run's report: what was found in, a document out. It computes nothing and writes no file."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from swivel._version import __version__
from swivel.reports.document import Block, Cell, Details, Document, Heading, Paragraph, Picture, Table
from swivel.reports.document.model import say_value
from swivel.reports.plots import NormBucket
from swivel.reports.plots.style import short_number
from swivel.reports.run_report.collect import BANDS, Asked, RunSummary, facts_of
from swivel.runtime.resources import count_cores

Svgs = Mapping[str, bytes]  # the figures by name; none where there is no matplotlib
NOTHING = "–"
NO_FIGURES = (
    "This page has no figures, only their numbers: figures need matplotlib. `pip install 'swivel-embeddings[plot]'`, "
    "remove this file, and the same command writes it again."
)
LOSSES = (
    "Mean loss of a cell, pass by pass. All cells together are what training makes small; the observed ones are the "
    "squared distances from their PMI, weighted by f(x), the unobserved ones the soft hinge that keeps products low."
)
NORMS = (
    "How long vectors are against how often their words were seen. Points are words, the line is the median of a "
    "bucket, the band holds the middle four fifths."
)
FIT = (
    "Observed cells by the frequency of their row. Left: the loss, in which common pairs weigh more. Right: how far "
    "w\u00a0·\u00a0c is from the cell's PMI, every cell counting alike (root mean square)."
)


def compose_run(run: RunSummary, svgs: Svgs) -> Document:
    """Return the report of a run."""
    blocks: list[Block] = [
        *([] if svgs else [Paragraph(NO_FIGURES)]),
        *_write_losses(run, svgs),
        *_write_neighbours(run),
        *_write_fit(run, svgs),
        *_write_norms(run, svgs),
        *_write_times(run),
        *_write_settings(run),
    ]
    return Document(f"Swivel: {run.name}", _describe(run), tuple(blocks))


def _describe(run: RunSummary) -> str:
    rows, columns = run.shape
    text = f"{rows:,} rows × {columns:,} columns, {run.cells:,} cells observed; vectors of {run.dim} dimensions"
    if not run.epochs:
        return text + "."
    epochs = "1 pass" if len(run.epochs) == 1 else f"{len(run.epochs)} epochs"
    return f"{text}, trained in {format_seconds(run.training_seconds)} ({epochs})."


def _shown(svgs: Svgs, name: str, caption: str, table: Table) -> Iterator[Block]:
    """Yield a figure with its numbers folded away, or the numbers alone."""
    if name in svgs:
        yield Picture(name, caption, svgs[name])
        yield Details("The numbers", (table,))
    else:
        yield Paragraph(caption)
        yield table


def _write_losses(run: RunSummary, svgs: Svgs) -> Iterator[Block]:
    if not run.epochs:
        return
    yield Heading("Losses")
    first, last = run.epochs[0], run.epochs[-1]
    if len(run.epochs) > 1:
        yield Paragraph(
            f"From the first epoch to the last: all cells {first.mean:.4f} to {last.mean:.4f}, observed "
            f"{first.observed:.3f} to {last.observed:.3f}, unobserved {first.unobserved:.4f} to {last.unobserved:.4f}."
        )
    rows = [
        (Cell(str(number)), Cell(f"{loss.mean:.5f}"), Cell(f"{loss.observed:.4f}"), Cell(f"{loss.unobserved:.5f}"))
        for number, loss in enumerate(run.epochs, 1)
    ]
    yield from _shown(svgs, "epochs", LOSSES, Table(("pass", "all cells", "observed", "unobserved"), tuple(rows)))


def _write_neighbours(run: RunSummary) -> Iterator[Block]:
    yield Heading("Neighbours")
    if not run.asked:
        yield Paragraph("There are no words to ask about.")
        return
    yield Paragraph("The nearest words of common, middling and rare ones, and the cosines of the first and the last.")
    rows: list[tuple[Cell, ...]] = []
    for band in BANDS:
        for number, asked in enumerate(each for each in run.asked if each.band == band):
            nearest = ", ".join(near.token for near in asked.nearest) or "none: it never co-occurred with anything"
            seen = f"{asked.frequency:,.0f}" if asked.frequency else NOTHING
            texts = (band if number == 0 else "", asked.word, seen, nearest, _cosines(asked))
            rows.append(tuple(map(Cell, texts)))
    yield Table(("", "word", "seen", "nearest", "cosines"), tuple(rows), is_text=True)


def _cosines(asked: Asked) -> str:
    return " to ".join(f"{near.similarity:.2f}" for near in asked.nearest[:: max(len(asked.nearest) - 1, 1)])


def _write_fit(run: RunSummary, svgs: Svgs) -> Iterator[Block]:
    yield Heading("Loss by frequency")
    if not run.fit:
        yield Paragraph("These vectors keep no columns, so there are no products to compare with the counts.")
        return
    rows = [
        (
            Cell(_bucket_name(each.low, each.high)),
            *map(Cell, (f"{each.words:,}", f"{each.cells:,}", f"{each.loss:.4f}", f"{each.error:.3f}")),
        )
        for each in run.fit
    ]
    header = ("frequency of the row", "rows", "cells sampled", "mean loss", "distance")
    yield from _shown(svgs, "fit", FIT, Table(header, tuple(rows)))


def _write_norms(run: RunSummary, svgs: Svgs) -> Iterator[Block]:
    yield Heading("Lengths and frequency")
    if not run.norms:
        yield Paragraph("How frequent words are is not known here.")
        return
    rows = [
        (Cell(_bucket_name(first.low, first.high)), Cell(f"{first.words:,}"), *map(_length_cell, (first, *others)))
        for first, *others in zip(*(norms.buckets for norms in run.norms), strict=True)
    ]
    header = ("frequency", "words measured", *(norms.name for norms in run.norms))
    yield from _shown(svgs, "norms", NORMS, Table(header, tuple(rows)))


def _length_cell(bucket: NormBucket) -> Cell:
    return Cell(f"{bucket.median:.3f}", f"{bucket.tenth:.3f} to {bucket.ninetieth:.3f}")


def _bucket_name(low: float, high: float) -> str:
    """Return the bounds of a bucket for people.

    >>> _bucket_name(30, 100), _bucket_name(30_000, 100_000)
    ('30 to 100', '30 k to 100 k')
    """
    return f"{short_number(low)} to {short_number(high)}"


def _write_times(run: RunSummary) -> Iterator[Block]:
    yield Heading("Time")
    stages = [(name, seconds, "") for name, seconds in run.seconds.items() if name not in ("training", "total")]
    if run.epochs:
        stages.append(("training", run.training_seconds, _speed(run)))
    rows = [(Cell(name), Cell(format_seconds(seconds)), Cell(note)) for name, seconds, note in stages]
    if "total" in run.seconds:
        rows.append(
            (Cell("this call, from its start to this page"), Cell(format_seconds(run.seconds["total"])), Cell(""))
        )
    yield Table(("stage", "time", ""), tuple(rows))
    if not run.seconds.keys() & {"reading", "counting"}:
        yield Paragraph("The counts were there already: their stages have no times here.")


def _speed(run: RunSummary) -> str:
    rows, columns = run.shape
    speed = float(rows) * columns * len(run.epochs) / max(run.training_seconds, 1e-9)
    plan = run.manifest.facts.get("plan", {})
    names = [str(plan[name]) for name in ("backend", "device", "dtype") if plan.get(name)]
    return f"{short_number(float(f'{speed:.3g}'))} cells/s, {' '.join(dict.fromkeys(names))}"


def format_seconds(seconds: float) -> str:
    """Return a time for people.

    >>> format_seconds(0.126), format_seconds(42), format_seconds(331), format_seconds(7320)
    ('0.13 s', '42.0 s', '5 min 31 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _write_settings(run: RunSummary) -> Iterator[Block]:
    yield Heading("Settings")
    for stage, settings in facts_of(run).items():
        if settings:
            yield Details(stage, (_facts_table(list(settings.items())),))
    machine = {
        "swivel-embeddings": run.manifest.library,
        "page written by": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} on {platform.machine()}",
        "cores": count_cores(),
        "counts, all together": run.total,
    }
    yield Details("machine and versions", (_facts_table(list(machine.items())),))


def _facts_table(facts: Sequence[tuple[str, Any]]) -> Table:
    return Table(("", ""), tuple((Cell(name), Cell(say_value(value))) for name, value in facts), is_text=True)
