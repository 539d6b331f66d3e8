"""The report of a run, which is computed while vectors are combined and written."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from swivel.runtime.child_process import ChildCall, ChildProcess, ProcessEnded
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Stopwatch
from swivel.runtime.resources import is_leading
from swivel.storage.manifest import MANIFEST
from swivel.storage.overlap import refuse_foreign

if TYPE_CHECKING:
    from swivel.counts import Matrix
    from swivel.reports.run_report import Plots, ReportDraft, Svgs, TrainingDraft
    from swivel.vectors import Vectors

Result = TypeVar("Result")


class ReportJob:
    """Writes `report.html` of a folder `out`, if the options ask for it and there is a folder."""

    def __init__(self, out: Path | None, options: RunOptions) -> None:
        self.out = out
        self.watch = Stopwatch(options.progress)
        self.options = dataclasses.replace(options, progress=self.watch)  # the run options, with times for the report
        self._stack = contextlib.ExitStack()
        self._process: ChildProcess | None = None  # draws the figures
        self._imported: ChildCall[None] | None = None
        self._drawing = threading.Lock()  # matplotlib's settings belong to a process, so it draws one at a time.
        self._training: Future[TrainingDraft] | None = None
        self._draft: Future[ReportDraft] | None = None

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

    def begin_training(self, vectors: Vectors, matrix: Matrix) -> None:
        """Compute what the report says of trained rows and columns, in the background, before they are combined."""
        if self.is_wanted:

            def draft() -> TrainingDraft:
                from swivel.reports.run_report import draft_training

                return draft_training(vectors, matrix, self._draw)

            self._training = self._start(draft)

    def begin(self, vectors: Vectors, matrix: Matrix, folder: Path) -> None:
        """Compute the rest of the report in the background, for vectors that are being written to `folder`."""
        if self.is_wanted:
            training = self._training
            assert training is not None  # `begin_training` comes first

            def draft() -> ReportDraft:
                from swivel.reports.run_report import draft_report

                return draft_report(vectors, matrix, folder, training, self._draw)

            self._draft = self._start(draft)

    def _start(self, compute: Callable[[], Result]) -> Future[Result]:
        # A thread of a pool would keep a command that is interrupted waiting for it.
        result: Future[Result] = Future()

        def run() -> None:
            try:
                result.set_result(compute())
            except Exception as error:
                result.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return result

    def _draw(self, plots: Plots) -> Svgs:
        """Return figures, drawn by the other process if there is one and it has not ended."""
        from swivel.reports.run_report import draw_figures

        # If the process was killed, as when memory ran out, the figures are drawn here.
        with self._drawing:
            with contextlib.suppress(ProcessEnded):
                if self._imported is not None:
                    self._imported.wait(SILENT)
                    self._imported = None
                if self._process is not None:
                    return self._process.call(draw_figures, plots).wait(SILENT)
            return draw_figures(plots)

    def write(self, vectors: Vectors, matrix: Matrix) -> None:
        """Write the page, now that the vectors are complete; an error becomes a message."""
        if self.is_wanted:
            from swivel.reports.run_report import write_run_report

            write_run_report(vectors, matrix, self.out, self.watch, self.options, self._draft)


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
        from swivel.reports.plots.style import need_matplotlib

        need_matplotlib()
