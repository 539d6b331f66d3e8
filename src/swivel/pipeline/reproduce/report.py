"""Write the report of an experiment: figures, `report.html`, `report.md` and `results.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from swivel.counts import open_matrix
from swivel.evaluation import MIN_KNOWN, Comparison
from swivel.pipeline.reproduce.results import STAGES, Cost, MethodResult, Results, Score
from swivel.reports import plots
from swivel.reports.document import (
    FIGURES,
    Block,
    Cell,
    Details,
    Document,
    Heading,
    Paragraph,
    Picture,
    Table,
    facts_table,
    write_markdown,
)
from swivel.reports.html import write_html
from swivel.runtime.resources import format_bytes
from swivel.storage import write_file

HTML, MARKDOWN, RESULTS = "report.html", "report.md", "results.json"
BELOW, ABOVE = "▽", "▲"  # marks of a method that is significantly below or above the first method
NOTHING = "–"

RULES = {
    "similarity": "Similarity: Spearman's rank correlation with human judgments, without pairs with an unknown word.",
    "analogies": "Analogies: the share of correct answers; a question with an unknown word counts as wrong.",
    "categories": "Categories: the purity of clusters of the known words.",
}

TUNED = (
    "The settings of `default` were chosen on one half of each of the paper's eight sets. The other half "
    "(`--half report`) gives a fairer comparison."
)

METHOD_CAPTIONS = {
    "loss": "The loss of a cell against the prediction, for a target of 2: the squared error of a cell with the count "
    "x, and the soft hinge of a cell without counts, which penalizes only predictions that are too high.",
    "block": "Counts of the most common words with each other, and the counts of one block of the training: rows and "
    "columns are distributed over the blocks in turn, so that each block has common and rare words alike.",
}

Svgs = Mapping[str, bytes]  # the figures by name, without those that could not be drawn


def write_report(out: Path, results: Results, matrix: Path) -> None:
    """Draw the figures and write all files; `matrix` is the matrix that the block figure shows."""
    svgs = {}
    for name, figure in _draw(results, matrix):
        for kind in ("png", "svg"):
            data = plots.draw_figure(figure, kind)
            write_file(out / FIGURES / f"{name}.{kind}", data)
            if kind == "svg":
                svgs[name] = data

    write_pages(out, compose_report(results, svgs), results.to_dict())


def write_pages(out: Path, document: Document, results: Mapping[str, Any]) -> None:
    """Write a document as HTML and as Markdown, and the results as JSON."""
    texts = {
        RESULTS: json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        MARKDOWN: write_markdown(document),
        HTML: write_html(document),
    }
    for name, text in texts.items():
        write_file(out / name, text.encode(errors="backslashreplace"))  # Paths may not be valid UTF-8.


def _draw(results: Results, matrix: Path) -> Iterator[tuple[str, Any]]:
    if results.curves:
        yield "frequency", plots.plot_frequency(results.curves)
    if results.differences:
        yield "differences", plots.plot_differences(results.differences, results.ours.name)
    yield "loss", plots.plot_losses()
    yield "block", plots.plot_block(open_matrix(matrix))


def compose_report(results: Results, svgs: Svgs) -> Document:
    """Return the report of an experiment as a document, with the figures given by name."""
    blocks: list[Block] = [
        *_write_table(results),
        *_write_seeds(results),
        *_write_frequency(results, svgs),
        *_write_rare_words(results.rare),
        *_write_costs(results),
        Heading("How it works"),
        *_pictures(svgs, METHOD_CAPTIONS),
        *_write_settings(results),
    ]
    methods = ", ".join(f"`{method.name}`" for method in results.methods)
    subtitle = f"{_describe_corpus(results.corpus)} Vectors of {results.ours.dim} dimensions by {methods}."
    return Document("Swivel: the paper's experiment", subtitle, tuple(blocks))


def _describe_corpus(corpus: Mapping[str, Any]) -> str:
    files = ", ".join(corpus["files"])
    known = f"{corpus['tokens']:,}"
    taken = corpus.get("tokens taken")
    text = f"The first {taken:,} tokens of {files}, {known} of them" if taken else f"{files}: {known} tokens"
    return f"{text} in a vocabulary of {corpus['words']:,} words."


def _table_by_set(results: Results, rows: Iterable[tuple[Cell, ...]]) -> Table:
    return Table(("", *(info.label for info in results.sets)), tuple(rows))


def format_figure(figure: float | None) -> str:
    """Return a score as the tables show it, without a leading zero.

    >>> format_figure(0.7601), format_figure(-0.05), format_figure(None), format_figure(1.0)
    ('.760', '−.050', '–', '1.000')
    """
    if figure is None:
        return NOTHING

    text = f"{abs(figure):.3f}"
    sign = "−" if figure < 0 and float(text) != 0 else ""
    return sign + text.removeprefix("0")


def format_range(interval: tuple[float, float] | None) -> str:
    """Return an interval as the tables show it, an empty string if there is none."""
    if interval is None:
        return ""
    low, high = interval
    return f"{format_figure(low)} to {format_figure(high)}"


def _write_table(results: Results) -> Iterator[Block]:
    ours = results.ours.name
    kinds = {info.kind for info in results.sets}
    rules = " ".join(text for kind, text in RULES.items() if kind in kinds)
    half = f" Only the half `{results.half}` of every set is used." if results.half else ""

    yield Heading("The table")
    yield Paragraph(
        f"{rules}{half} Below each score is its 95 % bootstrap interval; the best score of each column is highlighted. "
        f"{BELOW}: significantly below `{ours}`; {ABOVE}: significantly above it, by a paired bootstrap over the same "
        "items (95 %, each set separately)."
    )
    if results.half != "report" and any(method.name == "default" for method in results.methods):
        yield Paragraph(TUNED)

    rows = [
        (Cell(method.name, method.about), *(_score_cell(method, info.name, results) for info in results.sets))
        for method in results.methods
    ]
    yield _table_by_set(results, rows)

    known = [
        (Cell(method.name), *(Cell(f"{method.scores[info.name].known:,}") for info in results.sets))
        for method in results.methods
    ]
    known.append((Cell("all items"), *(Cell(f"{info.total:,}") for info in results.sets)))
    yield Details("Number of items of each set with known words only", (_table_by_set(results, known),))

    if len(results.methods) > 1:
        differences = [
            (
                Cell(f"{ours} − {method.name}"),
                *(_difference_cell(method.comparisons.get(info.name)) for info in results.sets),
            )
            for method in results.methods[1:]
        ]
        note = Paragraph("Below each difference are its 95 % interval and the two-sided p-value.")
        yield Details("Differences of the scores", (note, _table_by_set(results, differences)))


def _score_cell(method: MethodResult, name: str, results: Results) -> Cell:
    """Return the score on a set; below it its interval, and the number of items if it differs from the first method's.

    Without a score, the note gives the reason.
    """
    score = method.scores[name]
    if score.figure is None:
        return Cell(NOTHING, "no known items" if score.known == 0 else "too few known items")

    items = f", {score.known:,} items" if score.known != results.ours.scores[name].known else ""
    if score.known < MIN_KNOWN:  # neither an interval nor a best method
        return Cell(format_figure(score.mean), "too few known items" + items)
    is_best = score.mean == results.best(name)
    comparison = method.comparisons.get(name)
    mark = mark_difference(None if comparison is None else comparison.interval)
    return Cell(format_figure(score.mean), format_range(score.interval) + items, is_best, mark)


def mark_difference(interval: tuple[float, float] | None) -> str:
    """Return the mark of a method, by the interval of the first method minus this one; empty if it contains 0."""
    if interval is None:
        return ""

    low, high = interval
    if low > 0:
        return BELOW
    return ABOVE if high < 0 else ""


def _difference_cell(comparison: Comparison | None) -> Cell:
    if comparison is None or comparison.difference is None or comparison.p_value is None:
        return Cell(NOTHING)
    p_value = f"p = {format_figure(comparison.p_value)}" if comparison.p_value >= 0.001 else "p < .001"
    return Cell(format_figure(comparison.difference), f"{format_range(comparison.interval)}, {p_value}")


def _write_seeds(results: Results) -> Iterator[Block]:
    if results.seeds < 2:
        return

    yield Heading("Over several seeds")
    yield Paragraph(
        f"Swivel's recipes were trained with {results.seeds} seeds. The scores are means over the seeds, here with "
        "their standard deviation. Intervals and comparisons are those of the first seed."
    )
    rows = [
        (Cell(method.name), *(_seed_cell(method.scores[info.name]) for info in results.sets))
        for method in results.methods
        if any(len(score.by_seed) > 1 for score in method.scores.values())
    ]
    yield _table_by_set(results, rows)


def _seed_cell(score: Score) -> Cell:
    deviation = score.deviation
    return Cell(format_figure(score.mean), "" if deviation is None else f"± {format_figure(deviation)}")


def _write_frequency(results: Results, svgs: Svgs) -> Iterator[Block]:
    yield Heading("Common and rare words")
    if "frequency" not in svgs:
        yield Paragraph("Too few analogies have known words only, so that there is no figure by frequency.")
        return

    buckets = len(results.curves[0].points)
    captions = {
        "frequency": "Accuracy of analogies (all analogy sets together) against the mean frequency of the four words "
        f"of a question, in {buckets} buckets of at least 100 questions; bands are 95 % bootstrap intervals.",
        "differences": f"The accuracy of `{results.ours.name}` minus that of each other method, per bucket, with "
        "paired 95 % intervals. Blue: above 0; orange: below 0; gray: the interval contains 0.",
    }
    yield from _pictures(svgs, captions)


def _pictures(svgs: Svgs, captions: Mapping[str, str]) -> Iterator[Block]:
    for name, caption in captions.items():
        if name in svgs:
            yield Picture(name, caption, svgs[name])


def _write_rare_words(rare: plots.RareWords) -> Iterator[Block]:
    yield Heading("Very rare words")
    if not rare.words:
        yield Paragraph("The vocabulary has no rare words to show.")
        return

    yield Paragraph(
        "Nearest neighbors of the paper's rare words that are in the vocabulary, and of evenly spaced words of the "
        "rarest fifth of the vocabulary."
    )
    rows: list[tuple[Cell, ...]] = []
    for index, (word, count) in enumerate(zip(rare.words, rare.counts, strict=True)):
        word_cell = Cell(word, f"seen {count:,} times")
        for method, neighbors in rare.neighbors.items():
            nearest = ", ".join(neighbors[index]) or "unknown, or without neighbors"
            rows.append((word_cell, Cell(method), Cell(nearest)))
            word_cell = Cell("")  # The word is shown in its first row only.

    yield Table(("word", "method", "nearest"), tuple(rows), is_text=True)


def _write_costs(results: Results) -> Iterator[Block]:
    yield Heading("Time and memory")
    yield Paragraph(
        "Wall-clock seconds and peak memory (including mapped files) of each stage, in a separate process. "
        f"{results.machine['processor']}, {results.machine['cores']} cores in use. Methods with the same counts share "
        "the counting, which is listed for each of them; the training of word2vec includes reading the text."
    )

    recorded = {cost.stage for method in results.methods for cost in method.costs}
    stages = [stage for stage in STAGES if stage in recorded]
    rows = []
    for method in results.methods:
        by_stage = {cost.stage: cost for cost in method.costs}
        rows.append((Cell(method.name), *(_cost_cell(by_stage.get(stage)) for stage in stages)))
    yield Table(("", *stages), tuple(rows))


def _cost_cell(cost: Cost | None) -> Cell:
    if cost is None or cost.seconds is None:
        return Cell(NOTHING)
    memory = "" if cost.peak_bytes is None else format_bytes(cost.peak_bytes)
    attempts = f", {cost.attempts} attempts" if cost.attempts > 1 else ""
    return Cell(f"{cost.seconds:,.1f} s", memory + attempts)


def _write_settings(results: Results) -> Iterator[Block]:
    yield Heading("Settings, versions, machine")
    for method in results.methods:
        yield Details(f"{method.name}: {method.about}", (facts_table(method.settings),))
    yield Details("Corpus", (facts_table(results.corpus),))
    yield Details("Machine and versions", (facts_table(results.machine),))
