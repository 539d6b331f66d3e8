"""`swivel plot`: a map of words, the losses of a run, and accuracy by frequency."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from swivel import evaluation
from swivel.cli.flags import Command, Integer, overwrite_option
from swivel.cli.main import cli, open_vectors, output_option
from swivel.cli.render import show
from swivel.cli.terminal import print_result
from swivel.errors import ConfigError, StorageError
from swivel.explorer.word_map import LAYOUTS, check_map_format, make_map
from swivel.reports import plots
from swivel.runtime.estimates import check_libraries
from swivel.runtime.options import RunOptions
from swivel.storage.overlap import check_output_file, refuse_overlap
from swivel.vectors import Vectors
from swivel.vectors.formats import find_vectors

output_file = output_option("picture to write: .png, .svg or .pdf", metavar="FILE")


@cli.group()
def plot() -> None:
    """Draw a map of words, the losses of a run (epochs), or the accuracy by frequency."""


def draw(output: str, vectors: Iterable[str], make: Callable[[], Any], *others: str | None) -> None:
    """Write the figure that `make` returns; the file name is checked before anything is computed."""
    # A wrong suffix is reported before minutes of evaluation.
    plots.style.check_format(Path(output))
    inputs = itertools.chain(map(find_vectors, vectors), (Path(other) for other in others if other))
    refuse_overlap([Path(output)], inputs)
    plots.save_figure(make(), output)
    show({"figure": output}, lambda: print_result(output))


@plot.command("map", cls=Command, short_help="A map of words, also as one HTML file to share.")
@click.argument("vectors")
@output_option("file to write: .png, .svg, .pdf, or .html, which can be searched and zoomed", metavar="FILE")
@click.option("--words", type=Integer(), default=10_000, show_default=True, help="how many of the most common words")
@click.option(
    "--layout", type=click.Choice(LAYOUTS), default="umap", show_default=True, help="UMAP, or principal components"
)
@overwrite_option
def map_command(vectors: str, output: str, words: int, layout: str, options: RunOptions) -> None:
    """Draw a map of VECTORS, a folder or a file of another tool, in which similar words are near each other."""
    check_map_format(Path(output))
    check_output_file(Path(output), [find_vectors(vectors)], overwrite=options.overwrite)
    check_libraries("drawing a map")
    title = f"Map of {split_name(vectors)[0]}"
    make_map(open_vectors(vectors), words=words, layout=layout, title=title, progress=options.progress).save(output)
    show({"figure": output}, lambda: print_result(output))


@plot.command(cls=Command, short_help="A run's losses, epoch by epoch.")
@click.argument("vectors", metavar="RUN")
@output_file
def epochs(vectors: str, output: str, options: RunOptions) -> None:
    """Plot the mean loss per epoch of RUN, the folder of `swivel run` or `swivel train`."""
    draw(output, [vectors], lambda: plots.plot_epochs(_open_run(vectors).facts.get("losses", ())))


@plot.command(cls=Command, short_help="Accuracy of analogies against frequency.")
@click.argument("vectors", nargs=-1, required=True, metavar="VECTORS...")
@output_file
@click.option("--data", metavar="DIR", help="folder of test sets  [default: the paper's eight, from the cache]")
@click.option("--differences", is_flag=True, help="draw the first minus each other one, bucket by bucket")
def frequency(vectors: tuple[str, ...], output: str, data: str | None, differences: bool, options: RunOptions) -> None:
    """Plot the accuracy of analogies against the mean frequency of their words, one curve per VECTORS or NAME=VECTORS.

    VECTORS: folders, or text files of other tools. Frequencies are the counts of the first folder's vocabulary.
    """

    def make() -> Any:
        if differences and len(vectors) < 2:
            raise ConfigError("--differences compares the first VECTORS with others: name two or more")
        models = _open_named(vectors)
        counts = next((each.vocabulary for each in models.values() if each.vocabulary.counts.any()), None)
        if counts is None:
            raise ConfigError("text files do not say how frequent words are: name a folder of Swivel's, too")

        answers = {}
        for name, each in models.items():
            results = evaluation.evaluate(each, data, draws=0, progress=options.progress).results
            answers[name] = [result for result in results if result.kind == "analogies"]
        curves, gaps = plots.make_curves(answers, counts)
        return plots.plot_differences(gaps, next(iter(models))) if differences else plots.plot_frequency(curves)

    draw(output, [path for _, path in map(split_name, vectors)], make, data)


def _open_named(texts: tuple[str, ...]) -> dict[str, Vectors]:
    """Return vectors by name, each given as PATH or NAME=PATH; names must differ."""
    pairs = [split_name(text) for text in texts]
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"several VECTORS are called {name!r}: give each a name of its own, as NAME=VECTORS")
    return {name: open_vectors(path) for name, path in pairs}


def split_name(text: str) -> tuple[str, str]:
    """Return name and path of NAME=PATH; the name of a path alone is its last part, or the name of its run.

    >>> split_name("ours=work/vectors"), split_name("work/vectors"), split_name("glove.txt")
    (('ours', 'work/vectors'), ('work', 'work/vectors'), ('glove', 'glove.txt'))
    """
    name, sign, path = text.partition("=")
    # A path may contain =, so that only what cannot be a path is a name.
    if sign and name and "/" not in name:
        return name, path
    place = Path(text)
    return (place.parent.name or place.stem) if place.name == "vectors" else place.stem, text


def _open_run(vectors: str) -> Vectors:
    path = find_vectors(vectors)
    if not path.is_dir():
        raise StorageError(f"{vectors}: a file says nothing of its training; open the folder that training wrote")
    return Vectors.load(path)
