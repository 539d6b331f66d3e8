"""The group of all commands, the most used ones, and how errors are printed."""

from __future__ import annotations

import importlib
import signal
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel._version import __version__
from swivel.cli.flags import (
    Command,
    Decorator,
    choice_option,
    cluster_options,
    config_options,
    count_option,
    group_option,
    ray_option,
    resource_options,
    restrict_option,
    side_option,
    translate,
    watching_options,
)
from swivel.cli.terminal import (
    draw_demo,
    draw_facts,
    draw_neighbors,
    next_command,
    print_message,
    print_result,
    say_goodbye,
    show,
)
from swivel.config import RECIPES, TEXT_RECIPES, CorpusConfig, CountConfig, TrainConfig, VectorsConfig, VocabularyConfig
from swivel.errors import IS_TEXT_HINT, SwivelError, first_line
from swivel.runtime.display import escape_controls
from swivel.runtime.options import RunOptions
from swivel.runtime.resources import check_libraries, is_leading
from swivel.runtime.signals import leave_in_time

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.vectors import Vectors

# Module and short help of every command, by the steps of a project. A module is imported when its command is used:
# making the flags of some commands loads NumPy, and `swivel --help` must not wait for it.
SECTIONS = {
    "Make vectors": {
        "demo": ("main", "Try this first: train the bundled English words."),
        "run": ("main", "Text to vectors: count and train."),
        "phrases": ("tables", "Phrases of a text, such as new_york."),
        "count": ("main", "Text to a matrix of counts."),
        "import": ("tables", "Counts of other tools to a matrix."),
        "add": ("tables", "Add matrices."),
        "train": ("main", "A matrix to vectors."),
        "extend": ("main", "Vectors for new words of new text."),
    },
    "Use them": {
        "nearest": ("main", "The nearest neighbors of words."),
        "similar": ("main", "The same, for rows or columns of a table."),
        "analogy": ("main", "A is to B as C is to what?"),
        "recommend": ("tables", "The best columns for rows of a table."),
        "encode": ("vector_tools", "Vectors of texts, one per line."),
        "explore": ("vector_tools", "Vectors in the browser: neighbors, map."),
        "export": ("vector_tools", "Vectors as any tool's file."),
    },
    "Check them": {
        "evaluate": ("evaluate", "Word similarity and analogies; held-out cells."),
        "compare": ("vector_tools", "Which words differ most between two models."),
        "plot": ("evaluate", "A map of words, and figures of a run."),
    },
    "Files and shell": {
        "info": ("main", "What a folder holds, or what this machine offers."),
        "completion": ("main", "Print the shell's completion script."),
    },
}
COMMANDS = {name: entry for commands in SECTIONS.values() for name, entry in commands.items()}


