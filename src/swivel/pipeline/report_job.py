"""The report of a training, `report.html`: computed while vectors are written, composed when they are complete."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swivel.counts import Matrix
from swivel.errors import ConfigError, first_line
from swivel.runtime.child_process import ChildCall, ChildProcess, ProcessEnded, can_start_processes
from swivel.runtime.options import RunOptions
from swivel.runtime.progress import SILENT, Stopwatch
from swivel.runtime.resources import is_leading, may_use_cuda
from swivel.storage.files import write_file
from swivel.storage.manifest import MANIFEST
from swivel.storage.output_folder import refuse_foreign
from swivel.vectors import Vectors
from swivel.vectors.projection import MIN_UMAP, compute_umap

if TYPE_CHECKING:
    from swivel.reports.run_report import RunSummary, Svgs

REPORT = "report.html"


def timed_options(folder: Path | None, options: RunOptions) -> RunOptions:
    """Return the options of a job with a report in `folder`: their progress is a stopwatch, which starts now.

    Raises FolderExists if the report would replace a page that Swivel did not write.
    """
    if folder is None and options.report:
        raise ConfigError("a report is a file: pass out, the folder of the result", argument=("report", "out"))
    if folder is not None and options.report and not options.overwrite:
        # A finished run writes no report beside one that is there.
        is_finished = any((folder / name / MANIFEST).exists() for name in ("", "vectors"))
        if not is_finished:
            refuse_foreign(folder, "report")
    return dataclasses.replace(options, progress=Stopwatch(options.progress))


class ReportJob:
    """Writes the report of vectors to a folder, if there is one and the options, timed ones, ask for it."""

    def __init__(self, folder: Path | None, path: Path | None, matrix: Matrix, options: RunOptions) -> None:
        self.path = path  # of the vectors
        self.matrix = matrix
        self.options = options
        self.page = folder / REPORT if folder is not None and options.report and is_leading() else None
        self._stack = contextlib.ExitStack()
        self._process: ChildProcess | None = None  # draws the figures
        self._imported: ChildCall[None] | None = None
        self._draft: Future[tuple[RunSummary, Svgs]] | None = None  # the page without the times of the stages

    def prepare(self, device: str) -> contextlib.ExitStack:
        """Import what draws the figures in the background, for a training on this device; a context ends it."""
        # A process needs more memory, but importing and drawing in a thread would delay a training of a few seconds.
        if self.page is not None and may_use_cuda(device) and can_start_processes():
            with contextlib.suppress(OSError):  # too many processes or files, or too little memory
                self._process = self._stack.enter_context(ChildProcess())
                self._imported = self._process.call(prepare_to_draw)
        elif self.page is not None:
            threading.Thread(target=import_report, daemon=True).start()
        return self._stack

    def begin(self, vectors: Vectors) -> None:
        """Compute the report in the background, for vectors that are being written."""
        if self.page is None:
            return
        # A thread of a pool would keep a command that is interrupted waiting for it.
        draft: Future[tuple[RunSummary, Svgs]] = Future()
        self._draft = draft

        def run() -> None:
            try:
                from swivel.reports.run_report import choose_map, summarize_run

                draw = self._start_drawing(*choose_map(vectors), vectors.facts.get("losses", []))
                summary = summarize_run(vectors, self.matrix, self.path)
                draft.set_result((summary, draw()))
            except Exception as error:
                draft.set_exception(error)

        threading.Thread(target=run, daemon=True).start()

    def _start_drawing(self, *numbers: Any) -> Callable[[], Svgs]:
        """Start to draw the figures in the other process, if there is one; return a function that waits for them."""
        from swivel.reports.run_report import draw_figures

        call: ChildCall[Svgs] | None = None
        with contextlib.suppress(ProcessEnded):
            if self._process is not None and self._imported is not None:
                self._imported.wait(SILENT)
                call = self._process.call(draw_figures, *numbers)

        def finish() -> Svgs:
            # If the process was killed, as when memory ran out, the figures are drawn here.
            with contextlib.suppress(ProcessEnded):
                if call is not None:
                    return call.wait(SILENT)
            return draw_figures(*numbers)

        return finish

    def write(self, vectors: Vectors) -> None:
        """Write the page, now that the vectors are complete; an error becomes a message."""
        if self.page is None:
            return

        # A finished run that is called again has its page already; one that was removed is written again.
        watch = self.options.progress
        assert isinstance(watch, Stopwatch)
        seconds = {**watch.seconds, "total": watch.total} if "training" in watch.seconds else {}
        if not seconds and self.page.exists():
            return
        if self._draft is None:
            self.begin(vectors)
        assert self._draft is not None

        try:
            from swivel.reports.run_report import compose_run

            write_file(self.page, compose_run(*self._draft.result(), seconds).encode())
        except Exception as error:  # The vectors are finished; a failed report must not make the run fail.
            watch.message(f"no report: {first_line(error)}")
        else:
            watch.message(f"the report: {self.page}")


def prepare_to_draw() -> None:
    """Import the modules that draw figures, and load the kernels that lay out a map."""
    import_report()
    with contextlib.suppress(Exception):
        compute_umap(np.eye(MIN_UMAP, 2, dtype=np.float32))


def import_report() -> None:
    """Import the modules that draw figures, so that they need not be waited for later."""
    with contextlib.suppress(Exception):  # Drawing says what is wrong.
        from swivel.reports import run_report  # noqa: F401
        from swivel.reports.plots import need_matplotlib

        need_matplotlib()
