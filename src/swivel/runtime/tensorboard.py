"""Training curves for TensorBoard, written during the run.

The extra `tensorboard` is required. These event files are the only files that are not written by `swivel.storage`,
because only the TensorBoard library knows their format.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from swivel.errors import clear_errors, missing_extra
from swivel.runtime.progress import SILENT, ForwardingProgress, Progress, Task


class TensorboardProgress(ForwardingProgress):
    """Progress that writes measured values to a folder for `tensorboard --logdir`.

    Parameters
    ----------
    folder
        Folder of the event files. A resumed run adds a file.
    progress
        Another receiver of all events, such as the progress bars of the command line.

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
        self._make_writer = _load_writer()  # Fail now if the library is missing, not after the text was counted.
        self._writer: Any = None

    def measure(self, step: int, values: Mapping[str, float]) -> None:
        """Write values measured at a step."""
        with clear_errors(self.folder):
            if self._writer is None:
                self._writer = self._make_writer(log_dir=str(self.folder))

            for name, value in values.items():
                self._writer.add_scalar(name, value, step)

        super().measure(step, values)

    def end(self, task: Task) -> None:
        """Close the event file at the end of the task that was measured."""
        if self._writer is not None:
            with clear_errors(self.folder):
                self._writer.close()
            self._writer = None

        super().end(task)


def _load_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise missing_extra("curves for TensorBoard", "tensorboard", "tensorboard") from error
    return SummaryWriter
