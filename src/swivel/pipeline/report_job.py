"""The report of a run, which is computed while the vectors are written."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from swivel.runtime.options import RunOptions
from swivel.runtime.progress import Stopwatch
from swivel.runtime.resources import is_leading

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.reports.run_report import ReportDraft
    from swivel.storage import Manifest
    from swivel.vectors import Vectors


class ReportJob:
    """Writes `report.html` of a folder `out`, if the options ask for it and there is a folder."""

    def __init__(self, matrix: Matrix, out: Path | None, watch: Stopwatch, options: RunOptions) -> None:
        self.matrix = matrix
        self.out = out
        self.watch = watch
        self.options = options
        self._draft: Future[ReportDraft] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether this process writes a report."""
        return self.options.report and self.out is not None and is_leading()

    def prepare(self) -> None:
        """Import what draws the report in the background."""
        if self.is_wanted:
            threading.Thread(target=_import_report, daemon=True).start()

    def begin(self, vectors: Vectors, folder: Path, manifest: Manifest) -> None:
        """Compute the report in the background, for vectors that are being written to `folder`."""
        if self.is_wanted:
            self._draft = Future()
            threading.Thread(target=self._compute, args=(self._draft, vectors, folder, manifest), daemon=True).start()

    def _compute(self, draft: Future[ReportDraft], vectors: Vectors, folder: Path, manifest: Manifest) -> None:
        try:
            from swivel.reports.run_report import draft_report

            draft.set_result(draft_report(vectors, self.matrix, folder, manifest))
        except Exception as error:
            draft.set_exception(error)

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
