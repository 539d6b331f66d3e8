"""`swivel encode`: one vector per line of a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import click

from swivel.cli.main import cli, open_vectors, output_option
from swivel.cli.options import Command, Decimal, Integer, overwrite_option, threads_option
from swivel.cli.render import show
from swivel.cli.terminal import print_result
from swivel.errors import ConfigError
from swivel.pipeline.settings import given
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.storage import create_file
from swivel.storage.npy import write_array
from swivel.storage.overlap import check_output_file
from swivel.vectors.text_encoder import SMOOTHING, find_tokenizer


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("file")
@output_option("file for the array, one row per line of the text", metavar="OUT.npy")
@click.option(
    "--smoothing",
    type=Decimal(),
    default=SMOOTHING,
    show_default=True,
    help="a in a / (a + p), the weight of a word with the share p of all tokens; inf: equal weights",
)
@click.option(
    "--components", type=Integer(), default=1, show_default=True, help="common components of all texts to remove"
)
@click.option("--no-guess", is_flag=True, help="leave unknown words out instead of guessing them from their spelling")
@click.option("--normalize", is_flag=True, help="scale every vector to length 1")
@click.option("--encoding", help="encoding of the text  [default: as in the training]")
@click.option(
    "--errors",
    type=click.Choice(["strict", "replace"]),
    help="what to do with bytes that are invalid in the encoding  [default: as in the training]",
)
@threads_option
@overwrite_option
def encode(
    vectors: str,
    file: str,
    output: str,
    smoothing: float,
    components: int,
    no_guess: bool,
    normalize: bool,
    encoding: str | None,
    errors: str | None,
    options: RunOptions,
) -> None:
    """Write one vector per line of FILE: a weighted mean of its words' vectors.

    FILE: a text (also .gz .bz2 .xz .zst), or - for standard input; a line is a text.

    \b
    swivel encode work/vectors reviews.txt -o reviews.npy
    """
    check_libraries("encoding")
    from swivel.corpus.text_lines import read_lines

    path = Path(output)
    check_output_file(path, [Path(vectors), Path(file)], overwrite=options.overwrite)
    if path.suffix != ".npy":
        raise ConfigError(f"{path}: the array is written as .npy; use this suffix")

    opened = open_vectors(vectors)
    config = dataclasses.replace(find_tokenizer(opened), **given(encoding=encoding, errors=errors))
    encoded = opened.encode(
        read_lines(file, config),
        smoothing=smoothing,
        components=components,
        guess=not no_guess,
        normalize=normalize,
        threads=options.thread_count,
    )
    if len(encoded) and not encoded.any():
        options.progress.message(f"warning: no word of {file} is in the vocabulary, so all vectors are zero")
    with create_file(path) as stream:
        write_array(stream, encoded)

    texts, dim = encoded.shape
    show({"file": output, "texts": texts, "dim": dim}, lambda: print_result(f"{output}: {texts:,} x {dim}"))