class LazyGroup(click.Group):
    """The group of all commands, which imports the module of a command when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; its module registers it when it is imported."""
        if cmd_name in COMMANDS:
            importlib.import_module(f"swivel.cli.{COMMANDS[cmd_name][0]}")
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the short help of all commands, by the steps of a project."""
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, "-V", "--version", prog_name="swivel")
@click.option("--traceback", is_flag=True, help="Show where an error came from.")
def cli(traceback: bool) -> None:
    """Swivel: text, or any table of co-occurrence counts, in; vectors out.

    Try `swivel demo` first.
    """


def open_vectors(path: str) -> Vectors:
    """Load a folder of vectors, the vectors of a run's folder, or another tool's file."""
    from swivel.vectors import formats

    return formats.load(path)


def text_arguments(texts: tuple[str, ...], output: str | None) -> Any:
    """Return the texts as `swivel.count` takes them."""
    # A single path may be a glob or -; of several, each is listed here, without what the command itself writes.
    if len(texts) == 1:
        return texts[0]
    from swivel.corpus.sources import list_files

    return list_files(texts, outside=output)


def output_option(help: str, metavar: str = "DIR") -> Decorator:
    """Return the option for the folder or file that a command writes."""
    return click.option("-o", "--output", required=True, metavar=metavar, help=help)


texts_argument = click.argument("texts", nargs=-1, required=True, metavar="TEXT...")
init_option = group_option(
    "train",
    "--init",
    "start from these vectors; words that they do not have are added",
    metavar="VECTORS",
    is_common=False,
)
vocabulary_option = group_option(
    "vocabulary",
    "--vocabulary",
    "vocabulary file, one token per line",
    metavar="FILE",
    is_common=False,
    type=click.Path(path_type=Path),
)
RECIPE_HELP = "named settings: paper (as published), fast (the quick one), default (the best vectors known)"
TABLE_HELP = (
    "table (rows and columns of different kinds, or edges), graph (counts of walks and other imported pairs)  "
    "[default: table or graph for such a matrix, otherwise that of the count]"
)
text_recipes = click.Choice(TEXT_RECIPES)
recipe_option = click.option("--recipe", type=text_recipes, default="default", show_default=True, help=RECIPE_HELP)
train_recipe_option = click.option("--recipe", type=click.Choice(list(RECIPES)), help=f"{RECIPE_HELP}, {TABLE_HELP}")


@cli.command(cls=Command)
@texts_argument
@output_option("folder for the matrix and the vectors")
@recipe_option
@vocabulary_option
@init_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig, TrainConfig, VectorsConfig)
@cluster_options
@resource_options
@watching_options
def run(texts: tuple[str, ...], output: str, options: RunOptions, **settings: Any) -> None:
    """Count and train: text to vectors. Finished stages are not repeated; run the same command again to resume.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, URLs such as s3://, or - for standard input.
    """
    from swivel.pipeline.run import run as run_pipeline

    vectors = run_pipeline(text_arguments(texts, output), output, options=options, **settings)
    report_vectors(vectors, Path(output) / "vectors", options)


@cli.command(cls=Command)
@texts_argument
@output_option("folder for the matrix")
@recipe_option
@vocabulary_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig)
@ray_option
@resource_options
def count(texts: tuple[str, ...], output: str, options: RunOptions, **settings: Any) -> None:
    """Text to a matrix of counts.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, URLs such as s3://, or - for standard input.
    """
    from swivel.pipeline.count import count as count_cooccurrences

    matrix = count_cooccurrences(text_arguments(texts, output), output, options=options, **settings)
    report_matrix(matrix, output)


@cli.command(cls=Command)
@click.argument("matrix", metavar="MATRIX")
@output_option("folder for the vectors")
@train_recipe_option
@init_option
@click.option("--tune", is_flag=True, help="of a table: choose weight decay and popularity on held-out cells first")
@config_options(TrainConfig, VectorsConfig)
@cluster_options
@resource_options
@watching_options
def train(matrix: str, output: str, options: RunOptions, **settings: Any) -> None:
    """Train vectors for a matrix. If interrupted, run the same command again to resume."""
    from swivel.counts import open_matrix
    from swivel.pipeline.train import train as train_vectors

    vectors = train_vectors(open_matrix(matrix), output, options=options, **settings)
    # Of the ranks that torchrun starts, one reports.
    if is_leading():
        report_vectors(vectors, Path(output), options, matrix)


@cli.command(cls=Command)
@click.argument("vectors")
@texts_argument
@output_option("folder for the old words and the new")
@vocabulary_option
@config_options(CorpusConfig, VocabularyConfig, CountConfig)
@resource_options
def extend(vectors: str, texts: tuple[str, ...], output: str, options: RunOptions, **settings: Any) -> None:
    """Compute vectors for the words of new text that VECTORS lack, without training; known words keep theirs.

    The text is read and counted as that of the training was: no flag is needed for it, and one that differs is refused.
    --min-count, --max-size and --vocabulary say which of the new words are taken.

    TEXT: files (also .gz .bz2 .xz .zst), folders, globs, or - for standard input.
    """
    check_libraries("extending", needs_torch=True)  # The module of the next line loads some of them.
    from swivel.pipeline.extend import extend as extend_vectors

    extended = extend_vectors(vectors, text_arguments(texts, output), output, options=options, **settings)
    report_vectors(extended, Path(output), options)


@cli.command(cls=Command)
@click.option(
    "-o", "--output", metavar="DIR", default="swivel-demo", show_default=True, help="folder of the matrix and vectors"
)
@resource_options
@watching_options
def demo(output: str, options: RunOptions) -> None:
    """Train the bundled matrix of common English words, and show neighbors and analogies."""
    from swivel.pipeline import demo as sample

    result = sample.run_demo(output, options)
    show(result, lambda: draw_demo(result))
    options.progress.message(next_command("explore", Path(output) / "vectors"))


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("words", nargs=-1, required=True, metavar="WORD...")
@count_option()
@choice_option("--among", ["rows", "columns"], "search the rows (words), or the columns (contexts)")
@side_option("of a table: these are labels of rows, or of columns")
@click.option("--guess", is_flag=True, help="guess the vector of an unknown word from its spelling")
@restrict_option()
def nearest(vectors: str, words: tuple[str, ...], side: str, options: RunOptions, **settings: Any) -> None:
    """The nearest neighbors of words, or of arithmetic on words; the similar rows or columns of a table.

    \b
    swivel nearest work/vectors music king
    swivel nearest work/vectors "king - man + woman"
    swivel similar work/vectors alice
    swivel similar work/vectors jam --side columns
    """
    model = open_vectors(vectors)
    if side == "columns":
        model = model.T
    answers = {word: model.nearest(word, **settings) for word in words}
    is_guessed = settings["guess"]
    guesses = {word: model.guess(word) for word in words if is_guessed and word not in model and " " not in word}

    data: dict[str, Any] = {word: [each._asdict() for each in neighbors] for word, neighbors in answers.items()}
    for word, guessed in guesses.items():
        data[word] = {"guessed": True, "expected_cosine": guessed.expected_cosine, "nearest": data[word]}
    show(data, lambda: draw_neighbors(answers, guesses))


cli.add_command(nearest, "similar")


@cli.command(cls=Command)
@click.argument("vectors")
@click.argument("a")
@click.argument("b")
@click.argument("c")
@count_option("how many answers", default=5)
@choice_option("--method", ["3cosadd", "3cosmul"], "rank answers by the sum of the three cosines, or by their product")
@restrict_option()
def analogy(vectors: str, a: str, b: str, c: str, options: RunOptions, **settings: Any) -> None:
    """A is to B as C is to ... ?"""
    answers = open_vectors(vectors).analogy(a, b, c, **settings)
    show([answer._asdict() for answer in answers], lambda: draw_neighbors({f"{a} : {b} = {c} : ?": answers}))


@cli.command(cls=Command)
@click.argument("path", required=False)
@click.option("--verify", is_flag=True, help="read every part and compare its checksum")
@click.option("--verbose", is_flag=True, help="show the hashes of inputs and parts, and all inputs")
def info(path: str | None, verify: bool, verbose: bool, options: RunOptions) -> None:
    """What a folder holds, how it was made and how far it is; without a folder, what this machine offers."""
    from swivel.pipeline import info as describe

    if path:
        data = describe.describe_folder(Path(path), verify=verify, verbose=verbose)
    else:
        data = describe.describe_machine()
    show(data, lambda: draw_facts(data))


@cli.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the shell's completion script: add `eval "$(swivel completion bash)"` to ~/.bashrc."""
    from click.shell_completion import BashComplete, FishComplete, ZshComplete

    maker = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}[shell]
    click.echo(maker(cli, {}, "swivel", "_SWIVEL_COMPLETE").source())


