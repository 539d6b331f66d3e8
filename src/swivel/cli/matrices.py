"""`swivel import` and `swivel add`: matrices from counts of other tools, and sums of matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swivel.cli.main import cli, output_option, report_matrix
from swivel.cli.options import Command, config_options, resource_options
from swivel.cli.render import next_command
from swivel.counts.importers.import_config import ImportConfig
from swivel.runtime.options import RunOptions


@cli.command("import", cls=Command)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@output_option("folder for the matrix")
@config_options(ImportConfig)
@click.option("--row-labels", metavar="FILE", help="what the rows of a matrix are called, one a line")
@click.option("--column-labels", metavar="FILE", help="what the columns of a matrix are called, one a line")
@resource_options
def import_(sources: tuple[str, ...], output: str, options: RunOptions, **settings: Any) -> None:
    """Convert counts of another tool to a matrix.

    SOURCE: triples in .tsv or .csv (also .gz .bz2 .xz .zst; - for standard input), .parquet, .arrow or .feather;
    scipy's .npz, .mtx; .edges, .baskets; GloVe's .bin with its vocab.txt.

    \b
    swivel import visits.tsv -o matrix
    swivel import log.parquet --fields user,page,visits -o matrix
    swivel import graph.txt --format edges -o matrix
    swivel import baskets.csv --format baskets -o matrix
    """
    from swivel.counts.importers import import_counts

    report_matrix(import_counts(list(sources), output, options=options, **settings), output)
    options.progress.message(next_command("train", Path(output), "-o", "vectors"))


@cli.command(cls=Command)
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX MATRIX...")
@output_option("folder for the sum")
@resource_options
def add(matrices: tuple[str, ...], output: str, options: RunOptions) -> None:
    """Add matrices: counts of equal labels are summed; vocabularies may differ.

    They have to be counted alike: the same window, weight and columns. With more text than before:

    \b
    swivel count new.txt -o new
    swivel add work/matrix new -o matrix
    swivel train matrix --init work/vectors -o vectors
    """
    from swivel.pipeline.add import add as add_matrices

    report_matrix(add_matrices(*matrices, out=output, options=options), output)
    options.progress.message(next_command("train", Path(output), "--init", "VECTORS", "-o", "vectors"))
