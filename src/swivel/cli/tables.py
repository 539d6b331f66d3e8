"""What is counted: `swivel phrases` of texts; `swivel import`, `swivel add` and `swivel recommend` for tables."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from swivel.cli.flags import (
    Command,
    choice_option,
    config_options,
    count_option,
    refuse_idle_options,
    resource_options,
    side_option,
)
from swivel.cli.main import cli, open_vectors, output_option, report_matrix, text_arguments, texts_argument
from swivel.cli.terminal import draw_table, next_command, print_result, show
from swivel.config import SCORERS, CorpusConfig
from swivel.counts.importers.import_config import ImportConfig, WalkConfig
from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.files import write_file
from swivel.storage.output_folder import check_output_file

matrix_option = click.option(
    "--matrix", metavar="DIR", help="the matrix that the vectors were trained on  [default: that of the same run]"
)
table_options = config_options(ImportConfig, only=("format", "fields", "header"))
TEXT_FIELDS = tuple(field.name for field in dataclasses.fields(CorpusConfig) if field.name != "phrases")


@cli.command(cls=Command)
@texts_argument
@click.option("-o", "--output", metavar="FILE", help="write the phrases, one per line, for --phrases FILE")
@count_option("how many to show", default=20)
@choice_option("--score", SCORERS, "gensim's default score, or normalized PMI")
@config_options(CorpusConfig, only=TEXT_FIELDS)
@resource_options
def phrases(
    texts: tuple[str, ...], output: str | None, count: int, score: str, options: RunOptions, **settings: Any
) -> None:
    """Words that occur together more often than by chance, such as new_york.

    `swivel run TEXT --phrases word2vec` joins them to one token.
    """
    check_libraries("finding phrases")
    from swivel.corpus.sources import find_texts, local_files
    from swivel.pipeline.count import find_phrases
    from swivel.vectors.search import check_count

    # Mistakes are reported before the text is read.
    check_count(count)
    files = find_texts(text_arguments(texts, output))
    if output:
        check_output_file(Path(output), local_files(files), overwrite=options.overwrite)

    phrase_list = find_phrases(files, options=options, phrases=score, **settings)
    if output:
        write_file(Path(output), "".join(f"{phrase.token}\n" for phrase in phrase_list).encode())

    rows = [(phrase.token, f"{phrase.occurrences:,}", f"{phrase.score:.4g}") for phrase in phrase_list[:count]]
    data = [phrase._asdict() for phrase in phrase_list]
    show(data, lambda: draw_table((f"phrase (of {len(phrase_list):,})", "count", "score"), rows))


@cli.command("import", cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@output_option("folder for the matrix")
@config_options(ImportConfig, WalkConfig)
@click.option("--row-labels", metavar="FILE", help="what the rows of a matrix are called, one a line")
@click.option("--column-labels", metavar="FILE", help="what the columns of a matrix are called, one a line")
@click.option(
    "--row-sums", metavar="FILE", help="a row label and its sum per line, if cells are missing from the source"
)
@click.option("--column-sums", metavar="FILE", help="the same of columns; a symmetric table has row sums only")
@click.option(
    "--total", type=float, help="sum of all counts, or the number of persons or baskets  [default: of the sums]"
)
@resource_options
def import_(sources: tuple[str, ...], output: str, options: RunOptions, **settings: Any) -> None:
    """Convert counts of another tool to a matrix.

    SOURCE: triples in .tsv or .csv (also .gz .bz2 .xz .zst; - for standard input), .parquet, .arrow or .feather;
    scipy's .npz, .mtx; .edges, .graphml, .gml; .baskets; GloVe's .bin with its vocab.txt; with --format, crosstabs.

    \b
    swivel import visits.tsv -o matrix
    swivel import log.parquet --fields user,page,visits -o matrix
    swivel import graph.txt --format edges --walks 10 -o matrix
    swivel import baskets.csv --format baskets -o matrix
    swivel import expression.csv --format crosstab -o matrix
    """
    from swivel.counts.importers import import_counts

    report_matrix(import_counts(list(sources), output, options=options, **settings), output)
    options.progress.message(next_command("train", Path(output), "-o", _name_vectors(output)))


@cli.command(cls=Command)
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX MATRIX...")
@output_option("folder for the sum")
@resource_options
def add(matrices: tuple[str, ...], output: str, options: RunOptions) -> None:
    """Add matrices: counts of equal labels are summed; vocabularies may differ.

    They have to be counted alike: the same window, weight and columns. Limits of suppressed counts add up, too. With
    more text than before:

    \b
    swivel count new.txt -o new
    swivel add work/matrix new -o matrix
    swivel train matrix --init work/vectors -o vectors
    """
    from swivel.pipeline.add import add as add_matrices

    report_matrix(add_matrices(*matrices, out=output, options=options), output)
    options.progress.message(next_command("train", Path(output), "--init", "VECTORS", "-o", _name_vectors(output)))


def _name_vectors(matrix: str) -> str:
    """Return a folder for the vectors of a matrix, beside it, where other commands look for the matrix.

    >>> _name_vectors("work/matrix"), _name_vectors("baskets")
    ('work/vectors', 'baskets-vectors')
    """
    path = Path(matrix)
    return str(path.with_name("vectors" if path.name == "matrix" else f"{path.name}-vectors"))


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("rows", nargs=-1, metavar="[ROW]...")
@matrix_option
@click.option("--for", "source", metavar="FILE", help="counts of new rows, in any format of swivel import")
@side_option("recommend columns for these rows, or rows for these columns")
@table_options
@count_option()
@click.option("--with-seen", is_flag=True, help="also columns that a row has already")
@click.option("--popularity", type=float, help="factor of a column's log sum in the ranking  [default: by table]")
def recommend(
    vectors: str,
    rows: tuple[str, ...],
    matrix: str | None,
    source: str | None,
    side: str,
    count: int,
    with_seen: bool,
    popularity: float | None,
    options: RunOptions,
    **settings: Any,
) -> None:
    """The best columns for rows of a table: products for users, tags for packages; or the best rows for columns.

    Known rows need the matrix, which tells what they have; new rows, or columns, come from a file.

    \b
    swivel recommend work/vectors alice                       with work/matrix beside them
    swivel recommend vectors alice --matrix matrix
    swivel recommend vectors --for new.csv
    swivel recommend work/vectors jam --side columns          who would like jam?
    """
    if source is None:
        refuse_idle_options(lambda name: name in ("format", "fields", "header"), where="without --for")
    # Importing the recommender loads numba, which ends the process without a word if memory is too small.
    check_libraries("recommending")
    from swivel.counts.importers import import_counts
    from swivel.recommender import Recommender

    recommender = Recommender(open_vectors(vectors), matrix, popularity=popularity)
    if side == "columns":
        recommender = recommender.T
    if not rows and source is None:
        raise ConfigError("rows are missing: name some, or pass --for FILE with the counts of new ones")
    if rows and recommender.matrix is None and not with_seen:
        raise ConfigError("known rows need the matrix, to leave out what they have: pass --matrix, or --with-seen")

    answers = {row: recommender.recommend(row, count, exclude_seen=not with_seen) for row in rows}
    if source is not None:
        table = import_counts(source, options=options, **settings)
        if side == "columns":
            flipped, row_labels, column_labels = table.to_scipy().T, table.columns.tokens, table.rows.tokens
            table = import_counts(flipped, row_labels=row_labels, column_labels=column_labels, options=options)
        answers |= recommender.recommend_table(table, count, exclude_seen=not with_seen)

    def draw() -> None:
        for number, (name, found) in enumerate(answers.items()):
            print_result(*([""] if number else []), f"{name}:")
            draw_table(
                ["row" if side == "columns" else "column", "score", "because of"],
                [[each.label, f"{each.score:.2f}", ", ".join(each.because_of)] for each in found],
            )

    show({name: [dataclasses.asdict(each) for each in found] for name, found in answers.items()}, draw)
