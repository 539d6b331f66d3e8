"""The report of a run, which is computed while vectors are written."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swivel.errors import first_line
from swivel.runtime.child_process import ChildCall, ChildProcess, ProcessEnded
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Stopwatch
from swivel.runtime.resources import is_leading
from swivel.storage.files import write_file
from swivel.storage.manifest import MANIFEST
from swivel.storage.output_folder import refuse_foreign

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.reports.run_report import RunSummary, Svgs
    from swivel.vectors import Vectors

REPORT = "report.html"


class ReportJob:
    """Writes `report.html` of a folder `out`, if the options ask for it and there is a folder."""

    def __init__(self, out: Path | None, options: RunOptions) -> None:
        self.out = out
        self.watch = Stopwatch(options.progress)
        self.options = dataclasses.replace(options, progress=self.watch)  # the run options, with times for the report
        self._stack = contextlib.ExitStack()
        self._process: ChildProcess | None = None  # draws the figures
        self._imported: ChildCall[None] | None = None
        self._draft: Future[tuple[RunSummary, Svgs]] | None = None  # the page without the times of the stages

    def __enter__(self) -> ReportJob:
        check_report(self.out, self.options)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def is_wanted(self) -> bool:
        """Whether this process writes a report."""
        return self.options.report and self.out is not None and is_leading()

    def prepare(self, *, in_process: bool) -> None:
        """Import what draws the figures in the background: in another process, or in a thread."""
        if not self.is_wanted:
            return

        # A process needs more memory, but importing and drawing in a thread would delay a training of a few seconds.
        if in_process:
            with contextlib.suppress(OSError):  # too many processes or files, or too little memory
                self._process = self._stack.enter_context(ChildProcess())
                self._imported = self._process.call(import_report)
                return
        threading.Thread(target=import_report, daemon=True).start()

    def begin(self, vectors: Vectors, matrix: Matrix, folder: Path | None) -> None:
        """Compute the report in the background, for vectors that are being written to `folder`."""
        if not self.is_wanted:
            return
        # A thread of a pool would keep a command that is interrupted waiting for it.
        draft: Future[tuple[RunSummary, Svgs]] = Future()
        self._draft = draft

        def run() -> None:
            try:
                from swivel.reports.run_report import summarize_run

                summary = summarize_run(vectors, matrix, folder)
                draft.set_result((summary, self._draw(summary.map, summary.epochs)))
            except Exception as error:
                draft.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def _draw(self, *numbers: Any) -> Svgs:
        """Return figures, drawn by the other process if there is one and it has not ended."""
        from swivel.reports.run_report import draw_figures

        # If the process was killed, as when memory ran out, the figures are drawn here.
        with contextlib.suppress(ProcessEnded):
            if self._process is not None and self._imported is not None:
                self._imported.wait(SILENT)
                return self._process.call(draw_figures, *numbers).wait(SILENT)
        return draw_figures(*numbers)

    def write(self, vectors: Vectors, matrix: Matrix) -> None:
        """Write the page, now that the vectors are complete; an error becomes a message."""
        if not self.is_wanted or self.out is None:
            return

        # A finished run that is called again has its page already; one that was removed is written again.
        page = self.out / REPORT
        seconds = {**self.watch.seconds, "total": self.watch.total} if "training" in self.watch.seconds else {}
        if not seconds and page.exists():
            return
        if self._draft is None:
            self.begin(vectors, matrix, vectors.path)
        assert self._draft is not None

        try:
            from swivel.reports.run_report import compose_run

            write_file(page, compose_run(*self._draft.result(), seconds).encode())
        except Exception as error:  # The vectors are finished; a failed report must not make the run fail.
            self.options.progress.message(f"no report: {first_line(error)}")
        else:
            self.options.progress.message(f"the report: {page}")


def check_report(out: Path | None, options: RunOptions) -> None:
    """Raise FolderExists if the report of a run would replace a page that Swivel did not write."""
    if not options.report or options.overwrite or out is None:
        return
    # A finished run writes no report beside one that is there.
    if not any((out / name / MANIFEST).exists() for name in ("", "vectors")):
        refuse_foreign(out, "report")


def import_report() -> None:
    """Import the modules that draw figures, so that they need not be waited for later."""
    with contextlib.suppress(Exception):  # Drawing says what is wrong.
        from swivel.reports import run_report  # noqa: F401
        from swivel.reports.plots import need_matplotlib

        need_matplotlib()
