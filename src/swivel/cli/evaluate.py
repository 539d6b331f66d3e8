"""`swivel evaluate` and `swivel plot`: scores of vectors on test sets, and figures of vectors, runs and scores."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from swivel import evaluation
from swivel.cli.flags import Command, config_options, overwrite_option, refuse_idle_options
from swivel.cli.main import cli, open_vectors, output_option
from swivel.cli.tables import matrix_option, table_options
from swivel.cli.terminal import draw_table, print_result, show, shown
from swivel.errors import ConfigError
from swivel.evaluation import results, text_sets
from swivel.evaluation.table_ranking import RankingReport
from swivel.explorer.maps import LAYOUTS, MAP_FORMATS, make_map
from swivel.reports import plots
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.output_folder import check_output_file, refuse_overlap
from swivel.vectors import Vectors
from swivel.vectors.formats import find_vectors

USED_WITH_TABLES = {"held_out", "matrix", "fields", "header", "k"}
USED_WITH_TEXTS = {"texts", "sets", "data", "markdown"}
output_file = output_option("picture to write: .png, .svg or .pdf", metavar="FILE")


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("sets", nargs=-1, metavar="[FOLDER_OR_FILE]...")
@click.option("--data", metavar="DIR", help="folder of sets  [default: the paper's eight, fetched into the cache]")
@click.option("--against", multiple=True, metavar="VECTORS", help="compare with these, item by item; may be repeated")
@config_options(evaluation.EvaluationConfig)
@click.option("--texts", is_flag=True, help="evaluate vectors of texts: STS and labels, fetched, or your own files")
@click.option(
    "--held-out", metavar="FILE", help="rank cells of a table that were not trained with, of any format of import"
)
@matrix_option
@table_options
@click.option("-k", type=int, default=20, show_default=True, help="with --held-out: columns that count")
@click.option("--sections", is_flag=True, help="show analogies by section, too")
@click.option("--markdown", is_flag=True, help="print tables in Markdown")
def evaluate(
    vectors: str,
    sets: tuple[str, ...],
    data: str | None,
    against: tuple[str, ...],
    held_out: str | None,
    matrix: str | None,
    fields: str | None,
    header: bool,
    texts: bool,
    k: int,
    sections: bool,
    markdown: bool,
    options: RunOptions,
    **rules: Any,
) -> None:
    """Word similarity, analogies and categories: the paper's eight sets, a folder's, or files of your own.

    With --held-out instead: how well cells of a table are ranked that were not trained with. With --texts
    instead: semantic textual similarity, and classification.

    A set is text: two words and a score a line, four words (and a section) a line, or a word, a tab and its category;
    with --texts a score and two texts a line, separated by tabs, or a label and a text.
    """
    if held_out is not None:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_TABLES}, where="with --held-out")
        from swivel.counts.importers import import_counts
        from swivel.recommender import Recommender

        recommender = Recommender(open_vectors(vectors), matrix)
        cells = import_counts(held_out, options=options, fields=fields, header=header)
        _show_ranking(recommender.evaluate(cells, k=k))
        return

    # Without a place, the sets of the paper are fetched.
    places = [data, *sets] if data else list(sets)
    draw = _draw_markdown if markdown else draw_table
    if texts:
        refuse_idle_options(lambda name: name not in {"vectors", *USED_WITH_TEXTS}, where="with --texts")
        scored = evaluation.evaluate_texts(open_vectors(vectors), places or None, progress=options.progress)
        show(scored.to_dict(), lambda: draw(text_sets.TEXT_TABLE_HEADER, scored.table()))
        return

    refuse_idle_options(lambda name: name in USED_WITH_TABLES, where="without --held-out")
    # The vectors are loaded one after the other: two large models may not fit into memory.
    report, *others = (
        evaluation.evaluate(open_vectors(path), places or None, progress=options.progress, **rules)
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
    rows = [[name, f"{value:.3f}"] for name, value in values.items()]
    show(report.to_dict(), lambda: draw_table([f"{report.cells:,} cells of {report.rows:,} rows", ""], rows))


@cli.group()
def plot() -> None:
    """Draw a map of words, the losses of a run (epochs), or the accuracy by frequency."""


def save_plot(output: str, vectors: Iterable[str], make: Callable[[], Any], *others: str | None) -> None:
    """Write the figure that `make` returns; the file name is checked before anything is computed."""
    # A wrong suffix is reported before minutes of evaluation.
    plots.check_format(Path(output))
    inputs = itertools.chain(map(find_vectors, vectors), (Path(other) for other in others if other))
    refuse_overlap([Path(output)], inputs)
    plots.save_figure(make(), output)
    show({"figure": output}, lambda: print_result(output))


@plot.command("map", cls=Command, short_help="A map of words, also as one HTML file to share.")
@click.argument("vectors")
@output_option("file to write: .png, .svg, .pdf, or .html, which can be searched and zoomed", metavar="FILE")
@click.option("--words", type=int, default=10_000, show_default=True, help="how many of the most common words")
@click.option(
    "--layout", type=click.Choice(LAYOUTS), default="umap", show_default=True, help="UMAP, or principal components"
)
@overwrite_option
def map_command(vectors: str, output: str, words: int, layout: str, options: RunOptions) -> None:
    """Draw a map of VECTORS, a folder or a file of another tool, in which similar words are near each other."""
    plots.check_format(Path(output), MAP_FORMATS, "maps")
    check_output_file(Path(output), [find_vectors(vectors)], overwrite=options.overwrite)
    check_libraries("drawing a map")
    title = f"Map of {split_name(vectors)[0]}"
    make_map(open_vectors(vectors), words=words, layout=layout, title=title, progress=options.progress).save(output)
    show({"figure": output}, lambda: print_result(output))


@plot.command(cls=Command, short_help="A run's losses, epoch by epoch.")
@click.argument("vectors", metavar="RUN")
@output_file
def epochs(vectors: str, output: str, options: RunOptions) -> None:
    """Plot the mean loss per epoch of RUN, the folder of `swivel run` or `swivel train`."""
    save_plot(output, [vectors], lambda: plots.plot_epochs(open_vectors(vectors).facts.get("losses", ())))


@plot.command(cls=Command, short_help="Accuracy of analogies against frequency.")
@click.argument("vectors", nargs=-1, required=True, metavar="VECTORS...")
@output_file
@click.option("--data", metavar="DIR", help="folder of test sets  [default: the paper's eight, from the cache]")
@click.option("--differences", is_flag=True, help="draw the first minus each other one, bucket by bucket")
def frequency(vectors: tuple[str, ...], output: str, data: str | None, differences: bool, options: RunOptions) -> None:
    """Plot the accuracy of analogies against the mean frequency of their words, one curve per VECTORS or NAME=VECTORS.

    VECTORS: folders, or text files of other tools. Frequencies are the counts of the first folder's vocabulary.
    """

    def make() -> Any:
        if differences and len(vectors) < 2:
            raise ConfigError("--differences compares the first VECTORS with others: name two or more")
        models = _open_named(vectors)
        counts = next((each.vocabulary for each in models.values() if each.vocabulary.counts.any()), None)
        if counts is None:
            raise ConfigError("text files do not say how frequent words are: name a folder of Swivel's, too")

        answers = {}
        for name, each in models.items():
            results = evaluation.evaluate(each, data, draws=0, progress=options.progress).results
            answers[name] = [result for result in results if result.kind == "analogies"]
        curves, gaps = plots.make_curves(answers, counts)
        return plots.plot_differences(gaps, next(iter(models))) if differences else plots.plot_frequency(curves)

    save_plot(output, [path for _, path in map(split_name, vectors)], make, data)


def _open_named(texts: tuple[str, ...]) -> dict[str, Vectors]:
    """Return vectors by name, each given as PATH or NAME=PATH; names must differ."""
    pairs = [split_name(text) for text in texts]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"several VECTORS are called {name!r}: give each a name of its own, as NAME=VECTORS")
    return {name: open_vectors(path) for name, path in pairs}


def split_name(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; the name of a path alone is its last part, or the name of its run.

    >>> split_name("ours=work/vectors"), split_name("work/vectors"), split_name("glove.txt")
    (('ours', 'work/vectors'), ('work', 'work/vectors'), ('glove', 'glove.txt'))
    """
    name, sign, path = text.partition("=")
    # A path may contain =, so that only what cannot be a path is a name.
    if sign and name and "/" not in name:
        return name, path
    place = Path(text)
    return (place.parent.name or place.stem) if place.name == "vectors" else place.stem, text
