"""The file of a run's report, and the rule that it never costs anyone a run."""

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
    """Write the page of a finished run and return what is on it.

    Parameters
    ----------
    vectors
        The folder that training wrote.
    matrix
        What it was trained on.
    out
        The file to write.
    seconds
        Of the stages that ran, by name; `total` is that of all.

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
    """Return the figures of a run as SVG by name; none without matplotlib."""
    drawers: dict[str, tuple[Callable[[Any], Any], Sequence[Any]]] = {
        "epochs": (plot_epochs, run.epochs),
        "norms": (plot_norms, run.norms),
        "fit": (plot_fit, run.fit),
    }
    try:
        return {name: draw_figure(draw(numbers), "svg") for name, (draw, numbers) in drawers.items() if numbers}
    except MissingExtra:
        return {}


def leave_report(folder: Path, matrix: Matrix, out: Path, watch: Stopwatch, options: RunOptions) -> None:
    """Write `out/report.html` where it is wanted, and fresh or missing; what goes wrong is said, not raised."""
    rank = find_rank()
    if not options.report or (rank is not None and rank[0] != 0):
        return
    was_trained = "training" in watch.seconds
    if not was_trained and (out / REPORT).exists():
        return
    try:
        write_report(folder, matrix, out / REPORT, {**watch.seconds, "total": watch.total} if was_trained else None)
    except Exception as error:  # Vectors are finished: a page about them is no reason to fail.
        options.progress.message(f"no report: {type(error).__name__}: {error}")
        return
    options.progress.message(f"the report: {out / REPORT}")
