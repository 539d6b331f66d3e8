"""`swivel phrases`: the phrases of a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from swivel.cli.main import cli, text_arguments, texts_argument
from swivel.cli.options import Command, config_options, count_option, resource_options
from swivel.cli.render import draw_table, show
from swivel.config import CorpusConfig
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.storage import write_file
from swivel.storage.overlap import check_output_file

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
    from swivel.pipeline.phrases import find_phrases
    from swivel.vectors.search import check_count

    check_count(count)
    files = find_texts(text_arguments(texts, output))
    if output:
        check_output_file(Path(output), local_files(files), overwrite=options.overwrite)

    found = find_phrases(files, options=options, phrases=score, **settings)
    if output:
        write_file(Path(output), "".join(f"{phrase.token}\n" for phrase in found).encode())

    rows = [(phrase.token, f"{phrase.occurrences:,}", f"{phrase.score:.4g}") for phrase in found[:count]]
    data = [phrase._asdict() for phrase in found]
    show(data, lambda: draw_table((f"phrase (of {len(found):,})", "count", "score"), rows))
