"""The main commands, and how errors are printed. Flags are made from the configurations (`cli/options.py`)."""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel._version import __version__
from swivel.cli.exit import say_goodbye
from swivel.cli.options import (
    Command,
    cluster_options,
    config_options,
    output_options,
    ray_option,
    resource_options,
    watching_options,
)
from swivel.cli.render import draw_demo, draw_evaluation, draw_facts, draw_neighbours, name_program, next_command, show
from swivel.config import RECIPES, STAGES, CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig
from swivel.errors import ConfigError, MissingExtra, SwivelError, clear_errors
from swivel.runtime.options import ClusterConfig, RunOptions
from swivel.runtime.signals import leave_in_time

if TYPE_CHECKING:
    from swivel.runtime.progress import Progress
    from swivel.vectors import Vectors

RECIPE_HELP = "named settings: paper (as published), fast (the quick one), default (the best vectors known)"


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="swivel")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
def cli(traceback: bool) -> None:
    """Swivel: text, or any table of co-occurrence counts, in; vectors out.

    Try `swivel demo` first.
    """


def text_arguments(texts: tuple[str, ...]) -> Any:
    """Return the texts as `swivel.count` takes them: a single path, or the files of several paths in order."""
    if len(texts) == 1:
        return texts[0]
    from swivel.corpus import list_files

    return [file for text in texts for file in list_files(text)]


def read_tokens(file: str | None) -> list[str] | None:
    """Return the tokens of a vocabulary file: the first tab-separated field of each line, escaped as in `rows.txt`."""
    from swivel.corpus.vocabulary import unescape

    if file is None:
        return None
    try:
        with clear_errors(file, ConfigError):
            lines = Path(file).read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not valid UTF-8") from error
    tokens = [unescape(line.removesuffix("\r").split("\t")[0]) for line in lines]
    while tokens and not tokens[-1]:
        tokens.pop()
    return tokens


init_option = click.option(
    "--init", metavar="VECTORS", help="start from these vectors; words that they do not have are added"
)
vocabulary_option = click.option("--vocabulary", metavar="FILE", help="vocabulary file, one token per line")
recipe_option = click.option(
    "--recipe", type=click.Choice(list(RECIPES)), default="default", show_default=True, help=RECIPE_HELP
)


@cli.command(cls=Command, short_help="Text to vectors: count and train.")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the matrix and the vectors")
@recipe_option
@vocabulary_option
@init_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig, TrainConfig, VectorsConfig)
@cluster_options
@resource_options
@watching_options
@output_options
def run(texts: tuple[str, ...], output: str, recipe: str, vocabulary: str | None, **rest: Any) -> None:
    """Count and train: text to vectors. Finished stages are not repeated; run the same command again to resume.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, URLs such as s3://, or - for standard input.
    """
    from swivel.pipeline.run import run as run_pipeline

    options, as_json, settings = take_options(rest)
    vectors = run_pipeline(
        text_arguments(texts), output, recipe=recipe, vocabulary=read_tokens(vocabulary), options=options, **settings
    )
    report_vectors(vectors, Path(output) / "vectors", options, as_json)


@cli.command(cls=Command, short_help="Text to a matrix of counts.")
@click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the matrix")
@recipe_option
@vocabulary_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig)
@ray_option
@resource_options
@output_options
def count(texts: tuple[str, ...], output: str, recipe: str, vocabulary: str | None, **rest: Any) -> None:
    """Text to a matrix of counts.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, URLs such as s3://, or - for standard input.
    """
    from swivel.pipeline.count import count as count_cooccurrences

    options, as_json, settings = take_options(rest)
    matrix = count_cooccurrences(
        text_arguments(texts), output, recipe=recipe, vocabulary=read_tokens(vocabulary), options=options, **settings
    )
    rows, columns = matrix.shape
    data = {"matrix": output, "rows": rows, "columns": columns, "cells": matrix.cell_count, "total": matrix.total}
    show(data, as_json, lambda: click.echo(f"{output}: {rows:,} x {columns:,}, {matrix.cell_count:,} cells observed"))


