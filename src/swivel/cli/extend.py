"""`swivel extend`: vectors for new words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swivel.cli.main import cli, read_tokens, report_vectors, take_options, text_arguments, vocabulary_option
from swivel.cli.options import Command, config_options, output_options, resource_options
from swivel.config import CorpusConfig, CountConfig, VocabularyConfig


@cli.command(cls=Command, short_help="Vectors for new words of new text.")
@click.argument("vectors")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the old words and the new")
@vocabulary_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig)
@resource_options
@output_options
def extend(vectors: str, texts: tuple[str, ...], output: str, vocabulary: str | None, **rest: Any) -> None:
    """Compute vectors for the words of new text that VECTORS lack, without training; known words keep theirs.

    The text is read and counted as that of the training was: no flag is needed for it, and one that differs is refused
    (older folders do not say how they were counted; they take flags). --min-count, --max-size and --vocabulary say
    which of the new words are taken.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, or - for standard input.
    """
    from swivel.pipeline import extend as extending

    options, as_json, settings = take_options(rest)
    extended = extending.extend(
        vectors, text_arguments(texts), output, vocabulary=read_tokens(vocabulary), options=options, **settings
    )
    report_vectors(extended, Path(output), options, as_json)
