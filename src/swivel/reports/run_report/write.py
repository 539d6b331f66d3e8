"""Write the report of a run to a file. An error in the report does not make a finished run fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from swivel.counts import Matrix
from swivel.errors import MissingExtra
from swivel.reports.document import write_html
from swivel.reports.plots import draw_figure, plot_epochs, plot_fit, plot_norms
from swivel.reports.run_report.collect import RunSummary, look_at_run
from swivel.reports.run_report.compose import compose_run
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Stopwatch
from swivel.runtime.resources import find_rank
from swivel.storage import write_file

REPORT = "report.html"


def write_report(
    vectors: str | Path, matrix: Matrix, out: str | Path, seconds: Mapping[str, float] | None = None
) -> RunSummary:
    """Write the report of a finished run as an HTML page.

    Parameters
    ----------
    vectors : str or Path
        The folder written by training.
    matrix : Matrix
        The matrix that the vectors were trained on.
    out : str or Path
        The file to write.
    seconds : mapping of str to float, optional
        Seconds of each stage that ran in this call, by name; `total` for all of them.

    Returns
    -------
    RunSummary
        The numbers in the report.

    Examples
    --------
    >>> import swivel, tempfile
    >>> matrix = swivel.count(["tea milk", "milk sugar", "tea sugar"], min_count=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vectors = swivel.train(matrix, Path(folder) / "vectors", dim=2, epochs=2)
    ...     run = write_report(Path(folder) / "vectors", matrix, Path(folder) / "report.html")
    >>> len(run.epochs), run.shape[0]
    (2, 3)
    """
    run = look_at_run(Path(vectors), matrix, seconds)
    write_file(Path(out), write_html(compose_run(run, draw_run(run))).encode())
    return run


def draw_run(run: RunSummary) -> dict[str, bytes]:
    """Return the figures of a run as SVG, by name; an empty dictionary if matplotlib is not installed."""
    drawers: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "epochs": (plot_epochs, run.epochs),
        "norms": (plot_norms, run.norms),
        "fit": (plot_fit, run.fit),
    }

    try:
        return {name: draw_figure(draw(numbers), "svg") for name, (draw, numbers) in drawers.items() if numbers}
    except MissingExtra:
        return {}


def write_run_report(folder: Path, matrix: Matrix, out: Path, watch: Stopwatch, options: RunOptions) -> None:
    """Write `out/report.html` after training, or if it is missing, when `options.report` is set.

    An error is reported as a progress message and not raised.
    """
    rank = find_rank()
    is_leader = rank is None or rank[0] == 0
    if not options.report or not is_leader:
        return

    was_trained = "training" in watch.seconds
    if not was_trained and (out / REPORT).exists():
        return
    seconds = {**watch.seconds, "total": watch.total} if was_trained else None

    try:
        write_report(folder, matrix, out / REPORT, seconds)
    except Exception as error:  # The vectors are finished; a failed report must not make the run fail.
        options.progress.message(f"no report: {type(error).__name__}: {error}")
        return
    options.progress.message(f"the report: {out / REPORT}")
