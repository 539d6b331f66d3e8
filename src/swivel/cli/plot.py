"""`swivel plot epochs`, `norms` and `fit`: figures of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from swivel.cli.main import open_vectors
from swivel.cli.options import Command, output_options
from swivel.cli.reproduce import output_file, plot, report_figure
from swivel.errors import ConfigError, StorageError

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.storage import Manifest

vectors_argument = click.argument("vectors", metavar="RUN")


@plot.command(cls=Command, short_help="A run's losses, pass by pass.")
@vectors_argument
@output_file
@output_options
def epochs(vectors: str, output: str, **rest: Any) -> None:
    """Plot the mean loss per epoch of RUN, the folder of `swivel run` or `swivel train`."""
    from swivel.reports import plots
    from swivel.reports import run_report as reporting

    _draw(lambda: plots.plot_epochs(reporting.find_epochs(_manifest_of(vectors))), output, rest)


@plot.command(cls=Command, short_help="Lengths of vectors against frequency.")
@vectors_argument
@output_file
@output_options
def norms(vectors: str, output: str, **rest: Any) -> None:
    """Plot the norms of the vectors of RUN against the frequency of their words."""
    from swivel.reports import plots
    from swivel.reports import run_report as reporting

    _draw(lambda: plots.plot_norms(reporting.find_norms(open_vectors(vectors))), output, rest)


@plot.command(cls=Command, short_help="Loss of observed cells by frequency.")
@vectors_argument
@click.option("--matrix", metavar="DIR", help="counts that RUN was trained on  [default: those of the same run]")
@output_file
@output_options
def fit(vectors: str, matrix: str | None, output: str, **rest: Any) -> None:
    """Plot the mean loss and the error of the observed cells of RUN against the frequency of their rows."""
    from swivel.reports import plots
    from swivel.reports import run_report as reporting
    from swivel.reports.run_report.collect import read_objective

    def make() -> Any:
        manifest = _manifest_of(vectors)
        counts = _matrix_of(vectors, matrix, manifest)
        return plots.plot_fit(reporting.find_fit(open_vectors(vectors), counts, read_objective(manifest)))

    _draw(make, output, rest)


def _draw(make: Callable[[], Any], output: str, rest: dict[str, Any]) -> None:
    """Draw a figure into a file; the file name is checked before anything is computed."""
    from swivel.reports import plots

    plots.style.check_format(Path(output))
    plots.save_figure(make(), output)
    report_figure(output, rest)


def _manifest_of(vectors: str) -> Manifest:
    from swivel.storage import read_manifest
    from swivel.vectors.formats.reader import find_vectors

    found = find_vectors(vectors)
    if not found.is_dir():
        raise StorageError(f"{vectors}: a file says nothing of its training; open the folder that training wrote")
    return read_manifest(found)


def _matrix_of(vectors: str, matrix: str | None, manifest: Manifest) -> Matrix:
    """Return the matrix that vectors were trained on: the given one, or the one beside the vectors."""
    from swivel.counts import open_matrix
    from swivel.vectors.formats.reader import find_vectors

    found = open_matrix(matrix or find_vectors(vectors).parent / "matrix")
    recorded = manifest.inputs.get("matrix")
    if recorded:
        is_same = found.fingerprint == recorded
    else:  # Vectors saved by `Vectors.save` have no record of their matrix, so their words are compared.
        is_same = found.rows.tokens == open_vectors(vectors).vocabulary.tokens
    if not is_same:
        raise ConfigError(f"{found.path}: not the matrix that {vectors} was trained on; name that one with --matrix")
    return found