@cli.command(cls=Command, short_help="A matrix to vectors.")
@click.argument("matrix", metavar="MATRIX")
@click.option("-o", "--output", required=True, metavar="DIR", help="folder for the vectors")
@recipe_option
@init_option
@config_options(TrainConfig, VectorsConfig)
@cluster_options
@resource_options
@watching_options
@output_options
def train(matrix: str, output: str, recipe: str, **rest: Any) -> None:
    """Train vectors for a matrix. If interrupted, run the same command again to resume."""
    from swivel.counts import open_matrix
    from swivel.pipeline.train import train as train_vectors

    options, as_json, settings = take_options(rest)
    vectors = train_vectors(open_matrix(matrix), output, recipe=recipe, options=options, **settings)
    if is_leading():
        report_vectors(vectors, Path(output), options, as_json)


@cli.command(cls=Command, short_help="Try this first: train the bundled English words.")
@click.option("-o", "--output", metavar="DIR", help="keep the matrix and the vectors here")
@resource_options
@watching_options
@output_options
def demo(output: str | None, **rest: Any) -> None:
    """Train the bundled matrix of common English words, and show neighbors and analogies."""
    from swivel.pipeline import demo as sample

    options, as_json, _ = take_options(rest)
    result = sample.run_demo(output, options)
    show(result.to_dict(), as_json, lambda: draw_demo(result))
    keep = f"next: {name_program()} demo -o demo, then {name_program()} explore demo/vectors"
    options.progress.message(next_look(Path(output) / "vectors", "music") if output else keep)


@cli.command(cls=Command, short_help="Word similarity and analogies.")
@click.argument("vectors")
@click.argument("sets", nargs=-1, metavar="[FOLDER_OR_FILE]...")
@click.option("--data", metavar="DIR", help="folder of sets  [default: the paper's eight, fetched into the cache]")
@click.option("--against", multiple=True, metavar="VECTORS", help="compare with these, item by item; may be repeated")
@click.option("--method", type=click.Choice(["3cosadd", "3cosmul"]), default="3cosadd", show_default=True)
@click.option(
    "--unknown",
    type=click.Choice(["wrong", "skip"]),
    default="wrong",
    show_default=True,
    help="questions with an unknown word count as wrong (the paper's rule) or are left out",
)
@click.option(
    "--unknown-pairs",
    type=click.Choice(["skip", "zero", "mean"]),
    default="skip",
    show_default=True,
    help="pairs with an unknown word are left out (the paper's rule), have a cosine of 0, or take the mean vector",
)
@click.option("--top", type=int, metavar="N", help="know only the N commonest words, as questions and as answers")
@click.option("--half", type=click.Choice(["tune", "report"]), help="only this half of every set")
@click.option("--lowercase/--no-lowercase", default=True, show_default=True, help="lower-case the words of the sets")
@click.option("--draws", type=int, default=10_000, show_default=True, help="resamplings behind intervals; 0: none")
@click.option("--sections", is_flag=True, help="show analogies by section, too")
@click.option("--markdown", is_flag=True, help="print tables in Markdown")
@output_options
def evaluate(vectors: str, sets: tuple[str, ...], data: str | None, against: tuple[str, ...], **rest: Any) -> None:
    """Word similarity, analogies and categories: the paper's eight sets, a folder's, or files of your own.

    A set is text: two words and a score a line, four words (and a section) a line, or a word, a tab and its category.
    """
    from swivel import evaluation

    options, as_json, rules = take_options(rest)
    sections, markdown = rules.pop("sections"), rules.pop("markdown")
    places = [*([data] if data else []), *sets] or None
    scored = {
        path: evaluation.evaluate(open_vectors(path), places, progress=options.progress, **rules)
        for path in (vectors, *against)
    }
    report = scored[vectors]
    compared = {path: evaluation.compare_reports(report, scored[path], draws=rules["draws"]) for path in against}
    differences = {path: [each.to_dict() for each in comparisons] for path, comparisons in compared.items()}
    plain = report.to_dict() | ({"against": differences} if against else {})
    show(plain, as_json, lambda: draw_evaluation(report, compared, markdown=markdown, sections=sections))