def report_matrix(matrix: Matrix, path: str) -> None:
    """Print where a matrix is, and its size."""
    rows, columns = matrix.shape
    data: dict[str, Any] = {
        "matrix": path,
        "rows": rows,
        "columns": columns,
        "cells": matrix.cell_count,
        "total": matrix.total,
    }
    text = f"{path}: {rows:,} x {columns:,}, {matrix.cell_count:,} cells observed"
    if matrix.suppressed_below is not None:
        data["suppressed_below"] = matrix.suppressed_below
        text += f", the others have at most {matrix.absent_bound:g}"
    show(data, lambda: print_result(text))


def report_vectors(vectors: Vectors, path: Path, options: RunOptions, matrix: str | None = None) -> None:
    """Print where the vectors are, and a command to try next; recommendations need the path of the matrix."""
    data = {"vectors": str(path), "tokens": len(vectors), "dim": vectors.dim}
    show(data, lambda: print_result(f"{path}: {len(vectors):,} vectors of {vectors.dim} dimensions"))
    word = vectors.vocabulary[min(len(vectors) - 1, 300)]  # The most frequent words have neighbors of little interest.
    if matrix and "ranking" in vectors.settings:  # a table of two kinds of things
        options.progress.message(next_command("recommend", path, word, "--matrix", matrix))
    else:
        options.progress.message(next_command("nearest", path, word))


def main() -> None:
    """Run the command line. An error is printed as one line, and sets the exit status."""
    with leave_in_time(say_goodbye):
        try:
            cli.main(standalone_mode=False, prog_name="swivel")
        # An interrupted command is no error: it has a status of its own, and a line that says what was saved.
        except (KeyboardInterrupt, click.Abort):
            say_goodbye(signal.SIGINT)
            sys.exit(128 + signal.SIGINT)
        except SystemExit as leave:
            if leave.code == 128 + signal.SIGTERM:
                say_goodbye(signal.SIGTERM)
            raise
        # The reader of the output, such as `head`, has ended: no one would read a message.
        except BrokenPipeError:
            sys.exit(1)
        except Exception as error:
            sys.exit(_print_error(error))


def _print_error(error: Exception) -> int:
    """Print an error as one line and return the exit status."""
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    # A command without its arguments prints its help.
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return error.exit_code
    if isinstance(error, click.ClickException):
        print_message(f"error: {_describe_usage(error)}")
        return error.exit_code

    if "--traceback" in sys.argv:
        traceback.print_exception(error)
    print_message(f"error: {_describe_error(error)}")
    return error.exit_status if isinstance(error, SwivelError) else 1


def _describe_usage(error: click.ClickException) -> str:
    """Return click's message as one line in our words, and where the right options are listed."""
    message = error.format_message()
    if isinstance(error, click.MissingParameter):  # The lines are click's own; other messages repeat what was typed.
        message = " ".join(message.split())

    message = escape_controls(message[:1].lower() + message[1:])
    if isinstance(error, click.UsageError) and error.ctx is not None:
        message += f" See `{error.ctx.command_path} --help`."
    return message


def _describe_error(error: Exception) -> str:
    match error:
        case SwivelError():
            # The texts of the command line are always paths.
            return translate(str(error).removesuffix(IS_TEXT_HINT), error.arguments)
        case MemoryError():
            return "not enough memory; pass a smaller --memory, --max-size or --dim"
        case RuntimeError() if "can't start new thread" in str(error):
            return "no thread can be started; raise the limit on processes (ulimit -u, pids.max)"
        case FileNotFoundError(filename=str(file)):
            return f"{file}: no such file or folder"
        case OSError(filename=str(file), strerror=str(reason)):
            return f"{file}: {reason}"
        case OSError(strerror=str(reason)):
            return reason

    return f"{first_line(error)} (unexpected; --traceback shows where)"
