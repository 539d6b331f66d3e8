"""`swivel export`: vectors in the formats of other tools."""

from __future__ import annotations

from typing import Any

import click

from swivel.cli.main import cli, open_vectors, take_options
from swivel.cli.options import Command, output_options
from swivel.cli.render import show

# Repeated here because importing `swivel.vectors.formats` loads NumPy; a test checks that they are equal.
FORMAT_NAMES = (
    "word2vec",
    "word2vec-text",
    "fasttext",
    "glove",
    "gensim",
    "npy",
    "npz",
    "safetensors",
    "parquet",
    "arrow",
    "projector",
    "sentence-transformers",
    "model2vec",
    "swivel",
)

_SIDE_HELP = "the vectors, or the trained columns by their own labels, as the tags of a table of packages and tags"


@cli.command(cls=Command, short_help="Vectors as any tool's file.")
@click.argument("vectors")
@click.argument("file")
@click.option("--format", type=click.Choice(FORMAT_NAMES), help="what to write  [default: what FILE's name ends in]")
@click.option("--side", type=click.Choice(["rows", "columns"]), default="rows", show_default=True, help=_SIDE_HELP)
@output_options
def export(vectors: str, file: str, format: str | None, side: str, **rest: Any) -> None:
    """Write vectors in another tool's format, or convert another tool's file to a folder of vectors.

    \b
    swivel export work/vectors vectors.bin                          word2vec, gensim
    swivel export work/vectors vectors.txt                          word2vec's text; also .vec, .npy, .npz,
                                                                    .safetensors, .parquet, .arrow
    swivel export work/vectors tags.vec --side columns              what a table's columns are
    swivel export work/vectors static --format sentence-transformers
    swivel export glove.6B.300d.txt glove --format swivel           opens at once afterwards
    """
    from swivel.vectors import formats

    _, as_json, _ = take_options(rest)
    loaded = open_vectors(vectors)
    if side == "columns":
        loaded = formats.take_columns(loaded)
    formats.export(loaded, file, format=format)
    data = {"file": file, "tokens": len(loaded), "dim": loaded.dim}
    show(data, as_json, lambda: click.echo(f"{file}: {len(loaded):,} vectors of {loaded.dim} dimensions"))