@cli.command(cls=Command, short_help="The nearest neighbours of words.")
@click.argument("vectors")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@click.option("-n", "--count", default=10, show_default=True, help="how many")
@click.option("--among", type=click.Choice(["rows", "columns"]), default="rows", show_default=True)
@output_options
def nearest(vectors: str, words: tuple[str, ...], count: int, among: str, **rest: Any) -> None:
    """The nearest neighbours of words, or of arithmetic on words.

    \b
    swivel nearest work/vectors tuxedo chigger
    swivel nearest work/vectors "king - man + woman"
    """
    from swivel.vectors import parse_expression

    _, as_json, _ = take_options(rest)
    loaded = open_vectors(vectors)
    answers = {}
    for word in words:
        expression = parse_expression(word) if word not in loaded and " " in word else None
        query, minus = (expression.plus, expression.minus) if expression else (word, ())
        answers[word] = loaded.nearest(query, minus=minus, count=count, among=among)
    data = {word: [neighbour._asdict() for neighbour in found] for word, found in answers.items()}
    show(data, as_json, lambda: draw_neighbours(answers))


@cli.command(cls=Command, short_help="A is to B as C is to what?")
@click.argument("vectors")
@click.argument("a")
@click.argument("b")
@click.argument("c")
@click.option("-n", "--count", default=5, show_default=True, help="how many answers")
@click.option("--method", type=click.Choice(["3cosadd", "3cosmul"]), default="3cosadd", show_default=True)
@output_options
def analogy(vectors: str, a: str, b: str, c: str, count: int, method: str, **rest: Any) -> None:
    """A is to B as C is to ... ?"""
    _, as_json, _ = take_options(rest)
    found = open_vectors(vectors).analogy(a, b, c, count=count, method=method)
    title = f"{a} : {b} = {c} : ?"
    show([answer._asdict() for answer in found], as_json, lambda: draw_neighbours({title: found}))


@cli.command(cls=Command, short_help="What a folder holds, or what this machine offers.")
@click.argument("path", required=False)
@click.option("--verify", is_flag=True, help="read every part and compare its checksum")
@output_options
def info(path: str | None, verify: bool, **rest: Any) -> None:
    """What a folder holds and how it was made; without a folder, what this machine offers."""
    from swivel.pipeline import info as describe

    _, as_json, _ = take_options(rest)
    data = describe.describe_folder(Path(path), verify=verify) if path else describe.describe_machine()
    show(data, as_json, lambda: draw_facts(data))


