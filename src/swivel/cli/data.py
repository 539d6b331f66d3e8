"""`swivel import` and `swivel add`: matrices from counts of other tools, and sums of matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

import click

from swivel.cli.main import cli, take_options
from swivel.cli.options import Command, Function, output_options, resource_options
from swivel.cli.render import show
from swivel.counts.importers.config import ImportConfig


def import_options(function: Function) -> Function:
    """Add a flag for every field of ImportConfig."""
    for field in reversed(dataclasses.fields(ImportConfig)):
        function = _field_option(field)(function)
    return function


def _field_option(field: dataclasses.Field[Any]) -> Callable[[Function], Function]:
    hint = get_type_hints(ImportConfig)[field.name]
    kind = next((part for part in get_args(hint) if part is not type(None)), hint)
    flag, text, default = "--" + field.name.replace("_", "-"), str(field.metadata["help"]), field.default
    if kind is bool:
        return click.option(flag, is_flag=True, default=default, help=text)
    choices = field.metadata["choices"]
    shown = default is not None
    return click.option(
        flag, type=click.Choice(choices) if choices else kind, default=default, show_default=shown, help=text
    )


@cli.command("import", cls=Command, short_help="Counts of other tools to a matrix.")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the matrix")
@import_options
@click.option("--row-labels", metavar="FILE", help="what the rows of a matrix are called, one a line")
@click.option("--column-labels", metavar="FILE", help="what the columns of a matrix are called, one a line")
@resource_options
@output_options
def import_(sources: tuple[str, ...], output: str, **rest: Any) -> None:
    """Convert counts of another tool to a matrix.

    SOURCE: triples in .tsv or .csv (also .gz .bz2 .xz .zst; - for standard input), .parquet, .arrow or .feather;
    scipy's .npz, .mtx; .edges, .baskets; GloVe's .bin with its vocab.txt; a folder of the 2017 TensorFlow Swivel.

    \b
    swivel import visits.tsv -o matrix
    swivel import log.parquet --fields user,page,visits -o matrix
    swivel import graph.txt --format edges -o matrix
    swivel import baskets.csv --format baskets -o matrix
    """
    from swivel.counts.importers import import_counts

    options, as_json, settings = take_options(rest)
    matrix = import_counts(list(sources), output, options=options, **settings)
    rows, columns = matrix.shape
    data = {"matrix": output, "rows": rows, "columns": columns, "cells": matrix.cell_count, "total": matrix.total}
    show(data, as_json, lambda: click.echo(f"{output}: {rows:,} x {columns:,}, {matrix.cell_count:,} cells observed"))
    options.progress.message(f"next: swivel train {output} -o vectors")


@cli.command(cls=Command, short_help="Add matrices.")
@click.argument("matrices", nargs=-1, required=True, metavar="MATRIX MATRIX...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the sum")
@resource_options
@output_options
def add(matrices: tuple[str, ...], output: str, **rest: Any) -> None:
    """Add matrices: counts of equal labels are summed; vocabularies may differ.

    They have to be counted alike: the same window, weight and columns. With more text than before:

    \b
    swivel count new.txt -o new
    swivel add work/matrix new -o matrix
    swivel train matrix --init work/vectors -o vectors
    """
    from swivel.pipeline.add import add as add_matrices

    options, as_json, _ = take_options(rest)
    matrix = add_matrices(*matrices, out=output, options=options)
    rows, columns = matrix.shape
    data = {"matrix": output, "rows": rows, "columns": columns, "cells": matrix.cell_count, "total": matrix.total}
    show(data, as_json, lambda: click.echo(f"{output}: {rows:,} x {columns:,}, {matrix.cell_count:,} cells observed"))
    options.progress.message(f"next: swivel train {output} --init VECTORS -o vectors")
