"""`swivel reproduce`: the paper's experiment on your text, or methods compared on your table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from swivel.cli.main import cli, output_option
from swivel.cli.options import Command, config_options, refuse_idle_options, resource_options
from swivel.cli.plot import data_option
from swivel.cli.recommend import table_options
from swivel.cli.render import draw_table, show
from swivel.config import CorpusConfig, VocabularyConfig
from swivel.errors import ConfigError
from swivel.pipeline import reproduce as experiment
from swivel.runtime.options import RunOptions

SIZES = ("dim", "tokens", "seeds", "seed", "half")
ONLY_WITH_TABLES = {"table", "fields", "header"}
USED_WITH_TABLES = {*ONLY_WITH_TABLES, "output", "methods", "dim", "threads", "memory", "overwrite"}


@cli.command(cls=Command)
@click.argument("texts", nargs=-1, metavar="[CORPUS]...")
@output_option("folder for everything, report.html included")
@data_option
@click.option(
    "--methods",
    help="what to compare, the first with the others  "
    f"[default: {','.join(experiment.USUAL)}; of a table: {','.join(experiment.TABLE_METHODS)}]",
)
@click.option("--table", metavar="TABLE", help="instead of a corpus: a table, of any format of import, or a matrix")
@table_options
@click.option("--vectors", multiple=True, metavar="NAME=FILE", help="other vectors for the table: a folder, or text")
@config_options(experiment.ReproduceConfig, only=SIZES)
@config_options(CorpusConfig, VocabularyConfig)
@resource_options
def reproduce(
    texts: tuple[str, ...],
    output: str,
    data: str | None,
    methods: str | None,
    table: str | None,
    vectors: tuple[str, ...],
    fields: str | None,
    header: bool,
    options: RunOptions,
    **settings: Any,
) -> None:
    """Count, train and evaluate every method, and write report.html and report.md; run it again to resume.

    CORPUS: files (also .gz .bz2 .xz .zst), folders or globs. Methods: Swivel's recipes (default, paper, fast), sgns and
    cbow (word2vec, by gensim), glove (GloVe's objective, our optimizer). The first is compared with each other one.

    With --table instead: held-out cells of a table, ranked by Swivel, ALS (if the package implicit is installed), SVD
    of PPMI, EASE, item2vec (gensim) and popularity on the same split; --dim is 64 by default.
    """
    is_table = table is not None
    refuse_idle_options(
        lambda name: name not in USED_WITH_TABLES if is_table else name in ONLY_WITH_TABLES,
        where="with --table" if is_table else "without --table",
    )
    names = None if methods is None else tuple(name.strip() for name in methods.split(","))
    if table is not None:
        _reproduce_table(table, output, names, options, fields=fields, header=header, dim=settings["dim"])
        return
    if not texts:
        raise ConfigError("there is nothing to compare methods on: name files of text, or pass table=FILE")

    config = experiment.ReproduceConfig(
        methods=experiment.USUAL if names is None else names,
        vectors=tuple(map(_named_path, vectors)),
        data=None if data is None else Path(data),
        **{name: settings.pop(name) for name in SIZES},
    )
    results = experiment.reproduce(texts, output, config=config, options=options, **settings)

    titles, rows = results.table()
    show(results.to_dict(), lambda: draw_table(titles, rows))
    options.progress.message(f"the report: {Path(output) / 'report.html'}")


def _reproduce_table(
    table: str, output: str, methods: tuple[str, ...] | None, options: RunOptions, *, dim: int, **settings: Any
) -> None:
    is_given = click.get_current_context().get_parameter_source("dim") is ParameterSource.COMMANDLINE
    results = experiment.reproduce_table(
        table,
        output,
        methods=tuple(experiment.TABLE_METHODS) if methods is None else methods,
        dim=dim if is_given else experiment.TABLE_DIM,
        options=options,
        **settings,
    )

    header, rows = results.rows()
    show(results.to_dict(), lambda: draw_table(header, rows))
    options.progress.message(f"the report: {Path(output) / 'report.html'}")


def _named_path(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not (sign and name and path):
        raise ConfigError(f"--vectors takes NAME=FILE, got {text!r}")
    return name, Path(path)
