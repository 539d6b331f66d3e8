"""`swivel export`: vectors in the formats of other tools."""

from __future__ import annotations

import click

from swivel.cli.main import cli, open_vectors
from swivel.cli.options import Command, overwrite_option
from swivel.cli.render import show
from swivel.cli.terminal import print_result
from swivel.errors import ConfigError
from swivel.runtime.options import RunOptions
from swivel.vectors import formats
from swivel.vectors.formats.registry import FORMATS

_SIDE_HELP = "the vectors, or the trained columns by their own labels, as the tags of a table of packages and tags"


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("file")
@click.option("--format", type=click.Choice(list(FORMATS)), help="what to write  [default: what FILE's name ends in]")
@click.option("--side", type=click.Choice(["rows", "columns"]), default="rows", show_default=True, help=_SIDE_HELP)
@click.option("--with-zeros", is_flag=True, help="also write words without co-occurrences, whose vectors are zero")
@overwrite_option
def export(vectors: str, file: str, format: str | None, side: str, with_zeros: bool, options: RunOptions) -> None:
    """Write vectors in another tool's format, or convert another tool's file to a folder of vectors.

    \b
    swivel export work/vectors vectors.bin                          word2vec, gensim
    swivel export work/vectors vectors.kv                           gensim's KeyedVectors.load
    swivel export work/vectors vectors.txt                          word2vec's text; also .vec, .npy, .npz,
                                                                    .safetensors, .parquet, .arrow
    swivel export work/vectors model.bin --format fasttext-bin      words and n-grams, for fastText and gensim
    swivel export work/vectors tags.vec --side columns              what a table's columns are
    swivel export work/vectors static --format sentence-transformers
    swivel export glove.6B.300d.txt glove --format swivel           opens at once afterwards
    """
    if file == "-":
        raise ConfigError("vectors are written to a file, not to standard output; pass the name of a file")
    loaded = open_vectors(vectors)
    count = formats.export(loaded, file, format=format, side=side, overwrite=options.overwrite, with_zeros=with_zeros)

    data = {"file": file, "tokens": count, "dim": loaded.dim}
    show(data, lambda: print_result(f"{file}: {count:,} vectors of {loaded.dim} dimensions"))
