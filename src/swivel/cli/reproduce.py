"""`swivel reproduce`, and `swivel plot loss`, `block` and `frequency`: the paper's experiment and figures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel.cli.main import cli, open_vectors, take_options
from swivel.cli.options import Command, config_options, output_options, resource_options
from swivel.cli.render import draw_table, show
from swivel.config import CorpusConfig, VocabularyConfig
from swivel.errors import ConfigError

if TYPE_CHECKING:
    from swivel.vectors import Vectors

output_file = click.option("-o", "--output", required=True, metavar="FILE", help="picture to write: .png or .svg")
data_option = click.option(
    "--data", metavar="DIR", help="folder of test sets  [default: the paper's eight, from the cache]"
)


@cli.group(short_help="Figures of a run and of the paper, PNG or SVG.")
def plot() -> None:
    """Draw a figure of a run (epochs, norms, fit) or of the paper (loss, block, frequency)."""


@plot.command(cls=Command, short_help="The two losses against the prediction.")
@output_file
@output_options
def loss(output: str, **rest: Any) -> None:
    """Plot the loss of a cell against its prediction, for several counts and for an unobserved cell."""
    from swivel.reports import plots

    plots.style.check_format(Path(output))
    plots.save_figure(plots.plot_losses(), output)
    report_figure(output, rest)


@plot.command(cls=Command, short_help="A block before and after interleaving.")
@click.argument("matrix")
@output_file
@output_options
def block(matrix: str, output: str, **rest: Any) -> None:
    """Plot a corner of MATRIX, sorted by frequency, beside one of its interleaved blocks."""
    from swivel.counts import open_matrix
    from swivel.reports import plots

    plots.style.check_format(Path(output))
    plots.save_figure(plots.plot_block(open_matrix(matrix)), output)
    report_figure(output, rest)


@plot.command(cls=Command, short_help="Accuracy of analogies against frequency.")
@click.argument("vectors", nargs=-1, required=True, metavar="VECTORS...")
@output_file
@data_option
@click.option("--differences", is_flag=True, help="draw the first minus each other one, bucket by bucket")
@output_options
def frequency(vectors: tuple[str, ...], output: str, data: str | None, differences: bool, **rest: Any) -> None:
    """Plot the accuracy of analogies against the mean frequency of their words, one curve per VECTORS or NAME=VECTORS.

    VECTORS: folders, or text files of other tools. Frequencies are the counts of the first folder's vocabulary.
    """
    from swivel import evaluation
    from swivel.reports import plots
    from swivel.reports.plots.frequency_buckets import make_curves

    options, as_json, _ = take_options(rest)
    plots.style.check_format(Path(output))
    if differences and len(vectors) < 2:
        raise ConfigError("--differences compares the first VECTORS with others: name two or more")
    loaded = _open_named(vectors)
    counts = next((each.vocabulary for each in loaded.values() if each.vocabulary.counts.any()), None)
    if counts is None:
        raise ConfigError("text files do not say how frequent words are: name a folder of Swivel's, too")
    answers = {}
    for name, each in loaded.items():
        found = evaluation.evaluate(each, data, draws=0, progress=options.progress)
        answers[name] = [result for result in found.results if isinstance(result, evaluation.AnalogyResult)]
    curves, gaps = make_curves(answers, counts)
    figure = plots.plot_differences(gaps, next(iter(loaded))) if differences else plots.plot_frequency(curves)
    plots.save_figure(figure, output)
    show({"figure": output}, as_json, lambda: click.echo(output))


def _open_named(texts: tuple[str, ...]) -> dict[str, Vectors]:
    """Return vectors by name, each given as PATH or NAME=PATH; names must differ."""
    named = [split_name(text) for text in texts]
    names = [name for name, _ in named]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"several VECTORS are called {name!r}: give each a name of its own, as NAME=VECTORS")
    return {name: open_vectors(path) for name, path in named}


def split_name(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; the name of a path alone is its last part, or the name of its run.

    >>> split_name("ours=work/vectors"), split_name("work/vectors"), split_name("glove.txt")
    (('ours', 'work/vectors'), ('work', 'work/vectors'), ('glove', 'glove.txt'))
    """
    name, sign, path = text.partition("=")
    if sign and name and "/" not in name:
        return name, path
    place = Path(text)
    return (place.parent.name or place.stem) if place.name == "vectors" else place.stem, text


def report_figure(output: str, rest: dict[str, Any]) -> None:
    """Print which picture was written."""
    _, as_json, _ = take_options(rest)
    show({"figure": output}, as_json, lambda: click.echo(output))


@cli.command(cls=Command, short_help="The paper's experiment on your text; resumes.")
@click.argument("texts", nargs=-1, required=True, metavar="CORPUS...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for everything, report.html included")
@data_option
@click.option(
    "--methods",
    default="default,paper,sgns,cbow,glove",
    show_default=True,
    help="what to compare, the first with the others",
)
@click.option("--vectors", multiple=True, metavar="NAME=FILE", help="other vectors for the table: a folder, or text")
@click.option("--dim", type=int, default=300, show_default=True, help="dimensions of a vector, of every method")
@click.option("--tokens", type=int, help="take only the first so many tokens, in whole lines")
@click.option("--seeds", type=int, default=1, show_default=True, help="train Swivel's recipes with so many seeds")
@click.option("--seed", type=int, default=1, show_default=True, help="the first seed")
@click.option("--half", type=click.Choice(["tune", "report"]), help="ask only one half of every test set")
@config_options(CorpusConfig, VocabularyConfig)
@resource_options
@output_options
def reproduce(texts: tuple[str, ...], output: str, methods: str, vectors: tuple[str, ...], **rest: Any) -> None:
    """Count, train and evaluate every method, and write report.html and report.md; run it again to resume.

    CORPUS: files (also .gz .bz2 .xz .zst), folders or globs. Methods: Swivel's recipes (default, paper, fast), sgns and
    cbow (word2vec, by gensim), glove (GloVe's objective, our optimizer). The first is compared with each other one.
    """
    from swivel.pipeline import reproduce as room

    options, as_json, settings = take_options(rest)
    data = settings.pop("data")
    config = room.ReproduceConfig(
        methods=tuple(name.strip() for name in methods.split(",")),
        vectors=tuple(map(_named_path, vectors)),
        data=None if data is None else Path(data),
        **{name: settings.pop(name) for name in ("dim", "tokens", "seeds", "seed", "half")},
    )
    results = room.reproduce(texts, output, config=config, options=options, **settings)
    header, rows = results.table()
    show(results.to_dict(), as_json, lambda: draw_table(header, rows))
    options.progress.message(f"the report: {Path(output) / 'report.html'}")


def _named_path(text: str) -> tuple[str, Path]:
    name, sign, path = text.partition("=")
    if not (sign and name and path):
        raise ConfigError(f"--vectors takes NAME=FILE, got {text!r}")
    return name, Path(path)
