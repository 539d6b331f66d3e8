"""`swivel evaluate` and `swivel plot`: scores of vectors on test sets, and figures of vectors, runs and scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from swivel import evaluation
from swivel.cli.flags import (
    Command,
    choice_option,
    config_options,
    map_options,
    overwrite_option,
    refuse_idle_options,
)
from swivel.cli.main import cli, open_vectors, output_option
from swivel.cli.tables import matrix_option, table_options
from swivel.cli.terminal import draw_table, print_result, show, shown
from swivel.evaluation import results, text_sets
from swivel.evaluation.datasets import SUITES
from swivel.evaluation.labels import LABEL_TABLE_HEADER, SPLITS
from swivel.evaluation.links import LinkReport
from swivel.evaluation.table_ranking import RankingReport
from swivel.explorer.maps import LAYOUTS, MAP_FORMATS, make_map
from swivel.reports import plots
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.output_folder import check_format, check_output_file, refuse_overlap
from swivel.vectors.formats import find_vectors

USED_WITH_TABLES = {"held_out", "matrix", "format", "fields", "header", "k"}
USED_WITH_LINKS = {"links", "matrix", "fields", "header", "hits"}
USED_WITH_LABELS = {"labels", "fields", "header", "splits"}
USED_WITH_TEXTS = {"texts", "sets", "data", "markdown"}
output_file = output_option("picture to write: .png, .svg or .pdf", metavar="FILE")


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("sets", nargs=-1, metavar="[FOLDER_OR_FILE]...")
@click.option("--data", metavar="DIR", help="folder of sets  [default: the paper's eight, fetched into the cache]")
@click.option(
    "--suite",
    type=click.Choice(list(SUITES)),
    help="without files: the paper's sets, or SimVerb-3500, MTurk-771 and BATS, which no setting was chosen with  "
    "[default: paper]",
)
@click.option("--against", multiple=True, metavar="VECTORS", help="compare with these, item by item; may be repeated")
@config_options(evaluation.EvaluationConfig)
@click.option("--texts", is_flag=True, help="evaluate vectors of texts: STS and labels, fetched, or your own files")
@click.option(
    "--held-out", metavar="FILE", help="rank cells of a table that were not trained with, of any format of import"
)
@matrix_option
@table_options
@click.option("--links", metavar="FILE", help="tell edges of a graph that were not trained with from pairs without one")
@click.option(
    "--hits",
    type=int,
    default=50,
    show_default=True,
    help="with --links: rank of the pair without an edge that must be below; at most a tenth of them",
)
@click.option("--labels", metavar="FILE", help="predict labels of nodes or other rows: a row and a label on each line")
@click.option(
    "--splits", type=int, default=SPLITS, show_default=True, help="with --labels: random choices of known rows"
)
@click.option("-k", type=int, default=20, show_default=True, help="with --held-out: columns that count")
@click.option("--sections", is_flag=True, help="show analogies by section, too")
@click.option("--markdown", is_flag=True, help="print tables in Markdown")
def evaluate(
    vectors: str,
    sets: tuple[str, ...],
    data: str | None,
    suite: str | None,
    against: tuple[str, ...],
    held_out: str | None,
    links: str | None,
    hits: int,
    labels: str | None,
    splits: int,
    matrix: str | None,
    format: str | None,
    fields: str | None,
    header: bool | None,
    texts: bool,
    k: int,
    sections: bool,
    markdown: bool,
    options: RunOptions,
    **rules: Any,
) -> None:
    """Word similarity, analogies and categories: the paper's eight sets, a folder's, or files of your own.

    With --held-out instead: how well cells of a table are ranked that were not trained with. With --links instead: how
    well edges of a graph are predicted; with --labels, classes of its nodes. With --texts instead: semantic textual
    similarity, and classification.

    A set is text: two words and a score a line, four words (and a section) a line, or a word, a tab and its category;
    with --texts a score and two texts a line, separated by tabs, or a label and a text.
    """
    if held_out is not None:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_TABLES}, where="with --held-out")
        from swivel.counts.importers import import_counts
        from swivel.recommender import Recommender

        recommender = Recommender(open_vectors(vectors), matrix)
        cells = import_counts(held_out, options=options, format=format, fields=fields, header=header)
        _show_ranking(recommender.evaluate(cells, k=k))
        return

    table: dict[str, Any] = {"fields": fields, "header": header}
    if links is not None:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_LINKS}, where="with --links")
        _show_links(evaluation.evaluate_links(open_vectors(vectors), links, matrix, k=hits, **table))
        return
    if labels is not None:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_LABELS}, where="with --labels")
        model = open_vectors(vectors)
        predicted = evaluation.evaluate_labels(model, labels, splits=splits, progress=options.progress, **table)
        show(predicted.to_dict(), lambda: draw_table(LABEL_TABLE_HEADER, predicted.table()))
        return

    # Without a place, the sets of the paper are fetched.
    places = [data, *sets] if data else list(sets)
    draw = _draw_markdown if markdown else draw_table
    if texts:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_TEXTS}, where="with --texts")
        scored = evaluation.evaluate_texts(open_vectors(vectors), places or None, progress=options.progress)
        show(scored.to_dict(), lambda: draw(text_sets.TEXT_TABLE_HEADER, scored.table()))
        return

    others_use = USED_WITH_TABLES | USED_WITH_LINKS | USED_WITH_LABELS
    refuse_idle_options(lambda name: name in others_use, where="without --held-out, --links or --labels")
    # The vectors are loaded one after the other: two large models may not fit into memory.
    report, *others = (
        evaluation.evaluate(open_vectors(path), places or None, suite=suite, progress=options.progress, **rules)
        for path in (vectors, *against)
    )
    compared = {
        path: evaluation.compare_reports(report, other, draws=rules["draws"])
        for path, other in zip(against, others, strict=True)
    }
    result = report.to_dict()
    if against:
        result["against"] = {path: [each.to_dict() for each in comparisons] for path, comparisons in compared.items()}

    def draw_all() -> None:
        draw(results.TABLE_HEADER, report.table(sections=sections))
        for name, comparisons in compared.items():
            print_result("", f"against {name}:", "")
            draw(results.DIFFERENCE_HEADER, results.tabulate_differences(comparisons))

    show(result, draw_all)


def _draw_markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    cells = [list(map(shown, row)) for row in rows]
    print_result(*results.draw_markdown(header, cells).split("\n"))


def _show_ranking(report: RankingReport) -> None:
    k = report.k
    values = {f"recall@{k}": report.recall, f"NDCG@{k}": report.ndcg, f"MAP@{k}": report.map}
    values |= {f"recall@{k}, {name} columns": recall for name, recall in report.by_popularity.items()}
    _show_values(report, f"{report.cells:,} cells of {report.rows:,} rows", values)


def _show_links(report: LinkReport) -> None:
    values = {"AUC": report.auc, "average precision": report.average_precision, f"hits@{report.k}": report.hits}
    _show_values(report, f"{report.edges:,} edges", values)


def _show_values(report: RankingReport | LinkReport, title: str, values: Mapping[str, float]) -> None:
    rows = [[name, f"{value:.3f}"] for name, value in values.items()]
    show(report.to_dict(), lambda: draw_table([title, ""], rows))


@cli.group()
def plot() -> None:
    """Draw a map of words, or the losses of a run (epochs)."""


@plot.command("map", cls=Command, short_help="A map of words, also as one HTML file to share.")
@click.argument("vectors")
@output_option("file to write: .png, .svg, .pdf, or .html, which can be searched and zoomed", metavar="FILE")
@click.option("--words", type=int, default=10_000, show_default=True, help="how many of the most common words")
@choice_option("--layout", LAYOUTS, "UMAP, or principal components")
@map_options
@overwrite_option
def map_command(
    vectors: str,
    output: str,
    words: int,
    layout: str,
    clusters: int | None,
    color_by: str | None,
    options: RunOptions,
) -> None:
    """Draw a map of VECTORS, a folder or a file of another tool, in which similar words are near each other."""
    check_format(Path(output), MAP_FORMATS, "maps")
    check_output_file(Path(output), [find_vectors(vectors)], overwrite=options.overwrite)
    check_libraries("drawing a map")
    title = f"Map of {name_run(vectors)}"
    made = make_map(
        open_vectors(vectors),
        words=words,
        layout=layout,
        title=title,
        clusters=clusters,
        color_by=color_by,
        progress=options.progress,
    )
    made.save(output)
    show({"figure": output}, lambda: print_result(output))


@plot.command(cls=Command, short_help="A run's losses, epoch by epoch.")
@click.argument("vectors", metavar="RUN")
@output_file
def epochs(vectors: str, output: str, options: RunOptions) -> None:
    """Plot the mean loss per epoch of RUN, the folder of `swivel run` or `swivel train`."""
    file = Path(output)
    check_format(file, plots.FORMATS, "figures")
    refuse_overlap([file], [find_vectors(vectors)])
    plots.save_figure(plots.plot_epochs(open_vectors(vectors).facts.get("losses", ())), file)
    show({"figure": output}, lambda: print_result(output))


def name_run(path: str) -> str:
    """Return the name of vectors: the last part of their path, or the name of their run.

    >>> name_run("work/vectors"), name_run("glove.txt")
    ('work', 'glove')
    """
    place = Path(path)
    return (place.parent.name or place.stem) if place.name == "vectors" else place.stem
