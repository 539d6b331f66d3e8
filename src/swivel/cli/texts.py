"""`swivel phrases` and `swivel encode`: phrases of a text, and one vector per line of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from swivel.cli.flags import (
    Command,
    Decimal,
    Integer,
    config_options,
    count_option,
    overwrite_option,
    resource_options,
    threads_option,
)
from swivel.cli.main import cli, open_vectors, output_option, text_arguments, texts_argument
from swivel.cli.render import draw_table, show
from swivel.cli.terminal import print_result
from swivel.config import CorpusConfig
from swivel.errors import ConfigError
from swivel.pipeline.settings import given
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries
from swivel.storage.files import create_file, write_file
from swivel.storage.npy import write_array
from swivel.storage.overlap import check_output_file
from swivel.vectors.text_encoder import SMOOTHING, find_tokenizer

_FIELDS = tuple(field.name for field in dataclasses.fields(CorpusConfig) if field.name != "phrases")


@cli.command(cls=Command)
@texts_argument
@click.option("-o", "--output", metavar="FILE", help="write the phrases, one per line, for --phrases FILE")
@count_option("how many to show", default=20)
@click.option(
    "--score",
    type=click.Choice(["word2vec", "npmi"]),
    default="word2vec",
    show_default=True,
    help="gensim's default score, or normalized PMI",
)
@config_options(CorpusConfig, only=_FIELDS)
@resource_options
def phrases(
    texts: tuple[str, ...], output: str | None, count: int, score: str, options: RunOptions, **settings: Any
) -> None:
    """Words that occur together more often than by chance, such as new_york.

    `swivel run TEXT --phrases word2vec` joins them to one token.
    """
    check_libraries("finding phrases")
    from swivel.corpus import find_texts, local_files
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
    # Before the text is read, which may take long.
    check_output_file(path, [Path(vectors), Path(file)], overwrite=options.overwrite)
    if path.suffix != ".npy":
        raise ConfigError(f"{path}: the array is written as .npy; use this suffix")

    model = open_vectors(vectors)
    config = dataclasses.replace(find_tokenizer(model), **given(encoding=encoding, errors=errors))
    encoded = model.encode(
        read_lines(file, config),
        smoothing=smoothing,
        components=components,
        guess=not no_guess,
        normalize=normalize,
        threads=options.thread_count,
    )
    # Usually the vectors are of another language, or lower-cased and the text is not.
    if len(encoded) and not encoded.any():
        options.progress.message(f"warning: no word of {file} is in the vocabulary, so all vectors are zero")
    with create_file(path) as stream:
        write_array(stream, encoded)

    texts, dim = encoded.shape
    show({"file": output, "texts": texts, "dim": dim}, lambda: print_result(f"{output}: {texts:,} x {dim}"))
