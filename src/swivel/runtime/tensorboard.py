"""The curves of a run for TensorBoard, written while it trains.

Receives the events of a run, hands them on, and puts what is measured into event files. The extra `tensorboard` is
needed; it is the one room whose files another library opens, since nobody else knows their format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swivel.errors import clear_errors, missing_extra
from swivel.runtime.progress import SILENT, ForwardingProgress, Progress, Task


class TensorboardProgress(ForwardingProgress):
    """Hands events on and writes the curves into a folder that `tensorboard --logdir` shows.

    Parameters
    ----------
    folder
        Where the event files go; a run that goes on adds one.
    progress
        Who else hears of the run: the command line's bars, say.

    Raises
    ------
    MissingExtra
        The package tensorboard is not installed.

    Examples
    --------
    >>> import swivel, tempfile
    >>> matrix = swivel.count(["tea milk", "milk sugar"], min_count=1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     options = swivel.RunOptions(progress=TensorboardProgress(folder))
    ...     vectors = swivel.train(matrix, dim=2, epochs=2, options=options)
    ...     len(list(Path(folder).glob("events.*")))
    1
    """

    def __init__(self, folder: str | Path, progress: Progress = SILENT) -> None:
        super().__init__(progress)
        self.folder = Path(folder)
        self._make_writer = _need_writer()  # A missing library is told now, not after the text has been counted.
        self._writer: Any = None

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Write the points of a step."""
        with clear_errors(self.folder):
            if self._writer is None:
                self._writer = self._make_writer(log_dir=str(self.folder))
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
        super().measure(step, values)

    def end(self, task: Task) -> None:
        """Close the file with the job that was measured."""
        if self._writer is not None:
            with clear_errors(self.folder):
                self._writer.close()
            self._writer = None
        super().end(task)


def _need_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("curves for TensorBoard", "tensorboard", "tensorboard") from error
    return SummaryWriter