@cli.command(cls=Command, short_help="Print the shell's completion script.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script: add `eval "$(swivel completion bash)"` to ~/.bashrc."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    maker = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    click.echo(maker(cli, {}, "swivel", "_SWIVEL_COMPLETE").source())


def take_options(rest: dict[str, Any]) -> tuple[RunOptions, bool, dict[str, Any]]:
    """Split the arguments of a command into run options, the --json flag and settings."""
    as_json = rest.pop("json")
    options = RunOptions(
        threads=rest.pop("threads", None),
        memory=rest.pop("memory", None),
        overwrite=rest.pop("overwrite", False),
        ray=rest.pop("ray", None),
        cluster=_take_cluster(rest),
        progress=_choose_progress(quiet=rest.pop("quiet"), tensorboard=rest.pop("tensorboard", None)),
        report=not rest.pop("no_report", True),
    )
    return options, as_json, rest


def _choose_progress(*, quiet: bool, tensorboard: str | None) -> Progress:
    from swivel.cli.progress_bars import BarProgress
    from swivel.runtime.progress import SILENT

    progress = BarProgress() if is_leading() and not quiet else SILENT
    if tensorboard is None or not is_leading():
        return progress
    from swivel.runtime.tensorboard import TensorboardProgress

    return TensorboardProgress(tensorboard, progress)


def is_leading() -> bool:
    """Return whether this process prints; of the ranks that torchrun starts, only the first one does."""
    from swivel.runtime.resources import find_rank

    rank = find_rank()
    return rank is None or rank[0] == 0


def _take_cluster(rest: dict[str, Any]) -> ClusterConfig:
    names = [field.name for field in dataclasses.fields(ClusterConfig) if field.name in rest]
    given = {name: value for name in names if (value := rest.pop(name)) is not None}
    return ClusterConfig(**given)


def open_vectors(path: str) -> Vectors:
    """Load a folder of vectors, the vectors of a run's folder, or another tool's file."""
    from swivel.vectors import formats

    return formats.open_vectors(path)


def next_look(path: Path, word: str) -> str:
    """Return the command that shows vectors: in the browser, or in the terminal if the extra `explore` is missing."""
    from swivel import explorer

    try:
        explorer.check_extra()
    except MissingExtra:
        return next_command("nearest", path, word)
    return next_command("explore", path)


def report_vectors(vectors: Vectors, path: Path, options: RunOptions, as_json: bool) -> None:
    """Print where the vectors are, and a command to try next."""
    data = {"vectors": str(path), "tokens": len(vectors), "dim": vectors.dim}
    show(data, as_json, lambda: click.echo(f"{path}: {len(vectors):,} vectors of {vectors.dim} dimensions"))
    word = vectors.vocabulary[min(len(vectors) - 1, 300)]  # The most frequent words have neighbors of little interest.
    options.progress.message(next_command("nearest", path, word))


def main() -> None:
    """Run the command line. An error is printed as one line, and sets the exit status."""
    if isinstance(sys.stdout, io.TextIOWrapper):  # Print words that the terminal cannot show as escapes.
        sys.stdout.reconfigure(errors="backslashreplace")
    with leave_in_time(say_goodbye):
        try:
            cli.main(standalone_mode=False, prog_name="swivel")
        except (KeyboardInterrupt, click.Abort):
            say_goodbye(signal.SIGINT)
            sys.exit(128 + signal.SIGINT)
        except SystemExit as leave:
            if leave.code == 128 + signal.SIGTERM:
                say_goodbye(signal.SIGTERM)
            raise
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(1)
        except Exception as error:
            sys.exit(_print_error(error))


def _print_error(error: Exception) -> int:
    """Print an error as one line and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, click.ClickException):
        error.show()
        return error.exit_code
    if "--traceback" in sys.argv:
        traceback.print_exception(error)
    if isinstance(error, SwivelError):
        click.echo(f"error: {name_flags(str(error))}", err=True)
        return error.exit_status
    if isinstance(error, MemoryError):
        click.echo("error: not enough memory; pass a smaller --memory, --max-size or --dim", err=True)
        return 1
    line = str(error).strip().split("\n")[0]
    hint = "" if isinstance(error, OSError) else " (unexpected; --traceback shows where)"
    click.echo(f"error: {type(error).__name__}: {line}{hint}", err=True)
    return 1


def name_flags(message: str) -> str:
    """Return a message with the flag in place of the Python argument that it starts with.

    >>> name_flags("min_count must be a positive integer, got 0")
    '--min-count must be a positive integer, got 0'
    """
    configs = (*STAGES.values(), ClusterConfig, RunOptions)
    names = {field.name for config in configs for field in dataclasses.fields(config)}
    name, separator, rest = message.partition(" must be ")
    return f"--{name.replace('_', '-')}{separator}{rest}" if separator and name in names else message
