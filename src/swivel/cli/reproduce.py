"""`swivel reproduce`: the paper's experiment on your text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from swivel.cli.main import cli, output_option
from swivel.cli.options import Command, config_options, resource_options
from swivel.cli.plot import data_option
from swivel.cli.render import draw_table, show
from swivel.config import CorpusConfig, VocabularyConfig
from swivel.errors import ConfigError
from swivel.pipeline import reproduce as experiment
from swivel.runtime.options import RunOptions

SIZES = ("dim", "tokens", "seeds", "seed", "half")


@cli.command(cls=Command)
@click.argument("texts", nargs=-1, required=True, metavar="CORPUS...")
@output_option("folder for everything, report.html included")
@data_option
@click.option(
    "--methods",
    default=",".join(experiment.USUAL),
    show_default=True,
    help="what to compare, the first with the others",
)
@click.option("--vectors", multiple=True, metavar="NAME=FILE", help="other vectors for the table: a folder, or text")
@config_options(experiment.ReproduceConfig, only=SIZES)
@config_options(CorpusConfig, VocabularyConfig)
@resource_options
def reproduce(
    texts: tuple[str, ...],
    output: str,
    data: str | None,
    methods: str,
    vectors: tuple[str, ...],
    options: RunOptions,
    **settings: Any,
) -> None:
    """Count, train and evaluate every method, and write report.html and report.md; run it again to resume.

    CORPUS: files (also .gz .bz2 .xz .zst), folders or globs. Methods: Swivel's recipes (default, paper, fast), sgns and
    cbow (word2vec, by gensim), glove (GloVe's objective, our optimizer). The first is compared with each other one.
    """
    config = experiment.ReproduceConfig(
        methods=tuple(name.strip() for name in methods.split(",")),
        vectors=tuple(map(_named_path, vectors)),
        data=None if data is None else Path(data),
        **{name: settings.pop(name) for name in SIZES},
    )
    results = experiment.reproduce(texts, output, config=config, options=options, **settings)

    header, rows = results.table()
    show(results.to_dict(), lambda: draw_table(header, rows))
    options.progress.message(f"the report: {Path(output) / 'report.html'}")


def _named_path(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not (sign and name and path):
        raise ConfigError(f"--vectors takes NAME=FILE, got {text!r}")
    return name, Path(path)
