"""The report of a run, which is computed while vectors are combined and written."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Stopwatch
from swivel.runtime.resources import is_leading

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.reports.run_report import ReportDraft, TrainingDraft
    from swivel.storage import Manifest
    from swivel.vectors import Vectors


Result = TypeVar("Result")


class ReportJob:
    """Writes `report.html` of a folder `out`, if the options ask for it and there is a folder."""

    def __init__(self, matrix: Matrix, out: Path | None, watch: Stopwatch, options: RunOptions) -> None:
        self.matrix = matrix
        self.out = out
        self.watch = watch
        self.options = options
        self._training: Future[TrainingDraft] | None = None
        self._draft: Future[ReportDraft] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether this process writes a report."""
        return self.options.report and self.out is not None and is_leading()

    def prepare(self) -> None:
        """Import what draws the report in the background."""
        if self.is_wanted:
            threading.Thread(target=_import_report, daemon=True).start()

    def begin_training(self, vectors: Vectors, manifest: Manifest) -> None:
        """Compute what the report says of trained rows and columns, in the background, before they are combined."""
        if self.is_wanted:
            self._training = self._start(lambda reports: reports.draft_training(vectors, self.matrix, manifest))

    def begin(self, vectors: Vectors, folder: Path, manifest: Manifest) -> None:
        """Compute the rest of the report in the background, for vectors that are being written to `folder`."""
        if self.is_wanted:
            training = self._training
            assert training is not None  # `begin_training` comes first
            self._draft = self._start(
                lambda reports: reports.draft_report(vectors, self.matrix, folder, manifest, training.result())
            )

    def _start(self, compute: Callable[[Any], Result]) -> Future[Result]:
        """Start a thread that calls a function with the module of reports; return its result to come."""
        result: Future[Result] = Future()

        def run() -> None:
            try:
                from swivel.reports import run_report

                result.set_result(compute(run_report))
            except Exception as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return result

    def write(self, vectors: Vectors) -> None:
        """Write the page, now that the vectors are complete; an error becomes a message."""
        if self.is_wanted:
            from swivel.reports.run_report import write_run_report

            write_run_report(vectors, self.matrix, self.out, self.watch, self.options, self._draft)


def _import_report() -> None:
    with contextlib.suppress(Exception):  # `write` says what is wrong.
        from swivel.reports import run_report  # noqa: F401
        from swivel.reports.plots.style import need_matplotlib

        need_matplotlib()
